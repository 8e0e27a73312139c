"""Asks other brokers for their clocks, once per second and region, and answers theirs.

Rule 1: one broker of every other region is asked (its answer says how far its neighbours are from it), and up to
        OWN_PER_TICK of the own region, in turn. A link that is open anyway is preferred to a new one.
Rule 2: an answer counts only for the newest question to that broker; whatever else comes is dropped.
Rule 3: clocks are read where the parts are handed on: time that a part waits is round trip, and so in the bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from georelay.cadence import pause_s
from georelay.clock import Clock
from georelay.ids import BrokerId, RegionNumber
from mesh.clock.book_core import ClockBook
from mesh.clock.estimate import Exchange

PERIOD_S: Final = 1.0
OWN_PER_TICK: Final = 4

log = structlog.get_logger()


class ClockLinks(Protocol):
    """The links, as far as clocks need them (mesh.replication.mesh_links.MeshLinks)."""

    def brokers_of(self, region: RegionNumber) -> list[BrokerId]:
        """Return the other brokers of a region whose addresses are known."""

    def ask_clock(self, broker: BrokerId, t1_ns: int, *, dial: bool) -> bool:
        """Ask a broker for its clock; False where no link is open that understands it. `dial`: open one then."""


class HostClock(Protocol):
    """What the host knows of its own clock (mesh.clock.host_bound.KernelClock)."""

    def max_error_us(self) -> int | None:
        """Return how far it is from UTC at most, None unknown."""


class NoHostClock:
    """A clock that knows nothing of itself: injected clocks, which the kernel's word is not about."""

    def max_error_us(self) -> int | None:
        """Return None."""
        return None


class ClockExchanger:
    """The shell around a ClockBook.

    Args:
        book: where the exchanges go.
        regions: every region of the mesh, the own one included; asked each second.
        own: number of our region.
        clock: ours; injected, so that a test can set it wrong.
        host: says how far it is from UTC.
        on_exchange: hears every exchange that was taken (for the trace).
    """

    def __init__(
        self,
        book: ClockBook,
        *,
        links: ClockLinks,
        regions: Callable[[], Sequence[RegionNumber]],
        own: RegionNumber,
        clock: Clock,
        host: HostClock,
        on_exchange: Callable[[BrokerId, Exchange], None] = lambda _broker, _exchange: None,
    ) -> None:
        self._book = book
        self._links = links
        self._regions = regions
        self._own = own
        self._clock = clock
        self._host = host
        self._on_exchange = on_exchange
        self._asked: dict[BrokerId, tuple[int, int]] = {}  # (wall, monotonic) of the newest question
        self._favourite: dict[RegionNumber, BrokerId] = {}
        self._turns = 0
        self._steps_told = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Ask from now on, every second."""
        self._timer = asyncio.get_running_loop().call_later(pause_s(PERIOD_S), self._on_timer)
        self.tick()

    def stop(self) -> None:
        """Ask no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(pause_s(PERIOD_S), self._on_timer)
        self.tick()

    def tick(self) -> None:
        """Ask whoever is due."""
        neighbours = self._links.brokers_of(self._own)
        self._book.tick(wall_ns=self._clock.wall_ns(), monotonic_ns=self._clock.monotonic_ns(), own_region=neighbours)
        self._turns += 1
        for step in range(min(OWN_PER_TICK, len(neighbours))):
            self._ask(neighbours[(self._turns * OWN_PER_TICK + step) % len(neighbours)], dial=True)
        for region in self._regions():
            if region != self._own:
                self._ask_one_of(region)

    def _ask_one_of(self, region: RegionNumber) -> None:
        brokers = self._links.brokers_of(region)
        if not brokers:
            return
        favourite = self._favourite.get(region)
        if favourite is not None and self._ask(favourite, dial=False):
            return
        for broker in brokers:
            if self._ask(broker, dial=False):
                self._favourite[region] = broker
                return
        self._ask(brokers[self._turns % len(brokers)], dial=True)

    def _ask(self, broker: BrokerId, *, dial: bool) -> bool:
        stamp = (self._clock.wall_ns(), self._clock.monotonic_ns())
        if not self._links.ask_clock(broker, stamp[0], dial=dial):
            return False
        self._asked[broker] = stamp
        return True

    def answer(self, t1_ns: int) -> tuple[int, int, int, int, int]:
        """Return (t1, t2, t3, bound of our host us, spread of our region us) for a question of another broker."""
        t2_ns = self._clock.wall_ns()
        host_us = self._host.max_error_us()
        spread_us = self._book.spread_us()
        return t1_ns, t2_ns, self._clock.wall_ns(), -1 if host_us is None else host_us, spread_us

    def answered(
        self, broker: BrokerId, *, t1_ns: int, t2_ns: int, t3_ns: int, host_error_us: int, spread_us: int
    ) -> None:
        """Take the answer of a broker in."""
        t4_ns, monotonic4_ns = self._clock.wall_ns(), self._clock.monotonic_ns()
        asked = self._asked.get(broker)
        if asked is None or asked[0] != t1_ns:
            return  # of an older question, or of none
        del self._asked[broker]
        host_us = self._host.max_error_us()
        exchange = Exchange(
            t1_ns=t1_ns,
            t2_ns=t2_ns,
            t3_ns=t3_ns,
            t4_ns=t4_ns,
            monotonic1_ns=asked[1],
            monotonic4_ns=monotonic4_ns,
            host_error_us=-1 if host_us is None else host_us,
            peer_host_error_us=host_error_us,
            spread_us=spread_us,
        )
        if self._book.exchanged(broker, exchange):
            self._on_exchange(broker, exchange)
        else:
            log.warning("clock.answer_refused", broker=broker, delta_us=exchange.delta_ns // 1000)
        steps = self._book.steps
        if steps > self._steps_told:
            self._steps_told = steps
            log.warning("clock.stepped", broker=broker, theta_us=exchange.theta_ns // 1000, steps=steps)
