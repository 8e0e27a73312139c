"""Records of committed batches for clients that take no batches: a chunk at a time.

Rule 1: a batch unfolds to DECOMPRESSED_BATCH_BYTES_MAX at most, and of its records CHUNK_RECORDS or CHUNK_BYTES are
        held at a time: a batch of a few KiB may hold very many records, or headers.
Rule 2: the size of compressed bytes does not say what comes out of them: they are unfolded in a thread, off the loop.
        The threads do nothing else: who signs in does not wait for them.
Rule 3: what is unfolded at the same time is bounded over all readers of the process, see unfolding_memory.
Rule 4: a broker does not look into batches that it takes, so what is inside may be no record. Whoever looks inside
        passes over the rest of such a batch, says so, and goes on behind it (docs/adr/0040).
Rule 5: what threads do with one batch for one reader has an end: after WORK_S_MAX of their CPU time it is refused as
        BUSY, and the thread is free. One pass takes a few seconds at most (about 4 for a million records); more is
        a batch that is dropped for others and unfolded again and again. The next read begins anew.
Rule 6: between two chunks of one batch everybody else has a turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

import structlog

from georelay.errors import Busy, CorruptRecordBatch, GeorelayError, TooLarge
from georelay.limits import DECOMPRESSED_BATCH_BYTES_MAX, KIB, MIB, RECORD_BATCH_BYTES_MAX
from georelay.wire.batch import Compression, Record, iterate_records, parse_header
from georelay.wire.records import open_records
from region.api.unfolding_memory import PROCESS_MEMORY, Share, UnfoldingMemory
from region.kafka.ports import EntryLike

CHUNK_RECORDS: Final = 1_000
CHUNK_BYTES: Final = 2 * MIB  # of keys, values and headers, FIELD_BYTES more for each; a larger record comes alone
FIELD_BYTES: Final = 64  # about what a record, or a header, takes besides its bytes
ON_LOOP_BYTES_MAX: Final = 64 * KIB
POOL: Final = ThreadPoolExecutor(2, thread_name_prefix="unfold")
WORK_S_MAX: Final = 10  # of a thread's CPU time

SAID_MAX: Final = 1_000

log = structlog.get_logger()

_T = TypeVar("_T")


def unfolds_on_loop(payload: bytes | memoryview) -> bool:
    """Return whether all records of a batch are read in a moment: it is small and says how large its records are."""
    return len(payload) <= ON_LOOP_BYTES_MAX and parse_header(payload).compression is Compression.NONE


def unfolded_bytes_max(payload: bytes | memoryview) -> int:
    """Return what a batch takes at most while its records are read."""
    return len(payload) if parse_header(payload).compression is Compression.NONE else DECOMPRESSED_BATCH_BYTES_MAX


async def record_chunks(
    entry: EntryLike,
    memory: UnfoldingMemory = PROCESS_MEMORY,
    *,
    thread_ns: Callable[[], int] = time.thread_time_ns,
) -> AsyncGenerator[list[Record]]:
    """Yield the records of a committed batch in lists.

    Args:
        thread_ns: CPU time of the thread that calls it.

    Raises:
        Busy: it took more than WORK_S_MAX of work. What stands before was given.
        CorruptRecordBatch, TooLarge: what is inside is no record, or over its limits. What stands before it was given.
    """
    payload = entry.payload
    if unfolds_on_loop(payload):
        chunks, left = _Chunks(iterate_records(payload, validated=True)), parse_header(payload).record_count
        while left > 0:
            chunk = chunks.next()
            left -= len(chunk)
            yield chunk
            if left > 0:
                await asyncio.sleep(0)
        return
    reader = _Reader(payload, memory, thread_ns)
    try:
        left = parse_header(payload).record_count
        while left > 0:
            chunk = await reader.next()
            left -= len(chunk)
            yield chunk
    finally:
        reader.close()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Offsets first..following-1: the rest of a batch from where it cannot be read on, and why."""

    first: int
    following: int
    why: str


class UnreadableBatches:
    """Counts the batches that could not be read to their end, and says each once."""

    def __init__(self) -> None:
        self.count = 0
        self._said: dict[tuple[str, int], None] = {}

    def note(self, where: str, rest: Unreadable) -> None:
        """Note that a reader of `where` has passed over something."""
        self.count += 1
        if self._said.pop((where, rest.first), self) is self:
            log.error("batch.unreadable", where=where, first=rest.first, following=rest.following, why=rest.why)
        self._said[where, rest.first] = None
        while len(self._said) > SAID_MAX:
            del self._said[next(iter(self._said))]


UNREADABLE: Final = UnreadableBatches()


async def readable_chunks(
    entry: EntryLike, where: str, *, bytes_max: int | None = RECORD_BATCH_BYTES_MAX
) -> AsyncGenerator[list[Record] | Unreadable]:
    """Yield the records of a committed batch in lists, and what of it cannot be read, or handed on.

    Args:
        where: who reads what, for the log.
        bytes_max: of a record that is handed on; out of a compressed batch it may be any size. None: all are.
    """
    first = entry.base_offset
    try:
        async with aclosing(record_chunks(entry)) as chunks:
            async for chunk in chunks:
                first += len(chunk)
                size_bytes = weight_bytes(chunk[-1])  # one that is so large ends its chunk
                if bytes_max is None or size_bytes <= max(bytes_max, CHUNK_BYTES):
                    yield chunk
                    continue
                if chunk[:-1]:
                    yield chunk[:-1]
                why = f"a record of {size_bytes} bytes out of a compressed batch is over {bytes_max}"
                rest = Unreadable(first - 1, first, f"{why}: read it over the Kafka protocol")
                UNREADABLE.note(where, rest)
                yield rest
    except (CorruptRecordBatch, TooLarge) as error:
        rest = Unreadable(first, entry.base_offset + entry.record_count, str(error))
        UNREADABLE.note(where, rest)
        yield rest


async def off_loop(payload: bytes | memoryview, work: Callable[[], _T], memory: UnfoldingMemory = PROCESS_MEMORY) -> _T:
    """Return what `work` makes of a batch that it unfolds: in a thread, within the budget."""
    share = await memory.take(unfolded_bytes_max(payload), _keep)
    running = asyncio.get_running_loop().run_in_executor(POOL, work)
    running.add_done_callback(lambda _: memory.give(share))  # not before: whoever waits may be cancelled
    return await asyncio.shield(running)


def _keep() -> None:
    """Drop nothing: a share is taken away only from who does not work with it."""


def weight_bytes(record: Record) -> int:
    """Return about what a record takes in memory."""
    fields = FIELD_BYTES + len(record.key or b"") + len(record.value or b"")
    return fields + sum(FIELD_BYTES + len(name) + len(value or b"") for name, value in record.headers)


class Overdue:
    """Counts the batches that took too long."""

    def __init__(self) -> None:
        self.count = 0


OVERDUE: Final = Overdue()


class _Chunks:
    """Cuts records into chunks; a flaw shows when everything before it was given out."""

    def __init__(self, records: Iterator[Record]) -> None:
        self._records = records
        self._flaw: GeorelayError | None = None

    def next(self) -> list[Record]:
        """Return the next chunk."""
        if self._flaw is not None:
            raise self._flaw
        chunk: list[Record] = []
        room = CHUNK_BYTES
        try:
            for record in self._records:
                chunk.append(record)
                room -= weight_bytes(record)
                if room <= 0 or len(chunk) >= CHUNK_RECORDS:
                    break
        except GeorelayError as error:
            if not chunk:
                raise
            self._flaw = error
        return chunk


class _Reader:
    """Reads one batch, and reads it again from its beginning where its share was taken away meanwhile."""

    def __init__(self, payload: bytes | memoryview, memory: UnfoldingMemory, thread_ns: Callable[[], int]) -> None:
        self._payload = payload
        self._thread_ns = thread_ns
        self._left_ns = WORK_S_MAX * 1_000_000_000
        self._memory = memory
        self._chunks: _Chunks | None = None
        self._share: Share | None = None
        self._read = 0

    async def next(self) -> list[Record]:
        """Return the next chunk."""
        loop = asyncio.get_running_loop()
        share = self._share
        if share is None or share.is_lost:
            share = self._share = await self._memory.take(unfolded_bytes_max(self._payload), self._drop)
        share.idle_since_s = None
        work = loop.run_in_executor(POOL, self._step, self._chunks, self._read)
        try:
            size_bytes, self._chunks, chunk = await asyncio.shield(work)
        except asyncio.CancelledError:
            self._share = None  # the thread still has it
            work.add_done_callback(lambda done: self._left(share, done))
            raise
        except Busy:
            OVERDUE.count += 1
            log.warning("batch.overdue", read=self._read, work_s=WORK_S_MAX)
            raise
        self._read += len(chunk)
        self._memory.shrink(share, size_bytes)
        share.idle_since_s = loop.time()
        return chunk

    def close(self) -> None:
        """Hold nothing more."""
        self._chunks = None
        if self._share is not None:
            self._memory.give(self._share)

    def _drop(self) -> None:
        self._chunks = None

    def _left(self, share: Share, work: asyncio.Future[tuple[int, _Chunks, list[Record]]]) -> None:
        if not work.cancelled():
            work.exception()  # nobody asks for it any more
        self._memory.give(share)

    def _step(self, chunks: _Chunks | None, skipped: int) -> tuple[int, _Chunks, list[Record]]:
        """Return the bytes that are held, where reading goes on, and a chunk. Runs in a thread."""
        size_bytes = DECOMPRESSED_BATCH_BYTES_MAX
        ends_ns = self._thread_ns() + self._left_ns
        if chunks is None:
            size_bytes, records = open_records(self._payload, validated=True)
            for first in range(0, skipped, CHUNK_RECORDS):  # those were read before
                self._check(ends_ns)
                piece = min(CHUNK_RECORDS, skipped - first)
                next(islice(records, piece, piece), None)
            chunks = _Chunks(records)
        chunk = chunks.next()
        self._check(ends_ns)
        return size_bytes, chunks, chunk

    def _check(self, ends_ns: int) -> None:
        self._left_ns = ends_ns - self._thread_ns()
        if self._left_ns < 0:
            raise Busy(
                f"a batch took more than {WORK_S_MAX} s of work to unfold, for it was dropped for other readers and "
                "unfolded again: ask again from where this one stopped, for fewer records"
            )
