"""Gauges and counters of what lies below the streams: flusher, event loop, memory."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from region.log.flusher import Flusher
from region.multiraft.host import Host
from region.topics.committed_tail import TailBudget


class StorageCollector(Collector):
    """Reads the parts when it is scraped; keeps nothing."""

    def __init__(self, *, flusher: Flusher, host: Host, budget: TailBudget) -> None:
        self._flusher = flusher
        self._host = host
        self._budget = budget

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        stats = self._flusher.stats
        yield CounterMetricFamily("georelay_log_cycles", "Cycles of the flusher (group commits)", stats.cycles)
        on_loop = "Those that the event loop did itself, as the disk was quick"
        yield CounterMetricFamily("georelay_log_cycles_on_loop", on_loop, stats.cycles_on_loop)
        yield CounterMetricFamily("georelay_log_syncs", "fdatasync calls", stats.syncs)
        yield CounterMetricFamily("georelay_log_writes", "Group writes made durable", stats.writes)
        yield CounterMetricFamily("georelay_log_written_bytes", "Bytes appended to logs", stats.written_bytes)
        yield GaugeMetricFamily("georelay_log_queue_writes", "Group writes that wait", self._flusher.queue_length)
        yield GaugeMetricFamily("georelay_log_sync_seconds", "Time of the newest sync", stats.last_sync_us / 1e6)
        yield GaugeMetricFamily("georelay_raft_groups", "Raft groups hosted here", len(self._host.groups))
        yield GaugeMetricFamily(
            "georelay_loop_stall_seconds_max", "Longest event loop stall since start", self._host.stall_ms_max / 1e3
        )
        yield GaugeMetricFamily("georelay_tail_bytes", "Committed batches kept in memory", self._budget.bytes_held)

    def describe(self) -> list[Metric]:
        """Return nothing: values are read only when they are asked for."""
        return []
