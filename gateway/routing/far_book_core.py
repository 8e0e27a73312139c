"""What gateways of other regions measured of prefixes, and what this one tells them of its own clients. Pure, bounded.

Rule 1: only a gateway that is in its region says how far prefixes are from it.
Rule 2: what others say never counts above what this gateway's kernel saw or the client observed itself, and only
        within the triangle of client, gateway and region (distance_core).
Rule 3: a table that is not renewed grows old, and is gone after an hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gateway.routing.client_book_core import ClientBook
from gateway.routing.distance_core import NEAR_MS, Leg
from mesh.distance.prefix_core import prefix_of
from mesh.distance.prefix_table_core import EXPIRY_MIN, PrefixDistance, PrefixTable

REGIONS_MAX: Final = 64
MINUTE_S: Final = 60.0


class FarBook:
    """Prefix tables by region. `own`: of this gateway, as it was put together last."""

    def __init__(self) -> None:
        self.own = PrefixTable()
        self._far: dict[str, tuple[PrefixTable, float]] = {}  # (as it came, when)

    def took(self, region: str, table: PrefixTable, now_s: float) -> None:
        """Take in what gateways of a region say now, in place of what they said before."""
        self._far.pop(region, None)
        if len(table):
            self._far[region] = (table, now_s)
        while len(self._far) > REGIONS_MAX:
            del self._far[next(iter(self._far))]

    def of(self, address: str, now_s: float) -> dict[str, PrefixDistance]:
        """Return how far the prefix of an address is from each region that says so."""
        prefix = prefix_of(address) if self._far else None
        if prefix is None:
            return {}
        found = {}
        for region, (table, taken_s) in self._far.items():
            row = table.find(prefix)
            age_min = 0 if row is None else row.age_min + int((now_s - taken_s) / MINUTE_S)
            if row is not None and age_min < EXPIRY_MIN:
                found[region] = replace(row, age_min=age_min)
        return found

    def counts(self) -> dict[str, int]:
        """Return how many prefixes each region tells of."""
        return {region: len(table) for region, (table, _) in self._far.items()}


def own_rows(book: ClientBook, leg: Leg | None, now_s: float) -> Iterator[PrefixDistance]:
    """Yield what this gateway measured of its prefixes, those heard of last first; nothing where rule 1 forbids it.

    Args:
        leg: from this gateway to its region.
    """
    if leg is None or not leg.is_measured or leg.rtt_ms > NEAR_MS:
        return
    for prefix in book.prefixes():
        row = book.prefix_distance(prefix, now_s)
        if row is not None:
            yield row
