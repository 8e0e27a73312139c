"""Fetch: committed batches from memory first, from disk in a thread, with long polling.

Rule 1: only committed data, of a topic with min.insync.regions only what so many regions have; batches are handed on
        as views, whole, and never decoded.
Rule 2: the first batch of an answer is whole even when it is over max_bytes; no later one may pass the limits
        (of its partition or of the whole answer).
Rule 3: waiting is by the streams' wake-ups: no polling, one timer per waiting request; only what woke it is read again.
Rule 4: OFFSET_OUT_OF_RANGE below the log start, and beyond the log end at the home only: a mirror cannot know
        the end, there a reader waits.
Rule 5: no fetch sessions (session id 0 always).
Rule 6: with answers that its client has not read, a fetch gets what they leave room for, at last no records at all.
Rule 7: a reader of committed records (isolation level 1) is answered up to the last stable offset, with the aborted
        transactions among what it gets: its client leaves their records out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from georelay.errors import GeorelayError
from georelay.ids import Epoch, Offset
from georelay.limits import FETCH_RESPONSE_BYTES_MAX
from georelay.wire.api import ErrorCode
from georelay.wire.batch import Compression
from georelay.wire.requests import FetchPartition, FetchRequest
from georelay.wire.responses import (
    AbortedTransaction,
    DivergingEpoch,
    FetchableTopicResponse,
    FetchPartitionData,
    FetchResponse,
)
from region.kafka.connection import KafkaConnection, Slot
from region.kafka.error_map import kafka_code
from region.kafka.handlers.positions import NO_EPOCH, epoch_error, is_leaving, led_stream
from region.kafka.ports import EntryLike, Stream, TraceSession
from region.kafka.services import KafkaServices, plain_name
from region.security.access import Operation, Resource

MAX_WAIT_MS_MAX: Final = 300_000
TRACE_SESSIONS_MAX: Final = 10_000  # per connection; the oldest is forgotten
ZSTD_SINCE_VERSION: Final = 10
READ_COMMITTED: Final = 1
# A fetch of many partitions costs its width, for client and broker, whether one of them has records or all: a client
# that was answered a moment ago waits until more have some. 25 us is what one partition costs in both.
WIDE_PARTITIONS: Final = 64
WIDE_PAUSE_NS_PER_PARTITION: Final = 25_000
WIDE_PAUSE_NS_MAX: Final = 10_000_000
_CODEC_POSITION: Final = 22  # low byte of a batch's attributes
_CODEC_MASK: Final = 0x07

_Place = tuple[str, int]
_Cold = dict[_Place, Sequence[EntryLike] | ErrorCode]


@dataclass(slots=True)
class _Row:
    """One partition of the answer."""

    topic: str
    wanted: FetchPartition
    is_committed: bool = False  # the reader wants decided records only
    stream: Stream | None = None
    error: int = ErrorCode.NONE
    entries: Sequence[EntryLike] = ()
    diverging: DivergingEpoch | None = None

    @property
    def end(self) -> Offset:
        """Return the first offset that this reader is not given."""
        assert self.stream is not None
        return self.stream.last_stable_offset if self.is_committed else self.stream.visible_end

    @property
    def is_at_end(self) -> bool:
        return self.stream is not None and not self.error and self.wanted.fetch_offset >= self.end


@dataclass(slots=True)
class _Gathered:
    """What one pass over the partitions found."""

    topics: list[tuple[str, list[_Row]]] = field(default_factory=list)
    bytes_read: int = 0
    must_answer: bool = False  # an error or a diverging epoch: waiting would hide it
    cold: list[tuple[_Row, int]] = field(default_factory=list)  # (row, bytes wanted) not in memory
    cold_bytes: int = 0  # wanted by them together

    @property
    def rows(self) -> list[_Row]:
        return [row for _, rows in self.topics for row in rows]


class FetchHandler:
    """Answers Fetch."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services
        self._cluster = services.cluster
        self._access = services.access
        self.monotonic_ns = services.monotonic_ns

    def handle(self, slot: Slot, request: FetchRequest) -> None:
        """Answer at once when there is enough, else wait for it."""
        gathered = self.gather(slot, request, {})
        if gathered.cold:
            self.begin_cold(slot, request, gathered)
        elif self.is_enough(request, gathered):
            slot.answer(self.response(slot, gathered))
        else:
            _LongPoll(self, slot, request, gathered)

    def gather(self, slot: Slot, request: FetchRequest, cold: _Cold) -> _Gathered:
        """Read every partition within the limits; `cold` holds what was read from disk for this request."""
        gathered = _Gathered()
        seen: set[_Place] = set()
        for topic in request.topics:
            is_committed = request.isolation_level == READ_COMMITTED
            rows = [_Row(topic.topic, wanted, is_committed) for wanted in topic.partitions]
            for row in rows:
                place = (row.topic, row.wanted.partition)
                if place in seen:  # every one would wait, and be woken, by itself
                    row.error, gathered.must_answer = ErrorCode.INVALID_REQUEST, True
                    continue
                seen.add(place)
                self._look(slot, request, row, gathered, cold)
            gathered.topics.append((topic.topic, rows))
        return gathered

    def look_again(self, slot: Slot, request: FetchRequest, gathered: _Gathered, woken: Iterable[_Row]) -> None:
        """Read anew the partitions in which something has happened; in the others nothing can have."""
        for row in woken:
            gathered.bytes_read -= sum(len(entry.payload) for entry in row.entries)
            row.entries, row.error, row.diverging = (), ErrorCode.NONE, None
            self._look(slot, request, row, gathered, {})

    def _look(self, slot: Slot, request: FetchRequest, row: _Row, gathered: _Gathered, cold: _Cold) -> None:
        """Fill one row: an error, records within the limits, or nothing yet."""
        self._check(slot, row)
        is_at_end = row.is_at_end
        if row.stream is not None and not row.error and row.diverging is None and not is_at_end:
            room_bytes = slot.connection.unread.room_bytes
            if room_bytes > 0:
                left = min(request.max_bytes, FETCH_RESPONSE_BYTES_MAX, room_bytes)
                self._fill(row, left - gathered.bytes_read - gathered.cold_bytes, gathered, cold)
            else:
                gathered.must_answer = True  # others may be waiting behind it
        if row.error or row.diverging is not None:
            gathered.must_answer = True
        elif is_at_end:
            self._session(slot.connection, row).caught_up(self._services.wall_ns())
        if row.entries and slot.api_version < ZSTD_SINCE_VERSION and _has_zstd(row.entries):
            row.error, row.entries, gathered.must_answer = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, (), True

    def response(self, slot: Slot, gathered: _Gathered) -> FetchResponse:
        """Return the answer and record what it delivers."""
        now_ns = self._services.wall_ns()
        responses = []
        for topic, rows in gathered.topics:
            for row in rows:
                if row.entries:
                    self._record(slot.connection, row, now_ns)
                elif row.error:
                    self._services.counters.refused(row.error)
            responses.append(FetchableTopicResponse(topic=topic, partitions=[_answer_row(row) for row in rows]))
        return FetchResponse(responses=responses, throttle_time_ms=self._pause_ms(slot, gathered))

    def _pause_ms(self, slot: Slot, gathered: _Gathered) -> int:
        """Count the answer's bytes; the connection handles nothing more until its principal's quota is kept."""
        quotas = self._services.quotas
        if quotas.is_idle:
            return 0
        pause_ms = quotas.fetch(slot.connection.principal, gathered.bytes_read)
        slot.connection.mute(pause_ms)
        return pause_ms

    @staticmethod
    def is_enough(request: FetchRequest, gathered: _Gathered) -> bool:
        return gathered.must_answer or request.max_wait_ms <= 0 or gathered.bytes_read >= request.min_bytes

    def _check(self, slot: Slot, row: _Row) -> None:
        """Give the row its stream, or the error that keeps it from being read."""
        wanted = row.wanted
        refused = self._access.refusal(slot.connection.principal, Operation.READ, Resource.TOPIC, row.topic)
        if refused is not None:
            row.stream, row.error = None, kafka_code(refused)
            return
        leaving = is_leaving(self._cluster, slot)
        found = led_stream(self._cluster, row.topic, wanted.partition, is_leaving=leaving)
        if isinstance(found, ErrorCode):
            row.stream, row.error = None, found
            return
        row.stream = found
        row.error = epoch_error(found, wanted.current_leader_epoch)
        if row.error:
            return
        offset = wanted.fetch_offset
        if wanted.last_fetched_epoch != NO_EPOCH:
            if wanted.last_fetched_epoch > found.epoch:
                row.error = ErrorCode.UNKNOWN_LEADER_EPOCH  # it was begun elsewhere: this region will hear of it
                return
            row.diverging = _diverging(found, wanted)
        if offset < found.log_start or (offset > found.next_offset and row.diverging is None and found.knows_end):
            row.error = ErrorCode.OFFSET_OUT_OF_RANGE

    @staticmethod
    def _fill(row: _Row, left: int, gathered: _Gathered, cold: _Cold) -> None:
        """Read one partition with at most `left` bytes."""
        assert row.stream is not None
        limit = min(row.wanted.partition_max_bytes, left)
        if limit <= 0 and (gathered.bytes_read or gathered.cold):
            return
        entries = row.stream.read(Offset(row.wanted.fetch_offset), max(limit, 1))
        if entries is None:
            found = cold.get((row.topic, row.wanted.partition))
            if found is None:
                gathered.cold.append((row, max(limit, 1)))
                gathered.cold_bytes += max(limit, 0)
                return
            if isinstance(found, ErrorCode):
                row.error = found
                return
            entries = found
        entries = _decided(entries, row.end)
        if not entries:
            return
        if gathered.bytes_read and len(entries[0].payload) > limit:
            return  # rule 2: only the first batch of the answer may be over
        size = len(entries[0].payload)
        fitting = 1
        for entry in entries[1:]:  # what came from disk was read before the others were known
            if size + len(entry.payload) > limit:
                break
            size += len(entry.payload)
            fitting += 1
        row.entries = entries if fitting == len(entries) else entries[:fitting]
        gathered.bytes_read += size

    def begin_cold(self, slot: Slot, request: FetchRequest, gathered: _Gathered) -> None:
        """Answer when what memory does not hold is read; it counts as unread from now on."""
        slot.reserve(gathered.cold_bytes)
        slot.spawn(self._read_cold(slot, request, gathered))

    async def _read_cold(self, slot: Slot, request: FetchRequest, gathered: _Gathered) -> FetchResponse:
        """Read from disk what memory does not hold, then answer with what there is."""
        cold: _Cold = {}
        for row, max_bytes in gathered.cold:
            assert row.stream is not None
            place = (row.topic, row.wanted.partition)
            try:
                cold[place] = await row.stream.read_cold(Offset(row.wanted.fetch_offset), max_bytes)
            except GeorelayError as error:
                cold[place] = kafka_code(error)
        slot.reserve(0)
        return self.response(slot, self.gather(slot, request, cold))

    def _record(self, connection: KafkaConnection, row: _Row, now_ns: int) -> None:
        session = self._session(connection, row)
        counters = self._services.counters
        for entry in row.entries:
            header = entry.header()
            session.delivered(
                epoch=header.epoch,
                base_offset=entry.base_offset,
                record_count=entry.record_count,
                entry_region=header.entry_region,
                received_ns=header.received_ns,
                delivered_ns=now_ns,
                size_bytes=len(entry.payload),
            )
            counters.records_out += entry.record_count
        counters.batches_out += len(row.entries)

    def _session(self, connection: KafkaConnection, row: _Row) -> TraceSession:
        """Return the delivery session; a consumer that jumps gets a new one."""
        sessions, offset = connection.trace_sessions, row.wanted.fetch_offset
        place = (row.topic, row.wanted.partition)
        session = sessions.get(place)
        if session is None or session.next_offset != offset:
            assert row.stream is not None, row.topic
            view = self._cluster.topic(row.topic)  # None: deleted while the fetch waited for others
            topic = row.topic if view is None else plain_name(view)
            session = self._services.recorder.open_session(
                topic=topic, origin=row.stream.key.origin, partition=place[1], offset=offset
            )
            if place not in sessions and len(sessions) >= TRACE_SESSIONS_MAX:
                del sessions[next(iter(sessions))]
            sessions[place] = session
        return session


class _LongPoll:
    """A Fetch that waits: for `min_bytes`, for an error, or for its time to pass."""

    __slots__ = ("_gathered", "_handler", "_handles", "_is_scheduled", "_request", "_slot", "_timer", "_woken")

    def __init__(self, handler: FetchHandler, slot: Slot, request: FetchRequest, gathered: _Gathered) -> None:
        self._handler = handler
        self._slot = slot
        self._request = request
        self._gathered = gathered
        self._is_scheduled = False
        self._woken: dict[int, _Row] = {}  # by identity
        wait_s = min(request.max_wait_ms, MAX_WAIT_MS_MAX) / 1000
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._time_is_over)
        self._handles: list[tuple[Stream, Any]] = [
            (row.stream, row.stream.add_waiter(partial(self._wake, row)))
            for row in gathered.rows
            if row.stream is not None
        ]
        slot.on_cancel(self._stop)

    def _wake(self, row: _Row) -> None:
        """Look again once this loop turn has told of all its commits, or when a wide fetch may be answered again."""
        self._woken[id(row)] = row
        if self._is_scheduled:
            return
        self._is_scheduled = True
        loop = asyncio.get_running_loop()
        wait_ns = self._slot.connection.next_wide_fetch_ns - self._handler.monotonic_ns()
        if len(self._handles) < WIDE_PARTITIONS or wait_ns <= 0:
            loop.call_soon(self._look)
        else:
            loop.call_later(min(wait_ns, WIDE_PAUSE_NS_MAX) / 1e9, self._look)

    def _look(self) -> None:
        self._is_scheduled = False
        if not self._slot.answered:
            self._try(is_over=False)

    def _time_is_over(self) -> None:
        self._try(is_over=True)

    def _try(self, *, is_over: bool) -> None:
        woken, self._woken = self._woken, {}
        gathered = self._gathered
        self._handler.look_again(self._slot, self._request, gathered, woken.values())
        if gathered.cold:  # retention or pressure took it out of memory meanwhile
            self._stop()
            self._handler.begin_cold(self._slot, self._request, gathered)
        elif is_over or self._handler.is_enough(self._request, gathered):
            pause_ns = min(len(self._handles) * WIDE_PAUSE_NS_PER_PARTITION, WIDE_PAUSE_NS_MAX)
            self._slot.connection.next_wide_fetch_ns = self._handler.monotonic_ns() + pause_ns
            self._stop()
            self._slot.answer(self._handler.response(self._slot, gathered))

    def _stop(self) -> None:
        self._timer.cancel()
        for stream, handle in self._handles:
            stream.remove_waiter(handle)
        self._handles.clear()


def _diverging(stream: Stream, wanted: FetchPartition) -> DivergingEpoch | None:
    """Compare where the client's last epoch ends with where the client stands (KIP-595)."""
    epoch, end = stream.epoch_end(Epoch(wanted.last_fetched_epoch))
    if epoch < 0 or (epoch == wanted.last_fetched_epoch and end >= wanted.fetch_offset):
        return None
    return DivergingEpoch(epoch=epoch, end_offset=end)


def _decided(entries: Sequence[EntryLike], end: Offset) -> Sequence[EntryLike]:
    """Return the entries that lie below `end` as a whole."""
    if not entries or entries[-1].base_offset + entries[-1].record_count <= end:
        return entries
    return [entry for entry in entries if entry.base_offset + entry.record_count <= end]


def _aborted(row: _Row) -> list[AbortedTransaction] | None:
    """Return the aborted transactions among the row's entries, None for a reader that takes all records."""
    if not row.is_committed or row.stream is None:
        return None
    if not row.entries:
        return []
    first = Offset(row.wanted.fetch_offset)
    following = Offset(row.entries[-1].base_offset + row.entries[-1].record_count)
    return [
        AbortedTransaction(found.producer_id, found.first_offset)
        for found in row.stream.aborted_between(first, following)
    ]


def _shown_end(stream: Stream, fetch_offset: int) -> int:
    """Return the high watermark that a client is told: never behind what it has read.

    Right after an election it is not known yet how much was shown, so the visible end may be behind the client.
    """
    return max(stream.visible_end, min(fetch_offset, stream.high_watermark))


def _has_zstd(entries: Sequence[EntryLike]) -> bool:
    return any(entry.payload[_CODEC_POSITION] & _CODEC_MASK == Compression.ZSTD for entry in entries)


def _answer_row(row: _Row) -> FetchPartitionData:
    stream = row.stream
    if stream is None:
        return FetchPartitionData(partition_index=row.wanted.partition, error_code=row.error)
    return FetchPartitionData(
        row.wanted.partition,
        row.error,
        _shown_end(stream, row.wanted.fetch_offset),
        stream.last_stable_offset,
        stream.log_start,
        row.diverging,
        aborted_transactions=_aborted(row),
        records=[entry.payload for entry in row.entries],
    )
