"""All brokers of a region lose power in the same instant, and with it every byte that was not synced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from loadtest.history.operation import Operation
from loadtest.history.verdict import Category, Verdict
from tests.tiers import first

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import RegionBed
    from tests.e2e.power_cut_disk import PowerCutFileSystem, PowerSupply

    Disks = Callable[[PowerSupply, Path], list[PowerCutFileSystem]]

BATCHES_BEFORE_CUT = 150


@pytest.mark.parametrize("cuts", first(1, [2, 4]))
async def test_nothing_acknowledged_is_lost_when_a_whole_region_loses_power_again_and_again(
    region_bed: RegionBed, power_cut_disks: Disks, new_supply: Callable[[], PowerSupply], cuts: int
) -> None:
    sends: list[Operation] = []
    supply = new_supply()
    disks = power_cut_disks(supply, region_bed.directory)
    lost = 0
    for cut in range(cuts):
        async with region_bed.running(disks):
            if cut == 0:
                await region_bed.create_topic()
            await _publish_and_cut(region_bed, supply, disks, sends, name=f"cut-{cut}")
        supply = new_supply()
        disks = [disk.on_new_supply(supply) for disk in disks]
        lost += sum(disk.bytes_lost for disk in disks)
    verdict = await _what_is_left(region_bed, disks, sends)
    assert verdict.acknowledged >= cuts * BATCHES_BEFORE_CUT
    assert lost > 0, "no cut caught an un-synced byte: the test shows nothing"
    assert verdict.is_valid, verdict.describe()


async def test_the_loss_is_noticed_when_the_sync_is_patched_out(
    region_bed: RegionBed, power_cut_disks: Disks, new_supply: Callable[[], PowerSupply]
) -> None:
    sends: list[Operation] = []
    supply = new_supply()
    disks = power_cut_disks(supply, region_bed.directory)
    async with region_bed.running(disks):
        await region_bed.create_topic()
        for disk in disks:
            disk.sync_works = False
        await _publish_and_cut(region_bed, supply, disks, sends, name="unsynced")
    after = new_supply()
    verdict = await _what_is_left(region_bed, [disk.on_new_supply(after) for disk in disks], sends)
    assert verdict.acknowledged >= BATCHES_BEFORE_CUT
    assert verdict.count(Category.LOST_WRITE, Category.UNSEEN) == verdict.acknowledged


async def _publish_and_cut(
    region_bed: RegionBed,
    supply: PowerSupply,
    disks: list[PowerCutFileSystem],
    sends: list[Operation],
    *,
    name: str,
) -> None:
    before = len(sends)
    publishing = asyncio.create_task(region_bed.publish(name, range(100_000), sends))
    async with asyncio.timeout(60):
        while sum(send.is_ok for send in sends[before:]) < BATCHES_BEFORE_CUT or not _cut_if_dirty(supply, disks):
            await asyncio.sleep(0)
    await asyncio.wait([asyncio.ensure_future(broker.failed) for broker in region_bed.brokers], timeout=2)
    publishing.cancel()
    await asyncio.gather(publishing, return_exceptions=True)


def _cut_if_dirty(supply: PowerSupply, disks: list[PowerCutFileSystem]) -> bool:
    with supply.lock:
        if any(disk.unsynced_bytes() for disk in disks):
            supply.is_on = False
        return not supply.is_on


async def _what_is_left(region_bed: RegionBed, disks: list[PowerCutFileSystem], sends: list[Operation]) -> Verdict:
    async with region_bed.running(disks):
        await region_bed.leader()
        return await region_bed.judged(sends)
