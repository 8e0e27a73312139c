"""Reads a table of distances from one member of the region's pool, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from mesh.distance.prefix_table_core import PrefixTable
from mesh.gossip.agent_answers import QueryReport
from mesh.gossip.distance_pages_core import PagesRead, question
from mesh.gossip.query_core import names_filter

ANSWER_WAIT_S: Final = 1.0  # a query reaches a region's members within three gossip rounds of 0.2 s


class AskedPool(Protocol):
    """What is used of mesh.gossip.pools.Pool."""

    async def query(
        self, name: str, payload: bytes = b"", *, filters: Sequence[bytes] = (), timeout_s: float = 0.0
    ) -> QueryReport:
        """Ask members; returns at the deadline."""


async def read_table(pool: AskedPool, member: str, query: str, *, region: str = "") -> PrefixTable | None:
    """Return the table that a member of the pool has, of `region` or of its own; None: it did not answer to the end.

    Raises:
        PrefixTableFault: what it answers is no table.
    """
    pages = PagesRead()
    while not pages.is_over:
        asked = question(pages.after, region)
        report = await pool.query(query, asked, filters=[names_filter([member])], timeout_s=ANSWER_WAIT_S)
        page = report.answers.get(member)
        if page is None:
            return None
        pages.take(page)
    return pages.table()
