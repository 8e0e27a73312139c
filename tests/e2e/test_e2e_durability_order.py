"""No acknowledgement leaves any replica before the fdatasync that makes it true has returned.

kill -9 cannot show this: the page cache survives it. So a file system that knows which entries a returned sync has
covered is asked at every vote, every append response, every commit and every Produce answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.e2e.conftest import DurabilityWatch, RegionBed

BATCHES = 200


async def test_every_vote_append_response_commit_and_answer_waits_for_its_sync(
    region_bed: RegionBed, durability_watch: DurabilityWatch
) -> None:
    async with region_bed.running(list(durability_watch.file_systems.values())):
        await region_bed.create_topic()
        await _publish(region_bed, durability_watch)
    assert durability_watch.violations == []
    assert durability_watch.checked["produce answer"] == BATCHES
    assert durability_watch.checked["append response"] >= BATCHES // 4  # one response may cover several batches
    assert durability_watch.checked["commit"] > 0
    assert durability_watch.checked["vote"] > 0


async def test_the_watch_notices_a_sync_that_is_patched_out(
    region_bed: RegionBed, durability_watch: DurabilityWatch
) -> None:
    async with region_bed.running(list(durability_watch.file_systems.values())):
        await region_bed.create_topic()
        assert durability_watch.violations == []
        durability_watch.patch_sync_out()
        await _publish(region_bed, durability_watch)
    assert set(durability_watch.violations) >= {"append response", "commit", "produce answer"}
    assert durability_watch.violations.count("produce answer") == BATCHES


async def _publish(region_bed: RegionBed, watch: DurabilityWatch) -> None:
    await region_bed.publish(
        "a",
        range(BATCHES),
        [],
        on_answer=lambda group, next_offset: watch.answered(group, next_offset=next_offset),
    )
