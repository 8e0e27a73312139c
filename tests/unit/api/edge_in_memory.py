"""The native edge of one broker over the in-memory region: coalescer, gRPC and HTTP, on a clock that tests move."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from georelay.lane_core import LaneLimits
from region.api.admin_http import AdminHttp
from region.api.bodies import Bodies
from region.api.broker_service import BrokerService
from region.api.coalescer import Coalescer
from region.api.consumers_http import ConsumersHttp
from region.api.events_http import EventsHttp
from region.api.grpc_calls import GrpcCalls
from region.api.metrics import BrokerMetrics
from region.api.publishing import BatchPublisher, RecordPublisher
from region.api.reading import StreamReader
from region.api.records_http import RecordsHttp
from region.api.socket import SocketServices
from region.api.sockets_http import SocketsHttp
from region.api.tails import Tails
from region.kafka.counters import KafkaCounters
from region.kafka.refused_publishes import RefusedPublishes
from region.security.access import Access, Principal
from region.security.quotas import Quotas


class Clock:
    """Monotonic and wall time that only tests move."""

    now_ns = 1_700_000_000_000_000_000

    def __call__(self) -> int:
        return self.now_ns


class Edge:
    """Coalescer, gRPC and HTTP over the fakes."""

    def __init__(self, cluster: Any, credentials: Any, recorder: Any) -> None:
        self.cluster = cluster
        self.credentials = credentials
        self.recorder = recorder
        self.clock = Clock()
        self.coalescer = Coalescer(
            cluster, entry_region=1, wall_ns=self.clock, monotonic_ns=self.clock, limits=LaneLimits(backoff_ns=0)
        )
        self.publisher = RecordPublisher(cluster, self.coalescer, monotonic_ns=self.clock)
        self.reader = StreamReader(cluster)
        self.metrics = BrokerMetrics(cluster, KafkaCounters())
        records = RecordsHttp(
            cluster=cluster,
            publisher=self.publisher,
            reader=self.reader,
            recorder=recorder,
            metrics=self.metrics,
            wall_ns=self.clock,
        )
        self.admin = AdminHttp(cluster=cluster, credentials=credentials, metrics=self.metrics, records=records)
        self.service = BrokerService(
            cluster=cluster,
            publisher=self.publisher,
            reader=self.reader,
            calls=GrpcCalls(credentials, self.metrics),
            recorder=recorder,
            metrics=self.metrics,
            wall_ns=self.clock,
        )

    def whole_admin(
        self,
        *,
        access: Access | None = None,
        coordinators: Any = None,
        is_still_valid: Callable[[Principal], bool] = lambda _: True,
        bodies: Bodies | None = None,
    ) -> AdminHttp:
        """Return another HTTP listener of the broker, with consumers, events and sockets."""
        access = access or Access.open()
        records = RecordsHttp(
            cluster=self.cluster,
            publisher=self.publisher,
            reader=self.reader,
            recorder=self.recorder,
            metrics=self.metrics,
            wall_ns=self.clock,
            access=access,
        )
        tails = Tails(records, cluster=self.cluster, reader=self.reader, wall_ns=self.clock)
        events = EventsHttp(tails, records, cluster=self.cluster, access=access, is_still_valid=is_still_valid)
        refused = RefusedPublishes(self.cluster, self.recorder)
        services = SocketServices(
            cluster=self.cluster,
            publisher=self.publisher,
            batches=BatchPublisher(self.cluster, refused, wall_ns=self.clock),
            records=records,
            tails=tails,
            access=access,
            quotas=Quotas(),
            is_still_valid=is_still_valid,
        )
        consumers = None
        if coordinators is not None:
            consumers = ConsumersHttp(
                records, tails=tails, events=events, coordinators=coordinators, cluster=self.cluster, access=access
            )
        return AdminHttp(
            cluster=self.cluster,
            credentials=self.credentials,
            metrics=self.metrics,
            records=records,
            consumers=consumers,
            events=events,
            sockets=SocketsHttp(services),
            bodies=bodies,
            access=access,
        )


async def post(http: Any, body: Any, topic: str = "orders") -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await http.post(f"/v1/topics/{topic}/records", data=data)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
