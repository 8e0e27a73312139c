"""Prometheus metrics of one broker: edge counters as they happen, Kafka and stream gauges when asked.

Rule: no global registry; a process (or a test) may hold several brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from georelay.wire.api import ApiKey
from region.kafka.counters import LATENCY_BUCKETS_MS, KafkaCounters
from region.kafka.ports import Cluster

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_EDGE_BUCKETS_S: Final = tuple(bound / 1000 for bound in LATENCY_BUCKETS_MS)
_STREAM_LABELS: Final = ("topic", "partition", "origin")


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSnapshot:
    """What a broker knows of its loop, its disk and its replicas at one moment; counts since the start.

    Args:
        loop_stalls: turns of the event loop that were over the watchdog's bound.
        disk_free_bytes: of the data directory's file system, -1 while unknown; disk_reserve_bytes: below which
            publishes are refused.
        scrubbed_bytes: of sealed segments, read again and verified.
        corrupt_segments: segments found damaged, by a scrub or by a read; repaired_segments: replaced from a peer.
        groups_refused: groups whose replica cannot be used here; the other replicas serve them.
        unflushed_bytes: received and not durable; appends_are_paused: so many that Appends are not read.
        groups_repairing: groups whose replica here has lost records and does not count until it has them again.
        bulk_bytes: whole segments, by direction ("sent", "received").
        catch_up_entries: by (group, broker): log entries that a learner of a group led here lacks.
        skipped_records: that mirrors here gave up because their home had deleted them.
    """

    loop_stalls: int = 0
    disk_free_bytes: int = -1
    disk_reserve_bytes: int = 0
    disk_is_writable: bool = True
    scrubbed_bytes: int = 0
    corrupt_segments: int = 0
    repaired_segments: int = 0
    groups_repairing: int = 0
    groups_refused: int = 0
    skipped_records: int = 0
    unflushed_bytes: int = 0
    appends_are_paused: bool = False
    bulk_bytes: Mapping[str, int] = field(default_factory=dict)
    catch_up_entries: Mapping[tuple[int, int], int] = field(default_factory=dict)


class BrokerMetrics:
    """The registry and the counters of the gRPC and HTTP listeners.

    Args:
        health: asked at every scrape; without it the families about loop, disk and replicas are absent.
    """

    def __init__(
        self, cluster: Cluster, kafka: KafkaCounters, health: Callable[[], HealthSnapshot] | None = None
    ) -> None:
        self.registry = CollectorRegistry()
        self.edge_requests = Counter(
            "georelay_edge_requests",
            "Requests of gRPC and HTTP callers by method and outcome code",
            ("listener", "method", "code"),
            registry=self.registry,
        )
        self.edge_seconds = Histogram(
            "georelay_edge_request_seconds",
            "Time from the arrival of a gRPC or HTTP publish to its answer",
            ("listener", "method"),
            buckets=_EDGE_BUCKETS_S,
            registry=self.registry,
        )
        self.edge_records = Counter(
            "georelay_edge_records",
            "Records through gRPC and HTTP (in: published, out: delivered)",
            ("listener", "direction"),
            registry=self.registry,
        )
        self.registry.register(_KafkaCollector(kafka))
        self.registry.register(_ClusterCollector(cluster))
        if health is not None:
            self.registry.register(_HealthCollector(health))

    def render(self) -> bytes:
        """Return the text exposition."""
        return generate_latest(self.registry)


class _HealthCollector(Collector):
    """Loop, disk, repair and replicas; reads the broker when it is scraped."""

    def __init__(self, health: Callable[[], HealthSnapshot]) -> None:
        self._health = health

    def describe(self) -> list[Metric]:
        """Return nothing: the registry must not collect before the broker runs."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        now = self._health()
        yield CounterMetricFamily("georelay_loop_stalls", "Event loop turns over the watchdog's bound", now.loop_stalls)
        if now.disk_free_bytes >= 0:
            yield GaugeMetricFamily(
                "georelay_disk_free_bytes", "Free on the data directory's disk", now.disk_free_bytes
            )
        yield GaugeMetricFamily(
            "georelay_disk_reserve_bytes", "Free room below which publishes are refused", now.disk_reserve_bytes
        )
        yield GaugeMetricFamily("georelay_disk_writable", "1 while publishes are taken", int(now.disk_is_writable))
        yield CounterMetricFamily("georelay_scrub_bytes", "Sealed bytes read again and verified", now.scrubbed_bytes)
        yield CounterMetricFamily("georelay_corrupt_segments", "Segments found damaged", now.corrupt_segments)
        yield CounterMetricFamily("georelay_repaired_segments", "Segments replaced from a peer", now.repaired_segments)
        yield GaugeMetricFamily(
            "georelay_groups_repairing", "Groups whose replica here does not count yet", now.groups_repairing
        )
        yield GaugeMetricFamily(
            "georelay_groups_refused", "Groups whose replica cannot be used here", now.groups_refused
        )
        yield CounterMetricFamily("georelay_skipped_records", "Records that mirrors gave up", now.skipped_records)
        yield GaugeMetricFamily("georelay_unflushed_bytes", "Received and not durable yet", now.unflushed_bytes)
        yield GaugeMetricFamily(
            "georelay_appends_paused", "1 while entries of other brokers are not read", int(now.appends_are_paused)
        )
        yield from self._labelled(now)

    @staticmethod
    def _labelled(now: HealthSnapshot) -> Iterator[Metric]:
        bulk = CounterMetricFamily("georelay_bulk_bytes", "Bytes of whole segments by direction", labels=("direction",))
        for direction, size_bytes in now.bulk_bytes.items():
            bulk.add_metric((direction,), size_bytes)
        behind = GaugeMetricFamily(
            "georelay_replica_catch_up_entries", "Log entries that a learner lacks", labels=("group", "broker")
        )
        for (group, broker), entries in now.catch_up_entries.items():
            behind.add_metric((str(group), str(broker)), entries)
        yield from (bulk, behind)


class _KafkaCollector(Collector):
    """Plain counters of the Kafka listener as metric families."""

    def __init__(self, counters: KafkaCounters) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        counters = self._counters
        yield GaugeMetricFamily(
            "georelay_kafka_connections_open", "Kafka connections open now", counters.connections_open
        )
        for name, text, value in (
            ("connections_accepted", "Kafka connections accepted", counters.connections_accepted),
            ("connections_refused", "Kafka connections over the limit", counters.connections_refused),
            ("wire_errors", "Connections closed because of a malformed frame", counters.wire_errors),
            ("sign_ins_refused", "Sign-ins refused, and requests before a required sign-in", counters.sign_ins_refused),
            ("bytes_in", "Bytes received from Kafka clients", counters.bytes_in),
            ("bytes_out", "Bytes handed to Kafka clients", counters.bytes_out),
            ("batches_in", "Record batches handed on by Produce", counters.batches_in),
            ("records_in", "Records handed on by Produce", counters.records_in),
            ("batches_out", "Record batches delivered by Fetch", counters.batches_out),
            ("records_out", "Records delivered by Fetch", counters.records_out),
        ):
            yield CounterMetricFamily(f"georelay_kafka_{name}", text, value)
        yield self._errors()
        yield self._latencies()

    def _errors(self) -> Metric:
        family = CounterMetricFamily(
            "georelay_kafka_partition_errors", "Produce and Fetch partitions answered with an error", labels=("code",)
        )
        for code, count in self._counters.errors_by_code.items():
            family.add_metric((str(int(code)),), count)
        return family

    def _latencies(self) -> Metric:
        family = HistogramMetricFamily(
            "georelay_kafka_request_seconds", "Time from a request's arrival to its answer", labels=("api",)
        )
        for key, histogram in self._counters.latency_by_api.items():
            name = ApiKey(key).name.lower() if key in ApiKey._value2member_map_ else str(key)
            buckets, total = [], 0
            for bound_ms, count in zip(LATENCY_BUCKETS_MS, histogram.counts, strict=False):
                total += count
                buckets.append((str(bound_ms / 1000), float(total)))
            buckets.append(("+Inf", float(histogram.count)))
            family.add_metric((name,), buckets, sum_value=histogram.sum_ms / 1000)
        return family


_STREAM_GAUGES: Final = (
    "high_watermark",
    "log_start",
    "next_offset",
    "is_leader",
    "epoch",
    "lag_ms",
    "orphan_records",
    "forward_jumps",
    "is_sealed",
)


class _ClusterCollector(Collector):
    """Gauges of the streams hosted here and of readiness."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def describe(self) -> list[Metric]:
        """Return nothing: the registry must not collect before the cluster runs."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        yield GaugeMetricFamily("georelay_ready", "1 when this broker can commit", int(self._cluster.ready()))
        families = {
            name: GaugeMetricFamily(f"georelay_stream_{name}", text, labels=_STREAM_LABELS)
            for name, text in (
                ("high_watermark", "First offset not committed yet"),
                ("log_start", "First offset kept"),
                ("next_offset", "End of the log, uncommitted entries included"),
                ("is_leader", "1 when this broker leads the stream in its region"),
                ("epoch", "Home epoch"),
                ("orphan_records", "Records of orphan branches that are kept in this region"),
                ("forward_jumps", "Producers that left sequences out after a loss of records, since the start"),
                ("is_sealed", "1 while nothing is published because a new home epoch is to begin"),
                ("lag_records", "Records the home has committed and this region has not"),
                ("lag_ms", "Age of this region's end, computed at the home"),
            )
        }
        for stream in self._cluster.snapshot():
            labels = (stream.topic, str(stream.partition), stream.origin)
            for name in _STREAM_GAUGES:
                families[name].add_metric(labels, float(getattr(stream, name)))
            if stream.is_home or stream.home_high_watermark >= 0:  # an unknown lag is absent, not 0
                lag = 0 if stream.is_home else max(0, stream.home_high_watermark - stream.high_watermark)
                families["lag_records"].add_metric(labels, lag)
        yield from families.values()
