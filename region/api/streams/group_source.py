"""A subscription by consumer group: assignments become partitions that are read from the group's committed offsets.

Rule 1: where there is no committed offset the client's reset decides; a committed offset that this region does not
        hold is told (BEHIND, DIVERGED, OUT_OF_RANGE), never reset silently.
Rule 2: a commit needs the right to read its topics, as Kafka's does.
Rule 3: a commit carries the member's generation, so that nobody commits for partitions that are another's now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from georelay._pb import streams_pb2 as pb
from georelay.errors import BadRequest, GeorelayError, OffsetOutOfRange, Retry
from georelay.refusals import refusal_of
from region.api.streams.assignor_core import ASSIGNORS
from region.api.streams.group_codes import check, error_of_code
from region.api.streams.group_member import GroupMember, MemberSettings
from region.api.streams.partition_pump import Put
from region.api.streams.reading_set import ReadingSet
from region.api.streams.services import StreamsServices
from region.api.streams.starting import Place, StartPoint, find_start
from region.coordination.part import Part
from region.security.access import Operation, Principal, Resource

SESSION_TIMEOUT_MS: Final = 45_000
SESSION_TIMEOUT_MS_MIN: Final = 1_000
SESSION_TIMEOUT_MS_MAX: Final = 1_800_000
REBALANCE_TIMEOUT_MS: Final = 60_000
REBALANCE_TIMEOUT_MS_MAX: Final = 1_800_000
OFFSETS_PER_COMMIT_MAX: Final = 10_000
NO_OFFSET: Final = -1
COMMITTING_MAX: Final = 100  # commits at a time
RETRY_S: Final = 0.2
UNSTABLE: Final = 88  # a transaction may still change this offset: ask again


class GroupSource:
    """Source of one group member; the listener of its membership."""

    def __init__(
        self,
        asked: pb.GroupMembership,
        services: StreamsServices,
        *,
        reading: ReadingSet,
        put: Put,
        principal: Principal,
        peer: str,
    ) -> None:
        self._services = services
        self._reading = reading
        self._put = put
        self._reset = asked.reset or pb.OFFSET_RESET_LATEST
        self._coordinators = services.require_coordinators()
        self._who = principal
        self._principal = principal.name
        settings = _settings(asked, peer)
        self._session_ns = settings.session_timeout_ms * 1_000_000
        self._heard_ns = services.monotonic_ns()
        self._released: asyncio.Event = asyncio.Event()
        self._releasing = -1
        self._commits = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._member = GroupMember(
            settings,
            coordinators=self._coordinators,
            listener=self,
            partitions_of=self._partitions_of,
            is_alive=lambda: services.monotonic_ns() - self._heard_ns < self._session_ns,
            principal=self._principal,
        )

    async def run(self) -> None:
        """Be a member (see GroupMember.run)."""
        await self._member.run()

    async def close(self) -> None:
        """Finish the commits that came, then leave."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._member.leave()

    async def handle(self, request: pb.SubscribeRequest) -> None:
        """Do what the client asks of its membership."""
        kind = request.WhichOneof("request")
        if kind == "commit":
            while len(self._tasks) >= COMMITTING_MAX:  # nothing more is read meanwhile
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.get_running_loop().create_task(self._commit(request.commit))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif kind == "released" and request.released.generation == self._releasing:
            self._released.set()
        elif kind == "settle":
            raise BadRequest("settle: this subscription is by group, not by queue")

    def heard(self) -> None:
        """Note that the client lives."""
        self._heard_ns = self._services.monotonic_ns()

    # --- membership --------------------------------------------------------------------------------

    async def assigned(self, generation: int, member_id: str, partitions: Mapping[str, tuple[int, ...]]) -> None:
        """Find out where each partition begins, tell the client, and read."""
        points = await self._points(partitions)
        starts = [point.written() for point in points]
        assigned = pb.Assigned(generation=generation, member_id=member_id, starts=starts)
        await self._put(pb.SubscribeResponse(assigned=assigned))
        self._reading.held = {(point.place.stream, point.place.partition) for point in points}
        self._reading.start(points)

    async def revoked(self, generation: int, *, is_lost: bool) -> None:
        """Stop reading; unless they are lost, wait until the client has released what it holds."""
        await self._reading.stop()
        held, self._reading.held = self._reading.held, set()
        timeout_ms = self._member.settings.rebalance_timeout_ms
        self._releasing = generation
        self._released.clear()
        revoked = pb.Revoked(
            generation=generation,
            partitions=[pb.StreamPartition(stream=stream, partition=partition) for stream, partition in sorted(held)],
            deadline_ms=0 if is_lost else timeout_ms,
            lost=is_lost,
        )
        await self._put(pb.SubscribeResponse(revoked=revoked))
        if is_lost:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._released.wait()
        except TimeoutError:
            return  # the others have waited long enough; a late commit of the client is refused by its generation
        if self._tasks:  # commits that came before the release
            await asyncio.wait(self._tasks)

    def _partitions_of(self, topic: str) -> int:
        view = self._services.cluster.topic(topic)
        return 0 if view is None else view.partitions

    async def _points(self, partitions: Mapping[str, tuple[int, ...]]) -> list[StartPoint]:
        while True:
            try:
                positions = await self._committed(partitions)
                places = [Place(stream=at.stream, partition=at.partition, asked=at) for at in positions]
                return [await find_start(self._services.cluster, self._services.reader, place) for place in places]
            except GeorelayError as error:
                if error.retry not in (Retry.LATER, Retry.REFRESH):
                    raise
                await asyncio.sleep(RETRY_S)

    async def _committed(self, partitions: Mapping[str, tuple[int, ...]]) -> list[pb.StartPosition]:
        if not partitions:
            return []
        topics = [{"topic": topic, "partitions": list(numbers)} for topic, numbers in partitions.items()]
        while True:
            answer = await self._ask("fetch_offsets", {"topics": topics, "require_stable": True})
            check(answer, "offsets")
            rows = answer["partitions"]
            if not any(row["error_code"] == UNSTABLE for row in rows):
                return [self._position(row) for row in rows]
            await asyncio.sleep(RETRY_S)

    def _position(self, row: Mapping[str, Any]) -> pb.StartPosition:
        if row["error_code"]:
            raise error_of_code(int(row["error_code"]), f"offset of {row['topic']}/{row['partition']}")
        position = pb.StartPosition(stream=row["topic"], partition=row["partition"])
        if row["offset"] != NO_OFFSET:
            position.position.CopyFrom(pb.Position(epoch=row.get("leader_epoch", -1), offset=row["offset"]))
        elif self._reset == pb.OFFSET_RESET_NONE:
            raise OffsetOutOfRange(f"{row['topic']}/{row['partition']} has no committed offset, and reset is none")
        elif self._reset == pb.OFFSET_RESET_EARLIEST:
            position.earliest = True
        else:
            position.latest = True
        return position

    # --- commits -----------------------------------------------------------------------------------

    async def _commit(self, commit: pb.Commit) -> None:
        refusal: pb.Refusal | None = None
        try:
            async with self._commits:
                await self._do_commit(commit)
        except GeorelayError as error:
            refusal = refusal_of(error)
        await self._put(pb.SubscribeResponse(committed=pb.Committed(tag=commit.tag, refusal=refusal)))

    async def _do_commit(self, commit: pb.Commit) -> None:
        """Commit for the generation under which the client has read: the coordinator refuses an old one."""
        if not 0 < len(commit.offsets) <= OFFSETS_PER_COMMIT_MAX:
            raise BadRequest(f"commit: 1..{OFFSETS_PER_COMMIT_MAX} offsets, not {len(commit.offsets)}")
        for topic in {offset.topic for offset in commit.offsets}:
            self._services.access.check(self._who, Operation.READ, Resource.TOPIC, topic)
        body = {**self._member.identity, "generation": commit.generation}
        answer = await self._ask("commit", {**body, "offsets": [offset_json(offset) for offset in commit.offsets]})
        check(answer, "commit")
        for row in answer["partitions"]:
            if row["error_code"]:
                raise error_of_code(int(row["error_code"]), f"commit of {row['topic']}/{row['partition']}")

    async def _ask(self, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        group = self._member.settings.group
        return await self._coordinators.call(
            Part.GROUPS, group, operation, {"group": group, **body}, principal=self._principal
        )


def offset_json(offset: pb.CommittedOffset) -> dict[str, Any]:
    """Return an offset as the group coordinator takes it."""
    return {
        "topic": offset.topic,
        "partition": offset.partition,
        "offset": offset.offset,
        "leader_epoch": offset.epoch,
        "metadata": offset.metadata,
    }


def _settings(asked: pb.GroupMembership, peer: str) -> MemberSettings:
    session_ms = asked.session_timeout_ms or SESSION_TIMEOUT_MS
    rebalance_ms = asked.rebalance_timeout_ms or REBALANCE_TIMEOUT_MS
    if not asked.group:
        raise BadRequest("group: its name is empty")
    if not SESSION_TIMEOUT_MS_MIN <= session_ms <= SESSION_TIMEOUT_MS_MAX:
        raise BadRequest(
            f"session_timeout_ms: {session_ms} is outside {SESSION_TIMEOUT_MS_MIN}..{SESSION_TIMEOUT_MS_MAX}"
        )
    if not 1 <= rebalance_ms <= REBALANCE_TIMEOUT_MS_MAX:
        raise BadRequest(f"rebalance_timeout_ms: {rebalance_ms} is outside 1..{REBALANCE_TIMEOUT_MS_MAX}")
    assignors = tuple(asked.assignors) or tuple(ASSIGNORS)
    unknown = [name for name in assignors if name not in ASSIGNORS]
    if unknown:
        raise BadRequest(f"assignors: {unknown[0]!r} is unknown; known are {', '.join(ASSIGNORS)}")
    return MemberSettings(
        group=asked.group,
        topics=tuple(sorted(set(asked.topics))),
        instance_id=asked.instance_id,
        member_id=asked.member_id,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        assignors=assignors,
        client_id=asked.client_id,
        client_host=peer,
    )
