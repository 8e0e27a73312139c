"""Records on their way to one partition: the timer, the futures and the calls around `lane_core`.

Used on both ends: by a producer of the SDK, and by a broker for records that came without a batch. All decisions are
the core's; here they happen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from georelay.errors import Busy, GeorelayError, OutcomeUnknown, TooLarge
from georelay.lane_core import GivenUp, Lane, LaneBatch, LaneLimits, LaneState
from georelay.library_log import log
from georelay.limits import RECORD_BATCH_BYTES_MAX

RECORD_OVERHEAD_BYTES: Final = 32  # varints and deltas of one record, rounded up
HEADER_OVERHEAD_BYTES: Final = 10
RECORD_BYTES_MAX: Final = RECORD_BATCH_BYTES_MAX - 1024  # a record must fit a batch of its own

R = TypeVar("R", bound=Any)  # a dataclass with base_offset: where a batch, then a chunk, is stored


class NewRecord(NamedTuple):
    """A record to publish. `timestamp_ms` None: the time of arrival."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None

    @property
    def size_bytes(self) -> int:
        """Return an upper estimate of the bytes inside a batch."""
        size = RECORD_OVERHEAD_BYTES + len(self.value or b"") + len(self.key or b"")
        return size + sum(HEADER_OVERHEAD_BYTES + 4 * len(name) + len(value or b"") for name, value in self.headers)


@dataclass(frozen=True, slots=True, eq=False)
class RecordChunk(Generic[R]):
    """Records of one caller for one partition that travel in one batch."""

    records: Sequence[NewRecord]
    size_bytes: int
    received_ns: int
    done: asyncio.Future[R]  # base_offset is that of the chunk's first record

    @property
    def record_count(self) -> int:
        """Return the number of records."""
        return len(self.records)


def new_chunk(records: Sequence[NewRecord], received_ns: int, result: type[R] | None = None) -> RecordChunk[R]:
    """Return a chunk with a new future on the running loop; `result` is the future's type."""
    del result
    done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
    return RecordChunk(records, sum(record.size_bytes for record in records), received_ns, done)


def split_records(
    records: Sequence[NewRecord],
    limits: LaneLimits,
    *,
    batch_bytes: int | None = None,
    record_bytes_max: int = RECORD_BYTES_MAX,
) -> list[Sequence[NewRecord]]:
    """Return `records` cut into parts that each fit one batch.

    Args:
        batch_bytes: of records in one batch, None: as in `limits`. record_bytes_max: what the topic allows for one.

    Raises:
        TooLarge: a record does not fit a batch.
    """
    parts: list[Sequence[NewRecord]] = []
    limit_bytes = min(record_bytes_max, RECORD_BYTES_MAX)
    gathered_bytes = limits.batch_bytes if batch_bytes is None else batch_bytes
    start = size = 0
    for position, record in enumerate(records):
        record_bytes = record.size_bytes
        if record_bytes > limit_bytes:
            raise TooLarge(f"record {position} of {record_bytes} bytes is over the {limit_bytes} of a record here")
        full = size + record_bytes > gathered_bytes or position - start >= limits.batch_records
        if position > start and full:
            parts.append(records[start:position])
            start, size = position, 0
        size += record_bytes
    parts.append(records[start:])
    return parts


class RecordLane(Generic[R]):
    """One partition's lane."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        limits: LaneLimits,
        monotonic_ns: Callable[[], int],
        send: Callable[[RecordLane[R], LaneBatch[RecordChunk[R]]], asyncio.Future[R]],
        allocate: Callable[[RecordLane[R]], None],
        settle: Callable[[asyncio.Future[R], R], None] | None = None,
    ) -> None:
        """`send` hands a batch on, `allocate` begins to get a producer id for `producer_assigned`.

        `settle` answers a chunk whose batch is stored; None: with its place.
        """
        self.topic = topic
        self.partition = partition
        self._core: Lane[RecordChunk[R]] = Lane(limits=limits)
        self._monotonic_ns = monotonic_ns
        self._send = send
        self._allocate = allocate
        self._settle = settle or asyncio.Future.set_result
        self._allocating = False
        self._closed = False
        self._told = ""  # code of what was given up last, since something was stored
        self._pump_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._open_chunks: set[RecordChunk[R]] = set()

    @property
    def idle(self) -> bool:
        """Return whether nothing waits and nothing is out."""
        return self._core.idle

    @property
    def open_futures(self) -> list[asyncio.Future[R]]:
        """Return what is not answered yet."""
        return [chunk.done for chunk in self._open_chunks]

    def limit_batches(self, batch_bytes: int) -> None:
        """Gather at most so many bytes from now on; a chunk that is larger travels alone."""
        if batch_bytes != self._core.limits.batch_bytes:
            self._core.limits = replace(self._core.limits, batch_bytes=batch_bytes)

    def offer(self, chunks: Sequence[RecordChunk[R]]) -> None:
        """Queue chunks in order.

        Raises:
            Busy: the queue is full; nothing was queued. For later chunks of several their futures have it.
        """
        now_ns = self._monotonic_ns()
        for position, chunk in enumerate(chunks):
            try:
                self._core.offer(now_ns, chunk)
            except Busy as busy:
                if position == 0:
                    raise
                # The first chunks are on their way; the caller learns of the rest through their futures.
                for rest in chunks[position:]:
                    rest.done.set_exception(busy)
                break
            self._open_chunks.add(chunk)
        if not self._pump_scheduled:  # once per loop turn, so that offers of one turn travel together
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def producer_assigned(self, producer_id: int) -> None:
        """Take the producer id that `allocate` has brought."""
        self._allocating = False
        if not self._closed:
            self._core.producer_assigned(producer_id)
            self._pump()

    def producer_refused(self, error: GeorelayError) -> None:
        """Note that `allocate` gets no producer id at the moment; it goes on asking."""
        self._tell(self._core.producer_refused(error, self._monotonic_ns()))

    def allocation_ended(self) -> None:
        """Note that nobody is getting an id any more."""
        self._allocating = False

    def close(self, error: GeorelayError | None = None) -> None:
        """Fail what is open with `error` (OutcomeUnknown unless given) and do nothing more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for chunk in self._open_chunks:
            if not chunk.done.done():
                chunk.done.set_exception(error or OutcomeUnknown("shutting down; the records may be stored"))
        self._open_chunks.clear()

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self._closed:
            return
        now_ns = self._monotonic_ns()
        self._tell(self._core.expire(now_ns))
        while (batch := self._core.next_batch(now_ns)) is not None:
            self._start(batch, now_ns)
        if self._core.state is LaneState.NEEDS_PRODUCER and not self._core.idle and not self._allocating:
            self._allocating = True
            self._allocate(self)
        self._set_timer(now_ns)

    def _start(self, batch: LaneBatch[RecordChunk[R]], now_ns: int) -> None:
        try:
            future = self._send(self, batch)
        except GeorelayError as error:
            self._tell(self._core.failed(batch, error, now_ns))
        else:
            future.add_done_callback(partial(self._answered, batch))

    def _answered(self, batch: LaneBatch[RecordChunk[R]], future: asyncio.Future[R]) -> None:
        if self._closed:
            if not future.cancelled():
                future.exception()
            return
        error = OutcomeUnknown("the publish was cancelled") if future.cancelled() else future.exception()
        if error is None:
            if self._core.acked(batch):
                self._deliver(batch, future.result())
        elif isinstance(error, GeorelayError):
            self._tell(self._core.failed(batch, error, self._monotonic_ns()))
        else:
            log.error("publish.broke", topic=self.topic, partition=self.partition, error=repr(error))
            unknown = OutcomeUnknown("the broker failed while it published; the records may be stored")
            self._tell(self._core.failed(batch, unknown, self._monotonic_ns()))
        self._pump()

    def _deliver(self, batch: LaneBatch[RecordChunk[R]], stored: R) -> None:
        self._told = ""
        offset = stored.base_offset
        for chunk in batch.chunks:
            self._open_chunks.discard(chunk)
            if not chunk.done.done():
                self._settle(
                    chunk.done, stored if offset == stored.base_offset else replace(stored, base_offset=offset)
                )
            offset += chunk.record_count

    def _tell(self, given_up: Sequence[GivenUp[RecordChunk[R]]]) -> None:
        for lost in given_up:
            if lost.error.code != self._told:  # an outage is one line, however many are refused in it
                self._told = lost.error.code
                log.warning(
                    "batch.given_up", topic=self.topic, partition=self.partition, code=lost.error.code,
                    records=lost.batch.record_count,
                )  # fmt: skip
            for chunk in lost.batch.chunks:
                self._open_chunks.discard(chunk)
                if not chunk.done.done():
                    chunk.done.set_exception(lost.error)

    def _set_timer(self, now_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_ns = self._core.wake_at_ns()
        if wake_ns is not None:
            delay_s = max(0, wake_ns - now_ns) / 1e9
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._pump)
