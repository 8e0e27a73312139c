"""/v1/topics/{topic}/records: publish by POST, read by GET; /v1/topics/{topic}/resolve: what became of a record.

POST parameters: durability (region, geo:2 or more, geo:majority, geo:all; default region), deadline_ms (1..300000,
default 30000) until a geo level is answered as pending, with status 202.

GET parameters: partition (0), offset (a number, "earliest" or "latest"; default earliest), max (records, 500),
wait_ms (0), region (must be this broker's own: choosing another is the gateway's part).

Each GET is a delivery session of its own. One that begins at the high watermark has caught up before it waits, so what
a long poll waited for is in the latency histogram; what lay there already is backlog and is not.
A partition without a leader, such as one of a topic that was made a moment ago, is waited for: for `wait_ms`, and
LEADER_WAIT_MS at least.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from aiohttp import web

from georelay.durability import Durability
from georelay.errors import BadRequest, NotLeader, OffsetOutOfRange, Unavailable, UnknownTopic
from georelay.limits import MIB, REST_RECORDS_MAX
from mesh.replication.level import DEADLINE_MS, DEADLINE_MS_MAX, REGION_LEVEL, AskedLevel
from region.api.answer_room import AnswerRoom
from region.api.bodies import read_records
from region.api.metrics import BrokerMetrics
from region.api.permits import check_topic
from region.api.principal import PRINCIPAL
from region.api.publishing import Asker, RecordPlace, RecordPublisher
from region.api.reading import EARLIEST, LATEST, StreamReader
from region.api.record_answers import ABOUT_NOTHING, RecordsAnswer, RecordsOut, StoredBatches
from region.api.record_json import parse_records
from region.api.unfolding import Unreadable, readable_chunks
from region.kafka.ports import Cluster, EntryLike, ReadAnswer, TopicView, TraceRecorder, TraceSession
from region.kafka.services import plain_name
from region.security.access import Access, Operation, Principal, Resource
from region.security.quotas import Quotas

RECORDS_DEFAULT: Final = 500
READ_BYTES: Final = 1 * MIB
WAIT_MS_MAX: Final = 30_000
LEADER_WAIT_MS: Final = 3_000  # longer than an election
LEADER_RETRY_S: Final = 0.05
NEW_TOPIC_MS: Final = 500  # for which a read waits for a topic that is not known here yet
NEW_TOPIC_POLL_S: Final = 0.02
PUBLISH_PARAMETERS: Final = frozenset({"durability", "deadline_ms", "region"})
PARAMETERS: Final = frozenset({"partition", "offset", "max", "wait_ms", "region"})
RESOLVE_PARAMETERS: Final = frozenset({"partition", "epoch", "offset", "durability", "wait_ms", "region"})
_DIGITS: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
OFFSET_MAX: Final = 2**63 - 1

T = TypeVar("T")


class Reached(NamedTuple):
    """Where a reader goes on, and the home epoch of what lies before it; 0: nothing new does, or it is unknown."""

    offset: int
    epoch: int


class RecordsHttp:
    """The two handlers."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        publisher: RecordPublisher,
        reader: StreamReader,
        recorder: TraceRecorder,
        metrics: BrokerMetrics,
        wall_ns: Callable[[], int],
        access: Access | None = None,
        quotas: Quotas | None = None,
        region_name: Callable[[int], str] = str,
    ) -> None:
        self._access = access if access is not None else Access.open()
        self._quotas = quotas if quotas is not None else Quotas()
        self._cluster = cluster
        self._region_name = region_name
        self._publisher = publisher
        self._reader = reader
        self._recorder = recorder
        self._wall_ns = wall_ns
        self._seconds = metrics.edge_seconds.labels("http", "publish")
        self._records_in = metrics.edge_records.labels("http", "in")
        self._records_out = metrics.edge_records.labels("http", "out")

    async def publish(self, request: web.Request) -> web.Response:
        """Publish one record or an array; answers the place of each, in the order of the request."""
        started = time.perf_counter()
        principal, topic = request[PRINCIPAL], request.match_info["topic"]
        check_topic(self._access, self._cluster, principal, Operation.WRITE, topic)
        level = _asked_level(checked_query(request.query, self._cluster.region, PUBLISH_PARAMETERS))
        records, body_bytes = await read_records(request, parse_records)
        places = await self._publisher.publish(topic, records, level, asker=self._asker(principal))
        await self._pause(self._quotas.produce(principal, body_bytes))
        self._seconds.observe(time.perf_counter() - started)
        return json_response(self.placed(places, level), status=202 if any(at.is_pending for at in places) else 200)

    def placed(self, places: Sequence[RecordPlace], level: AskedLevel) -> dict[str, Any]:
        """Return the answer to a publish, and count its records."""
        self._records_in.inc(len(places))
        return {"records": [self._geo_row(at) if level.is_geo else _region_row(at) for at in places]}

    def _asker(self, principal: Principal) -> Asker:
        return Asker(access=self._access, principal=principal)

    def _geo_row(self, at: RecordPlace) -> dict[str, Any]:
        """Return where a record is that more than its home was asked for."""
        return {
            "partition": at.partition,
            "offset": at.offset,
            "epoch": at.epoch,
            "outcome": "pending" if at.is_pending else "stored",
            "level": at.level,
            "regions": [self._region_name(region) for region in at.regions],
            "commit_us": at.append_us,
        } | _isolated(at)

    async def resolve(self, request: web.Request) -> web.Response:
        """Answer GET /v1/topics/{topic}/resolve: which regions have the record at a position."""
        topic = request.match_info["topic"]
        self._access.check(request[PRINCIPAL], Operation.DESCRIBE, Resource.TOPIC, topic)
        query = checked_query(request.query, self._cluster.region, RESOLVE_PARAMETERS)
        resolved = await self._cluster.resolve(
            topic,
            query_number(query, "partition", default=0, high=2**31 - 1),
            epoch=query_number(query, "epoch", default=1, high=2**32 - 1),
            offset=query_number(query, "offset", default=0, high=OFFSET_MAX),
            durability=Durability.parse(query.get("durability", "region")),
            wait_ms=query_number(query, "wait_ms", default=0, high=WAIT_MS_MAX),
        )
        holders = resolved.holders
        outcome = "lost" if holders.is_lost else "stored" if resolved.is_reached else "pending"
        regions = [self._region_name(region) for region in holders.regions]
        return json_response({"outcome": outcome, "level": holders.level, "regions": regions, "epoch": holders.epoch})

    async def read(self, request: web.Request) -> web.StreamResponse:
        """Read committed records of one partition."""
        query = checked_query(request.query, self._cluster.region, PARAMETERS)
        partition = query_number(query, "partition", default=0, high=2**31 - 1)
        offset = _offset(query)
        max_records = query_number(query, "max", default=RECORDS_DEFAULT, low=1, high=REST_RECORDS_MAX)
        wait_ms = query_number(query, "wait_ms", default=0, high=WAIT_MS_MAX)
        principal, topic = request[PRINCIPAL], request.match_info["topic"]
        self._access.check(principal, Operation.READ, Resource.TOPIC, topic)
        view = await self.existing(topic, max(wait_ms, NEW_TOPIC_MS))
        leader_until = asyncio.get_running_loop().time() + max(wait_ms, LEADER_WAIT_MS) / 1_000
        start, end = await led(leader_until, partial(self._start, view, partition, offset))
        session = self._recorder.open_session(
            topic=plain_name(view), origin=view.origin, partition=partition, offset=start
        )
        if end is not None and start >= end:
            session.caught_up(self._wall_ns())
        head, room = {"topic": view.name, "partition": partition}, AnswerRoom(principal.name)
        out = RecordsAnswer(request, head, records_max=max_records, room=room)
        try:
            while True:
                answer = await led(leader_until, partial(self._read, view, partition, start, wait_ms))
                self._access.check(principal, Operation.READ, Resource.TOPIC, topic)  # it may have waited for long
                reached = await self._fill(out, session, start, answer, where=f"{view.name}/{partition}")
                bounds = {"high_watermark": answer.high_watermark, "log_start": answer.log_start}
                del answer
                if not out.lacks_room:
                    break
                await out.wait_for_room()
            self._records_out.inc(out.count)
            room.keep(out.held_bytes)
            await self.pause_for(principal, out.size_bytes)
            return await out.end({"next_offset": reached.offset, **bounds})
        finally:
            room.end()

    async def take(
        self,
        out: RecordsOut | StoredBatches,
        view: TopicView,
        partition: int,
        start: int,
        *,
        group: str,
        live_since_ns: int | None,
    ) -> Reached:
        """Put into `out` what is there now from offset `start` on, for a group; return where it goes on.

        Args:
            live_since_ns: since when the reader stood at the end; None: it was behind.

        Raises:
            OffsetOutOfRange: below the log start or beyond the end. NotLeader, Unavailable: ask again.
        """
        answer = await self._read(view, partition, start, 0)
        if not answer.entries:
            return Reached(max(start, answer.next_offset), answer.epoch)
        session = self._recorder.open_session(
            topic=plain_name(view), origin=view.origin, partition=partition, offset=start, group=group
        )
        if live_since_ns is not None:
            session.caught_up(live_since_ns)
        before = out.count
        if isinstance(out, StoredBatches):
            reached = self._fill_batches(out, session, partition, answer)
            self._records_out.inc(out.count - before)
            return reached._replace(offset=max(start, reached.offset))
        about = {"partition": partition}
        reached = await self._fill(out, session, start, answer, where=f"{view.name}/{partition}", about=about)
        self._records_out.inc(out.count - before)
        return reached

    async def pause_for(self, principal: Principal, size_bytes: int) -> None:
        """Let an answer of so many bytes wait until its reader's quota is kept."""
        await self._pause(self._quotas.fetch(principal, size_bytes))

    async def existing(self, topic: str, wait_ms: int = NEW_TOPIC_MS) -> TopicView:
        """Return a topic, which another broker may have created just now. A GET creates none: a browser may send it."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_ms / 1_000
        while (view := self._cluster.topic(topic)) is None:
            if loop.time() >= until_s:
                raise UnknownTopic(f"topic {topic!r} does not exist; create it with `georelay topics create {topic}`")
            await asyncio.sleep(NEW_TOPIC_POLL_S)
        return view

    @staticmethod
    async def _pause(pause_ms: int) -> None:
        """Let the answer wait until the caller's quota is kept."""
        if pause_ms:
            await asyncio.sleep(pause_ms / 1_000)

    async def _start(self, view: TopicView, partition: int, offset: int) -> tuple[int, int | None]:
        """Return the offset that "earliest" or "latest" stands for, and the end for readers where it is known."""
        if offset in (EARLIEST, LATEST):
            bounds = await self._reader.read(view.name, partition, offset, max_bytes=1, wait_ms=0)
            return (bounds.log_start if offset == EARLIEST else bounds.end), bounds.end
        stream = self._cluster.stream(view.name, partition)
        return offset, None if stream is None else stream.last_stable_offset

    async def _read(self, view: TopicView, partition: int, start: int, wait_ms: int) -> ReadAnswer:
        answer = await self._reader.read(view.name, partition, start, max_bytes=READ_BYTES, wait_ms=wait_ms)
        if start < answer.log_start:
            raise OffsetOutOfRange(f"offset {start} is below the log start {answer.log_start}")
        return answer

    async def _fill(
        self,
        out: RecordsOut,
        session: TraceSession,
        start: int,
        answer: ReadAnswer,
        *,
        where: str,
        about: Mapping[str, Any] = ABOUT_NOTHING,
    ) -> Reached:
        """Put into an answer what it takes; return where the next one begins."""
        position, epoch = start, 0
        for entry in answer.entries:
            if not out.has_room_for(entry):
                return Reached(position, epoch)
            async with aclosing(readable_chunks(entry, where)) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, Unreadable):
                        if chunk.following > position:
                            out.pass_over(replace(chunk, first=max(position, chunk.first)), about)
                            position = chunk.following
                    else:
                        fresh = [record for record in chunk if record.offset >= start]
                        done = await out.add(fresh, about)
                        position = fresh[done - 1].offset + 1 if done else position
                    is_over = position >= entry.base_offset + entry.record_count
                    if out.is_full or (not is_over and not out.has_room_for(entry)):
                        break
            if position > entry.base_offset:  # what is cut off is the next request's
                epoch = entry.header().epoch
                self._delivered(session, entry, min(position - entry.base_offset, entry.record_count))
            if out.is_full:
                return Reached(position, epoch)
        return _end_of(answer, position, epoch)  # past what is not shown: markers, aborted transactions

    def _fill_batches(self, out: StoredBatches, session: TraceSession, partition: int, answer: ReadAnswer) -> Reached:
        """Put stored batches into `out` until it is full; return where the next one begins."""
        following, epoch = 0, 0
        for entry in answer.entries:
            if out.is_full or not out.has_room_for(entry):
                return Reached(following, epoch)
            following, epoch = out.add(partition, entry), entry.header().epoch
            self._delivered(session, entry, entry.record_count)
        return _end_of(answer, following, epoch)

    def _delivered(self, session: TraceSession, entry: EntryLike, record_count: int) -> None:
        header = entry.header()
        session.delivered(
            epoch=header.epoch,
            base_offset=entry.base_offset,
            record_count=record_count,
            entry_region=header.entry_region,
            received_ns=header.received_ns,
            delivered_ns=self._wall_ns(),
            size_bytes=len(entry.payload),
        )


async def led(until: float, read: Callable[[], Awaitable[T]]) -> T:
    """Return what `read` returns; while nobody leads the partition, ask again `until` then (the loop's time).

    Raises:
        NotLeader, Unavailable: still nobody. What else `read` raises.
    """
    while True:
        try:
            return await read()
        except (NotLeader, Unavailable):
            if asyncio.get_running_loop().time() >= until:
                raise
        await asyncio.sleep(LEADER_RETRY_S)


def _end_of(answer: ReadAnswer, position: int, epoch: int) -> Reached:
    """Return the end of what was read, all of which was taken up to `position`."""
    return Reached(max(position, answer.next_offset), answer.epoch or epoch)


def json_response(value: Mapping[str, Any], *, status: int = 200) -> web.Response:
    """Return a JSON answer; text stays readable (no \\u escapes)."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return web.Response(status=status, body=body, content_type="application/json", charset="utf-8")


def _asked_level(query: Mapping[str, str]) -> AskedLevel:
    """Return what a publish asks for: `durability`, and how long it waits for that in `deadline_ms`."""
    durability = Durability.parse(query.get("durability", "region"))
    deadline_ms = query_number(query, "deadline_ms", default=DEADLINE_MS, low=1, high=DEADLINE_MS_MAX)
    return AskedLevel(durability=durability, deadline_ms=deadline_ms) if durability.is_geo else REGION_LEVEL


def _region_row(at: RecordPlace) -> dict[str, Any]:
    """Return where a record is that only its home was asked for."""
    return {"partition": at.partition, "offset": at.offset, "epoch": at.epoch, **_isolated(at)}


def _isolated(at: RecordPlace) -> dict[str, bool]:
    """Return a warning where a forced move of the home may leave the record in an orphan branch."""
    return {"isolated": True} if at.is_isolated else {}


def checked_query(query: Any, own_region: str, known: Collection[str]) -> dict[str, str]:
    """Return the parameters of a request (BadRequest: one that is unknown or stands twice, another region's)."""
    values: dict[str, str] = {}
    for name, value in query.items():
        if name not in known:
            raise BadRequest(f"{name[:64]}: unknown parameter; known are {', '.join(sorted(known))}")
        if name in values:
            raise BadRequest(f"{name}: the parameter stands twice")
        values[name] = value
    if values.get("region", own_region) != own_region:
        raise BadRequest(f"region: this broker is in {own_region!r}; ask the gateway for another region")
    return values


def query_number(query: Mapping[str, str], name: str, *, default: int, high: int, low: int = 0) -> int:
    """Return a parameter that is a whole number (BadRequest: it is none, or outside `low`..`high`)."""
    text = query.get(name)
    if text is None:
        return default
    if _DIGITS.fullmatch(text) is None or not low <= int(text) <= high:
        raise BadRequest(f"{name}: must be an integer in {low}..{high}")
    return int(text)


def _offset(query: Mapping[str, str]) -> int:
    text = query.get("offset", "earliest")
    if text == "earliest":
        return EARLIEST
    if text == "latest":
        return LATEST
    if _DIGITS.fullmatch(text) is None or int(text) > OFFSET_MAX:
        raise BadRequest(f'offset: must be an integer in 0..{OFFSET_MAX}, "earliest" or "latest"')
    return int(text)
