"""The native edge of one broker over the in-memory region: coalescer, gRPC and HTTP, on a clock that tests move."""

from __future__ import annotations

import base64
import json
from typing import Any

from georelay.lane_core import LaneLimits
from region.api.admin_http import AdminHttp
from region.api.broker_service import BrokerService
from region.api.coalescer import Coalescer
from region.api.grpc_calls import GrpcCalls
from region.api.metrics import BrokerMetrics
from region.api.publishing import RecordPublisher
from region.api.reading import StreamReader
from region.api.records_http import RecordsHttp
from region.kafka.counters import KafkaCounters


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


async def post(http: Any, body: Any, topic: str = "orders") -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await http.post(f"/v1/topics/{topic}/records", data=data)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
