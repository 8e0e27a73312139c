"""The region and the mesh as this broker sees them: what its Kafka, gRPC and REST services ask.

Rule 1: synchronous answers come from this broker's cached view and never block.
Rule 2: a publish goes to the leader of its home, once: here, on another broker of this region, or in the home
        region. A batch that was forwarded to us is never forwarded again (that path is `ForwardedPublisher`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from georelay.durability import Durability
from georelay.errors import NotLeader, PolicyViolation, TopicExists, Unavailable, UnknownTopic
from georelay.ids import BrokerId, Epoch, GroupId, Offset, RegionNumber, StreamKey
from mesh.replication.ports import EpochRow
from region.api.reading import LATEST, read_stream
from region.broker.mesh_wiring import region_names
from region.broker.operations import Operations
from region.broker.record_deletion import RecordDeletion
from region.broker.storing import store
from region.broker.stream_reports import producers_of, sizes_of
from region.config import BrokerConfig
from region.controller.catalog import StreamPlace
from region.controller.definition_rules import define
from region.controller.mesh_rows import RegionState
from region.controller.service import ControllerService
from region.controller.topic import INTERNAL_PREFIX, TOPIC_ID_BYTES, Homes, TopicSpec, TopicView
from region.controller.topology import Topology
from region.geo.resolution import Question, Resolved, Resolver
from region.kafka.client_drain_core import ClientDrain
from region.kafka.ports import (
    BrokerInfo,
    BrokerStatus,
    BrokerStorage,
    PartitionReplicas,
    ProducerInfo,
    Publish,
    Published,
    ReadAnswer,
    StreamSnapshot,
)
from region.multiraft.host import Host
from region.routing.router import Routing
from region.topics.hosted_stream import HostedStream
from region.topics.stream import FIRST_EPOCH


class RemoteStreams(Protocol):
    """Streams led elsewhere: publishing to them and reading them over links."""

    def forward(
        self, key: StreamKey, publish: Publish, *, region: RegionNumber, leader: BrokerId
    ) -> asyncio.Future[Published]:
        """Send one batch to the leader of its home; see mesh.replication.forwarder."""

    async def read(
        self,
        key: StreamKey,
        broker: BrokerId,
        *,
        offset: int,
        max_bytes: int,
        wait_ms: int,
        read_uncommitted: bool = False,
    ) -> ReadAnswer:
        """Read decided records, or all, at another broker of this region."""

    def mirror_lag(self, key: StreamKey) -> tuple[int, float]:
        """Return (the home's high watermark, lag in ms on the home's clock); (-1, 0.0) while unknown."""

    def links(self) -> list[dict[str, Any]]:
        """Return the state of every link for /v1/status."""


class LocalCluster:
    """Implements region.kafka.ports.Cluster."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        host: Host,
        controller: ControllerService,
        streams: Mapping[GroupId, HostedStream],
        remote: RemoteStreams,
        topology: Topology,
        controller_leader: Callable[[], int],
        is_informed: Callable[[], bool] = lambda: True,
        operations: Operations,
        deletion: RecordDeletion,
        epochs_begun: Callable[[], int] = lambda: 0,
    ) -> None:
        """Look at the region through its controller.

        Args:
            controller_leader: as the controller group itself sees it on this broker, -1 without one that is heard.
            is_informed: whether this broker has applied what the controller had committed when it started.
            epochs_begun: goes up when the epoch of a stream hosted here changes.
        """
        self.mesh_id = config.mesh_id
        self.region = config.region
        self.region_number = config.region_number
        self.broker_id = int(config.broker_id)
        self.auto_create_topics = config.auto_create_topics
        self.topic_defaults = controller.topic_defaults
        self.drain = ClientDrain(config.region, monotonic_s=time.monotonic)
        self.routing: Routing | None = None
        self.resolver: Resolver | None = None
        self._host = host
        self._controller = controller
        self._streams = streams
        self._remote = remote
        self._topology = topology
        self._name_of = region_names(controller, topology)
        self._controller_leader = controller_leader
        self._is_informed = is_informed
        self._operations = operations
        self._deletion = deletion
        self._epochs_begun = epochs_begun
        self._data_dir = str(config.data_dir)

    # --- the region -------------------------------------------------------------------------------

    @property
    def controller_id(self) -> int:
        """Return the leader of the controller group, -1 while unknown."""
        return self._host.leaders.leader(GroupId(0))

    @property
    def metadata_epoch(self) -> int:
        """Return a number that changes with topics, leaders and reachable brokers."""
        return (
            self._controller.catalog.metadata_epoch
            + self._host.leaders.version
            + self._host.liveness_version
            + self._epochs_begun()
        )

    @property
    def has_left(self) -> bool:
        """Return whether mesh control has removed this region."""
        row = self._controller.state.mesh.regions.get(self.region_number)
        return row is not None and row.state is RegionState.REMOVED

    def ready(self) -> bool:
        """Return whether the controller group commits and this broker is part of the region.

        A leader that no quorum answers steps down, and a follower that does not hear its leader knows none: what the
        group says is true within two election timeouts. The hints that clients are answered with are not.
        """
        state = self._controller.state
        return (
            self._is_informed()
            and self._controller_leader() > 0
            and state.topology is not None
            and BrokerId(self.broker_id) in state.brokers
        )

    def brokers(self) -> Sequence[BrokerInfo]:
        """Return the registered brokers of this region."""
        return [
            BrokerInfo(
                id=row.broker,
                kafka_host=row.kafka_host,
                kafka_port=row.kafka_port,
                grpc=row.grpc,
                admin=row.admin,
                alive=self._host.is_alive(row.broker),
            )
            for row in sorted(self._controller.state.brokers.values(), key=lambda row: row.broker)
        ]

    # --- topics -----------------------------------------------------------------------------------

    def topics(self) -> Sequence[TopicView]:
        """Return every local name."""
        return self._controller.catalog.topics()

    def topic(self, name: str) -> TopicView | None:
        """Return the topic of a local name."""
        return self._controller.catalog.topic(name)

    def stream_names(self, name: str) -> Sequence[str]:
        """Return the local names whose streams together hold the topic."""
        view = self.topic(name)
        if view is None or view.homes is Homes.ONE or name != view.definition.name:
            return [name]
        return [f"{region.name}.{name}" for region in self._known_topology().regions if not region.witness]

    def _known_topology(self) -> Topology:
        """Return the regions as mesh control names them, those of the configuration before it said anything."""
        return self._controller.state.topology or self._topology

    def _region_name(self, number: RegionNumber) -> str:
        return self._name_of(number) or str(number)

    def _place(self, name: str, partition: int) -> StreamPlace:
        place = self._controller.catalog.place(name, partition)
        if place is None:
            view = self.topic(name)
            missing = f"topic '{name}'" if view is None else f"partition {partition} of topic '{name}'"
            raise UnknownTopic(f"{missing} does not exist")
        return place

    def stream(self, name: str, partition: int) -> HostedStream | None:
        """Return the stream when this broker hosts a replica of it."""
        place = self._controller.catalog.place(name, partition)
        return None if place is None else self._stream_at(place)

    def _stream_at(self, place: StreamPlace) -> HostedStream | None:
        return None if place.group_id is None else self._streams.get(place.group_id)

    def stream_of(self, key: StreamKey) -> HostedStream | None:
        """Return the hosted stream of a key."""
        assignment = self._controller.state.assignment(key)
        return None if assignment is None else self._streams.get(assignment.group_id)

    def leader_of(self, name: str, partition: int) -> int:
        """Return the broker that leads the partition inside this region, -1 while unknown."""
        place = self._controller.catalog.place(name, partition)
        return -1 if place is None else self._leader_at(place)

    def _leader_at(self, place: StreamPlace) -> BrokerId:
        return BrokerId(-1) if place.group_id is None else self._host.leaders.leader(place.group_id)

    def leader_of_key(self, key: StreamKey) -> BrokerId:
        """Return the broker that leads a stream inside this region, -1 while unknown."""
        assignment = self._controller.state.assignment(key)
        return BrokerId(-1) if assignment is None else self._host.leaders.leader(assignment.group_id)

    def home_of(self, name: str, partition: int) -> RegionNumber:
        """Return the region that sequences the partition now."""
        return self._place(name, partition).home

    def replicas_of(self, name: str, partition: int) -> Sequence[int]:
        """Return the brokers that hold replicas."""
        assignment = self._controller.catalog.assignment(name, partition)
        return () if assignment is None else assignment.voters

    def epoch_of(self, name: str, partition: int) -> int:
        """Return the home epoch, -1 for a partition that does not exist.

        What the replica here has committed; where none is hosted, what control decided, at least the first epoch. -1
        there, or less than another broker has answered, would be an answer that clients ignore, its leader included.
        """
        if self._controller.catalog.assignment(name, partition) is None:
            return -1
        stream = self.stream(name, partition)
        if stream is not None and stream.epoch >= FIRST_EPOCH:
            return stream.epoch
        row = self._controller.state.home_row(self._place(name, partition).key)
        return FIRST_EPOCH if row is None else row.epoch

    def epoch_table(self, name: str, partition: int) -> Sequence[EpochRow]:
        """Return control's history of a partition's home epochs, (epoch, start); () where the home never moved."""
        row = self._controller.state.home_row(self._place(name, partition).key)
        return () if row is None else row.table

    def check_topic(self, spec: TopicSpec) -> TopicSpec:
        """Return `spec` with its defaults; see region.kafka.ports.Cluster."""
        if spec.name.startswith(INTERNAL_PREFIX):
            raise PolicyViolation(f"topics whose names start with {INTERNAL_PREFIX} are made by brokers only")
        if self.topic(spec.name) is not None:
            raise TopicExists(f"topic '{spec.name}' exists already")
        if spec.homes is Homes.ONE and not spec.home:
            spec = replace(spec, home=self.region)
        spec = self.topic_defaults.fill(spec)
        definition = define(spec, topic_id=bytes(TOPIC_ID_BYTES), topology=self._controller.topology())
        factor = min(definition.replication_factor, max(1, self._controller.state.strength))
        return replace(spec, partitions=definition.partitions, replication_factor=factor)

    async def create_topic(self, spec: TopicSpec, *, by: str = "") -> TopicView:
        """Create a topic at the definitions home and wait until this broker knows it."""
        return await self._controller.create_topic(spec, by=by)

    async def ensure_topic(self, name: str, *, by: str = "") -> TopicView:
        """Return a topic, created with defaults when it is unknown and that is allowed."""
        return await self._controller.ensure_topic(name, by=by)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic at the definitions home."""
        await self._controller.delete_topic(name)

    async def allocate_producer_id(self) -> int:
        """Return a producer id that is unique in the mesh."""
        return await self._controller.allocate_producer_id()

    async def alter_topic(self, name: str, settings: Mapping[str, str]) -> TopicView:
        """Change settings of a topic at the definitions home; see region.kafka.ports.Cluster."""
        return await self._controller.alter_topic(name, settings)

    async def add_partitions(self, name: str, count: int) -> TopicView:
        """Let a topic grow at the definitions home; see region.kafka.ports.Cluster."""
        return await self._controller.add_partitions(name, count)

    # --- records ----------------------------------------------------------------------------------

    def publish(self, name: str, partition: int, publish: Publish) -> asyncio.Future[Published]:
        """Publish one batch wherever its home is; see region.kafka.ports.Cluster."""
        place = self._place(name, partition)
        if place.view.is_mirror_name:
            raise PolicyViolation(f"'{name}' is another region's stream: publish to '{name.partition('.')[2]}' instead")
        home = place.home
        leader = BrokerId(-1)
        if home == self.region_number:
            stream = self._stream_at(place)
            if stream is not None and stream.is_leader:
                return store(stream, publish, self.routing)
            leader = self._leader_at(place)
            if leader < 0 or leader == self.broker_id:
                raise NotLeader(
                    f"partition {partition} of '{name}' has no leader in region {self.region}, its home; nothing was "
                    "stored; `georelay status` shows what is down",
                    leader=-1,
                )
        if publish.header.is_transactional:
            if home == self.region_number:
                raise NotLeader(f"broker {leader} leads partition {partition} of '{name}'", leader=leader)
            raise PolicyViolation(
                f"the home of partition {partition} of '{name}' is region {home}: "
                "a transaction holds partitions of one region, use a producer there"
            )
        return self._remote.forward(place.key, publish, region=home, leader=leader)

    async def read_records(
        self, name: str, partition: int, offset: int, max_bytes: int, wait_ms: int, *, read_uncommitted: bool = False
    ) -> ReadAnswer:
        """Read decided records here or at another replica of this region."""
        key = self._place(name, partition).key
        stream = self.stream(name, partition)
        if stream is not None and (stream.is_leader or (offset != LATEST and stream.is_visible_end_known)):
            return await read_stream(
                stream, offset, max_bytes=max_bytes, wait_ms=wait_ms, read_uncommitted=read_uncommitted
            )
        leader = self.leader_of_key(key)
        candidates = (
            [leader, *self.replicas_of(name, partition)] if leader > 0 else list(self.replicas_of(name, partition))
        )
        for broker in candidates:
            if broker != self.broker_id and self._host.is_alive(BrokerId(broker)):
                return await self._remote.read(
                    key,
                    BrokerId(broker),
                    offset=offset,
                    max_bytes=max_bytes,
                    wait_ms=wait_ms,
                    read_uncommitted=read_uncommitted,
                )
        raise Unavailable(f"no replica of partition {partition} of '{name}' can be reached")

    async def resolve(
        self, name: str, partition: int, *, epoch: int, offset: int, durability: Durability, wait_ms: int = 0
    ) -> Resolved:
        """Return who has a record, wherever its home is; see region.kafka.ports.Cluster."""
        if self.resolver is None:
            raise Unavailable("this broker does not run yet")
        question = Question(
            key=self._place(name, partition).key,
            epoch=Epoch(epoch),
            offset=Offset(offset),
            durability=durability,
            wait_ms=wait_ms,
        )
        return await self.resolver.resolve(question)

    async def delete_records(self, name: str, partition: int, before: int) -> Offset:
        """Delete the records below an offset, in every region; see region.kafka.ports.Cluster."""
        view = self.topic(name)
        if view is not None and view.is_mirror_name:
            raise PolicyViolation(f"'{name}' is another region's stream: delete its records under its own name there")
        return await self._deletion.delete(self._place(name, partition).key, Offset(before))

    # --- operators --------------------------------------------------------------------------------

    def snapshot(self) -> Sequence[StreamSnapshot]:
        """Return the gauges of every hosted stream."""
        rows = []
        left = {region.number for region in self._known_topology().regions if region.removed}
        for stream in self._streams.values():
            home_hwm, lag_ms = (-1, 0.0) if stream.is_home else self._remote.mirror_lag(stream.key)
            rows.append(
                StreamSnapshot(
                    topic=stream.topic,
                    partition=stream.partition,
                    origin=self._region_name(stream.home),
                    is_leader=stream.is_leader,
                    is_home=stream.is_home,
                    home_left=stream.home in left,
                    epoch=stream.epoch,
                    log_start=stream.log_start,
                    high_watermark=stream.high_watermark,
                    next_offset=stream.next_offset,
                    home_high_watermark=home_hwm,
                    lag_ms=lag_ms,
                    orphan_records=sum(branch.records for branch in stream.orphans()),
                    forward_jumps=stream.forward_jumps,
                    is_sealed=stream.sealed,
                    stream=str(stream.key),
                )
            )
        return rows

    def producers_of(self, name: str, partition: int) -> Sequence[ProducerInfo]:
        """Return the producers that a hosted partition remembers."""
        stream = self.stream(name, partition)
        if stream is None:
            raise NotLeader(leader=self.leader_of(name, partition))
        return producers_of(stream)

    def storage(self) -> BrokerStorage:
        """Return what this broker stores."""
        return BrokerStorage(directory=self._data_dir, replicas=sizes_of(self._streams.values(), self._local_name))

    def _local_name(self, stream: HostedStream, origin: RegionNumber) -> str:
        """Return the name that clients of this region use for one stream: qualified where every region has its own."""
        if not origin or origin == self.region_number:
            return stream.topic
        return f"{self._region_name(origin)}.{stream.topic}"

    async def brokers_status(self) -> Sequence[BrokerStatus]:
        """Return the brokers of this region with their states."""
        return self._operations.brokers_status()

    async def replicas_status(self, name: str) -> Sequence[PartitionReplicas]:
        """Return where the replicas of every partition are."""
        view = self.topic(name)
        if view is None:
            raise UnknownTopic(f"topic '{name}' does not exist")
        return self._operations.replicas_status(view)

    async def add_broker(self, broker_id: int, peers: str) -> None:
        """Let a broker of this region take replicas."""
        await self._controller.add_broker(broker_id, peers)

    async def drain_broker(self, broker_id: int) -> None:
        """Begin to move every replica away from a broker."""
        await self._controller.drain_broker(broker_id)

    async def remove_broker(self, broker_id: int) -> None:
        """Forget a broker for ever."""
        await self._controller.remove_broker(broker_id)

    async def reassign(self, name: str, partition: int, replicas: Sequence[int]) -> None:
        """Begin to move a partition to these brokers."""
        await self._controller.reassign(name, partition, replicas)

    def status(self) -> Mapping[str, Any]:
        """Return the JSON object of GET /v1/status."""
        return {
            "mesh": self.mesh_id,
            "region": self.region,
            "broker": self.broker_id,
            "ready": self.ready(),
            "controller": self.controller_id,
            "brokers": [
                {"id": row.id, "kafka": f"{row.kafka_host}:{row.kafka_port}", "admin": row.admin, "alive": row.alive}
                for row in self.brokers()
            ],
            "streams": [
                {
                    "topic": row.topic,
                    "partition": row.partition,
                    "stream": row.stream,
                    "home": row.origin,
                    "leader": self._leader_of_stream(row),
                    "is_leader": row.is_leader,
                    "is_home": row.is_home,
                    "home_left": row.home_left,
                    "epoch": row.epoch,
                    "log_start": row.log_start,
                    "high_watermark": row.high_watermark,
                    "home_high_watermark": row.home_high_watermark,
                    "lag_records": max(0, row.home_high_watermark - row.high_watermark)
                    if row.home_high_watermark >= 0
                    else 0,
                    "lag_ms": row.lag_ms,
                }
                for row in self.snapshot()
            ],
            "links": self._remote.links(),
        }

    def _leader_of_stream(self, row: StreamSnapshot) -> int:
        name = row.topic
        view = self.topic(name)
        if view is not None and view.homes is Homes.EVERY:
            name = f"{row.origin}.{row.topic}"
        return self.leader_of(name, row.partition)
