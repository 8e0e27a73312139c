"""One PublishStream call: batches go to the cluster as they came, records through the coalescer, answers by tag.

Rule 1: publishes of one call for one partition are handed on in the order in which they came.
Rule 2: every publish is answered exactly once. Late is UNKNOWN: the client may send the same batch again, and streams
        recognise it by producer id and sequence. An answer frees the tag for another publish, so what comes later is
        told apart by the publish itself (`_Waiting`), never by its tag.
Rule 3: beyond its window a call is not read; the window is bytes and publishes without an answer, and answers that the
        client has not read.
Rule 4: a level that cannot be given is refused before anything is stored; it is never lowered silently.
Rule 5: rights are asked for at every publish; a call whose sign-in has ended is ended, see `still_valid`.
Rule 6: no task and no timer per batch: futures call back, deadlines are swept, answers of one turn travel together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc.aio
import structlog

from georelay._pb import streams_pb2 as pb
from georelay.durability import Durability
from georelay.errors import BadRequest, GeorelayError, Outcome, OutcomeUnknown, TooLarge
from georelay.limits import MIB, REST_RECORDS_MAX
from georelay.refusals import refusal_of
from mesh.replication.level import REGION_LEVEL, AskedLevel
from region.api.coalescer import NewRecord
from region.api.metrics import BrokerMetrics
from region.api.permits import check_topic
from region.api.publishing import Asker, RecordPlace, RecordPublisher, check_place, require_topic
from region.api.streams.outbox import Writer
from region.kafka.client_batch import check_client_batch
from region.kafka.ports import Cluster, Publish, Published, TopicView
from region.kafka.refused_publishes import RefusedPublishes
from region.security.access import Access, Operation, Principal, Resource
from region.security.quotas import Quotas

log = structlog.get_logger()

WINDOW_BYTES: Final = 16 * MIB
WINDOW_PUBLISHES: Final = 1_000
DEADLINE_MS: Final = 30_000
DEADLINE_MS_MAX: Final = 300_000
SWEEP_S: Final = 0.25  # how late a deadline may be noticed
ANSWERS_PER_RESPONSE_MAX: Final = 1_000
PUBLISH_OVERHEAD_BYTES: Final = 256  # what a publish costs besides its payload
CHOOSE: Final = -1
GEO_GRACE_MS: Final = 1_000  # how much later a geo publish without an answer is given up than its home pends it
_OUTCOME: Final = {
    Outcome.NOT_STORED: pb.OUTCOME_NOT_STORED,
    Outcome.UNKNOWN: pb.OUTCOME_UNKNOWN,
    Outcome.PENDING: pb.OUTCOME_PENDING,
}


@dataclass(slots=True, eq=False)
class _Waiting:
    """A publish without an answer."""

    tag: int
    size_bytes: int
    deadline_ns: int


class PublishCall:
    """State of one call; `run` is the call."""

    def __init__(
        self,
        context: Any,
        *,
        cluster: Cluster,
        publisher: RecordPublisher,
        access: Access,
        principal: Principal,
        metrics: BrokerMetrics,
        wall_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
        region_name: Callable[[int], str],
        quotas: Quotas,
        refused: RefusedPublishes,
        still_valid: Callable[[], None] = lambda: None,
    ) -> None:
        """`region_name` turns a region's number into its name; `still_valid` raises when the sign-in has ended."""
        self._context = context
        self._writer = Writer(context)
        self._cluster = cluster
        self._publisher = publisher
        self._access = access
        self._principal = principal
        self._records_in = metrics.edge_records.labels("grpc", "in")
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._region_name = region_name
        self._quotas = quotas
        self._refused = refused
        self._still_valid = still_valid
        self._waiting: dict[int, _Waiting] = {}
        self._bytes = 0
        self._answers: list[pb.Acknowledgement] = []
        self._news = asyncio.Event()  # there are answers to write, or the call is over
        self._room = asyncio.Event()  # answers were given
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until the client has ended its side and everything is answered.

        Raises:
            BadRequest: the client broke the rules of the call (a tag twice). Unauthenticated: its sign-in has ended.
        """
        window = pb.Window(
            bytes=WINDOW_BYTES,
            publishes=WINDOW_PUBLISHES,
            region=self._cluster.region,
            broker=self._cluster.broker_id,
        )
        await self._writer.write(pb.PublishStreamResponse(window=window))
        loop = asyncio.get_running_loop()
        sweeping = loop.create_task(self._sweep())
        helpers = [loop.create_task(self._write()), sweeping]
        reading = loop.create_task(self._read())
        try:
            # Whichever ends first decides: the client's side is over, or nobody can be answered any more.
            await asyncio.wait((reading, *helpers), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                await reading
                helpers.append(loop.create_task(self._all_answered()))
                await asyncio.wait(helpers, return_when=asyncio.FIRST_COMPLETED)
            if sweeping.done():
                await sweeping
        finally:
            for task in (reading, *helpers, *self._tasks):
                task.cancel()
            await asyncio.gather(reading, *helpers, *self._tasks, return_exceptions=True)
            await self._writer.settle()

    # --- requests ----------------------------------------------------------------------------------

    async def _read(self) -> None:
        while (request := await self._context.read()) is not grpc.aio.EOF:
            for publish in request.publishes:
                while self._is_full():
                    self._room.clear()
                    await self._room.wait()
                await self._take(publish)
            if not self._quotas.is_idle:  # what a quota holds up is not read; what was read is on its way
                pause_ms = self._quotas.produce(self._principal, request.ByteSize())
                await asyncio.sleep(pause_ms / 1000)

    def _is_full(self) -> bool:
        if self._waiting and (self._bytes >= WINDOW_BYTES or len(self._waiting) >= WINDOW_PUBLISHES):
            return True
        return len(self._answers) >= WINDOW_PUBLISHES

    async def _take(self, publish: pb.Publish) -> None:
        if publish.tag in self._waiting:
            raise BadRequest(f"tag {publish.tag} stands for a publish that is not answered yet")
        waiting = self._begin(publish)
        try:
            if publish.transactional_id:
                name = publish.transactional_id
                self._access.check(self._principal, Operation.WRITE, Resource.TRANSACTIONAL_ID, name)
            check_topic(self._access, self._cluster, self._principal, Operation.WRITE, publish.topic)
            asker = Asker(access=self._access, principal=self._principal)
            topic = self._cluster.topic(publish.topic) or await require_topic(self._cluster, publish.topic, asker)
            self._check(publish, topic)
            if publish.WhichOneof("payload") == "batch":
                topic.check_batch(len(publish.batch))
                self._publish_batch(publish, waiting)
            else:
                self._publish_records(publish, topic, waiting)
        except GeorelayError as error:
            self._refuse(waiting, error)

    def _begin(self, publish: pb.Publish) -> _Waiting:
        patience_ms = (publish.deadline_ms or DEADLINE_MS) + GEO_GRACE_MS * (publish.level == pb.LEVEL_GEO)
        deadline_ns = self._monotonic_ns() + patience_ms * 1_000_000
        size = PUBLISH_OVERHEAD_BYTES + (len(publish.batch) or publish.records.ByteSize())
        waiting = self._waiting[publish.tag] = _Waiting(publish.tag, size, deadline_ns)
        self._bytes += size
        return waiting

    @staticmethod
    def _check(publish: pb.Publish, topic: TopicView) -> None:
        """Refuse what needs nothing but the request and the topic to be refused."""
        payload = publish.WhichOneof("payload")
        if payload is None:
            raise BadRequest("publish: neither a batch nor records")
        if publish.transactional_id and payload != "batch":
            # Records are coalesced with those of others: they would be stored outside of the transaction.
            raise BadRequest(
                "transactional_id: records are in no transaction, nothing was stored; send them as a batch whose "
                "transactional bit is set, or without transactional_id"
            )
        if not 0 <= publish.deadline_ms <= DEADLINE_MS_MAX:
            raise BadRequest(f"deadline_ms: {publish.deadline_ms} is outside 0..{DEADLINE_MS_MAX}")
        chooses = payload == "records" and publish.partition == CHOOSE
        check_place(topic, topic.name, None if chooses else publish.partition)

    def _publish_batch(self, publish: pb.Publish, waiting: _Waiting) -> None:
        raw = publish.batch
        header = check_client_batch(raw, is_transactional=bool(publish.transactional_id))
        place = (publish.topic, publish.partition, header.record_count)
        try:
            batch = Publish(
                header,
                raw,
                self._wall_ns(),
                self._cluster.region_number,
                lane=self,
                level=level_of(publish),
                transactional_id=publish.transactional_id,
            )
            future = self._cluster.publish(publish.topic, publish.partition, batch)
        except GeorelayError as error:
            self._refused.note(*place, error)
            raise
        self._records_in.inc(header.record_count)
        future.add_done_callback(partial(self._batch_done, waiting, place))

    def _publish_records(self, publish: pb.Publish, topic: TopicView, waiting: _Waiting) -> None:
        given = publish.records.records
        if not given:
            raise BadRequest("publish: records is empty")
        if len(given) > REST_RECORDS_MAX:
            raise TooLarge(f"{len(given)} records are over REST_RECORDS_MAX ({REST_RECORDS_MAX}) per publish")
        wanted = None if publish.partition == CHOOSE else publish.partition
        records = [(_new_record(record), wanted) for record in given]
        begun = self._publisher.begin(topic, publish.topic, records, level_of(publish))
        self._records_in.inc(len(given))
        task = asyncio.get_running_loop().create_task(self._settle_records(waiting, begun))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle_records(self, waiting: _Waiting, begun: Awaitable[list[RecordPlace]]) -> None:
        try:
            places = await begun
        except GeorelayError as error:
            self._refuse(waiting, error)
            return
        if self._is_open(waiting):
            stored = pb.Places(partitions=[at.partition for at in places], offsets=[at.offset for at in places])
            least = min(places, key=lambda at: (not at.is_pending, at.level))
            acknowledgement = self._stored(waiting.tag, least)
            acknowledgement.epoch, acknowledgement.commit_us = places[0].epoch, places[0].append_us
            acknowledgement.base_offset = places[0].offset
            acknowledgement.places.CopyFrom(stored)
            self._answer(waiting, acknowledgement)

    # --- answers -----------------------------------------------------------------------------------

    def _batch_done(self, waiting: _Waiting, place: tuple[str, int, int], future: asyncio.Future[Published]) -> None:
        self._refused.note_end(*place, future)
        if future.cancelled():
            self._refuse(waiting, OutcomeUnknown("the publish was cancelled; the records may be stored"))
            return
        error = future.exception()
        if isinstance(error, GeorelayError):
            self._refuse(waiting, error)
        elif error is not None:
            log.error("publish.broke", error=repr(error))
            self._refuse(waiting, OutcomeUnknown("internal error; the broker's log has the cause"))
        elif self._is_open(waiting):
            published = future.result()
            acknowledgement = self._stored(waiting.tag, published)
            acknowledgement.base_offset = published.base_offset
            self._answer(waiting, acknowledgement)

    def _stored(self, tag: int, at: Published | RecordPlace) -> pb.Acknowledgement:
        """Return the acknowledgement of what is stored, at the level that it has reached."""
        return pb.Acknowledgement(
            tag=tag,
            outcome=pb.OUTCOME_PENDING if at.is_pending else pb.OUTCOME_STORED,
            epoch=at.epoch,
            level=pb.LEVEL_GEO if at.level > 1 else pb.LEVEL_REGION,
            regions=[self._region_name(region) for region in at.regions],
            commit_us=at.append_us,
        )

    def _is_open(self, waiting: _Waiting) -> bool:
        """Return whether a publish has no answer yet; its tag may stand for another one by now."""
        return self._waiting.get(waiting.tag) is waiting

    def _refuse(self, waiting: _Waiting, error: GeorelayError) -> None:
        refused = pb.Acknowledgement(tag=waiting.tag, outcome=_OUTCOME[error.outcome], refusal=refusal_of(error))
        self._answer(waiting, refused)

    def _answer(self, waiting: _Waiting, acknowledgement: pb.Acknowledgement) -> None:
        """Answer a publish, unless its deadline has answered it."""
        if not self._is_open(waiting):
            return
        del self._waiting[waiting.tag]
        self._bytes -= waiting.size_bytes
        self._answers.append(acknowledgement)
        self._news.set()
        self._room.set()

    async def _write(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._answers:
                now, self._answers = (
                    self._answers[:ANSWERS_PER_RESPONSE_MAX],
                    self._answers[ANSWERS_PER_RESPONSE_MAX:],
                )
                await self._writer.write(pb.PublishStreamResponse(acknowledgements=now))
                self._room.set()
            self._room.set()

    async def _all_answered(self) -> None:
        while self._waiting or self._answers or self._news.is_set():
            self._room.clear()
            await self._room.wait()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._still_valid()
            now_ns = self._monotonic_ns()
            for waiting in [waiting for waiting in self._waiting.values() if waiting.deadline_ns <= now_ns]:
                self._refuse(waiting, OutcomeUnknown("not committed within its deadline; it may be stored later"))


def level_of(publish: pb.Publish) -> AskedLevel:
    """Return what a publish asks for (BadRequest: no number of regions, or a level of a newer version)."""
    if publish.level not in (pb.LEVEL_UNSPECIFIED, pb.LEVEL_REGION, pb.LEVEL_GEO):
        raise BadRequest(f"level {publish.level} is unknown here; nothing was stored")
    if publish.level != pb.LEVEL_GEO:
        return REGION_LEVEL
    durability = Durability.of_wire(publish.regions)
    if not durability.is_geo:
        raise BadRequest(f"level GEO({publish.regions}): use 2 or more regions, -1 (majority) or -2 (all)")
    return AskedLevel(durability=durability, deadline_ms=publish.deadline_ms or DEADLINE_MS)


def _new_record(record: pb.NewRecord) -> NewRecord:
    return NewRecord(
        value=record.value if record.HasField("value") else None,
        key=record.key if record.HasField("key") else None,
        headers=tuple((header.name, header.value if header.HasField("value") else None) for header in record.headers),
        timestamp_ms=record.timestamp_ms if record.HasField("timestamp_ms") else None,
    )
