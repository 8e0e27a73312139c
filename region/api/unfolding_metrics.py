"""The unfolding budget in /metrics: of the process, whatever the number of readers."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from region.api.unfolding import OVERDUE, UNREADABLE
from region.api.unfolding_memory import PROCESS_MEMORY, UnfoldingMemory


class UnfoldingMetrics(Collector):
    """Reads the budget when it is scraped."""

    def __init__(self, memory: UnfoldingMemory = PROCESS_MEMORY) -> None:
        self._memory = memory

    def describe(self) -> list[Metric]:
        """Return nothing: the families stand in docs/operate/metrics.md."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        yield GaugeMetricFamily(
            "georelay_unfolded_bytes", "Bytes of unfolded batches that readers hold", value=self._memory.used_bytes
        )
        yield CounterMetricFamily(
            "georelay_unfolding_waits", "Readers that waited for room to unfold a batch", value=self._memory.waits
        )
        yield CounterMetricFamily(
            "georelay_unfolding_drops", "Batches of slow readers dropped for others", value=self._memory.dropped
        )
        yield CounterMetricFamily(
            "georelay_unfolding_overdue",
            "Batches that were refused for what it took to unfold them",
            value=OVERDUE.count,
        )
        yield CounterMetricFamily(
            "georelay_unreadable_batches", "Batches that a reader could not read to their end", value=UNREADABLE.count
        )
