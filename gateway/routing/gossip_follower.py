"""Follows the pool of the gateway's region: tells the routing which brokers there are, of all regions, at run time.

Rule 1: the pool says who is in the own region; for the others one of its brokers is asked (directory_core), another one
        each time, every ASK_EVERY_S and as soon as the own region changes.
Rule 2: gossip decides nothing: who is ready and how far is measured (prober, region_view_core).
Rule 3: a directory that cannot be had changes nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import structlog

from gateway.routing.endpoints import RegionEndpoints
from gateway.routing.known_brokers_core import KnownBrokers
from georelay.fields import FieldError
from georelay.ids import BrokerId
from mesh.gossip.agent_answers import QueryReport
from mesh.gossip.directory_core import DIRECTORY_QUERY, BrokerRow, decode_page, question, row_of
from mesh.gossip.query_core import names_filter
from mesh.gossip.view import MemberChange, MemberStatus, MemberView, OnMember

ASK_EVERY_S: Final = 5.0
ASK_SOON_S: Final = 0.5  # while no directory has come yet
ANSWER_WAIT_S: Final = 1.0  # a query reaches a region's members within three gossip rounds of 0.2 s
PAGES_MAX: Final = 128
SETTLE_S: Final = 5.0  # from the first broker on; without a directory by then, the own region must do

log = structlog.get_logger()

Apply = Callable[[Sequence[RegionEndpoints], Mapping[BrokerId, int]], None]


class AskedPool(Protocol):
    """What is used of mesh.gossip.pools.Pool."""

    def members(self) -> Sequence[MemberView]:
        """Return every member."""

    def subscribe(self, on_member: OnMember) -> None:
        """Call back for every change."""

    async def query(
        self, name: str, payload: bytes = b"", *, filters: Sequence[bytes] = (), timeout_s: float = 0.0
    ) -> QueryReport:
        """Ask members; returns at the deadline."""


class GossipFollower:
    """Args:
    pool: of the gateway's region. mesh: whose brokers count. known: what is known, changed by this.
    apply: told the regions and the estimated round trips, ns, whenever they may have changed.
    """

    def __init__(
        self,
        pool: AskedPool,
        *,
        mesh: str,
        known: KnownBrokers,
        apply: Apply,
        monotonic_s: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._pool = pool
        self._mesh = mesh
        self._known = known
        self._apply = apply
        self._monotonic_s = monotonic_s
        self._rng = rng
        self._asked = -1  # the broker that was asked last
        self._first_broker_s: float | None = None
        self._has_directory = False
        self._reasons: dict[BrokerId, str] = {}
        self._soon = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_settled(self) -> bool:
        """Return whether the other regions are known, as far as gossip can tell them for now."""
        if self._has_directory:
            return True
        return self._first_broker_s is not None and self._monotonic_s() - self._first_broker_s > SETTLE_S

    def start(self) -> None:
        """Follow from now on."""
        self._pool.subscribe(self._changed)
        self._look()
        self._task = asyncio.get_running_loop().create_task(self._ask_forever(), name="gossip-directory")
        self._task.add_done_callback(_ended)

    async def close(self) -> None:
        """Follow no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _changed(self, _change: MemberChange, _member: MemberView) -> None:
        self._look()
        self._soon.set()

    def _look(self) -> None:
        rows = [row for row in (row_of(member, mesh=self._mesh) for member in self._pool.members()) if row is not None]
        if rows and self._first_broker_s is None:
            self._first_broker_s = self._monotonic_s()
        self._known.pool_changed(rows, self._monotonic_s())
        self._tell()

    def _tell(self) -> None:
        self._apply(self._known.regions(), self._known.estimates_ns())
        for broker, reason in self._known.refused.items():
            if self._reasons.get(broker) != reason:
                log.warning("broker.refused", broker=broker, reason=reason)
        self._reasons = dict(self._known.refused)

    async def _ask_forever(self) -> None:
        while True:
            self._look()
            teller = self._next_teller()
            if teller is not None:
                await self._ask(*teller)
            period_s = ASK_EVERY_S if self._has_directory else ASK_SOON_S
            try:
                async with asyncio.timeout(period_s * (0.75 + 0.5 * self._rng.random())):
                    await self._soon.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(ASK_SOON_S)  # brokers come in swarms, and who has just come knows little
            self._soon.clear()

    def _next_teller(self) -> tuple[MemberView, BrokerRow] | None:
        """Return a living broker, each in turn; one that is not ready knows no less of where the others are."""
        found = []
        for member in self._pool.members():
            row = row_of(member, mesh=self._mesh) if member.status is MemberStatus.ALIVE else None
            if row is not None:
                found.append((member, row))
        found.sort(key=lambda pair: int(pair[1].broker))
        later = [pair for pair in found if pair[1].broker > self._asked]
        return next(iter(later or found), None)

    async def _ask(self, member: MemberView, row: BrokerRow) -> None:
        self._asked = int(row.broker)
        rows: list[BrokerRow] = []
        after = 0
        for _ in range(PAGES_MAX):
            report = await self._pool.query(
                DIRECTORY_QUERY, question(after), filters=[names_filter([member.name])], timeout_s=ANSWER_WAIT_S
            )
            raw = report.answers.get(member.name)
            if raw is None:
                log.debug("directory.not_answered", member=member.name)
                return
            try:
                page, following = decode_page(raw)
            except FieldError as error:
                log.warning("directory.refused", member=member.name, reason=str(error))
                return
            rows += page
            if following <= after:
                break
            after = following
        self._known.directory_told(rows, self._monotonic_s(), rtt_s=member.rtt_s)
        if not self._has_directory:
            log.info("directory.learned", member=member.name, brokers=len(rows))
        self._has_directory = True
        self._tell()


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("gossip_follower.failed", exc_info=task.exception())
