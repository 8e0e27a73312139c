"""The campaigns about brokers that come and go: grow and shrink, a lost disk, a move of much data; all under load."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.campaign.bulk_watch import BulkWatch
from loadtest.campaign.changing_region import ChangingRegion, broker_id
from loadtest.campaign.filler import fill
from loadtest.campaign.joined_broker import JoinedBroker
from loadtest.campaign.steady_load import TOPIC, SteadyLoad, WorkReport, steady_load

BULK_TOPIC: Final = "bulk"
MB: Final = 1_000_000
VALUE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How much is done, and beside what.

    Args:
        per_second: records sent by all producers together.
        quiet_seconds: how long is measured between two changes, while nothing changes.
        bulk_bytes: what `reassign` moves. bulk_bytes_per_s: how fast it may; 0: as brokers do by themselves.
    """

    directory: Path
    say: Callable[[str], None]
    per_second: float = 1_000
    partitions: int = 4
    quiet_seconds: float = 5
    bulk_bytes: int = 1 << 30
    bulk_bytes_per_s: int = 0

    def load(self, region: ChangingRegion) -> AbstractAsyncContextManager[SteadyLoad]:
        """Return the load of this work, to be entered."""
        return steady_load(region, self.directory, partitions=self.partitions, per_second=self.per_second, say=self.say)


async def grow(work: Work) -> WorkReport:
    """1 -> 3 -> 5 brokers, and back to 3 and to 1."""
    async with ChangingRegion(work.directory, say=work.say) as region, work.load(region) as load:
        await _quiet(work, load, "1 broker")
        await _grow_to(load, region, 3)
        await _quiet(work, load, "3 brokers")
        await load.compare_replicas()
        await _grow_to(load, region, 5)
        await _quiet(work, load, "5 brokers")
        await load.compare_replicas()
        await region.command("broker", "list")
        await _shrink_to(load, region, 3)
        await load.compare_replicas()
        await _shrink_to(load, region, 1)
        await _quiet(work, load, "1 broker again")
        return await load.judge("grow: 1 -> 3 -> 5 -> 3 -> 1 brokers")


async def _quiet(work: Work, load: SteadyLoad, name: str) -> None:
    with load.phase(name):
        await asyncio.sleep(work.quiet_seconds)


async def _grow_to(load: SteadyLoad, region: ChangingRegion, brokers: int) -> None:
    began = time.monotonic()
    with load.phase(f"{len(region.numbers)} -> {brokers} brokers"):
        for number in range(len(region.numbers) + 1, brokers + 1):
            await region.add(number)
        await region.wait_until_spread(TOPIC, replicas=min(brokers, 3))
    load.facts.append((f"to {brokers} brokers, s", f"{time.monotonic() - began:.1f}"))


async def _shrink_to(load: SteadyLoad, region: ChangingRegion, brokers: int) -> None:
    began = time.monotonic()
    with load.phase(f"{len(region.numbers)} -> {brokers} brokers"):
        for number in reversed(region.numbers[brokers:]):
            await region.remove(number)
        await region.wait_until_settled(TOPIC, replicas=min(brokers, 3), only=region.numbers)
    load.facts.append((f"back to {brokers} brokers, s", f"{time.monotonic() - began:.1f}"))


async def replace_disk(work: Work) -> WorkReport:
    """kill -9 of one of three brokers, its data directory deleted, started again."""
    async with ChangingRegion(work.directory, say=work.say) as region:
        await region.add(2)
        lost = await region.add(3)
        for number in (2, 3):
            await region.wait_until_heard(number, heard=True)
        async with work.load(region) as load:
            return await _replace_disk(work, load, region, lost)


async def _replace_disk(work: Work, load: SteadyLoad, region: ChangingRegion, lost: JoinedBroker) -> WorkReport:
    await region.wait_until_spread(TOPIC, replicas=3)
    await _quiet(work, load, "3 brokers")
    with load.phase("killed, disk deleted"):
        await lost.lose_disk()
        await region.wait_until_heard(3, heard=False)
        await asyncio.sleep(work.quiet_seconds)
    began = time.monotonic()
    with load.phase("started with an empty disk"):
        await lost.start()
        await region.wait_until_heard(3, heard=True)
        known = time.monotonic() - began
        await region.wait_until_settled(TOPIC, replicas=3)
    load.facts += [
        ("known with the new disk after, s", f"{known:.1f}"),
        ("every partition has 3 voters again after, s", f"{time.monotonic() - began:.1f}"),
    ]
    await load.compare_replicas()
    await _quiet(work, load, "3 brokers again")
    return await load.judge("replace-disk: kill -9, rm -r, start")


async def reassign(work: Work) -> WorkReport:
    """Move all replicas of a topic that holds much from one broker to a new one."""
    settings = {"bulk_bytes_per_s": work.bulk_bytes_per_s} if work.bulk_bytes_per_s else None
    async with ChangingRegion(work.directory, say=work.say, settings=settings) as region:
        for number in (2, 3, 4):
            joined = await region.add(number)
        await region.create_topic(BULK_TOPIC, partitions=work.partitions)
        await _place(region, (1, 2, 3))
        seconds = await fill(
            region.kafka,
            BULK_TOPIC,
            work.partitions,
            work.bulk_bytes // VALUE_BYTES,
            lambda _: os.urandom(VALUE_BYTES),  # nothing compresses it
            batch_size=900_000,
            queue_buffering_max_kbytes=65_536,
        )
        work.say(f"-- filled with {work.bulk_bytes / MB:,.0f} MB in {seconds:.1f} s")
        async with work.load(region) as load:
            await region.wait_until_settled(TOPIC, replicas=3)
            await _quiet(work, load, "before the move")
            async with BulkWatch(joined.listen["admin"]) as watch:
                began = time.monotonic()
                with load.phase(f"{work.bulk_bytes / MB:,.0f} MB move"):
                    await _place(region, (1, 2, 4))
                seconds = time.monotonic() - began
            load.facts += [
                ("moved, MB", f"{work.bulk_bytes / MB:,.0f}"),
                ("time, s", f"{seconds:.1f}"),
                ("MB/s", f"{work.bulk_bytes / MB / seconds:.1f}"),
                ("of it as whole segments, MB", f"{watch.received_bytes / MB:,.0f}"),
                ("fastest second of segments, MB/s", f"{watch.fastest_bytes_per_s / MB:.1f}"),
                ("allowed, MB/s", f"{(work.bulk_bytes_per_s or 100 * MB) / MB:.0f}"),
            ]
            await _quiet(work, load, "after the move")
            await load.compare_replicas(BULK_TOPIC)
            return await load.judge(f"reassign: {work.bulk_bytes / MB:,.0f} MB to a new broker")


async def _place(region: ChangingRegion, brokers: tuple[int, ...]) -> None:
    """Have the big topic on these brokers, and wait until it is."""
    voters = ",".join(str(broker_id(number)) for number in brokers)
    await region.command("topics", "reassign", BULK_TOPIC, "--replicas", voters)
    await region.wait_until_settled(BULK_TOPIC, replicas=len(brokers), only=brokers)


MEMBERSHIP_RUNS: Final[dict[str, Callable[[Work], Awaitable[WorkReport]]]] = {
    "grow": grow,
    "replace-disk": replace_disk,
    "reassign": reassign,
}
