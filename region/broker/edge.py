"""The listeners that clients of one broker use, made from their parts: Kafka, gRPC, HTTP and text."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from georelay.clock import Clock
from georelay.credentials import Credentials
from georelay.tls import PrincipalFrom
from mesh.gossip.pools import GossipPools
from mesh.listening.browser_guard import BrowserGuard
from mesh.listening.listeners import ListenerParts, Listeners, ListeningCollector
from mesh.listening.settings import BrokerLimitsSection, LimitsSection, TlsSection
from mesh.tracing.recorder import Recorder
from region.api.admin_http import AdminHttp
from region.api.admin_service import AdminService
from region.api.audit_events_http import AuditTrail
from region.api.audit_http import AuditHttp
from region.api.binding_metrics import BindingMetrics
from region.api.bindings_http import BindingsHttp
from region.api.bodies import Bodies
from region.api.broker_service import BrokerService
from region.api.carried_calls import CarriedCalls
from region.api.clocks_http import ClocksHttp
from region.api.coalescer import Coalescer
from region.api.consumers_http import ConsumersHttp
from region.api.control_http import ControlHttp, ControlRoom
from region.api.coordination_admin import CoordinationAdmin
from region.api.events_http import EventsHttp
from region.api.gossip_http import GossipHttp
from region.api.group_lag import GroupLag
from region.api.group_metrics import GroupMetrics
from region.api.groups_http import GroupsHttp
from region.api.grpc_calls import GrpcCalls
from region.api.grpc_listener import GrpcListener
from region.api.grpc_services import grpc_handlers
from region.api.homes_http import HomesHttp
from region.api.metrics import BrokerMetrics, HealthSnapshot
from region.api.orphans import OrphanBranches
from region.api.orphans_http import OrphansHttp
from region.api.publishing import BatchPublisher, RecordPublisher
from region.api.queue_metrics import QueueMetrics
from region.api.queues_http import QueuesHttp
from region.api.reading import StreamReader
from region.api.records_http import RecordsHttp
from region.api.regions_http import RegionsHttp
from region.api.routes_service import RoutesService
from region.api.socket import SocketServices
from region.api.sockets_http import SocketsHttp
from region.api.streams.service import StreamsService
from region.api.streams.services import StreamsServices
from region.api.tails import Tails
from region.api.traces_http import TracesHttp
from region.api.unfolding_metrics import UnfoldingMetrics
from region.audit.auditor import Auditor
from region.broker.guard import Guard
from region.config import BROKER_LISTENERS, CLIENT_LISTENERS, Listen, split_address
from region.coordination.coordinators import Coordinators
from region.groups.counters import GroupCounters
from region.kafka.connection import ConnectionLimits
from region.kafka.listener import KafkaListener
from region.kafka.ports import Cluster
from region.kafka.refused_publishes import RefusedPublishes
from region.kafka.request_memory import RequestMemory
from region.kafka.services import KafkaServices
from region.queues.counters import QueueCounters
from region.routing.administration import BindingAdmin
from region.routing.router import Routing
from region.security.access import Access
from region.security.quotas import Quotas
from region.security.sign_in import SignInService
from region.text.listener import TextListener
from region.text.services import TextServices

if TYPE_CHECKING:
    from mesh.tracing.shelf import TraceShelf


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
        listeners: Listeners | None = None,
        guard: Guard | None = None,
        limits: BrokerLimitsSection | None = None,
        allowed_origins: Collection[str] = (),
        coordinators: Coordinators,
        group_counters: GroupCounters | None = None,
        queue_counters: QueueCounters | None = None,
        bindings: BindingAdmin | None = None,
        routing: Routing | None = None,
        clocks: Callable[[], dict[str, Any]] | None = None,
        gossip: GossipPools | None = None,
        control: ControlRoom | None = None,
        homes: Callable[[Access], HomesHttp] | None = None,
        orphans: OrphanBranches | None = None,
        auditor: Auditor | None = None,
        audit_trail: AuditTrail | None = None,
        traces: TraceShelf | None = None,
        shed: Callable[[], float] | None = None,
    ) -> None:
        listeners = listeners or Listeners(
            TlsSection(), LimitsSection(), names=CLIENT_LISTENERS, mutual=BROKER_LISTENERS
        )
        limits = limits or BrokerLimitsSection()
        memory = RequestMemory(limits.request_bytes_max)
        bodies = Bodies(memory)
        services = KafkaServices(
            cluster=cluster,
            credentials=credentials,
            recorder=recorder,
            wall_ns=clock.wall_ns,
            monotonic_ns=clock.monotonic_ns,
            region_name=region_name,
            coordinators=coordinators,
            access=Access.open() if guard is None else guard.access,
            sign_in=None if guard is None else guard.sign_in,
            quotas=Quotas() if guard is None else guard.quotas,
            security=None if guard is None else guard.admin,
        )
        host, port = split_address(listen.kafka)
        self._listen = listen
        self._kafka = KafkaListener(
            services,
            host=host,
            port=port,
            connections_max=limits.connections_max,
            parts=listeners["kafka"],
            limits=ConnectionLimits(
                sign_in_s=limits.sign_in_ms / 1000,
                request_s=limits.request_ms / 1000,
                request_bytes_max=limits.request_bytes_per_connection_max,
            ),
            memory=memory,
        )
        self.kafka_counters = services.counters
        self.metrics = BrokerMetrics(cluster, services.counters, health)
        self._coalescer = Coalescer(
            cluster,
            entry_region=cluster.region_number,
            wall_ns=clock.wall_ns,
            monotonic_ns=clock.monotonic_ns,
            refused=RefusedPublishes(cluster, recorder).note,
        )
        publisher = RecordPublisher(cluster, self._coalescer, monotonic_ns=clock.monotonic_ns)
        reader = StreamReader(cluster)
        self._group_metrics = GroupMetrics(
            coordinators, GroupLag(coordinators, cluster, reader), group_counters or GroupCounters()
        )
        self.metrics.registry.register(self._group_metrics)
        if routing is not None:
            self.metrics.registry.register(BindingMetrics(routing))
        self.metrics.registry.register(UnfoldingMetrics())
        self.metrics.registry.register(QueueMetrics(coordinators, queue_counters or QueueCounters()))
        grpc_tls = listeners["grpc"].contexts
        calls = GrpcCalls(
            credentials,
            self.metrics,
            services.access,
            sign_in=services.sign_in,
            principal_from=PrincipalFrom.CN if grpc_tls is None else grpc_tls.settings.principal_from,
            quotas=services.quotas,
        )
        broker_service = BrokerService(
            cluster=cluster,
            publisher=publisher,
            reader=reader,
            calls=calls,
            recorder=recorder,
            metrics=self.metrics,
            wall_ns=clock.wall_ns,
            region_name=region_name,
        )
        admin_service = AdminService(
            cluster=cluster,
            calls=calls,
            region_name=region_name,
            coordination=CoordinationAdmin(
                coordinators=coordinators,
                cluster=cluster,
                lag=GroupLag(coordinators, cluster, reader),
                access=calls.access,
            ),
        )
        streams_service = StreamsService(
            StreamsServices(
                cluster=cluster,
                publisher=publisher,
                reader=reader,
                recorder=recorder,
                metrics=self.metrics,
                access=calls.access,
                wall_ns=clock.wall_ns,
                monotonic_ns=clock.monotonic_ns,
                region_name=region_name,
                coordinators=coordinators,
                quotas=services.quotas,
            ),
            calls,
        )
        records = RecordsHttp(
            cluster=cluster,
            publisher=publisher,
            reader=reader,
            recorder=recorder,
            metrics=self.metrics,
            wall_ns=clock.wall_ns,
            access=services.access,
            quotas=services.quotas,
            region_name=region_name,
        )
        sign_in = SignInService(credentials) if services.sign_in is None else services.sign_in
        tails = Tails(records, cluster=cluster, reader=reader, wall_ns=clock.wall_ns)
        events = EventsHttp(
            tails, records, cluster=cluster, access=services.access, is_still_valid=sign_in.is_still_valid
        )
        consumers = ConsumersHttp(
            records, tails=tails, events=events, coordinators=coordinators, cluster=cluster, access=services.access
        )
        sockets = SocketsHttp(
            SocketServices(
                cluster=cluster,
                publisher=publisher,
                batches=BatchPublisher(cluster, RefusedPublishes(cluster, recorder), wall_ns=clock.wall_ns),
                records=records,
                tails=tails,
                access=services.access,
                quotas=services.quotas,
                is_still_valid=sign_in.is_still_valid,
            )
        )
        self._http = AdminHttp(
            cluster=cluster,
            credentials=credentials,
            metrics=self.metrics,
            browsers=BrowserGuard(allowed_origins=allowed_origins),
            bodies=bodies,
            parts=listeners["admin"],
            sign_in=services.sign_in,
            access=services.access,
            security=services.security,
            groups=GroupsHttp(coordinators=coordinators, cluster=cluster, reader=reader, access=services.access),
            bindings=None if bindings is None else BindingsHttp(bindings, services.access),
            gossip=GossipHttp(gossip, services.access),
            queues=QueuesHttp(
                coordinators=coordinators, cluster=cluster, access=services.access, quotas=services.quotas
            ),
            clocks=None if clocks is None else ClocksHttp(clocks, services.access),
            control=None if control is None else ControlHttp(control, services.access),
            regions=None if control is None else RegionsHttp(control, services.access),
            homes=None if homes is None else homes(services.access),
            traces=TracesHttp(traces, access=services.access, region=cluster.region, broker=cluster.broker_id),
            audit=None if auditor is None else AuditHttp(auditor, access=services.access, region_name=region_name),
            audit_trail=audit_trail,
            orphans=None
            if orphans is None
            else OrphansHttp(orphans, publisher=publisher, access=services.access, region=cluster.region),
            consumers=consumers,
            events=events,
            sockets=sockets,
            records=records,
            shed=shed,
        )
        carried = CarriedCalls(calls, broker_service.publish_handler())
        grpc_host, grpc_port = split_address(listen.grpc)
        self._grpc = GrpcListener(
            grpc_handlers(
                [broker_service, admin_service, streams_service, RoutesService(), carried], ready=cluster.ready
            ),
            host=grpc_host,
            port=grpc_port,
            parts=listeners["grpc"],
            admit=calls.admit,
            carried=carried,
        )
        grpc_budget = self._grpc.budget
        self.metrics.registry.register(
            ListeningCollector(
                listeners,
                request_bytes=lambda: {"kafka": memory.used_bytes - bodies.held_bytes, "admin": bodies.held_bytes},
                budgets=lambda: {"grpc": grpc_budget},
            )
        )
        text = TextServices(
            cluster=cluster,
            publisher=publisher,
            reader=reader,
            sign_in=sign_in,
            recorder=recorder,
            wall_ns=clock.wall_ns,
            monotonic_ns=clock.monotonic_ns,
            coordinators=coordinators,
            access=services.access,
            quotas=services.quotas,
            region_name=region_name,
        )
        self._text = _text_listener(listen.text, text, listeners["text"])

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: an address is taken.
        """
        self._group_metrics.start()
        await self._kafka.start()
        await self._http.start(*split_address(self._listen.admin))
        await self._grpc.start()
        if self._text is not None:
            await self._text.start()

    async def stop(self) -> None:
        """Answer no more; what is in flight fails with a retriable error."""
        if self._text is not None:
            await self._text.close()
        await self._group_metrics.close()
        await self._grpc.close()
        await self._http.close()
        await self._kafka.close()
        await self._coalescer.close()


def _text_listener(address: str, services: TextServices, parts: ListenerParts) -> TextListener | None:
    """Return the listener of the text protocol, None where it is off."""
    if not address:
        return None
    host, port = split_address(address)
    return TextListener(services, host=host, port=port, parts=parts)
