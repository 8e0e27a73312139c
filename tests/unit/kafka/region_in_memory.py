"""An in-memory region of one broker for tests of the services: topics, users, and a recorder of deliveries."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from georelay.durability import Durability
from georelay.errors import (
    BadRequest,
    GeorelayError,
    OffsetOutOfRange,
    PolicyViolation,
    TopicExists,
    Unauthenticated,
    UnknownTopic,
)
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.replication.level import AskedLevel
from mesh.replication.publish import Publish
from region.controller.definition_rules import alter
from region.controller.topic import Homes, TopicDefaults, TopicDefinition, TopicSpec, TopicView
from region.geo.resolution import Resolved
from region.geo.stream_geo import Holders
from region.kafka.client_drain_core import ClientDrain
from region.kafka.ports import (
    BrokerInfo,
    BrokerStatus,
    BrokerStorage,
    PartitionReplicas,
    ProducerInfo,
    Published,
    ReadAnswer,
    ReplicaSize,
    StreamSnapshot,
)
from tests.unit.kafka.stream_in_memory import FakeStream


class FakeCluster:
    """One region with one broker, 1001 in region "us"."""

    def __init__(self) -> None:
        self.mesh_id = "mesh-test"
        self.region = "us"
        self.region_number = RegionNumber(1)
        self.broker_id = 1001
        self.controller_id = 1001
        self.metadata_epoch = 1
        self.auto_create_topics = True
        self.topic_defaults = TopicDefaults()
        self.has_left = False
        self.now_s = 0.0  # of the drain
        self.drain = ClientDrain(self.region, monotonic_s=lambda: self.now_s)
        self.is_ready = True
        self.views: dict[str, TopicView] = {}
        self.streams: dict[tuple[str, int], FakeStream] = {}
        self.publish_errors: list[GeorelayError] = []  # raised by the next publishes
        self.levels: list[AskedLevel] = []
        self.regions_reached = 3
        self.published: list[tuple[str, int, Publish]] = []
        self.producer_errors: list[GeorelayError] = []
        self.create_errors: list[GeorelayError] = []
        self.created_by: list[str] = []
        self.admin_errors: list[GeorelayError] = []  # raised by the next changes of topics and brokers
        self.changes: list[tuple[Any, ...]] = []  # (method, arguments) of those that were asked for
        self.states = {1001: "active"}
        self.others: list[int] = []  # further brokers
        self.replicas: dict[tuple[str, int], list[int]] = {}
        self.leaders: dict[tuple[str, int], int] = {}
        self.targets: dict[tuple[str, int], tuple[int, ...]] = {}
        self.producers: dict[tuple[str, int], list[ProducerInfo]] = {}
        self._producer_ids = itertools.count(1 << 48)

    def add_topic(self, name: str, partitions: int = 1, *, homes: Homes = Homes.ONE, mirror_of: str = "") -> TopicView:
        topic_id = (mirror_of or name).encode().ljust(16, b".")[:16]
        definition = TopicDefinition(
            name=mirror_of or name,
            topic_id=topic_id,
            partitions=partitions,
            replication_factor=1,
            homes=homes,
            home=RegionNumber(1 if homes is Homes.ONE else 0),
            retention_ms=-1,
            retention_bytes=-1,
            config=(),
            index=len(self.views) + 1,
        )
        is_mirror = bool(mirror_of) and not name.startswith("us.")
        origin = RegionNumber(0 if homes is Homes.ONE else (2 if is_mirror else 1))
        view = TopicView(
            name=name,
            topic_id=topic_id,
            wire_id=name.encode().ljust(16, b"-")[:16],
            partitions=partitions,
            replication_factor=1,
            homes=homes,
            home=RegionNumber(2 if is_mirror else 1),
            is_mirror_name=is_mirror,
            origin=origin,
            internal=False,
            definition=definition,
        )
        self.views[name] = view
        for partition in range(partitions):
            stream = FakeStream(StreamKey(topic_id, origin, partition), partition)
            stream.is_home = not is_mirror
            self.streams[name, partition] = stream
        self.metadata_epoch += 1
        return view

    def ready(self) -> bool:
        return self.is_ready

    def brokers(self) -> list[BrokerInfo]:
        mine = BrokerInfo(id=1001, kafka_host="127.0.0.1", kafka_port=self.kafka_port)
        return [mine, *(BrokerInfo(id=number, kafka_host="127.0.0.1", kafka_port=1) for number in self.others)]

    kafka_port = 9092

    def topics(self) -> list[TopicView]:
        return list(self.views.values())

    def topic(self, name: str) -> TopicView | None:
        return self.views.get(name)

    def stream_names(self, name: str) -> list[str]:
        view = self.views[name]
        if view.homes is Homes.EVERY and view.definition.name == name:
            return [other.name for other in self.views.values() if other.definition.name == name and other.name != name]
        return [name]

    def stream(self, name: str, partition: int) -> FakeStream | None:
        return self.streams.get((name, partition))

    def leader_of(self, name: str, partition: int) -> int:
        return self.leaders.get((name, partition), 1001 if (name, partition) in self.streams else -1)

    def epoch_of(self, name: str, partition: int) -> int:
        return 1

    def home_of(self, name: str, partition: int) -> RegionNumber:
        return self.streams[name, partition].home

    def replicas_of(self, name: str, partition: int) -> list[int]:
        return self.replicas.get((name, partition), [1001])

    def check_topic(self, spec: TopicSpec) -> TopicSpec:
        if spec.name in self.views:
            raise TopicExists(f"topic {spec.name!r} exists")
        return replace(spec, partitions=max(spec.partitions, 1), replication_factor=1)

    async def create_topic(self, spec: TopicSpec, *, by: str = "") -> TopicView:
        self.created_by.append(by)
        if self.create_errors:
            raise self.create_errors.pop(0)
        self.check_topic(spec)
        self.add_topic(spec.name, max(spec.partitions, 1), homes=spec.homes)
        return self._defined(
            spec.name, retention_ms=spec.retention_ms, retention_bytes=spec.retention_bytes, config=spec.config
        )

    def _defined(self, name: str, **fields: Any) -> TopicView:
        view = self.views[name]
        definition = dataclasses.replace(view.definition, **fields)
        self.views[name] = view = dataclasses.replace(view, definition=definition)
        return view

    async def ensure_topic(self, name: str, *, by: str = "") -> TopicView:
        return self.views.get(name) or await self.create_topic(TopicSpec(name=name), by=by)

    async def delete_topic(self, name: str) -> None:
        if self.views.pop(name, None) is None:
            raise UnknownTopic(f"topic {name!r} does not exist")
        self.metadata_epoch += 1

    def _changed(self, *change: Any) -> None:
        self.changes.append(change)
        if self.admin_errors:
            raise self.admin_errors.pop(0)

    async def alter_topic(self, name: str, settings: Mapping[str, str]) -> TopicView:
        self._changed("alter_topic", name, dict(settings))
        if name not in self.views:
            raise UnknownTopic(f"topic {name!r} does not exist")
        altered = alter(self.views[name].definition, settings)
        return self._defined(
            name, retention_ms=altered.retention_ms, retention_bytes=altered.retention_bytes, config=altered.config
        )

    async def add_partitions(self, name: str, count: int) -> TopicView:
        self._changed("add_partitions", name, count)
        view = self.views[name]
        return self.add_topic(view.name, count, homes=view.homes)

    def producers_of(self, name: str, partition: int) -> list[ProducerInfo]:
        return self.producers.get((name, partition), [])

    def storage(self) -> BrokerStorage:
        rows = [ReplicaSize(topic=name, partition=number, size_bytes=100 + number) for name, number in self.streams]
        return BrokerStorage(directory="/data", replicas=rows, total_bytes=1000, usable_bytes=10)

    async def delete_records(self, name: str, partition: int, before: int) -> Offset:
        self._changed("delete_records", name, partition, before)
        stream = self.streams.get((name, partition))
        if stream is None:
            raise UnknownTopic(f"topic {name!r} has no partition {partition}")
        wanted = stream.high_watermark if before == -1 else before
        if wanted > stream.high_watermark:
            raise OffsetOutOfRange(f"offset {wanted} is above the high watermark {stream.high_watermark}")
        stream.log_start = Offset(max(stream.log_start, wanted))
        return stream.log_start

    async def brokers_status(self) -> list[BrokerStatus]:
        return [BrokerStatus(id=number, state=state, alive=True) for number, state in sorted(self.states.items())]

    async def replicas_status(self, name: str) -> list[PartitionReplicas]:
        view = self.views.get(name)
        if view is None:
            raise UnknownTopic(f"topic {name!r} does not exist")
        return [
            PartitionReplicas(partition=number, voters=(1001,), target=self.targets.get((name, number), (1001,)))
            for number in range(view.partitions)
        ]

    async def add_broker(self, broker_id: int, peers: str) -> None:
        self._changed("add_broker", broker_id, peers)
        self.states[broker_id] = "active"

    async def drain_broker(self, broker_id: int) -> None:
        self._changed("drain_broker", broker_id)
        if broker_id not in self.states:
            raise BadRequest(f"there is no broker {broker_id} in this region")
        self.states[broker_id] = "draining"

    async def remove_broker(self, broker_id: int) -> None:
        self._changed("remove_broker", broker_id)
        if self.states.get(broker_id) != "drained":
            raise PolicyViolation(f"broker {broker_id} still holds replicas; drain it first")
        del self.states[broker_id]

    async def reassign(self, name: str, partition: int, replicas: Sequence[int]) -> None:
        self._changed("reassign", name, partition, tuple(replicas))
        self.targets[name, partition] = tuple(replicas)

    async def allocate_producer_id(self) -> int:
        if self.producer_errors:
            raise self.producer_errors.pop(0)
        return next(self._producer_ids)

    def publish(self, name: str, partition: int, publish: Publish) -> asyncio.Future[Published]:
        level = publish.level
        self.levels.append(level)
        self.published.append((name, partition, publish))
        if self.publish_errors:
            raise self.publish_errors.pop(0)
        stream = self.streams[name, partition]
        stored = stream.publish(publish)
        return stored if not level.is_geo else self._at_level(stored, level.durability.regions_of(3))

    def _at_level(self, stored: asyncio.Future[Published], asked: int) -> asyncio.Future[Published]:
        """Answer as a home of three regions does of which `regions_reached` have everything at once."""
        answer: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        regions = tuple(RegionNumber(number + 1) for number in range(self.regions_reached))
        stored.add_done_callback(
            lambda done: answer.set_result(
                replace(done.result(), regions=regions, level=len(regions), is_pending=len(regions) < asked)
            )
        )
        return answer

    async def resolve(
        self, name: str, partition: int, *, epoch: int, offset: int, durability: Durability, wait_ms: int = 0
    ) -> Resolved:
        regions = tuple(RegionNumber(number + 1) for number in range(self.regions_reached))
        is_lost = epoch != self.streams[name, partition].epoch
        holders = Holders(regions=regions, level=len(regions), is_lost=is_lost, epoch=Epoch(1))
        return Resolved(holders=holders, is_reached=not is_lost and len(regions) >= durability.regions_of(3))

    async def read_records(
        self, name: str, partition: int, offset: int, max_bytes: int, wait_ms: int, *, read_uncommitted: bool = False
    ) -> ReadAnswer:
        raise UnknownTopic("the fake hosts every stream")

    def snapshot(self) -> list[StreamSnapshot]:
        return [
            StreamSnapshot(
                topic=name,
                partition=partition,
                origin="us",
                is_leader=True,
                is_home=stream.is_home,
                epoch=1,
                log_start=stream.log_start,
                high_watermark=stream.high_watermark,
                next_offset=stream.next_offset,
            )
            for (name, partition), stream in self.streams.items()
        ]

    def status(self) -> dict[str, Any]:
        return {"region": self.region, "topics": len(self.views)}


class FakeCredentials:
    """Nobody has to sign in until `users` is set."""

    def __init__(self) -> None:
        self.users: dict[str, str] = {}

    @property
    def required(self) -> bool:
        return bool(self.users)

    def remembers(self, user: str, password: str) -> bool:
        return False

    async def authenticate(self, user: str, password: str) -> bool:
        await asyncio.sleep(0)
        return self.users.get(user) == password

    async def authenticate_header(self, authorization: str | None) -> str:
        import base64

        try:
            scheme, encoded = (authorization or "").split(" ")
            user, password = base64.b64decode(encoded).decode().split(":")
        except ValueError as error:
            raise Unauthenticated("sign in") from error
        if scheme.lower() != "basic" or self.users.get(user) != password:
            raise Unauthenticated("wrong user or password")
        return user


class FakeSession:
    def __init__(self, offset: int) -> None:
        self.first_offset = offset
        self.next_offset = offset
        self.caught_up_count = 0
        self.batches: list[tuple[int, int]] = []

    def caught_up(self, now_ns: int) -> None:
        self.caught_up_count += 1

    def delivered(self, *, base_offset: int, record_count: int, **_: int) -> None:
        self.batches.append((base_offset, record_count))
        self.next_offset = base_offset + record_count


class FakeRecorder:
    def __init__(self) -> None:
        self.sessions: list[tuple[str, int, int, FakeSession]] = []
        self.not_stored: list[tuple[str, int, int, int, bool]] = []

    def open_session(self, *, topic: str, origin: int, partition: int, offset: int, group: str = "") -> FakeSession:
        session = FakeSession(offset)
        self.sessions.append((topic, origin, partition, session))
        return session

    def refused(self, *, topic: str, origin: int, partition: int, records: int, is_decided: bool) -> None:
        self.not_stored.append((topic, origin, partition, records, is_decided))


@pytest.fixture
def cluster() -> FakeCluster:
    """An in-memory region."""
    return FakeCluster()


@pytest.fixture
def credentials() -> FakeCredentials:
    """Users of the in-memory region: none until set."""
    return FakeCredentials()


@pytest.fixture
def recorder() -> FakeRecorder:
    """A recorder of deliveries that remembers its sessions."""
    return FakeRecorder()
