"""What the Kafka listener counts: plain integers, because a metrics library costs more than the request.

`region.api.metrics` turns them into Prometheus families when asked.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

LATENCY_BUCKETS_MS: Final = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0)


class LatencyHistogram:
    """Requests by time from their arrival to the hand-over of the answer."""

    __slots__ = ("count", "counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BUCKETS_MS) + 1)  # the last: slower than every bound
        self.count = 0
        self.sum_ms = 0.0

    def observe(self, milliseconds: float) -> None:
        """Count one request."""
        self.counts[bisect_left(LATENCY_BUCKETS_MS, milliseconds)] += 1
        self.count += 1
        self.sum_ms += milliseconds


@dataclass(slots=True)
class KafkaCounters:
    """Counters of one listener; all only grow, except `connections_open`."""

    connections_open: int = 0
    connections_accepted: int = 0
    connections_refused: int = 0  # over the limit
    wire_errors: int = 0  # malformed or oversized frames; each closed a connection
    sign_ins_refused: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    batches_in: int = 0
    records_in: int = 0
    batches_out: int = 0
    records_out: int = 0
    publishes_stored: int = 0  # partitions of Produce answered without an error
    publish_errors: dict[int, int] = field(default_factory=dict)  # Kafka error number -> partitions of Produce only
    errors_by_code: dict[int, int] = field(default_factory=dict)  # Kafka error number -> Produce/Fetch partitions
    latency_by_api: dict[int, LatencyHistogram] = field(default_factory=dict)  # API key -> histogram

    def answered(self, api_key: int, milliseconds: float) -> None:
        """Count an answered request."""
        histogram = self.latency_by_api.get(api_key)
        if histogram is None:
            histogram = self.latency_by_api[api_key] = LatencyHistogram()
        histogram.observe(milliseconds)

    def refused(self, code: int) -> None:
        """Count a partition that was answered with an error."""
        self.errors_by_code[code] = self.errors_by_code.get(code, 0) + 1

    def publish_refused(self, code: int) -> None:
        """Count a partition of Produce that was answered with an error."""
        self.refused(code)
        self.publish_errors[code] = self.publish_errors.get(code, 0) + 1
