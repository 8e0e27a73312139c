"""Reads all that a region holds of a partition, and asks the replicas' files whether they hold the same.

Rule 1: what a client reads is recorded as a complete read, so the checker demands every acknowledged record of it.
Rule 2: replicas are compared by their files, below an offset that is committed: by a program that knows the format of
        the entries and nothing of what the broker says about them.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from georelay.client.stream_reader import EARLIEST, StreamReader
from loadtest.campaign.mesh import CampaignFailed, Reachable
from loadtest.campaign.producer import key_of, name_of
from loadtest.history.history_file import HistoryWriter
from loadtest.history.operation import Kind

READ_SECONDS_MAX: Final = 60
MAX_WAIT_MS: Final = 100
NICENESS: Final = 5  # whoever compares steps back, and on a machine without an idle moment it still ends


async def read_everything(mesh: Reachable, topic: str, partitions: int, history: Path) -> Path:
    """Read all of a topic in its home, the first region, then in the others as far as there; return the history.

    A region that does not come so far in time is recorded as it is: the checker judges it.
    """
    writer = HistoryWriter(history, "complete")
    try:
        for partition in range(partitions):
            end = 0
            for region, addresses in mesh.endpoints["regions"].items():
                read = await read_region(writer, addresses["kafka"], topic, partition, site=region, at_least=end)
                end = max(end, read)
    finally:
        writer.close()
    return history


async def read_region(
    writer: HistoryWriter, brokers: Sequence[str], topic: str, partition: int, *, site: str, at_least: int = 0
) -> int:
    """Record all records of a partition up to the high watermark; return the offset behind them.

    A partition that does not come so far within READ_SECONDS_MAX is recorded as it is: the checker judges it.

    Args:
        at_least: wait until so many are there.
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
                if position >= max(batch.high_watermark, at_least):
                    break
    except TimeoutError:
        pass  # nothing more came: what is missing is in the verdict
    finally:
        reader.close()
    number = writer.invoke(Kind.FETCH, key, site=site, position=position, final=True)
    writer.fetched(number, [])  # a region without a single record has a complete read too
    return position


async def replicas_differ(folders: Mapping[str, Path], *, below: int) -> tuple[str, ...]:
    """Return the brokers whose replica is not that of the first one, batch by batch below an offset.

    Args:
        folders: broker -> folder of the group. Each replica must have come to `below`.

    Raises:
        CampaignFailed: a replica is damaged or not there.
    """
    digests = await asyncio.gather(*(_digest(folder, below) for folder in folders.values()))
    return tuple(broker for broker, digest in zip(folders, digests, strict=True) if digest != digests[0])


async def _digest(folder: Path, below: int) -> str:
    arguments = ("-P", "-m", "region.log.segment_reader", "--sha256", "--below", str(below), str(folder))
    process = await asyncio.create_subprocess_exec(
        *("nice", "-n", str(NICENESS), sys.executable, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, error = await process.communicate()
    if process.returncode:
        raise CampaignFailed(f"{folder}: {error.decode('utf-8', 'replace').strip()}")
    return output.split()[-1].decode()
