"""One Subscribe call: what the client says, turned into partitions that are read for it.

Rule 1: the first request is `start`; it decides whether positions, a group or a queue say what is read.
Rule 2: the call ends with the first error of any of its parts; nothing falls silent.
Rule 3: the sign-in and the rights of the call are asked for again every RECHECK_S, and before each delivery.
Rule 4: commits of one call are done in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import grpc.aio

from georelay._pb import streams_pb2 as pb
from georelay.errors import BadRequest
from region.api.streams.credit import Credit
from region.api.streams.group_source import GroupSource
from region.api.streams.outbox import Outbox
from region.api.streams.queue_source import QueueSource
from region.api.streams.reading_set import PARTITIONS_MAX, ReadingSet
from region.api.streams.services import StreamsServices
from region.api.streams.starting import Place, find_start, places_of
from region.security.access import Operation, Principal, Resource

TOPICS_MAX = 1_000
RECHECK_S = 0.5


class Source(Protocol):
    """What decides which partitions are read: positions, a group, a queue."""

    async def run(self) -> None:
        """Work until cancelled; raises GeorelayError."""

    async def handle(self, request: pb.SubscribeRequest) -> None:
        """Take what only this kind of source understands (BadRequest: it does not)."""

    def heard(self) -> None:
        """Note that the client lives: it has sent something."""

    async def close(self) -> None:
        """Give up what it holds."""


class PositionsSource:
    """Reads what the client names; it keeps its positions itself."""

    def __init__(self, start: pb.StartPositions, call: SubscribeCall) -> None:
        self._start = start
        self._call = call

    async def run(self) -> None:
        """Start, then nothing: the client moves it by `seek`."""
        await self._call.seek(self._start.positions)
        await asyncio.get_running_loop().create_future()

    async def handle(self, request: pb.SubscribeRequest) -> None:
        """Refuse: positions are never committed here."""
        kind = request.WhichOneof("request")
        raise BadRequest(f"{kind}: this subscription reads by positions, it is no member of a group or queue")

    def heard(self) -> None:
        """Nobody asks."""

    async def close(self) -> None:
        """Hold nothing."""


class SubscribeCall:
    """State of one call; `run` is the call."""

    def __init__(
        self,
        context: Any,
        services: StreamsServices,
        principal: Principal,
        *,
        peer: str,
        still_valid: Callable[[], None] = lambda: None,
    ) -> None:
        """`still_valid` raises when the sign-in of the call has ended."""
        self._still_valid = still_valid
        self._context = context
        self._services = services
        self._principal = principal
        self._peer = peer

    async def run(self) -> None:
        """Serve until the client has ended its side.

        Raises:
            GeorelayError: the subscription cannot go on.
        """
        first = await self._context.read()
        if first is grpc.aio.EOF or first.WhichOneof("request") != "start":
            raise BadRequest("the first request of a subscription is `start`")
        start = first.start
        self._credit = Credit(start.credit_bytes)
        self._outbox = Outbox(self._context)
        self._put = self._outbox.put
        self._set = ReadingSet(
            self._services,
            credit=self._credit,
            put=self._put,
            start=start,
            principal=self._principal,
            still_valid=self._still_valid,
            group=start.group.group,
        )
        try:
            self._check_source(start)
            source = self._source(start)
            opened = pb.Opened(region=self._services.cluster.region, broker=self._services.cluster.broker_id)
            await self._put(pb.SubscribeResponse(opened=opened))
            await self._serve(source, start)
        finally:
            self._set.failed.cancel()
            await self._set.stop()
            await self._outbox.close()

    async def _serve(self, source: Source, start: pb.SubscribeStart) -> None:
        loop = asyncio.get_running_loop()
        working = loop.create_task(source.run(), name="subscription source")
        reading = loop.create_task(self._read(source), name="subscription requests")
        watching = loop.create_task(self._watch(start), name="subscription rights")
        parts = (working, reading, watching, self._outbox.ended, self._set.failed)
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in (watching, self._set.failed, working, reading):
                if part.done() and not part.cancelled():
                    part.result()
        except BaseException:
            self._outbox.give_up()  # what comes now is the status: nothing waits for a client that does not read
            raise
        finally:
            for task in (working, reading, watching):
                task.cancel()
            await asyncio.gather(working, reading, watching, return_exceptions=True)
            await source.close()

    async def _watch(self, start: pb.SubscribeStart) -> None:
        """End the call with the right, or the sign-in, that it stands on (AccessDenied, Unauthenticated)."""
        while True:
            await asyncio.sleep(RECHECK_S)
            self._check_source(start)
            self._set.check_rights()

    def _check_source(self, start: pb.SubscribeStart) -> None:
        self._still_valid()
        kind = start.WhichOneof("source")
        if kind == "group":
            self.check_topics(start.group.topics)
            self._services.access.check(self._principal, Operation.READ, Resource.GROUP, start.group.group)
        elif kind == "queue":
            self._services.access.check(self._principal, Operation.READ, Resource.QUEUE, start.queue.queue)

    def _source(self, start: pb.SubscribeStart) -> Source:
        kind = start.WhichOneof("source")
        if kind == "positions":
            return PositionsSource(start.positions, self)
        if kind == "group":
            return GroupSource(
                start.group,
                self._services,
                reading=self._set,
                put=self._put,
                principal=self._principal,
                peer=self._peer,
            )
        if kind == "queue":
            return QueueSource(
                start.queue,
                self._services,
                credit=self._credit,
                put=self._put,
                principal=self._principal,
                check_right=lambda: self._check_source(start),
            )
        raise BadRequest("start: give positions, a group or a queue")

    async def _read(self, source: Source) -> None:
        while (request := await self._context.read()) is not grpc.aio.EOF:
            kind = request.WhichOneof("request")
            if kind == "credit_bytes":
                self._credit.give(request.credit_bytes)
            elif kind == "seek":
                await self.seek(request.seek.positions, only_held=isinstance(source, GroupSource))
            elif kind == "pause":
                keys = [(at.stream, at.partition) for at in request.pause.partitions]
                self._set.pause(keys, resume=request.pause.resume)
            elif kind == "start" or kind is None:
                raise BadRequest("a subscription is started once, and every request says something")
            else:
                await source.handle(request)
            source.heard()

    def check_topics(self, names: Iterable[str]) -> None:
        """Check the rights to read (AccessDenied), and how many there are (BadRequest)."""
        count = 0
        for name in names:
            self._services.access.check(self._principal, Operation.READ, Resource.TOPIC, name)
            count += 1
        if not 0 < count <= TOPICS_MAX:
            raise BadRequest(f"a subscription names 1..{TOPICS_MAX} topics, not {count}")

    async def seek(self, positions: Iterable[pb.StartPosition], *, only_held: bool = False) -> None:
        """Read from these positions on and tell the client where that is.

        Raises:
            BadRequest: a partition twice, or that this member does not hold; too many. Others as find_start.
        """
        asked = list(positions)
        if len(asked) > PARTITIONS_MAX:
            raise BadRequest(f"{len(asked)} positions are over {PARTITIONS_MAX} partitions of a subscription")
        self.check_topics({position.stream for position in asked})
        cluster = self._services.cluster
        places: list[Place] = []
        for position in asked:
            places += places_of(cluster, position)
            if len(places) > PARTITIONS_MAX:
                raise BadRequest(f"a subscription reads at most {PARTITIONS_MAX} partitions")
        keys = [(place.stream, place.partition) for place in places]
        if len(set(keys)) < len(keys):  # one of them would be read for ever
            raise BadRequest("a partition stands twice among the positions")
        foreign = [key for key in keys if only_held and key not in self._set.held]
        if foreign:
            raise BadRequest(f"seek: {foreign[0][0]}/{foreign[0][1]} is not assigned to this member")
        await self._set.stop(keys)
        points = [await find_start(cluster, self._services.reader, place) for place in places]
        await self._put(pb.SubscribeResponse(started=pb.Started(starts=[point.written() for point in points])))
        self._set.start(points)
