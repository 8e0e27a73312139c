"""Prometheus metrics of one broker: edge counters as they happen, Kafka and stream gauges when asked.

Rule: no global registry; a process (or a test) may hold several brokers.
"""

from __future__ import annotations

from collections.abc import Iterator
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


class BrokerMetrics:
    """The registry and the counters of the gRPC and HTTP listeners."""

    def __init__(self, cluster: Cluster, kafka: KafkaCounters) -> None:
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

    def render(self) -> bytes:
        """Return the text exposition."""
        return generate_latest(self.registry)


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
                ("lag_records", "Records the home has committed and this region has not"),
                ("lag_ms", "Age of this region's end, computed at the home"),
            )
        }
        for stream in self._cluster.snapshot():
            labels = (stream.topic, str(stream.partition), stream.origin)
            for name in ("high_watermark", "log_start", "next_offset", "is_leader", "epoch", "lag_ms"):
                families[name].add_metric(labels, float(getattr(stream, name)))
            if stream.is_home or stream.home_high_watermark >= 0:  # an unknown lag is absent, not 0
                lag = 0 if stream.is_home else max(0, stream.home_high_watermark - stream.high_watermark)
                families["lag_records"].add_metric(labels, lag)
        yield from families.values()
