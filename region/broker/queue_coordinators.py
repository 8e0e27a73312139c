"""Gives the coordinators of a broker what their queues need of it, and the broker what its bindings need."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from georelay.clock import Clock
from region.broker.local_cluster import LocalCluster
from region.controller.service import ControllerService
from region.coordination.coordinators import Coordinators
from region.coordination.part import Part
from region.queues.counters import QueueCounters
from region.queues.delivery_traces import QueueTraces
from region.queues.part import queues_factory
from region.routing.administration import BindingAdmin
from region.routing.router import Routing
from region.topics.hosted_stream import HostedStream


class QueueRoom:
    """Queues and bindings of one broker.

    Attributes:
        counters: of the queues led here. traces: where their deliveries are recorded, once that is set.
        routing: copies records of streams led here. bindings: for the listeners.
    """

    def __init__(
        self,
        *,
        cluster: LocalCluster,
        coordinators: Coordinators,
        controller: ControllerService,
        streams: Callable[[], Iterable[HostedStream]],
        clock: Clock,
    ) -> None:
        self.counters = QueueCounters()
        self.traces = QueueTraces()
        factory = queues_factory(lambda: cluster, counters=self.counters, traces=self.traces)
        coordinators.register(Part.QUEUES, factory)
        self.routing = cluster.routing = Routing(
            cluster=cluster,
            coordinators=coordinators,
            definitions=lambda: (controller.state.security.index, controller.state.security.bindings()),
            version=lambda: controller.state.security.index,
            streams=streams,
            wall_ns=clock.wall_ns,
            monotonic_ns=clock.monotonic_ns,
        )
        self.bindings = BindingAdmin(
            cluster=cluster,
            coordinators=coordinators,
            change=controller.change_security,
            bindings=lambda: controller.state.security.bindings(),
        )
