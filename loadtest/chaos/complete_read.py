"""Reads every partition of every region from its first record to its last, after everything was healed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from georelay.client.stream_reader import EARLIEST, StreamReader
from loadtest.campaign.producer import key_of, name_of
from loadtest.chaos.chaos_mesh import ChaosMesh
from loadtest.history.history_file import HistoryWriter
from loadtest.history.operation import Kind

CATCH_UP_SECONDS_MAX: Final = 60
MAX_WAIT_MS: Final = 100


async def read_everything(mesh: ChaosMesh, topic: str, partitions: int, history: Path) -> Path:
    """Read the home first, then every other region as far as the home's end; return the file of the history.

    A region that does not come so far within CATCH_UP_SECONDS_MAX is recorded as it is: the checker judges it.
    """
    writer = HistoryWriter(history, "complete")
    regions: Mapping[str, Mapping[str, Any]] = mesh.endpoints["regions"]
    try:
        for partition in range(partitions):
            end = 0
            for region in mesh.regions:
                brokers: Sequence[str] = regions[region]["kafka"]
                read = await _read(writer, brokers, topic, partition, site=region, at_least=end)
                end = max(end, read)
    finally:
        writer.close()
    return history


async def _read(
    writer: HistoryWriter, brokers: Sequence[str], topic: str, partition: int, *, site: str, at_least: int
) -> int:
    """Record one complete read; return the offset behind it."""
    key = key_of(topic, partition)
    reader = StreamReader(
        brokers=list(brokers), topic=topic, partition=partition, offset=EARLIEST, max_wait_ms=MAX_WAIT_MS
    )
    position, began_ns = 0, time.monotonic_ns()
    try:
        async with asyncio.timeout(CATCH_UP_SECONDS_MAX):
            async for batch in reader.batches():
                number = writer.invoke(Kind.FETCH, key, site=site, position=position, final=True, at_ns=began_ns)
                writer.fetched(number, [(record.offset, name_of(record.value or b"")) for record in batch.records])
                if batch.records:
                    position = batch.records[-1].offset + 1
                began_ns = time.monotonic_ns()
                if position >= max(batch.high_watermark, at_least):
                    break
    except TimeoutError:
        pass  # nothing more came: what is missing is in the verdict
    finally:
        reader.close()
    number = writer.invoke(Kind.FETCH, key, site=site, position=position, final=True)
    writer.fetched(number, [])  # a region without a single record has a complete read too
    return position
