"""Reads everything that is there, twice: from the region as a client does, and from each replica's files.

Every read is recorded as a complete one of a site of its own, so the checker demands every acknowledged record,
once and in order, of each of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from georelay.client.stream_reader import EARLIEST, StreamReader
from georelay.wire.batch import iterate_records, split_batches
from loadtest.campaign.producer import key_of, name_of
from loadtest.history.history_file import HistoryWriter
from loadtest.history.operation import Kind
from region.log.segment_reader import read_group, valid_branch

READ_SECONDS_MAX: Final = 60
MAX_WAIT_MS: Final = 100


async def read_region(
    writer: HistoryWriter, brokers: Sequence[str], topic: str, partition: int, *, site: str
) -> int:
    """Record all records of a partition up to the high watermark; return the offset behind them.

    A partition that does not come so far within READ_SECONDS_MAX is recorded as it is: the checker judges it.
    """
    key, position = key_of(topic, partition), 0
    reader = StreamReader(
        brokers=list(brokers), topic=topic, partition=partition, offset=EARLIEST, max_wait_ms=MAX_WAIT_MS
    )
    began_ns = time.monotonic_ns()
    try:
        async with asyncio.timeout(READ_SECONDS_MAX):
            async for batch in reader.batches():
                number = writer.invoke(Kind.FETCH, key, site=site, position=position, final=True, at_ns=began_ns)
                writer.fetched(number, [(record.offset, name_of(record.value or b"")) for record in batch.records])
                if batch.records:
                    position = batch.records[-1].offset + 1
                began_ns = time.monotonic_ns()
                if position >= batch.high_watermark:
                    break
    except TimeoutError:
        pass  # nothing more came: what is missing is in the verdict
    finally:
        reader.close()
    return position


def read_replica(
    writer: HistoryWriter, folder: Path, topic: str, partition: int, *, site: str, below: int
) -> int:
    """Record the records below an offset in a replica's group folder; return the offset behind them.

    Raises:
        LogCorrupt, DataDirectoryError: see region.log.segment_reader.
    """
    key, position = key_of(topic, partition), 0
    for entry in valid_branch(read_group(folder)):
        if entry.next_offset > below:
            break
        began_ns = time.monotonic_ns()
        records = [
            (record.offset, name_of(record.value or b""))
            for batch in split_batches(entry.payload)
            for record in iterate_records(batch)
        ]
        number = writer.invoke(Kind.FETCH, key, site=site, position=position, final=True, at_ns=began_ns)
        writer.fetched(number, records)
        position = entry.next_offset
    return position
