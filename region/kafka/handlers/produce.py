"""Produce: one validated batch per partition goes to the cluster; the answer follows its commit.

Rule 1: publishes of one connection are handed on in the order of its requests, before the next one is read.
Rule 2: acks=1 waits for the commit in the home region, acks=all for as many regions as the topic's
        min.insync.regions, acks=k for k regions; acks=0 gets no answer, and an error closes the connection, which is
        how Kafka makes such a client look for the leader again.
Rule 3: a batch is checked (length, magic, checksum, attributes, counts) before anything else sees it.
Rule 4: no task and no timer per request: futures call back, deadlines are swept.
Rule 5: NOT_ENOUGH_REPLICAS is said before a batch is stored only, NOT_ENOUGH_REPLICAS_AFTER_APPEND of one that is
        stored, and not in enough regions when the time was over.
Rule 6: what comes behind a batch that was refused for a moment waits for that one (refused_sequences_core).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final
from weakref import WeakKeyDictionary

import structlog

from georelay.durability import GEO_REGIONS_MIN, Durability
from georelay.errors import (
    CorruptRecordBatch,
    GeorelayError,
    NotLeader,
    OutcomeUnknown,
    PolicyViolation,
    UnknownTopic,
)
from georelay.limits import REGIONS_MAX
from georelay.wire.api import ErrorCode
from georelay.wire.batch import LENGTH_PREFIX_BYTES, Compression, validate
from georelay.wire.header import CODEC_MASK, BatchHeader
from georelay.wire.hot import encode_one_produced
from georelay.wire.requests import PartitionProduceData, ProduceRequest
from georelay.wire.responses import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from mesh.replication.level import REGION_LEVEL, AskedLevel
from region.controller.topic import TopicView
from region.kafka.client_batch import check_client_batch
from region.kafka.connection import KafkaConnection, Slot
from region.kafka.counters import KafkaCounters
from region.kafka.error_map import RowRefused, kafka_code
from region.kafka.handlers.positions import is_leaving
from region.kafka.ports import Publish, Published
from region.kafka.refused_publishes import RefusedPublishes
from region.kafka.refused_sequences_core import RefusedSequences
from region.kafka.services import KafkaServices
from region.security.access import Operation, Resource

log = structlog.get_logger()

TIMEOUT_MS_MIN: Final = 1_000
TIMEOUT_MS_MAX: Final = 300_000
ZSTD_SINCE_VERSION: Final = 7
_LENGTH: Final = struct.Struct(">i")
ACKS_NONE: Final = 0
ACKS_ALL: Final = -1
ACKS_HOME: Final = frozenset({0, 1})
LEVELS_KEPT: Final = 256  # of different time limits of clients
PENDING_MARGIN_MS_MAX: Final = 1_000  # how much earlier than its client gives up a publish is answered as pending


_Waiting = tuple[str, int, BatchHeader]  # topic as the client wrote it, partition, and the batch for it


class PendingProduce:
    """A Produce whose partitions wait for their commits."""

    __slots__ = (
        "_acks", "_counters", "_gaps", "_log_start", "_pause_ms", "_refused", "_rows", "_slot", "_topics", "_waiting",
    )  # fmt: skip

    def __init__(
        self,
        slot: Slot,
        request: ProduceRequest,
        counters: KafkaCounters,
        refused: RefusedPublishes,
        gaps: RefusedSequences,
        log_start: Callable[[str, int], int],
        *,
        pause_ms: int = 0,
    ) -> None:
        """`log_start` returns the one of a partition: Java's producer repeats what is answered without it for ever."""
        self._log_start = log_start
        self._slot = slot
        self._refused = refused
        self._gaps = gaps
        self._pause_ms = pause_ms
        self._counters = counters
        self._acks = request.acks
        self._topics = [(topic.name, len(topic.partition_data)) for topic in request.topic_data]
        self._rows: list[PartitionProduceResponse | _Waiting] = []
        self._waiting = 0

    def wait(
        self, name: str, index: int, header: BatchHeader, future: asyncio.Future[Published], *, tells_time: bool = False
    ) -> None:
        """Add a partition of topic `name` whose batch with this header is on its way.

        Args:
            tells_time: the time of the append is that of the records (LogAppendTime), and told to the client.
        """
        if future.done():
            self._rows.append(self._row(name, index, header, future, tells_time=tells_time))
            self._refused.note_end(name, index, header.record_count, future)
            return
        row = len(self._rows)
        self._rows.append((name, index, header))
        self._waiting += 1
        future.add_done_callback(partial(self._done, row, name, index, header, tells_time))

    def refuse(self, name: str, index: int, header: BatchHeader | None, error: BaseException) -> None:
        """Add a partition of topic `name` that is not stored; `header` is None where it could not be read."""
        told = self._gaps.told(name, index, header, error)
        self._rows.append(self._told_start(name, _error_row(index, kafka_code(told), str(told), self._counters)))

    def _row(
        self, name: str, index: int, header: BatchHeader, future: asyncio.Future[Published], *, tells_time: bool
    ) -> PartitionProduceResponse:
        error = _error_of(future)
        if error is None:
            self._gaps.stored(name, index, header)
            row = _stored_row(index, future.result(), self._counters, tells_time=tells_time)
        elif isinstance(told := self._gaps.told(name, index, header, error), GeorelayError):
            row = _error_row(index, kafka_code(told), str(told), self._counters)
        else:
            log.error("publish.broke", error=repr(error))
            row = _error_row(index, ErrorCode.UNKNOWN_SERVER_ERROR, "internal error", self._counters)
        return self._told_start(name, row)

    def _told_start(self, name: str, row: PartitionProduceResponse) -> PartitionProduceResponse:
        if row.error_code != ErrorCode.UNKNOWN_PRODUCER_ID:
            return row
        return replace(row, log_start_offset=self._log_start(name, row.index))

    def begin(self, timeout_ms: int) -> None:
        """All partitions are added: answer now, or when the last one is done or `timeout_ms` have passed."""
        if self._waiting == 0:
            self._answer()
            return
        self._slot.deadline_ns = _deadline_ns(self._slot, timeout_ms)
        self._slot.on_deadline = self._time_out
        if self._acks == ACKS_NONE:
            self._slot.no_answer()

    def _done(
        self, row: int, name: str, index: int, header: BatchHeader, tells_time: bool, future: asyncio.Future[Published]
    ) -> None:
        if isinstance(self._rows[row], tuple):
            answer = self._rows[row] = self._row(name, index, header, future, tells_time=tells_time)
            is_refused = answer.error_code != ErrorCode.NONE
        else:
            is_refused = True  # its time was over: it was answered and counted then, and its records are now
            if _error_of(future) is None:
                self._gaps.stored(name, index, header)
        if is_refused:
            self._refused.note_end(name, index, header.record_count, future)
        self._waiting -= 1
        if self._waiting == 0:
            self._answer()

    def _time_out(self) -> None:
        for row, value in enumerate(self._rows):
            if isinstance(value, tuple):
                self._rows[row] = self._late_row(*value)
        self._answer()

    def _late_row(self, name: str, index: int, header: BatchHeader) -> PartitionProduceResponse:
        late = self._gaps.told(name, index, header, OutcomeUnknown("not committed in time"))
        return _error_row(index, kafka_code(late), str(late), self._counters)

    def _answer(self) -> None:
        rows = [row for row in self._rows if not isinstance(row, tuple)]
        slot = self._slot
        if self._acks == ACKS_NONE:
            _answer_nothing(slot, is_error=any(row.error_code for row in rows))
            return
        if slot.answered:
            return
        if len(rows) == 1 == len(self._topics) and not self._pause_ms:
            header = slot.header
            encoded = encode_one_produced(
                self._topics[0][0].encode(),
                rows[0],
                version=header.api_version,
                correlation_id=header.correlation_id,
            )
            if encoded is not None:
                slot.answer_encoded((encoded,))
                return
        responses, start = [], 0
        for name, count in self._topics:
            responses.append(TopicProduceResponse(name=name, partition_responses=rows[start : start + count]))
            start += count
        slot.answer(ProduceResponse(responses=responses, throttle_time_ms=self._pause_ms))


def _answer_nothing(slot: Slot, *, is_error: bool) -> None:
    """Finish a Produce with acks=0; an error is told by closing the connection."""
    slot.no_answer()
    if is_error and not slot.connection.is_closing:
        slot.connection.close()


def _deadline_ns(slot: Slot, timeout_ms: int) -> int:
    return slot.started_ns + min(max(timeout_ms, TIMEOUT_MS_MIN), TIMEOUT_MS_MAX) * 1_000_000


def _stored_row(
    index: int, published: Published, counters: KafkaCounters, *, tells_time: bool
) -> PartitionProduceResponse:
    if published.is_pending:
        return _error_row(index, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, _pending_text(published), counters)
    counters.publishes_stored += 1
    append_ms = published.append_us // 1000 if tells_time else -1
    return PartitionProduceResponse(index, ErrorCode.NONE, published.base_offset, append_ms, published.log_start)


def _pending_text(published: Published) -> str:
    return f"stored at offset {published.base_offset}; {published.level} region(s) have it, more were asked for"


def _error_of(future: asyncio.Future[Published]) -> BaseException | None:
    return OutcomeUnknown("the publish was cancelled") if future.cancelled() else future.exception()


def _error_row(index: int, code: int, text: str, counters: KafkaCounters) -> PartitionProduceResponse:
    counters.publish_refused(code)
    return PartitionProduceResponse(index=index, error_code=code, error_message=text)


class ProduceHandler:
    """Hands batches to the cluster."""

    def __init__(self, services: KafkaServices) -> None:
        self._cluster = services.cluster
        self._quotas = services.quotas
        self._access = services.access
        self._counters = services.counters
        self._refused = RefusedPublishes(services.cluster, services.recorder)
        self._monotonic_ns = services.monotonic_ns
        self._gaps: WeakKeyDictionary[KafkaConnection, RefusedSequences] = WeakKeyDictionary()

    def handle(self, slot: Slot, request: ProduceRequest) -> None:
        """Publish every partition's batch."""
        pause_ms = self._pause_ms(slot, request)
        gaps = self._gaps.get(slot.connection)
        if gaps is None:
            gaps = self._gaps[slot.connection] = RefusedSequences(self._monotonic_ns)
        pending = PendingProduce(
            slot, request, self._counters, self._refused, gaps, self._log_start_of, pause_ms=pause_ms
        )
        for topic in request.topic_data:
            for data in topic.partition_data:
                try:
                    future, header, tells_time = self._publish(slot, gaps, topic.name, data, request)
                except (RowRefused, GeorelayError) as error:
                    found = _header_of(data.records)
                    pending.refuse(topic.name, data.index, found, error)
                    self._refused.note(topic.name, data.index, 0 if found is None else found.record_count, error)
                else:
                    pending.wait(topic.name, data.index, header, future, tells_time=tells_time)
        pending.begin(request.timeout_ms)

    def _log_start_of(self, name: str, partition: int) -> int:
        stream = self._cluster.stream(name, partition)
        return -1 if stream is None else stream.log_start

    def _pause_ms(self, slot: Slot, request: ProduceRequest) -> int:
        """Count the request's bytes; the connection handles nothing more until its principal's quota is kept."""
        if self._quotas.is_idle:
            return 0
        size_bytes = sum(len(data.records or b"") for topic in request.topic_data for data in topic.partition_data)
        pause_ms = self._quotas.produce(slot.connection.principal, size_bytes)
        slot.connection.mute(pause_ms)
        return pause_ms

    def _publish(
        self, slot: Slot, gaps: RefusedSequences, name: str, data: PartitionProduceData, request: ProduceRequest
    ) -> tuple[asyncio.Future[Published], BatchHeader, bool]:
        principal, transactional_id = slot.connection.principal, request.transactional_id
        if transactional_id is not None:
            self._access.check(principal, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)
        self._access.check(principal, Operation.WRITE, Resource.TOPIC, name)
        view = self._cluster.topic(name)
        if view is None or not 0 <= data.index < view.partitions:
            raise UnknownTopic(f"{name!r} has no partition {data.index} here")
        if view.is_mirror_name or view.internal:
            raise PolicyViolation(f"{name!r} is written by its home only; produce to the plain name")
        leader = self._cluster.leader_of(name, data.index)
        if leader != self._cluster.broker_id:
            # Clients of this protocol find the leader themselves: one hop less for every batch that follows.
            raise NotLeader(leader=leader)
        elsewhere = self._cluster.drain.leader(view, data.index) if is_leaving(self._cluster, slot) else None
        if elsewhere is not None:
            raise NotLeader(leader=elsewhere)
        raw = data.records
        if not raw:
            raise RowRefused(ErrorCode.INVALID_RECORD, "the partition has no record batch")
        _refuse_several(raw)
        view.check_batch(len(raw))
        header = check_client_batch(raw, is_transactional=transactional_id is not None)
        if header.attributes & CODEC_MASK == Compression.ZSTD and slot.api_version < ZSTD_SINCE_VERSION:
            raise RowRefused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7")
        gaps.comes(name, data.index, header)
        self._counters.batches_in += 1
        self._counters.records_in += header.record_count
        publish = Publish(
            header,
            raw,
            slot.received_ns,
            self._cluster.region_number,
            lane=slot.connection,
            level=_level_of(request.acks, request.timeout_ms, view),
            transactional_id=transactional_id or "",
        )
        future = self._cluster.publish(name, data.index, publish)
        return future, header, view.definition.uses_append_time


def _header_of(raw: bytes | memoryview | None) -> BatchHeader | None:
    """Return the header of a refused batch; None when it is damaged, and says nothing that can be believed."""
    if not raw:
        return None
    try:
        return validate(raw, from_client=True, transactional_ok=True)
    except GeorelayError:
        return None


def _level_of(acks: int, timeout_ms: int, view: TopicView) -> AskedLevel:
    """Return what `acks` asks of the home of a topic. Raises RowRefused: no number of regions."""
    if acks in ACKS_HOME:
        return REGION_LEVEL
    if acks != ACKS_ALL and not GEO_REGIONS_MIN <= acks <= REGIONS_MAX:
        text = f"acks={acks}: use 0, 1, all, or {GEO_REGIONS_MIN}..{REGIONS_MAX} for so many regions"
        raise RowRefused(ErrorCode.INVALID_REQUIRED_ACKS, text)
    # What is known here of the topic may be old: its home counts with what it says when the batch gets there.
    return _asked(acks if acks != ACKS_ALL else view.definition.min_insync_regions, timeout_ms, acks == ACKS_ALL)


@lru_cache(maxsize=LEVELS_KEPT)
def _asked(regions: int, timeout_ms: int, as_topic: bool) -> AskedLevel:
    patience_ms = min(max(timeout_ms, TIMEOUT_MS_MIN), TIMEOUT_MS_MAX)
    margin_ms = min(PENDING_MARGIN_MS_MAX, patience_ms // 10)
    return AskedLevel(
        durability=Durability.geo(regions) if regions >= GEO_REGIONS_MIN else Durability.REGION,
        deadline_ms=patience_ms - margin_ms,
        needs_live=True,
        as_topic=as_topic,
    )


def _refuse_several(raw: bytes | memoryview) -> None:
    """Kafka takes exactly one batch per partition and request; a second one must not be stored half-checked."""
    if len(raw) < LENGTH_PREFIX_BYTES:
        raise CorruptRecordBatch(f"{len(raw)} bytes are not a record batch")
    size = _LENGTH.unpack_from(raw, LENGTH_PREFIX_BYTES - 4)[0] + LENGTH_PREFIX_BYTES
    if LENGTH_PREFIX_BYTES < size < len(raw):
        raise RowRefused(ErrorCode.INVALID_RECORD, "exactly one record batch per partition and request is allowed")
