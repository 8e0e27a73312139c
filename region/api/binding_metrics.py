"""Bindings in /metrics: of the streams that this broker leads at their home. At most BINDINGS_MAX series."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from region.routing.router import Routing


class BindingMetrics(Collector):
    """Reads the copiers when it is scraped."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing

    def describe(self) -> list[Metric]:
        """Return nothing: the registry must not collect before the broker runs."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        behind = GaugeMetricFamily(
            "georelay_binding_behind_records", "Committed records that a binding has not looked at", labels=["binding"]
        )
        copied = CounterMetricFamily(
            "georelay_binding_copied_records", "Records copied by a binding", labels=["binding"]
        )
        for name, records_behind, records_copied in self._routing.state():
            behind.add_metric([name], records_behind)
            copied.add_metric([name], records_copied)
        yield from (behind, copied)
