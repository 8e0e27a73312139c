"""What the calls of the native API are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from georelay.errors import Unavailable
from region.api.metrics import BrokerMetrics
from region.api.publishing import RecordPublisher
from region.api.reading import StreamReader
from region.coordination.coordinators import Coordinators
from region.kafka.ports import Cluster, TraceRecorder
from region.security.access import Access
from region.security.quotas import Quotas


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsServices:
    """The broker around one listener.

    `wall_ns` counts from 1970, `monotonic_ns` from anywhere; `region_name` turns a region's number into its name.
    Without `coordinators` there are no groups, queues and transactions.
    """

    cluster: Cluster
    publisher: RecordPublisher
    reader: StreamReader
    recorder: TraceRecorder
    metrics: BrokerMetrics
    access: Access
    wall_ns: Callable[[], int]
    monotonic_ns: Callable[[], int]
    region_name: Callable[[int], str]
    coordinators: Coordinators | None = None
    quotas: Quotas = field(default_factory=Quotas)

    def require_coordinators(self) -> Coordinators:
        """Return the coordinators (Unavailable: this broker has none)."""
        if self.coordinators is None:
            raise Unavailable("this broker has no coordinators")
        return self.coordinators
