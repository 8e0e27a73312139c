"""What traces cost and lose, as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mesh.tracing.recorder import Recorder


class TraceCollector(Collector):
    """Reads the recorder when it is scraped; keeps nothing."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        stats = self._recorder.stats
        writer = stats.writer
        rows = CounterMetricFamily("georelay_trace_rows", "Trace rows spooled", labels=("kind",))
        for kind, count in writer.rows_written.items():
            rows.add_metric((kind.value,), count)
        dropped = CounterMetricFamily("georelay_trace_rows_dropped", "Trace rows given up", labels=("kind",))
        for kind, count in stats.rows_dropped.items():
            dropped.add_metric((kind.value,), count)
        yield from (rows, dropped)
        yield CounterMetricFamily(
            "georelay_trace_rows_unkept", "Ledger rows in memory only until they are spooled", stats.rows_unkept
        )
        yield CounterMetricFamily("georelay_trace_write_failures", "Trace writes that failed", writer.write_failures)
        yield CounterMetricFamily("georelay_trace_files", "Trace files written", writer.files_written)
        yield CounterMetricFamily("georelay_trace_files_deleted", "Trace files over retention", writer.files_deleted)
        yield CounterMetricFamily("georelay_trace_lost_bytes", "Bytes of damaged spools", writer.lost_bytes)
        yield CounterMetricFamily("georelay_trace_writer_seconds", "Time the writer worked", writer.busy_ns / 1e9)
        yield GaugeMetricFamily("georelay_trace_kept_bytes", "Bytes of this broker's trace files", writer.size_bytes)
        yield GaugeMetricFamily(
            "georelay_trace_sample_probability", "Share of ordinary batches with a row", 0.5**stats.sample_shift
        )
        yield GaugeMetricFamily(
            "georelay_trace_drain_seconds_max", "Longest time traces held the event loop", stats.drain_ns_max / 1e9
        )
        yield CounterMetricFamily(
            "georelay_trace_negative_latencies", "Records that came before they were sent", stats.negative_latencies
        )
        yield CounterMetricFamily(
            "georelay_trace_impossible_latencies",
            "Records that came earlier than the clocks' bounds allow",
            stats.impossible_latencies,
        )

    def describe(self) -> list[Metric]:
        """Return nothing: values are read only when they are asked for."""
        return []
