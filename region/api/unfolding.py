"""Records of committed batches for clients that take no batches: a chunk at a time.

Rule 1: a batch unfolds to DECOMPRESSED_BATCH_BYTES_MAX at most, and CHUNK_RECORDS of its records are held at a time: a
        batch of a few KiB may hold a million records.
Rule 2: the size of compressed bytes does not say what comes out of them: they are unfolded in a thread, off the loop.
Rule 3: what is unfolded at the same time is bounded over all readers of the process, see unfolding_memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Final

from georelay.limits import DECOMPRESSED_BATCH_BYTES_MAX, KIB
from georelay.wire.batch import Compression, Record, iterate_records, parse_header
from georelay.wire.records import open_records
from region.api.unfolding_memory import PROCESS_MEMORY, Share, UnfoldingMemory
from region.kafka.ports import EntryLike

CHUNK_RECORDS: Final = 1_000
ON_LOOP_BYTES_MAX: Final = 64 * KIB


def unfolds_on_loop(payload: bytes | memoryview) -> bool:
    """Return whether all records of a batch are read in a moment: it is small and says how large its records are."""
    return len(payload) <= ON_LOOP_BYTES_MAX and parse_header(payload).compression is Compression.NONE


def unfolded_bytes_max(payload: bytes | memoryview) -> int:
    """Return what a batch takes at most while its records are read."""
    return len(payload) if parse_header(payload).compression is Compression.NONE else DECOMPRESSED_BATCH_BYTES_MAX


async def record_chunks(entry: EntryLike, memory: UnfoldingMemory = PROCESS_MEMORY) -> AsyncIterator[list[Record]]:
    """Yield the records of a committed batch in lists.

    Raises:
        CorruptRecordBatch, TooLarge: what is inside is no record, or over its limits.
    """
    payload = entry.payload
    if unfolds_on_loop(payload):
        yield list(iterate_records(payload, validated=True))
        return
    reader = _Reader(payload, memory)
    try:
        while chunk := await reader.next():
            yield chunk
            if len(chunk) < CHUNK_RECORDS:
                return
    finally:
        reader.close()


class _Reader:
    """Reads one batch, and reads it again from its beginning where its share was taken away meanwhile."""

    def __init__(self, payload: bytes | memoryview, memory: UnfoldingMemory) -> None:
        self._payload = payload
        self._memory = memory
        self._records: Iterator[Record] | None = None
        self._share: Share | None = None
        self._read = 0

    async def next(self) -> list[Record]:
        """Return the next chunk, [] at the end."""
        loop = asyncio.get_running_loop()
        share = self._share
        if share is None or share.is_lost:
            share = self._share = await self._memory.take(unfolded_bytes_max(self._payload), self._drop)
        share.idle_since_s = None
        work = loop.run_in_executor(None, self._step, self._records, self._read)
        try:
            size_bytes, self._records, chunk = await asyncio.shield(work)
        except asyncio.CancelledError:
            self._share = None  # the thread still has it
            work.add_done_callback(lambda done: self._left(share, done))
            raise
        self._read += len(chunk)
        self._memory.shrink(share, size_bytes)
        share.idle_since_s = loop.time()
        return chunk

    def close(self) -> None:
        """Hold nothing more."""
        self._records = None
        if self._share is not None:
            self._memory.give(self._share)

    def _drop(self) -> None:
        self._records = None

    def _left(self, share: Share, work: asyncio.Future[tuple[int, Iterator[Record], list[Record]]]) -> None:
        if not work.cancelled():
            work.exception()  # nobody asks for it any more
        self._memory.give(share)

    def _step(self, records: Iterator[Record] | None, skipped: int) -> tuple[int, Iterator[Record], list[Record]]:
        """Return the bytes that are held, where reading goes on, and a chunk. Runs in a thread."""
        size_bytes = DECOMPRESSED_BATCH_BYTES_MAX
        if records is None:
            size_bytes, records = open_records(self._payload, validated=True)
            next(islice(records, skipped, skipped), None)  # those were read before
        return size_bytes, records, list(islice(records, CHUNK_RECORDS))
