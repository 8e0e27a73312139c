"""Records of committed batches for clients that take no batches: a chunk at a time.

Rule 1: a batch unfolds to DECOMPRESSED_BATCH_BYTES_MAX at most, and CHUNK_RECORDS of its records are held at a time: a
        batch of a few KiB may hold a million records.
Rule 2: the size of compressed bytes does not say what comes out of them: they are unfolded in a thread, off the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Final

from georelay.limits import KIB
from georelay.wire.batch import Compression, Record, iterate_records, parse_header
from region.kafka.ports import EntryLike

CHUNK_RECORDS: Final = 1_000
ON_LOOP_BYTES_MAX: Final = 64 * KIB


def unfolds_on_loop(payload: bytes | memoryview) -> bool:
    """Return whether all records of a batch are read in a moment: it is small and says how large its records are."""
    return len(payload) <= ON_LOOP_BYTES_MAX and parse_header(payload).compression is Compression.NONE


async def record_chunks(entry: EntryLike) -> AsyncIterator[list[Record]]:
    """Yield the records of a committed batch in lists.

    Raises:
        CorruptRecordBatch, TooLarge: what is inside is no record, or over its limits.
    """
    payload = entry.payload
    if unfolds_on_loop(payload):
        yield list(iterate_records(payload, validated=True))
        return
    chunks = _chunks(payload)
    while chunk := await asyncio.to_thread(next, chunks, None):
        yield chunk
        if len(chunk) < CHUNK_RECORDS:
            return


def _chunks(payload: bytes | memoryview) -> Iterator[list[Record]]:
    records = iterate_records(payload, validated=True)
    while chunk := list(islice(records, CHUNK_RECORDS)):
        yield chunk
