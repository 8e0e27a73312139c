"""One broker's lease: renewed at the leader of mesh control while topics of this region may be failed over.

Rule 1: it is counted from the time at which the renewal was sent; answers may be late, lost or out of order. Time that
        the host spends suspended counts: control goes on meanwhile (georelay.clock.elapsed_of).
Rule 2: a renewal is sent every 0.5 s, whatever became of those before; a few may be on their way at a time.
Rule 3: a lease that had ended is taken up again only when this region knows of every move that control had committed
        when it answered (mesh.home.lease_core, rule 6).
Rule 4: whoever has not heard from control for a while says so with its acknowledgements: `isolated`. It stops nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from georelay.cadence import pause_s
from georelay.clock import Clock, elapsed_of
from georelay.errors import GeorelayError
from georelay.fields import FieldError, Fields, JsonObject
from mesh.home.home_book_core import HomePosition
from mesh.home.lease_core import HELD_MS, RENEW_MS, BrokerLease
from region.controller.state_snapshot import read_position
from region.homes.ports import Control
from region.homes.tasks import OwnedTasks

log = structlog.get_logger()

LEASE_METHOD: Final = "home.lease"
HEAR_METHOD: Final = "home.hear"
HEAR_EVERY: Final = 4  # renewals' time; only to know whether this region is cut off
RENEWALS_IN_FLIGHT_MAX: Final = 4
ANSWER_TIMEOUT_S: Final = 2.0
ISOLATED_MS: Final = 5_000
KNOWN_POLL_S: Final = 0.01
_MS_PER_S: Final = 1_000
_NS_PER_MS: Final = 1_000_000


class LeaseKeeper:
    """Renews one broker's lease.

    Args:
        is_needed: whether a topic of the mesh may be failed over.
        is_there: whether there is mesh control, as far as this region knows.
        known: up to where this broker knows the homes of streams, and has told its streams.
        is_led: whether it knows a leader of its region; without one, asking is no sign of life of the region.
        policies: which failover policies this broker follows (region.homes.policies), "" when that is not known.
    """

    def __init__(
        self,
        *,
        control: Control,
        clock: Clock,
        is_needed: Callable[[], bool],
        is_there: Callable[[], bool],
        known: Callable[[], HomePosition],
        is_led: Callable[[], bool] = lambda: True,
        policies: Callable[[], str] = str,
    ) -> None:
        self._policies = policies
        self._control = control
        self._now_ns = elapsed_of(clock)
        self._is_needed = is_needed
        self._is_there = is_there
        self._known = known
        self._is_led = is_led
        self._lease = BrokerLease()
        self._in_flight = 0
        self._was_held = False
        self._heard_ns = self._now_ns()
        self._tasks = OwnedTasks()

    def holds(self) -> bool:
        """Return whether this broker may acknowledge, now, for streams whose home may be taken away."""
        return self._lease.holds(self._now_ns())

    @property
    def left_ms(self) -> int:
        """Return for how long it may, without a further answer."""
        return self._lease.left_ms(self._now_ns())

    def is_isolated(self) -> bool:
        """Return whether control has not answered for 5 s although it was asked."""
        return self._is_there() and self._now_ns() - self._heard_ns > ISOLATED_MS * _NS_PER_MS

    async def run(self) -> None:
        """Renew for ever."""
        turn = 0
        try:
            while True:
                turn += 1
                if not self._is_there():
                    self._heard_ns = self._now_ns()
                elif self._in_flight < RENEWALS_IN_FLIGHT_MAX and (self._is_needed() or turn % HEAR_EVERY == 0):
                    self._in_flight += 1
                    self._tasks.spawn(self._renew(is_lease=self._is_needed()), "home-lease")
                self._note_held()
                await asyncio.sleep(pause_s(RENEW_MS / _MS_PER_S))
        finally:
            self._tasks.cancel()

    async def _renew(self, *, is_lease: bool) -> None:
        sent_ns = self._now_ns()
        try:
            method = LEASE_METHOD if is_lease else HEAR_METHOD
            question: JsonObject = {} if self._is_led() else {"led": False}  # only said when it is not
            if is_lease and (policies := self._policies()):
                question["policies"] = policies
            answer = await self._control.call(method, question, timeout_s=ANSWER_TIMEOUT_S)
            self._heard_ns = max(self._heard_ns, sent_ns)
            if is_lease and (self.holds() or await self._is_known(answer, sent_ns=sent_ns)):
                self._lease.granted(sent_ns=sent_ns)
        except (GeorelayError, FieldError) as error:
            log.debug("home.lease_refused", reason=str(error))
        finally:
            self._in_flight -= 1

    async def _is_known(self, answer: JsonObject, *, sent_ns: int) -> bool:
        """Wait until this region knows of every move before the answer; False: not while the lease would last.

        Raises:
            FieldError: what the answer says is no position.
        """
        fields = Fields(answer, LEASE_METHOD)
        if not fields.has("known"):
            return True  # no home ever moved
        moves = read_position(fields.child("known"))
        ends_ns = sent_ns + HELD_MS * _NS_PER_MS
        while self._known() < moves:
            if self._now_ns() >= ends_ns:
                log.debug("home.lease_too_new", index=moves[0])
                return False
            await asyncio.sleep(KNOWN_POLL_S)
        return True

    def _note_held(self) -> None:
        held = self.holds()
        if held != self._was_held:
            log.info("home.lease_held" if held else "home.lease_lost")
        self._was_held = held
