"""The coordinators of one region as one broker finds and asks them: here, or over a link at the leader.

Rule 1: a call that says that nothing was done (NotCoordinator, CoordinatorLoading, NotLeader, an unreachable broker) is
        repeated until its time is over; one whose answer is lost never is.
Rule 2: only brokers of this region may call: they have checked what the client may do. Those of another region may call
        for its own domain when that is at home here, for domains that were moved (region.coordination.domains), and
        for what is kept about streams (OF_STREAMS).
Rule 3: the internal topic is defined at its first use, once for all regions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
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
    Unavailable,
)
from georelay.fields import FieldError, Fields
from georelay.ids import (
    BROKERS_PER_REGION_MAX,
    REGION_NUMBER_MAX,
    BrokerId,
    GroupId,
    RegionNumber,
    StreamKey,
    region_of,
)
from georelay.wire.murmur2 import partition_for_key
from mesh.home.home_row import HomeRow
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
from region.coordination.domains import Domains, RemoteCoordinator
from region.coordination.limits import RETAINED_BYTES, SEGMENT_BYTES
from region.coordination.part import CoordinatorPart, JsonObject, Part
from region.coordination.shares_core import PRINCIPAL_CHARS_MAX
from region.topics.hosted_stream import HostedStream

log = structlog.get_logger()

CALL_METHOD: Final = "coordinator.call"
READY_TIMEOUT_S: Final = 5.0
CREATE_AGAIN_S: Final = 1.0
RETRY_S: Final = 0.02
RETRY_S_MAX: Final = 0.5
CALL_TIMEOUT_MS_MAX: Final = 15 * 60 * 1000  # no long poll of ours is longer
OPERATION_CHARS_MAX: Final = 64
NAME_CHARS_MAX: Final = 32_767  # of a group or a transactional id: what a Kafka string holds
ADDRESS_CHARS_MAX: Final = 255
CLAIM: Final = "domain.claim"  # operations that are answered here, for every part
WHERE: Final = "domain.where"
OF_STREAMS: Final = "copy_"  # operations on what is kept about a stream: the stream's home asks, whichever that is
CLAIM_TIMEOUT_S: Final = 2.0
PING_METHOD: Final = "home.ping"  # every broker answers it (region.homes.agent)
PING_TIMEOUT_S: Final = 1.0
ELSEWHERE_TIMEOUT_S: Final = 0.8  # less than a client's question waits
ELSEWHERE_KEPT_S: Final = 2.0
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


class AskRegion(Protocol):
    """Carries a request to a broker of another region (RemoteStreamsOverLinks.request)."""

    def __call__(
        self,
        *,
        region: RegionNumber,
        broker: BrokerId | None,
        method: str,
        body: Mapping[str, Any],
        timeout_s: float,
    ) -> Awaitable[JsonObject]:
        """Return the answer; raises GeorelayError."""


def _never_moved(_key: StreamKey) -> HomeRow | None:
    return None


def _never(_region: RegionNumber) -> bool:
    return False


def _nowhere(_broker: BrokerId) -> tuple[str, int] | None:
    return None


class RegionCoordinators:
    """Implements region.coordination.coordinators.Coordinators.

    Args:
        feature_level: what this region may write.
        find_topic: the topic of a local name. assignment_of: group and replicas of a stream in this region.
        home_row: control's newest word about a stream's home. origins: every region that began streams.
        has_left: whether one left the mesh. older_regions: those below a feature level, or not known to be at it.
        ask_region: how the others are reached; None: there are none.
        address_of: where Kafka clients reach a broker of this region.
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
        home_row: Callable[[StreamKey], HomeRow | None] = _never_moved,
        origins: Callable[[], Sequence[RegionNumber]] = tuple,
        ask_region: AskRegion | None = None,
        has_left: Callable[[RegionNumber], bool] = _never,
        address_of: Callable[[BrokerId], tuple[str, int] | None] = _nowhere,
        older_regions: Callable[[int], Sequence[str]] = lambda _: (),
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
        self._ask_region = ask_region
        self._address_of = address_of
        self._older_regions = older_regions
        self._elsewhere: dict[StreamKey, tuple[float, RemoteCoordinator]] = {}  # with the loop time it is old
        self._domains = Domains(
            region=region,
            home_row=home_row,
            origins=origins,
            has_left=has_left,
            stream=self._stream,
            ask_claim=self._claim_of,
            ping=self._ping,
        )

    def register(self, part: Part, make: MakePart) -> None:
        """Have every coordinator hosted here hold such a part; before the broker starts."""
        if part in self._makes:
            raise ValueError(f"there is a part {part.name} already")
        self._makes[part] = make

    def make_stream(self, **arguments: Any) -> CoordinatorStream:
        """Return the machine for a stream of the internal topic."""
        stream = CoordinatorStream(parts=self._makes, **arguments)
        stream.older_regions = self._older_regions
        return stream

    async def close(self) -> None:
        """Give up what runs in the background."""
        self._domains.close()
        if self._creating is not None:
            self._creating.cancel()
            await asyncio.gather(self._creating, return_exceptions=True)

    # --- where ------------------------------------------------------------------------------------

    def partition_of(self, key: str) -> int:
        """Return the coordinator of a key."""
        return partition_for_key(key.encode(), COORDINATORS)

    def leader_of(self, key: str, part: Part = Part.GROUPS) -> BrokerId:
        """Return the broker that leads it, -1 while unknown; creates the internal topic where it is absent.

        Of another region where this one's coordinators were moved there: `elsewhere` says how to reach it.
        """
        view = self._topic()
        if view is None:
            self._create()
            return BrokerId(-1)
        try:
            return self._leader_of(self._domains.find(view, self.partition_of(key), part, key))
        except CoordinatorLoading:
            return BrokerId(-1)

    def elsewhere(self, broker: int) -> RemoteCoordinator | None:
        """Return a broker of another region that `leader_of` has named."""
        known = (remote for _, remote in self._elsewhere.values())
        return next((remote for remote in known if remote.broker == broker), None)

    async def ready(self, key: str, part: Part = Part.GROUPS, *, timeout_s: float = READY_TIMEOUT_S) -> BrokerId:
        """Return the broker that leads it once there is one."""
        partition = self.partition_of(key)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        for pause_s in _pauses(self._rng):
            leader = self.leader_of(key, part)
            if leader < 0:
                leader = await self._look_elsewhere(key, part)
            if leader > 0:
                return leader
            if asyncio.get_running_loop().time() + pause_s > deadline_s:
                raise CoordinatorUnavailable(f"coordinator {partition} has no leader at the moment")
            await asyncio.sleep(pause_s)
        raise AssertionError("pauses never end")

    async def _look_elsewhere(self, key: str, part: Part) -> BrokerId:
        """Ask the other region that is home of a name's coordinator who leads there; -1 where none is."""
        view, partition = self._topic(), self.partition_of(key)
        if view is None:
            return BrokerId(-1)
        try:
            found = self._domains.find(view, partition, part, key)
            home = self._domains.home_of(found)
            if home == self._region:
                return BrokerId(-1)
            asked = {"name": key}
            answer = await self._call_region(
                home, part, found, WHERE, asked, principal="", timeout_s=ELSEWHERE_TIMEOUT_S
            )
            fields = Fields(answer, WHERE)
            remote = RemoteCoordinator(
                broker=fields.integer("broker", low=1, high=REGION_NUMBER_MAX * 1000 + BROKERS_PER_REGION_MAX),
                kafka_host=fields.text("host", chars_max=ADDRESS_CHARS_MAX),
                kafka_port=fields.integer("port", low=1, high=65_535),
            )
        except (GeorelayError, FieldError) as error:
            log.debug("coordinators.elsewhere_unknown", partition=partition, reason=str(error))
            return BrokerId(-1)
        self._elsewhere[found] = (asyncio.get_running_loop().time() + ELSEWHERE_KEPT_S, remote)
        return BrokerId(remote.broker)

    def part_here(self, key: str, part: Part) -> CoordinatorPart:
        """Return the part that answers for a key, when this broker leads its coordinator."""
        if part not in self._makes:
            raise BadRequest(f"this broker has no {part.name.lower()}")
        view = self._topic()
        if view is None:
            self._create()
            raise NotCoordinator(leader=-1)
        return self._part_here(self._domains.find(view, self.partition_of(key), part, key), part)

    def parts_here(self, part: Part) -> Sequence[CoordinatorPart]:
        """Return this part of every coordinator that this broker leads."""
        view = self._topic()
        if view is None:
            return []
        keys = (key for partition in range(COORDINATORS) for key in self._domains.here(view, partition))
        streams = (self._stream(key) for key in keys)
        return [stream.parts[part] for stream in streams if stream is not None and stream.serves(part)]

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

    def _stream(self, key: StreamKey) -> CoordinatorStream | None:
        assignment = self._assignment_of(key)
        stream = None if assignment is None else self._streams.get(assignment.group_id)
        return stream if isinstance(stream, CoordinatorStream) else None

    def _leader_of(self, key: StreamKey) -> BrokerId:
        if self._domains.home_of(key) != self._region:
            until_s, remote = self._elsewhere.get(key, (0.0, None))
            is_known = remote is not None and until_s > asyncio.get_running_loop().time()
            return BrokerId(remote.broker) if is_known and remote is not None else BrokerId(-1)
        assignment = self._assignment_of(key)
        return BrokerId(-1) if assignment is None else self._leader(assignment.group_id)

    def _part_here(self, key: StreamKey, part: Part) -> CoordinatorPart:
        if part not in self._makes:
            raise BadRequest(f"this broker has no {part.name.lower()}")
        stream = self._stream(key)
        if stream is not None and stream.serves(part):
            return stream.parts[part]
        leader = self._leader_of(key)
        if leader == self._me:
            raise CoordinatorLoading(f"coordinator {key.partition} is not caught up yet")
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
        origin: RegionNumber | None = None,
    ) -> JsonObject:
        """Ask the part that answers for a key; see Coordinators."""
        partition = self.partition_of(key)

        def place() -> StreamKey:
            view = self._known_topic()
            if origin is not None:
                return self._domains.begun_in(view, partition, origin)
            return self._domains.find(view, partition, part, key)

        return await self._call(part, place, operation, body, principal=principal, timeout_s=timeout_s)

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
        view = self._topic()
        if view is None:
            return []
        places = {key for partition in range(COORDINATORS) for key in self._domains.here(view, partition)}
        places |= {self._domains.own(view, partition) for partition in range(COORDINATORS)}  # also where it is away
        calls = (
            self._call(part, partial(_same, key), operation, body, principal=principal, timeout_s=timeout_s)
            for key in sorted(places, key=lambda key: (key.partition, key.origin))
        )
        return await asyncio.gather(*calls)

    def _known_topic(self) -> TopicView:
        view = self._topic()
        if view is None:
            self._create()
            raise CoordinatorUnavailable("there are no coordinators yet")
        return view

    async def _call(
        self,
        part: Part,
        place: Callable[[], StreamKey],
        operation: str,
        body: JsonObject,
        *,
        principal: str,
        timeout_s: float,
    ) -> JsonObject:
        """Ask the coordinator that `place` says, which is asked again at every try."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        told = BrokerId(-1)  # by the broker that was asked and is not the leader
        leader = BrokerId(-1)
        for pause_s in _pauses(self._rng):
            try:
                key = place()
                home, left_s = self._domains.home_of(key), deadline_s - loop.time()
                if home != self._region:
                    return await self._call_region(
                        home, part, key, operation, body, principal=principal, timeout_s=left_s
                    )
                leader = told if told > 0 else self._leader_of(key)
                return await self._call_at(leader, part, key, operation, body, principal=principal, timeout_s=left_s)
            except _NOTHING_DONE as error:
                refusal = error
            known = refusal.leader if isinstance(refusal, NotCoordinator | NotLeader) else -1
            told = BrokerId(known) if known not in (leader, told) and self._is_own(known) else BrokerId(-1)
            if loop.time() + pause_s >= deadline_s:
                text = f"the coordinator did not answer within {timeout_s:g} s: {refusal}"
                raise CoordinatorUnavailable(text) from refusal
            await asyncio.sleep(pause_s)
        raise AssertionError("pauses never end")

    def _is_own(self, broker: int) -> bool:
        return broker > 0 and region_of(BrokerId(broker)) == self._region

    async def _call_at(
        self,
        leader: BrokerId,
        part: Part,
        key: StreamKey,
        operation: str,
        body: JsonObject,
        *,
        principal: str,
        timeout_s: float,
    ) -> JsonObject:
        if leader < 0:
            raise CoordinatorUnavailable(f"coordinator {key.partition} has no leader at the moment")
        if leader == self._me:
            return await self._call_here(part, key, operation, body, principal=principal, timeout_s=timeout_s)
        request = self._request(part, key, operation, body, principal=principal, timeout_s=timeout_s)
        return call_answers.result_of(await self._ask(leader, CALL_METHOD, request, timeout_s=timeout_s))

    async def _call_region(
        self,
        home: RegionNumber,
        part: Part,
        key: StreamKey,
        operation: str,
        body: JsonObject,
        *,
        principal: str,
        timeout_s: float,
    ) -> JsonObject:
        """Ask the region that is home of this one's coordinator; any broker there finds the leader."""
        if self._ask_region is None:
            raise Unavailable(f"coordinator {key.partition} of region {key.origin} is at home in region {home}")
        request = self._request(part, key, operation, body, principal=principal, timeout_s=timeout_s)
        answer = await self._ask_region(region=home, broker=None, method=CALL_METHOD, body=request, timeout_s=timeout_s)
        return call_answers.result_of(answer)

    def _request(
        self, part: Part, key: StreamKey, operation: str, body: JsonObject, *, principal: str, timeout_s: float
    ) -> JsonObject:
        request: JsonObject = {
            "part": int(part),
            "partition": key.partition,
            "operation": operation,
            "body": body,
            "principal": principal,
            "timeout_ms": min(max(int(timeout_s * 1000), 1), CALL_TIMEOUT_MS_MAX),
        }
        if self._domains.home_of(key) != self._region or key.origin != self._region:
            request["origin"] = int(key.origin)  # brokers of before coordinators moved do not know it
        return request

    async def _call_here(
        self, part: Part, key: StreamKey, operation: str, body: JsonObject, *, principal: str, timeout_s: float
    ) -> JsonObject:
        if operation == CLAIM:
            return self._tell_claim(key, part, Fields(body, CLAIM).text("name", chars_max=NAME_CHARS_MAX))
        answering = self._part_here(key, part)
        if operation == WHERE:
            self._domains.expect(key, part, Fields(body, WHERE).text("name", chars_max=NAME_CHARS_MAX))
            return self._where()
        try:
            async with asyncio.timeout(timeout_s):
                return await answering.call(operation, body, principal=principal)
        except TimeoutError as error:
            raise OutcomeUnknown(f"{operation}: coordinator {key.partition} did not answer in time") from error

    def _where(self) -> JsonObject:
        address = self._address_of(self._me)
        if address is None:
            raise CoordinatorUnavailable("this broker does not know yet where clients reach it")
        return {"broker": int(self._me), "host": address[0], "port": address[1]}

    def _tell_claim(self, key: StreamKey, part: Part, name: str) -> JsonObject:
        """Return what this broker's replica says of a name; that of a mirror says as much as one of the home."""
        stream = self._stream(key)
        if stream is None or part not in stream.parts:
            raise NotCoordinator(leader=-1)
        return {"claim": stream.parts[part].claim(name)}

    async def _claim_of(self, key: StreamKey, part: Part, name: str) -> int:
        """Ask the broker that leads a coordinator's stream in this region, its home's or a mirror."""
        assignment = self._assignment_of(key)
        leader = BrokerId(-1) if assignment is None else self._leader(assignment.group_id)
        answer = await self._call_at(leader, part, key, CLAIM, {"name": name}, principal="", timeout_s=CLAIM_TIMEOUT_S)
        claim = answer.get("claim")
        if not isinstance(claim, int) or claim < 0:
            raise CoordinatorUnavailable(f"the leader of coordinator {key} answered {CLAIM} with something else")
        return claim

    async def _ping(self, region: RegionNumber) -> None:
        if self._ask_region is not None:
            await self._ask_region(region=region, broker=None, method=PING_METHOD, body={}, timeout_s=PING_TIMEOUT_S)

    async def serve(self, body: Mapping[str, Any], *, from_broker: BrokerId) -> JsonObject:
        """Answer the call of another broker; every GeorelayError travels inside the answer."""
        try:
            return call_answers.ok(await self._serve(Fields(dict(body), CALL_METHOD), region_of(from_broker)))
        except FieldError as error:
            return call_answers.failed(BadRequest(f"{CALL_METHOD}: {error}"))
        except GeorelayError as error:
            return call_answers.failed(error)

    async def _serve(self, fields: Fields, asking: RegionNumber) -> JsonObject:
        part = Part(fields.integer("part", low=1, high=max(Part)))
        partition = fields.integer("partition", low=0, high=COORDINATORS - 1)
        operation = fields.text("operation", chars_min=1, chars_max=OPERATION_CHARS_MAX)
        principal = fields.text("principal", chars_max=PRINCIPAL_CHARS_MAX)
        timeout_s = fields.integer("timeout_ms", low=1, high=CALL_TIMEOUT_MS_MAX) / 1000
        has_origin = fields.has("origin")
        origin = RegionNumber(fields.integer("origin", low=1, high=REGION_NUMBER_MAX) if has_origin else self._region)
        asked = fields.value("body")
        fields.done()
        if not isinstance(asked, dict):
            raise BadRequest(f"{CALL_METHOD}: the body is no object")
        key = StreamKey(self._known_topic().topic_id, origin, partition)
        is_of_stream = part is Part.QUEUES and operation.startswith(OF_STREAMS)
        is_theirs = asking in (self._region, origin) or is_of_stream
        if not is_theirs and not self._domains.was_moved(key):
            raise PolicyViolation(f"region {asking} has coordinators of its own: it may ask for those only")
        if asking == self._region:
            return await self._call_here(part, key, operation, asked, principal=principal, timeout_s=timeout_s)
        if self._domains.home_of(key) != self._region:
            raise NotCoordinator(leader=-1)
        return await self._call(part, partial(_same, key), operation, asked, principal=principal, timeout_s=timeout_s)


def _same(key: StreamKey) -> StreamKey:
    return key


def _pauses(rng: random.Random) -> Iterator[float]:
    """Yield how long to wait before each retry, in seconds: longer and longer, and never all at once."""
    pause_s = RETRY_S
    while True:
        yield pause_s * rng.uniform(0.5, 1.0)
        pause_s = min(pause_s * 2, RETRY_S_MAX)
