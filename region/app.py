"""The composition root of a broker process: its core, and the listeners that clients use.

The listeners start last and stop first: nobody is answered by a part that is not there.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import structlog

from georelay.clock import Clock, SystemClock
from georelay.credentials import Credentials
from georelay.ids import RegionNumber
from mesh.gossip.distance_pages_core import FAR_QUERY
from mesh.gossip.metrics import GossipCollector
from mesh.gossip.pools import LAN, GossipPools
from mesh.gossip.rule_pages_core import RULES_QUERY
from mesh.listening.admission_core import Refusal
from mesh.listening.congestion_control import LinkSockets
from mesh.listening.listeners import Listeners
from region.broker.control_metrics import ControlCollector
from region.broker.core import BrokerCore
from region.broker.distance_relay import DistanceRelay
from region.broker.edge import Edge
from region.broker.gossip_port import GossipPort
from region.broker.guard import Guard
from region.broker.health import read_health
from region.broker.home_metrics import HomesCollector
from region.broker.link_metrics import LinkCollector
from region.broker.local_cluster import LocalCluster
from region.broker.rule_relay import RuleRelay
from region.broker.security_metrics import SecurityCollector
from region.broker.shed_watch import ShedWatch
from region.broker.storage_metrics import StorageCollector
from region.broker.traces import BrokerTraces
from region.config import BROKER_LISTENERS, CLIENT_LISTENERS, BrokerConfig
from region.geo.metrics import GeoCollector
from region.gossip_start import complete_config, known_hints, make_pools, pool_tags
from region.log.filesystem import FileSystem, OsFileSystem
from region.security.settings import STRANGERS

log = structlog.get_logger()

GC_THRESHOLDS: Final = (1_000, 3, 7_000)
LOCK_WAIT_S: Final = 10.0  # a report may be sealing what the run before left; that takes a moment
COLD_READERS: Final = 2  # threads; a third would only wait for the same disk


class Broker:
    """One broker process."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        file_system: FileSystem | None = None,
        pools: GossipPools | None = None,
    ) -> None:
        self.config = config
        self._pools = pools
        clock = clock or SystemClock()
        listeners = Listeners(config.tls, config.limits, names=CLIENT_LISTENERS, mutual=BROKER_LISTENERS)
        self._executor = ThreadPoolExecutor(COLD_READERS, thread_name_prefix="cold-read")
        self._traces = BrokerTraces(config, clock=clock, region_name=self._region_name)
        self.core = BrokerCore(
            config,
            clock=clock,
            rng=random.Random(),
            file_system=file_system or OsFileSystem(lock_wait_s=LOCK_WAIT_S),
            executor=self._executor,
            recorder=self._traces.recorder,
            listeners=listeners,
        )
        self.core.queues.traces.recorder = self._traces.recorder
        grpc = listeners["grpc"].counters
        self._shed = ShedWatch(
            clock=clock,
            cpu_ns=time.thread_time_ns,
            refused=lambda: grpc.refused.get(Refusal.OVERLOADED, 0),
            is_behind=lambda: self.core.host.appends_paused,
        )
        credentials = Credentials.load(config.users_file or None)
        events = self.core.audit.events
        self._guard = Guard(
            config, controller=self.core.controller, credentials=credentials, clock=clock, kept=events.kept
        )
        self._edge = Edge(
            listen=config.listen,
            cluster=self.core.cluster,
            credentials=credentials,
            guard=self._guard,
            recorder=self._traces.recorder,
            clock=clock,
            region_name=self._region_name,
            health=lambda: read_health(self.core),
            limits=config.limits,
            allowed_origins=config.http_allowed_origins,
            listeners=listeners,
            coordinators=self.core.coordinators,
            group_counters=self.core.group_counters,
            queue_counters=self.core.queues.counters,
            bindings=self.core.queues.bindings,
            routing=self.core.queues.routing,
            control=self.core.control,
            homes=self.core.homes.http,
            orphans=self.core.orphans,
            auditor=self.core.audit.auditor,
            audit_trail=events,
            clocks=self._traces.clocks.document,
            traces=self._traces.shelf,
            gossip=pools,
            shed=lambda: self._shed.share,
        )
        self._gossip_port = None if pools is None else self._make_gossip_port(pools)
        self._relays = () if pools is None or LAN not in pools.pools else self._make_relays(pools)
        metrics = self._edge.metrics.registry
        metrics.register(self._shed)
        metrics.register(StorageCollector(flusher=self.core.flusher, host=self.core.host, budget=self.core.budget))
        self._traces.count(kafka=self._edge.kafka_counters, metrics=self._edge.metrics)
        metrics.register(SecurityCollector(self._guard, book=lambda: self.core.controller.state.security))
        metrics.register(ControlCollector(self.core.control))
        metrics.register(HomesCollector(self.core.homes))
        metrics.register(
            LinkCollector(
                sessions=self.core.links.snapshot,
                region_name=self._region_name,
                counters=self.core.links.counters,
            )
        )
        metrics.register(
            GeoCollector(
                counters=self.core.geo.counters, streams=self.core.streams.values, region_name=self._region_name
            )
        )
        self._link_sockets = LinkSockets(
            config.link_congestion_control,
            config.link_ports,
            by_region=config.link_congestion_control_by_region,
            ends=lambda: self.core.links.ends(self._region_name),
        )
        self.core.links.congestion_controls = self._link_sockets.in_use_by
        metrics.register(self._link_sockets)
        if pools is not None:
            metrics.register(GossipCollector(pools))

    def _make_gossip_port(self, pools: GossipPools) -> GossipPort:
        return GossipPort(
            pools=pools.pools.values(),
            me=self.config.broker_id,
            mesh=self.config.mesh_id,
            region=self.config.region,
            links=self.core.links,
            learn_peers=self.core.learn_peers,
            drain_clients=self.core.drain.head_for,
            ready=self.core.cluster.ready,
            set_tags=pools.set_tags,
            note=pools.note,
        )

    def _make_relays(self, pools: GossipPools) -> tuple[DistanceRelay, RuleRelay]:
        parts: dict[str, Any] = {
            "own": self.config.region,
            "mesh": self.config.mesh_id,
            "pool": pools.pools[LAN],
            "topology": lambda: self.core.controller.state.topology,
            "request": self.core.links.request,
        }
        port = self.core.port
        port.distances = DistanceRelay(**parts)
        port.rules = RuleRelay(**parts, directory=self.config.data_dir)
        pools.answer_query(FAR_QUERY, port.distances.answer)
        pools.answer_query(RULES_QUERY, port.rules.answer)
        return port.distances, port.rules

    @property
    def cluster(self) -> LocalCluster:
        """Return what the services of this broker ask."""
        return self.core.cluster

    @property
    def failed(self) -> asyncio.Future[str]:
        """Return what resolves with the reason when this broker must end."""
        return self.core.failed

    def _region_name(self, number: int) -> str:
        return self.core.links.region_name(RegionNumber(number)) or f"region-{number}"

    async def start(self) -> None:
        """Recover, join the region and serve.

        Raises:
            OSError: an address is taken. GeorelayError: data directory or configuration.
        """
        self._traces.start()
        await self.core.start()
        if self.core.controller.state.security.has_users and not self.config.knows_brokers:
            log.error("security.brokers_not_known", advice=STRANGERS)
        self._traces.follow(self.core)
        if self._pools is not None and self._gossip_port is not None:
            self._gossip_port.start(known_hints(self.config, self._pools))
        for relay in self._relays:
            relay.start()
        self._link_sockets.start()
        self._shed.start()
        await self._edge.start()
        # What start-up made lives for ever: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        # Records are freed by reference counts, and cycles are rare. But tails of logs in memory grow by two objects
        # per record, and the loop stands still for 0.2 ms per thousand that the collector looks at: never at many.
        gc.set_threshold(*GC_THRESHOLDS)
        listen = self.config.listen
        log.info("broker.started", region=self.config.region, broker=self.config.broker_id, kafka=listen.kafka)

    async def stop(self) -> None:
        """Give leadership away, stop serving, then storing; the others are told first."""
        replica = self.core.control.replica
        await asyncio.gather(*(host.hand_all_over() for host in (self.core.host, replica and replica.host) if host))
        if self._gossip_port is not None:
            await self._gossip_port.stop()
        for relay in self._relays:
            await relay.stop()
        await self.core.drain.close()
        leaving = None if self._pools is None else asyncio.create_task(self._pools.stop(), name="gossip-leave")
        await self._edge.stop()
        self._guard.close()
        await self._shed.stop()
        await self._link_sockets.stop()
        await self._traces.stop()
        await self.core.stop()
        await self._traces.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self.core.close_files()
        if leaving is not None:
            await leaving
        log.info("broker.stopped", broker=self.config.broker_id)


async def open_broker(
    config: BrokerConfig, *, clock: Clock | None = None, file_system: FileSystem | None = None
) -> Broker:
    """Return a broker that is not started yet; with [gossip] its pools are, and the configuration is completed by them.

    Raises:
        OSError: an address is taken. GeorelayError: configuration, data directory.
    """
    pools = make_pools(config)
    if pools is None:
        return Broker(config, clock=clock, file_system=file_system)
    await pools.start(pool_tags(config))
    try:
        completed = await complete_config(config, pools, file_system or OsFileSystem())
        return Broker(completed, clock=clock, file_system=file_system, pools=pools)
    except BaseException:
        await pools.stop()
        raise


async def open_unless_stopped(
    stopped: asyncio.Event, config: BrokerConfig, *, clock: Clock | None = None, file_system: FileSystem | None = None
) -> Broker | None:
    """Return `open_broker`; None when `stopped` is set first: with gossip it may wait for other regions for ever.

    Raises:
        OSError, GeorelayError: as `open_broker`.
    """
    opening = asyncio.ensure_future(open_broker(config, clock=clock, file_system=file_system))
    stopping = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((opening, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not opening.done():
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
    return None if opening.cancelled() else opening.result()
