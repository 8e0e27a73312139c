"""Administration: topics, their records and their places, brokers, and offsets of streams.

Rule 1: what only asks is asked again at another broker; what changes something is sent once, and an answer that was
        lost is OutcomeUnknown: describe the topic to see what became of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from georelay._pb import admin_pb2, streams_pb2
from georelay.channels import Channels
from georelay.errors import Unavailable
from georelay.positions import Place
from georelay.refusals import error_of
from georelay.region_map import RegionMap

SERVICE: Final = "/georelay.v1.Admin/"
TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition in the region that was asked; None for what the broker that answered does not know."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    epoch: int | None
    log_start: int | None
    high_watermark: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic. `home` is the region that sequences it; with `every_region` each one has a stream of its own.

    Retention and segment bytes are -1 where nothing is limited; `details` is there where one topic was asked for.
    """

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    home: str
    every_region: bool
    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    settings: Mapping[str, str] = field(default_factory=dict)
    details: tuple[Partition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffsets:
    """First offset kept, first one not committed, and with a time the first one since then."""

    log_start: int
    high_watermark: int
    first_since: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """A consumer group; `committed` and `lag` hold what is known, by partition. A list has names and states only."""

    name: str
    state: str
    protocol: str = ""
    generation: int = -1
    members: tuple[str, ...] = ()
    committed: Mapping[Place, int] = field(default_factory=dict)
    lag: Mapping[Place, int] = field(default_factory=dict)


class Admin:
    """`Connection.admin`. Every method raises GeorelayError."""

    def __init__(self, channels: Channels, region: RegionMap) -> None:
        self._channels = channels
        self._region = region

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        home: str = "",
        every_region: bool = False,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        segment_bytes: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Topic:
        """Create a topic; what is None has the broker's default.

        Args:
            settings: min.insync.regions, max.geo.lag.ms, max.geo.lag.records, failover, protect.k.

        Raises:
            TopicExists, InvalidTopic, PolicyViolation, TooLarge, HomeUnreachable.
        """
        request = admin_pb2.CreateTopicRequest(
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            homes=admin_pb2.HOMES_EVERY if every_region else admin_pb2.HOMES_ONE,
            home=home,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            segment_bytes=segment_bytes,
            settings=settings or {},
        )
        return _topic(await self._change("CreateTopic", request, admin_pb2.Topic))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records, in every region and for ever (UnknownTopic)."""
        await self._change("DeleteTopic", admin_pb2.DeleteTopicRequest(name=name), admin_pb2.DeleteTopicResponse)

    async def describe_topic(self, name: str) -> Topic:
        """Return a topic with its partitions (UnknownTopic)."""
        return _topic(await self._read("DescribeTopic", admin_pb2.DescribeTopicRequest(name=name), admin_pb2.Topic))

    async def list_topics(self) -> list[Topic]:
        """Return all names of the region."""
        answer = await self._read("ListTopics", admin_pb2.ListTopicsRequest(), admin_pb2.ListTopicsResponse)
        return [_topic(row) for row in answer.topics]

    async def alter_topic(
        self,
        name: str,
        *,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        segment_bytes: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Topic:
        """Change the settings that are given, in every region; `settings` as in `create_topic`, "" is the default."""
        request = admin_pb2.AlterTopicRequest(
            name=name,
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            segment_bytes=segment_bytes,
            settings=settings or {},
        )
        return _topic(await self._change("AlterTopic", request, admin_pb2.Topic))

    async def delete_records(self, name: str, partition: int, before: int | None = None) -> int:
        """Delete the records below an offset (None: all that are committed), for ever; return the log start."""
        request = admin_pb2.DeleteRecordsRequest(name=name, partition=partition, before=before)
        return int((await self._change("DeleteRecords", request, admin_pb2.DeleteRecordsResponse)).log_start)

    async def offsets(
        self, places: Sequence[tuple[str, int]], *, since_us: int | None = None
    ) -> dict[Place, StreamOffsets]:
        """Return the offsets of (stream, partition)s, in this region.

        Args:
            since_us: also the first offset whose append time at the home is not before it (us since 1970).
        """
        request = streams_pb2.FindOffsetsRequest(
            partitions=[streams_pb2.StreamPartition(stream=stream, partition=number) for stream, number in places],
            since_us=since_us,
        )
        answer = await self._region.ask("FindOffsets", request, streams_pb2.FindOffsetsResponse, timeout_s=TIMEOUT_S)
        found: dict[Place, StreamOffsets] = {}
        for (stream, number), row in zip(places, answer.found, strict=True):
            if row.HasField("refusal"):
                raise error_of(row.refusal)
            found[Place(stream, number)] = StreamOffsets(
                log_start=row.log_start,
                high_watermark=row.high_watermark,
                first_since=None if since_us is None else row.first_since,
            )
        return found

    async def brokers(self) -> Mapping[int, str]:
        """Return the states of the region's brokers by id: active, draining, drained, absent."""
        answer = await self._read("ListBrokers", admin_pb2.ListBrokersRequest(), admin_pb2.ListBrokersResponse)
        prefix = "BROKER_STATE_"
        return {row.id: admin_pb2.BrokerState.Name(row.state).removeprefix(prefix).lower() for row in answer.brokers}

    async def list_groups(self) -> list[GroupState]:
        """Return the consumer groups of the region."""
        answer = await self._read("ListGroups", admin_pb2.ListGroupsRequest(), admin_pb2.ListGroupsResponse)
        return [_group(row) for row in answer.groups]

    async def describe_group(self, name: str) -> GroupState:
        """Return a group with its members and lag (UnknownGroup)."""
        return _group(await self._read("DescribeGroup", admin_pb2.DescribeGroupRequest(name=name), admin_pb2.Group))

    async def delete_group(self, name: str) -> None:
        """Delete a group without members (GroupNotEmpty, UnknownGroup)."""
        await self._change("DeleteGroup", admin_pb2.DeleteGroupRequest(name=name), admin_pb2.DeleteGroupResponse)

    async def set_group_offsets(self, name: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set the next offsets of a group without members, (topic, partition) -> offset."""
        request = admin_pb2.SetGroupOffsetsRequest(name=name)
        for (topic, partition), offset in offsets.items():
            request.offsets.append(admin_pb2.GroupOffset(topic=topic, partition=partition, offset=offset))
        await self._change("SetGroupOffsets", request, admin_pb2.SetGroupOffsetsResponse)

    async def create_queue(self, name: str, topic: str, **settings: Any) -> None:
        """Make a queue; settings are the fields of QueueDefinition in admin.proto (QueueExists, UnknownTopic)."""
        request = admin_pb2.QueueDefinition(name=name, topic=topic, **settings)
        await self._change("CreateQueue", request, admin_pb2.QueueDefinition)

    async def list_queues(self) -> list[str]:
        """Return the names of the region's queues."""
        answer = await self._read("ListQueues", admin_pb2.ListQueuesRequest(), admin_pb2.ListQueuesResponse)
        return [row.definition.name for row in answer.queues]

    async def delete_queue(self, name: str) -> None:
        """Delete a queue, not the records of its topic (UnknownQueue)."""
        await self._change("DeleteQueue", admin_pb2.DeleteQueueRequest(name=name), admin_pb2.DeleteQueueResponse)

    async def _read(self, method: str, request: Any, answer: Any) -> Any:
        async def ask(address: str, left_s: float) -> Any:
            return await self._channels.ask(address, SERVICE + method, request, answer, timeout_s=min(left_s, 10.0))

        return await self._region.until_answered(ask, timeout_s=TIMEOUT_S)

    async def _change(self, method: str, request: Any, answer: Any) -> Any:
        """Ask one broker, the first that is reachable as far as is known."""
        candidates = self._region.candidates()
        if not candidates:
            raise Unavailable("no broker is known; nothing was sent")
        return await self._channels.ask(candidates[0], SERVICE + method, request, answer, timeout_s=TIMEOUT_S)


def _topic(row: admin_pb2.Topic) -> Topic:
    return Topic(
        name=row.name,
        topic_id=row.topic_id,
        partitions=row.partitions,
        replication_factor=row.replication_factor,
        home=row.home,
        every_region=row.homes == admin_pb2.HOMES_EVERY,
        retention_ms=row.retention_ms,
        retention_bytes=row.retention_bytes,
        segment_bytes=row.segment_bytes,
        settings=dict(row.settings),
        details=tuple(
            Partition(
                partition=state.partition,
                leader=state.leader if state.HasField("leader") else None,
                replicas=tuple(state.replicas),
                epoch=state.epoch if state.HasField("epoch") else None,
                log_start=state.log_start if state.HasField("log_start") else None,
                high_watermark=state.high_watermark if state.HasField("high_watermark") else None,
            )
            for state in row.partition_states
        ),
    )


def _group(row: admin_pb2.Group) -> GroupState:
    return GroupState(
        name=row.name,
        state=row.state,
        protocol=row.protocol,
        generation=row.generation,
        members=tuple(member.member_id for member in row.members),
        committed={Place(at.topic, at.partition): at.committed for at in row.partitions if at.HasField("committed")},
        lag={Place(at.topic, at.partition): at.lag for at in row.partitions if at.HasField("lag")},
    )
