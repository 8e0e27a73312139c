"""Homes that move, in numbers, as this broker knows them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from region.broker.homes_room import HomesRoom

_MS_PER_S = 1000


class HomesCollector:
    """Reads HomesRoom when it is asked."""

    def __init__(self, homes: HomesRoom) -> None:
        self._homes = homes

    def describe(self) -> list[Metric]:
        """Return nothing: values are read only when they are asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        homes = self._homes
        yield GaugeMetricFamily(
            "georelay_home_lease_left_seconds",
            "For how long this broker may acknowledge at region level for topics that fail over; 0 without a lease.",
            value=homes.keeper.left_ms / _MS_PER_S,
        )
        yield GaugeMetricFamily(
            "georelay_home_isolated",
            "1 while mesh control has not answered this broker for 5 s.",
            value=float(homes.keeper.is_isolated()),
        )
        yield GaugeMetricFamily(
            "georelay_home_attempts",
            "Homes that are being moved, as this broker's replica of control's log says; 0 without one.",
            value=sum(1 for _ in homes.part.book.attempts()),
        )
