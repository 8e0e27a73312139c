"""Named consumers over HTTP: who reads without keeping an offset. The position is a consumer group's committed offset.

Rule 1: handing records out moves no position; only an acknowledgement does, and never back. So delivery is at least
        once, and every broker of the region goes on where the last acknowledgement was.
Rule 2: a name has one reader at a time: two of them are handed the same records. Work that is shared is for queues.
Rule 3: a name is a group without members; positions of a group that has some are theirs and refused.
Rule 4: what retention removed before it was handed out is said (`skipped`), never stepped over silently.
Rule 5: nothing is created by a GET; without a kept position reading begins at the log start.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog
from aiohttp import web

from georelay.errors import (
    BadRequest,
    Busy,
    GeorelayError,
    NotLeader,
    OffsetOutOfRange,
    Unauthenticated,
    Unavailable,
    UnknownTopic,
)
from georelay.limits import REST_RECORDS_MAX, TOPIC_NAME_CHARS_MAX
from region.api.bodies import read_wish
from region.api.consumer_requests import (
    chosen_partitions,
    event_id,
    parse_event_id,
    parse_positions,
    parse_start,
    positions_json,
)
from region.api.principal import PRINCIPAL
from region.api.problem import problem_of
from region.api.reading import EARLIEST, LATEST, StreamReader
from region.api.record_answers import SEND_S, RecordEvents, RecordsAnswer
from region.api.records_http import (
    RECORDS_DEFAULT,
    WAIT_MS_MAX,
    RecordsHttp,
    checked_query,
    json_response,
    query_number,
)
from region.coordination.coordinators import Coordinators
from region.coordination.shares_core import Room, Shares
from region.groups.group_client import GroupClient
from region.groups.settings import GROUP_ID_CHARS_MAX
from region.kafka.ports import Cluster, TopicView
from region.security.access import Access, Operation, Principal, Resource

log = structlog.get_logger()

EVENT_STREAMS_MAX: Final = 500  # of one broker
EVENT_RECORDS: Final = 100  # written at a time
SILENCE_MS: Final = 15_000  # after so long without a record a stream says that it lives
RETRY_S: Final = 0.1  # while a partition has no leader
ELSEWHERE_MS: Final = 1_000  # how late a record is noticed in a partition of which this broker has no replica
PARAMETERS: Final = frozenset({"partitions", "max", "wait_ms", "region"})
EVENT_PARAMETERS: Final = frozenset({"partitions", "region"})


@dataclass(slots=True)
class _Reading:
    """One request: what it reads, where each partition goes on (-1: at the log start), and what it found."""

    view: TopicView
    consumer: str
    principal: Principal
    positions: dict[int, int]
    moved: dict[int, int] = field(default_factory=dict)  # by partition where it goes on behind what was found
    skipped: list[dict[str, int]] = field(default_factory=list)
    failure: GeorelayError | None = None  # of a partition that could not be asked
    asked_s: dict[int, float] = field(default_factory=dict)  # of partitions elsewhere that stand at the end
    at_end_ns: dict[int, int] = field(default_factory=dict)  # since when it stands at the end, by partition

    def has_found(self, out: RecordsAnswer | RecordEvents) -> bool:
        """Return whether there is something to say."""
        return bool(self.skipped) or not out.is_empty


class ConsumersHttp:
    """Handlers of /v1/topics/{topic}/consumers/{consumer}."""

    def __init__(
        self,
        records: RecordsHttp,
        *,
        coordinators: Coordinators,
        cluster: Cluster,
        reader: StreamReader,
        access: Access,
        wall_ns: Callable[[], int],
        is_still_valid: Callable[[Principal], bool] = lambda _: True,
    ) -> None:
        """`is_still_valid`: whether what a principal signed in by still stands, asked while a stream lasts."""
        self._records = records
        self._coordinators = coordinators
        self._cluster = cluster
        self._reader = reader
        self._access = access
        self._wall_ns = wall_ns
        self._is_still_valid = is_still_valid
        self._streams = Shares(EVENT_STREAMS_MAX)
        self._turn = 0

    def routes(self) -> list[web.RouteDef]:
        """Return what the admin listener serves."""
        return [
            web.post("/v1/topics/{topic}/consumers/{consumer}", self._start),
            web.get("/v1/topics/{topic}/consumers/{consumer}/records", self._read),
            web.get("/v1/topics/{topic}/consumers/{consumer}/events", self._events),
            web.post("/v1/topics/{topic}/consumers/{consumer}/acknowledge", self._acknowledge),
        ]

    # --- handlers ---------------------------------------------------------------------------------

    async def _start(self, request: web.Request) -> web.Response:
        """Keep a position for every partition that has none: the log start, or the end of now."""
        principal, consumer = self._checked(request)
        view = self._view(request)
        at = await read_wish(request, parse_start)
        client = self._client(consumer, principal)
        kept = await self._kept(client, view.name, range(view.partitions))
        began = {
            partition: await self._place(view, partition, at) for partition, position in kept.items() if position < 0
        }
        if began:
            await client.commit(view.name, began)
        return json_response(_kept_json(view, consumer, {**kept, **began}))

    async def _read(self, request: web.Request) -> web.StreamResponse:
        """Hand out what comes next; 204 when nothing comes within `wait_ms`."""
        principal, consumer = self._checked(request)
        view = self._view(request)
        query = checked_query(request.query, self._cluster.region, PARAMETERS)
        most = query_number(query, "max", default=RECORDS_DEFAULT, low=1, high=REST_RECORDS_MAX)
        wait_ms = query_number(query, "wait_ms", default=0, high=WAIT_MS_MAX)
        reading = await self._begin(view, consumer, principal, chosen_partitions(query, view))
        out = RecordsAnswer(request, {"topic": view.name, "consumer": consumer}, records_max=most)
        await self._next(reading, out, wait_ms=wait_ms)
        self._checked(request)  # it may have waited for long
        if not reading.has_found(out):
            return web.Response(status=204)
        await self._records.pause_for(principal, out.size_bytes)
        skipped = {"skipped": reading.skipped} if reading.skipped else {}
        return await out.end({"positions": positions_json(reading.moved), **skipped})

    async def _acknowledge(self, request: web.Request) -> web.Response:
        """Let the consumer go on at these positions; one that is behind what is kept changes nothing."""
        principal, consumer = self._checked(request)
        view = self._view(request)
        asked = await read_wish(request, lambda body: parse_positions(body, view))
        client = self._client(consumer, principal)
        kept = await self._kept(client, view.name, asked)
        ahead = {partition: offset for partition, offset in asked.items() if offset > kept[partition]}
        for partition, offset in ahead.items():
            await self._check_reached(view, partition, offset)
        if ahead:
            await client.commit(view.name, ahead)
        return json_response(_kept_json(view, consumer, {**kept, **ahead}))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send records as server-sent events until the client leaves, or an event `error` says why it ended."""
        principal, consumer = self._checked(request)
        view = self._view(request)
        query = checked_query(request.query, self._cluster.region, EVENT_PARAMETERS)
        reading = await self._begin(view, consumer, principal, chosen_partitions(query, view))
        for partition, offset in parse_event_id(request.headers.get("Last-Event-ID", "")).items():
            if partition in reading.positions:
                reading.positions[partition] = max(reading.positions[partition], offset)
        self._check_room(principal)
        self._streams.add(principal.name, 1)
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
            await response.prepare(request)
            await response.write(b": georelay\n\n")
            await self._send(request, response, reading)
        except (ConnectionError, TimeoutError) as error:
            log.debug("event_stream.left", consumer=consumer, error=repr(error))
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._streams.add(principal.name, -1)
        return response

    def _check_room(self, principal: Principal) -> None:
        room = self._streams.look(principal.name, 1)
        if room is Room.FULL:
            raise Busy(f"this broker has {EVENT_STREAMS_MAX} event streams, its maximum; ask another one or poll")
        if room is Room.OWN_SHARE_FULL:
            held = self._streams.held_by(principal.name)
            raise Busy(f"{principal.name} has {held} event streams here, as many as are free: end some, or poll")

    async def _send(self, request: web.Request, response: web.StreamResponse, reading: _Reading) -> None:
        try:
            while True:
                out = RecordEvents(records_max=EVENT_RECORDS)
                reading.skipped = []
                await self._next(reading, out, wait_ms=SILENCE_MS)
                principal, _ = self._checked(request)
                if not self._is_still_valid(principal):
                    raise Unauthenticated("the sign-in has ended: sign in again")
                for row in reading.skipped:
                    out.say("skipped", json.dumps(row).encode())
                raw = out.encode(event_id(reading.positions))
                async with asyncio.timeout(SEND_S):
                    await response.write(raw)  # waits for a client that reads slowly
                await self._records.pause_for(principal, len(raw))
        except GeorelayError as error:
            await response.write(b"event: error\ndata: " + problem_of(error) + b"\n\n")

    # --- reading ----------------------------------------------------------------------------------

    async def _begin(self, view: TopicView, consumer: str, principal: Principal, partitions: list[int]) -> _Reading:
        kept = await self._kept(self._client(consumer, principal), view.name, partitions)
        return _Reading(view, consumer, principal, kept)

    async def _next(self, reading: _Reading, out: RecordsAnswer | RecordEvents, *, wait_ms: int) -> None:
        """Find the next records of any partition, waiting up to `wait_ms` for the first.

        Raises:
            OffsetOutOfRange: a position is beyond the end of its partition. NotLeader, Unavailable: a partition could
            not be asked, and no other one had anything.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1_000
        while True:
            await self._look(reading, out)
            left_ms = int((until - loop.time()) * 1_000)
            if reading.has_found(out) or left_ms <= 0:
                break
            await self._news(reading, left_ms)
        if reading.failure is not None and not reading.has_found(out):
            raise reading.failure

    async def _look(self, reading: _Reading, out: RecordsAnswer | RecordEvents) -> None:
        """Take what is there, one partition after the other; another one is the first at each time."""
        reading.failure = None
        partitions = sorted(reading.positions)
        self._turn += 1
        first = self._turn % len(partitions)
        for partition in (*partitions[first:], *partitions[:first]):
            if out.is_full:
                return
            if self._is_asked_too_soon(reading, partition):
                continue
            try:
                await self._take(reading, out, partition)
            except (NotLeader, Unavailable) as error:
                reading.failure = error

    def _is_asked_too_soon(self, reading: _Reading, partition: int) -> bool:
        """Return whether another broker would be asked again about a partition that had nothing a moment ago."""
        if partition not in reading.at_end_ns or self._is_here(reading.view.name, partition):
            return False
        now_s = asyncio.get_running_loop().time()
        if now_s < reading.asked_s.get(partition, 0.0) + ELSEWHERE_MS / 1_000:
            return True
        reading.asked_s[partition] = now_s
        return False

    async def _take(self, reading: _Reading, out: RecordsAnswer | RecordEvents, partition: int) -> None:
        view, position = reading.view, reading.positions[partition]
        if position < 0:
            position = reading.positions[partition] = await self._place(view, partition, EARLIEST)
        live_since_ns, before = reading.at_end_ns.get(partition), out.count
        take = partial(self._records.take, out, view, partition, group=reading.consumer, live_since_ns=live_since_ns)
        try:
            following = await take(position)
        except OffsetOutOfRange:
            log_start = await self._place(view, partition, EARLIEST)
            if position >= log_start:
                raise
            reading.skipped.append({"partition": partition, "from": position, "to": log_start})
            following = await take(log_start)
        if out.count > before:
            reading.at_end_ns.pop(partition, None)
        else:
            reading.at_end_ns.setdefault(partition, self._wall_ns())
        if following > reading.positions[partition]:
            reading.positions[partition] = reading.moved[partition] = following

    async def _news(self, reading: _Reading, wait_ms: int) -> None:
        """Return when a partition may have more, or the time is over.

        Partitions of which only other brokers have a replica are looked at now and then: a request that waits there
        takes a place on the link, which others need, and does not end when nobody waits for it any more.
        """
        if reading.failure is not None:
            await asyncio.sleep(min(RETRY_S, wait_ms / 1_000))
            return
        name, loop = reading.view.name, asyncio.get_running_loop()
        here = {partition: at for partition, at in reading.positions.items() if self._is_here(name, partition)}
        if len(here) < len(reading.positions):
            wait_ms = min(wait_ms, ELSEWHERE_MS)
        if not here:
            await asyncio.sleep(wait_ms / 1_000)
            return
        waits = [
            loop.create_task(self._reader.read(name, partition, position, max_bytes=1, wait_ms=wait_ms))
            for partition, position in here.items()
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _is_here(self, name: str, partition: int) -> bool:
        """Return whether a replica of this broker answers readers of a partition."""
        stream = self._cluster.stream(name, partition)
        return stream is not None and (stream.is_leader or stream.is_visible_end_known)

    async def _place(self, view: TopicView, partition: int, at: int) -> int:
        """Return where a partition begins (EARLIEST), or ends for readers (LATEST)."""
        answer = await self._reader.read(view.name, partition, at, max_bytes=1, wait_ms=0)
        return answer.log_start if at == EARLIEST else answer.end

    async def _check_reached(self, view: TopicView, partition: int, offset: int) -> None:
        end = await self._place(view, partition, LATEST)
        if offset > end:
            raise OffsetOutOfRange(f"partition {partition} ends at {end}: {offset} was handed out to nobody")

    # --- positions --------------------------------------------------------------------------------

    def _client(self, consumer: str, principal: Principal) -> GroupClient:
        return GroupClient(self._coordinators, consumer, principal.name)

    @staticmethod
    async def _kept(client: GroupClient, topic: str, partitions: Any) -> dict[int, int]:
        return await client.offsets(topic, sorted(partitions))

    def _checked(self, request: web.Request) -> tuple[Principal, str]:
        """Return who asks and for which consumer (AccessDenied, BadRequest)."""
        principal, consumer = request[PRINCIPAL], request.match_info["consumer"]
        if len(consumer) > GROUP_ID_CHARS_MAX:
            raise BadRequest(f"consumer: {len(consumer)} characters are over {GROUP_ID_CHARS_MAX}")
        self._access.check(principal, Operation.READ, Resource.TOPIC, request.match_info["topic"])
        self._access.check(principal, Operation.READ, Resource.GROUP, consumer)
        return principal, consumer

    def _view(self, request: web.Request) -> TopicView:
        name = request.match_info["topic"]
        view = self._cluster.topic(name)
        if view is None:
            raise UnknownTopic(f"topic {name[:TOPIC_NAME_CHARS_MAX]!r} does not exist")
        return view


def _kept_json(view: TopicView, consumer: str, positions: Mapping[int, int]) -> dict[str, Any]:
    return {"topic": view.name, "consumer": consumer, "positions": positions_json(positions)}
