"""The listeners that clients of one broker use, made from their parts: Kafka, gRPC and HTTP."""

from __future__ import annotations

from collections.abc import Callable

from georelay.clock import Clock
from georelay.credentials import Credentials
from mesh.tracing.recorder import Recorder
from region.api.admin_http import AdminHttp
from region.api.admin_service import AdminService
from region.api.broker_service import BrokerService
from region.api.coalescer import Coalescer
from region.api.grpc_calls import GrpcCalls
from region.api.grpc_listener import GrpcListener
from region.api.metrics import BrokerMetrics, HealthSnapshot
from region.api.publishing import RecordPublisher
from region.api.reading import StreamReader
from region.api.records_http import RecordsHttp
from region.config import Listen, split_address
from region.kafka.listener import KafkaListener
from region.kafka.ports import Cluster
from region.kafka.services import KafkaServices


class Edge:
    """Start and stop of everything clients connect to. `region_name`: region number -> name."""

    def __init__(
        self,
        *,
        listen: Listen,
        cluster: Cluster,
        credentials: Credentials,
        recorder: Recorder,
        clock: Clock,
        region_name: Callable[[int], str],
        health: Callable[[], HealthSnapshot],
    ) -> None:
        services = KafkaServices(
            cluster=cluster,
            credentials=credentials,
            recorder=recorder,
            wall_ns=clock.wall_ns,
            monotonic_ns=clock.monotonic_ns,
            region_name=region_name,
        )
        host, port = split_address(listen.kafka)
        self._listen = listen
        self._kafka = KafkaListener(services, host=host, port=port)
        self.metrics = BrokerMetrics(cluster, services.counters, health)
        self._coalescer = Coalescer(
            cluster,
            entry_region=cluster.region_number,
            wall_ns=clock.wall_ns,
            monotonic_ns=clock.monotonic_ns,
        )
        publisher = RecordPublisher(cluster, self._coalescer)
        reader = StreamReader(cluster)
        calls = GrpcCalls(credentials, self.metrics)
        broker_service = BrokerService(
            cluster=cluster,
            publisher=publisher,
            reader=reader,
            calls=calls,
            recorder=recorder,
            metrics=self.metrics,
            wall_ns=clock.wall_ns,
        )
        admin_service = AdminService(cluster=cluster, calls=calls, region_name=region_name)
        self._http = AdminHttp(
            cluster=cluster,
            credentials=credentials,
            metrics=self.metrics,
            records=RecordsHttp(
                cluster=cluster,
                publisher=publisher,
                reader=reader,
                recorder=recorder,
                metrics=self.metrics,
                wall_ns=clock.wall_ns,
            ),
        )
        grpc_host, grpc_port = split_address(listen.grpc)
        self._grpc = GrpcListener([broker_service.handler(), admin_service.handler()], host=grpc_host, port=grpc_port)

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: an address is taken.
        """
        await self._kafka.start()
        await self._http.start(*split_address(self._listen.admin))
        await self._grpc.start()

    async def stop(self) -> None:
        """Answer no more; what is in flight fails with a retriable error."""
        await self._grpc.close()
        await self._http.close()
        await self._kafka.close()
        await self._coalescer.close()
