"""The coordinators of one region as one broker finds and asks them: here, or over a link at the leader.

Rule 1: a call that says that nothing was done (NotCoordinator, CoordinatorLoading, NotLeader, an unreachable broker) is
        repeated until its time is over; one whose answer is lost never is.
Rule 2: only brokers of this region may call: they have checked what the client may do.
Rule 3: the internal topic is defined at its first use, once for all regions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import structlog

from georelay.errors import (
    BadRequest,
    CoordinatorLoading,
    CoordinatorUnavailable,
    GeorelayError,
    HomeUnreachable,
    NotCoordinator,
    NotLeader,
    OutcomeUnknown,
    PolicyViolation,
)
from georelay.fields import FieldError, Fields
from georelay.ids import BrokerId, GroupId, RegionNumber, StreamKey, region_of
from georelay.wire.murmur2 import partition_for_key
from region.controller.assignment import Assignment
from region.controller.topic import Homes, TopicSpec, TopicView
from region.coordination import call_answers
from region.coordination.coordinator_stream import CoordinatorStream
from region.coordination.coordinators import (
    CALL_TIMEOUT_S,
    COORDINATION_LEVEL,
    COORDINATORS,
    INTERNAL_TOPIC,
    MakePart,
)
from region.coordination.limits import RETAINED_BYTES, SEGMENT_BYTES
from region.coordination.part import CoordinatorPart, JsonObject, Part
from region.topics.hosted_stream import HostedStream

log = structlog.get_logger()

CALL_METHOD: Final = "coordinator.call"
READY_TIMEOUT_S: Final = 5.0
CREATE_AGAIN_S: Final = 1.0
RETRY_S: Final = 0.02
RETRY_S_MAX: Final = 0.5
CALL_TIMEOUT_MS_MAX: Final = 15 * 60 * 1000  # no long poll of ours is longer
OPERATION_CHARS_MAX: Final = 64
PRINCIPAL_CHARS_MAX: Final = 1_000
_NOTHING_DONE: Final = (NotCoordinator, CoordinatorLoading, CoordinatorUnavailable, NotLeader, HomeUnreachable)


def internal_topic() -> TopicSpec:
    """Return what the internal topic is: every region has its own coordinators, and stores the others' streams."""
    return TopicSpec(
        name=INTERNAL_TOPIC,
        partitions=COORDINATORS,
        homes=Homes.EVERY,
        retention_bytes=RETAINED_BYTES,
        config=(("segment.bytes", str(SEGMENT_BYTES)),),
    )


class Ask(Protocol):
    """Carries a request to another broker of this region (region.broker.mesh_port.RemoteStreamsOverLinks.ask)."""

    def __call__(
        self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float
    ) -> Awaitable[JsonObject]:
        """Return the answer; raises HomeUnreachable (nothing was sent), OutcomeUnknown and others."""


class RegionCoordinators:
    """Implements region.coordination.coordinators.Coordinators.

    Args:
        feature_level: what this region may write.
        find_topic: the topic of a local name. assignment_of: group and replicas of a stream in this region.
        ensure_topic: creates a topic of brokers' own where it is unknown; raises GeorelayError.
        streams: those hosted here, by group. leader: of a group in this region, -1 while unknown.
        rng: spreads retries.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        region: RegionNumber,
        feature_level: Callable[[], int],
        find_topic: Callable[[str], TopicView | None],
        assignment_of: Callable[[StreamKey], Assignment | None],
        ensure_topic: Callable[[TopicSpec], Awaitable[TopicView]],
        streams: Mapping[GroupId, HostedStream],
        leader: Callable[[GroupId], BrokerId],
        ask: Ask,
        rng: random.Random,
    ) -> None:
        self._me = me
        self._region = region
        self._feature_level = feature_level
        self._find_topic = find_topic
        self._assignment_of = assignment_of
        self._ensure_topic = ensure_topic
        self._streams = streams
        self._leader = leader
        self._ask = ask
        self._rng = rng
        self._makes: dict[Part, MakePart] = {}
        self._creating: asyncio.Task[None] | None = None
        self._complained = False

    def register(self, part: Part, make: MakePart) -> None:
        """Have every coordinator hosted here hold such a part; before the broker starts."""
        if part in self._makes:
            raise ValueError(f"there is a part {part.name} already")
        self._makes[part] = make

    def make_stream(self, **arguments: Any) -> CoordinatorStream:
        """Return the machine for a stream of the internal topic whose home is this region."""
        return CoordinatorStream(parts=self._makes, **arguments)

    async def close(self) -> None:
        """Give up what runs in the background."""
        if self._creating is not None:
            self._creating.cancel()
            await asyncio.gather(self._creating, return_exceptions=True)

    # --- where ------------------------------------------------------------------------------------

    def partition_of(self, key: str) -> int:
        """Return the coordinator of a key."""
        return partition_for_key(key.encode(), COORDINATORS)

    def leader_of(self, key: str) -> BrokerId:
        """Return the broker that leads it, -1 while unknown; creates the internal topic where it is absent."""
        return self._leader_of(self.partition_of(key))

    async def ready(self, key: str, *, timeout_s: float = READY_TIMEOUT_S) -> BrokerId:
        """Return the broker that leads it once there is one."""
        partition = self.partition_of(key)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        for pause_s in _pauses(self._rng):
            leader = self._leader_of(partition)
            if leader > 0:
                return leader
            if asyncio.get_running_loop().time() + pause_s > deadline_s:
                raise CoordinatorUnavailable(f"coordinator {partition} has no leader at the moment")
            await asyncio.sleep(pause_s)
        raise AssertionError("pauses never end")

    def part_here(self, key: str, part: Part) -> CoordinatorPart:
        """Return the part that answers for a key, when this broker leads its coordinator."""
        return self._part_here(self.partition_of(key), part)

    def parts_here(self, part: Part) -> Sequence[CoordinatorPart]:
        """Return this part of every coordinator that this broker leads."""
        view = self._topic()
        streams = [] if view is None else [self._stream(view, partition) for partition in range(COORDINATORS)]
        led = [stream for stream in streams if stream is not None and stream.is_leader]
        return [stream.parts[part] for stream in led if part in stream.parts]

    def _topic(self) -> TopicView | None:
        """Return the internal topic when this region may use it."""
        if self._feature_level() < COORDINATION_LEVEL:
            return None
        view = self._find_topic(INTERNAL_TOPIC)
        if view is not None and (view.partitions, view.homes) != (COORDINATORS, Homes.EVERY):
            if not self._complained:
                log.critical("coordinators.topic_foreign", topic=INTERNAL_TOPIC, partitions=view.partitions)
            self._complained = True
            return None
        return view

    def _assignment(self, view: TopicView, partition: int) -> Assignment | None:
        return self._assignment_of(StreamKey(view.topic_id, self._region, partition))

    def _stream(self, view: TopicView, partition: int) -> CoordinatorStream | None:
        assignment = self._assignment(view, partition)
        stream = None if assignment is None else self._streams.get(assignment.group_id)
        return stream if isinstance(stream, CoordinatorStream) else None

    def _leader_of(self, partition: int) -> BrokerId:
        view = self._topic()
        if view is None:
            self._create()
            return BrokerId(-1)
        assignment = self._assignment(view, partition)
        return BrokerId(-1) if assignment is None else self._leader(assignment.group_id)

    def _part_here(self, partition: int, part: Part) -> CoordinatorPart:
        if part not in self._makes:
            raise BadRequest(f"this broker has no {part.name.lower()}")
        view = self._topic()
        stream = None if view is None else self._stream(view, partition)
        if stream is not None and stream.is_leader:
            return stream.parts[part]
        leader = self._leader_of(partition)
        if leader == self._me:
            raise CoordinatorLoading(f"coordinator {partition} is not caught up yet")
        raise NotCoordinator(leader=leader)

    def _create(self) -> None:
        if self._feature_level() < COORDINATION_LEVEL or self._complained:
            return
        if self._creating is None or self._creating.done():
            self._creating = asyncio.get_running_loop().create_task(self._create_topic(), name="coordinators-topic")

    async def _create_topic(self) -> None:
        try:
            await self._ensure_topic(internal_topic())
            log.info("coordinators.topic_created", topic=INTERNAL_TOPIC, partitions=COORDINATORS)
        except GeorelayError as error:
            log.warning("coordinators.topic_delayed", topic=INTERNAL_TOPIC, code=error.code, reason=str(error))
            await asyncio.sleep(CREATE_AGAIN_S)  # the next one who asks begins again

    # --- calls ------------------------------------------------------------------------------------

    async def call(
        self,
        part: Part,
        key: str,
        operation: str,
        body: JsonObject,
        *,
        principal: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> JsonObject:
        """Ask the part that answers for a key; see Coordinators."""
        return await self._call(part, self.partition_of(key), operation, body, principal=principal, timeout_s=timeout_s)

    async def gather(
        self,
        part: Part,
        operation: str,
        body: JsonObject,
        *,
        principal: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> list[JsonObject]:
        """Ask this part of every coordinator; see Coordinators."""
        if self._topic() is None:
            return []
        calls = (
            self._call(part, partition, operation, body, principal=principal, timeout_s=timeout_s)
            for partition in range(COORDINATORS)
        )
        return await asyncio.gather(*calls)

    async def _call(
        self, part: Part, partition: int, operation: str, body: JsonObject, *, principal: str, timeout_s: float
    ) -> JsonObject:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        told = BrokerId(-1)  # by the broker that was asked and is not the leader
        for pause_s in _pauses(self._rng):
            leader = told if told > 0 else self._leader_of(partition)
            try:
                return await self._call_at(
                    leader, part, partition, operation, body, principal=principal, timeout_s=deadline_s - loop.time()
                )
            except _NOTHING_DONE as error:
                refusal = error
            known = refusal.leader if isinstance(refusal, NotCoordinator | NotLeader) else -1
            told = BrokerId(known) if known not in (leader, told) else BrokerId(-1)
            if loop.time() + pause_s >= deadline_s:
                text = f"coordinator {partition} did not answer within {timeout_s:g} s: {refusal}"
                raise CoordinatorUnavailable(text) from refusal
            await asyncio.sleep(pause_s)
        raise AssertionError("pauses never end")

    async def _call_at(
        self,
        leader: BrokerId,
        part: Part,
        partition: int,
        operation: str,
        body: JsonObject,
        *,
        principal: str,
        timeout_s: float,
    ) -> JsonObject:
        if leader < 0:
            raise CoordinatorUnavailable(f"coordinator {partition} has no leader at the moment")
        if leader == self._me:
            return await self._call_here(part, partition, operation, body, principal=principal, timeout_s=timeout_s)
        request = {
            "part": int(part),
            "partition": partition,
            "operation": operation,
            "body": body,
            "principal": principal,
            "timeout_ms": min(max(int(timeout_s * 1000), 1), CALL_TIMEOUT_MS_MAX),
        }
        return call_answers.result_of(await self._ask(leader, CALL_METHOD, request, timeout_s=timeout_s))

    async def _call_here(
        self, part: Part, partition: int, operation: str, body: JsonObject, *, principal: str, timeout_s: float
    ) -> JsonObject:
        answering = self._part_here(partition, part)
        try:
            async with asyncio.timeout(timeout_s):
                return await answering.call(operation, body, principal=principal)
        except TimeoutError as error:
            raise OutcomeUnknown(f"{operation}: coordinator {partition} did not answer in time") from error

    async def serve(self, body: Mapping[str, Any], *, from_broker: BrokerId) -> JsonObject:
        """Answer the call of another broker; every GeorelayError travels inside the answer."""
        try:
            if region_of(from_broker) != self._region:
                raise PolicyViolation(f"broker {from_broker} is of another region: it has coordinators of its own")
            return call_answers.ok(await self._serve(Fields(dict(body), CALL_METHOD)))
        except FieldError as error:
            return call_answers.failed(BadRequest(f"{CALL_METHOD}: {error}"))
        except GeorelayError as error:
            return call_answers.failed(error)

    async def _serve(self, fields: Fields) -> JsonObject:
        part = fields.integer("part", low=1, high=max(Part))
        partition = fields.integer("partition", low=0, high=COORDINATORS - 1)
        operation = fields.text("operation", chars_min=1, chars_max=OPERATION_CHARS_MAX)
        principal = fields.text("principal", chars_max=PRINCIPAL_CHARS_MAX)
        timeout_ms = fields.integer("timeout_ms", low=1, high=CALL_TIMEOUT_MS_MAX)
        asked = fields.value("body")
        fields.done()
        if not isinstance(asked, dict):
            raise BadRequest(f"{CALL_METHOD}: the body is no object")
        return await self._call_here(
            Part(part), partition, operation, asked, principal=principal, timeout_s=timeout_ms / 1000
        )


def _pauses(rng: random.Random) -> Iterator[float]:
    """Yield how long to wait before each retry, in seconds: longer and longer, and never all at once."""
    pause_s = RETRY_S
    while True:
        yield pause_s * rng.uniform(0.5, 1.0)
        pause_s = min(pause_s * 2, RETRY_S_MAX)
