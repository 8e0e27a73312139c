"""Shares distances of prefixes with the gateways of other regions, through the pool of the own region.

Rule 1: what this gateway measured is put together every SHARE_EVERY_S, SLICE prefixes at a time: clients are answered
        in between. Brokers of the region ask for it (distance_pages_core).
Rule 2: one broker is asked for what other regions say, the same one by all gateways: it asks those regions for all.
Rule 3: what cannot be had changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, Protocol

import structlog

from gateway.routing.client_book_core import ClientBook
from gateway.routing.far_book_core import FarBook, own_rows
from gateway.routing.router import Router
from georelay.cadence import Recurring
from mesh.distance.prefix_table_core import ROWS_MAX, PrefixDistance, PrefixTable, PrefixTableFault
from mesh.gossip.directory_core import first_broker
from mesh.gossip.distance_pages_core import FAR_QUERY, answer
from mesh.gossip.distance_reading import AskedPool, read_table
from mesh.gossip.view import MemberView

SHARE_EVERY_S: Final = 60.0
SLICE: Final = 64

log = structlog.get_logger()


class SharingPool(AskedPool, Protocol):
    """What is used of mesh.gossip.pools.Pool."""

    def members(self) -> Sequence[MemberView]:
        """Return every member."""


class DistanceSharer(Recurring):
    """Args:
    far: what others say, changed by this. pool, region: of the gateway. mesh: whose brokers count.
    """

    def __init__(
        self, router: Router, book: ClientBook, far: FarBook, *, pool: SharingPool, region: str, mesh: str
    ) -> None:
        super().__init__("distance_sharer", every_s=SHARE_EVERY_S)
        self._router = router
        self._book = book
        self._far = far
        self._pool = pool
        self._region = region
        self._mesh = mesh

    def answer(self, payload: bytes) -> bytes | None:
        """Answer OWN_QUERY; called in the gossip thread, where the table is the finished one."""
        return answer(payload, lambda region: None if region else self._far.own)

    async def look(self) -> None:
        """Put the own table together, and ask for those of the other regions."""
        rows = own_rows(self._book, self._router.legs().get(self._region), self._router.now_s)
        self._far.own = PrefixTable.of(await _slowly(rows))
        teller = first_broker(self._pool.members(), mesh=self._mesh)
        if teller is None:
            return
        for region in self._router.seen():
            if region.name == self._region:
                continue
            try:
                table = await read_table(self._pool, teller, FAR_QUERY, region=region.name)
            except PrefixTableFault as error:
                log.warning("distances.refused", member=teller, region=region.name, reason=str(error))
                continue
            if table is not None:
                self._far.took(region.name, table, self._router.now_s)


async def _slowly(rows: Iterator[PrefixDistance]) -> list[PrefixDistance]:
    """Return the first rows of a table; others run in between."""
    found: list[PrefixDistance] = []
    while len(found) < ROWS_MAX:
        some = list(islice(rows, min(SLICE, ROWS_MAX - len(found))))
        if not some:
            break
        found += some
        await asyncio.sleep(0)
    return found
