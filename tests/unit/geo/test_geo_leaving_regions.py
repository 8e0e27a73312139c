"""What a region on its way out acknowledges counts for nobody: it takes its copy along."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.durability import Durability
from georelay.errors import NotEnoughRegions
from georelay.ids import RegionNumber
from mesh.replication.level import AskedLevel

EU, AP = RegionNumber(2), RegionNumber(3)


@pytest.fixture
async def draining(scene: Any) -> Any:
    """A stream at home in us; regions in `scene.leaving` are on their way out."""
    scene.settings(min_insync_regions=2)
    scene.stream.append(3)
    scene.stream.commit()
    return scene


async def test_records_that_only_a_leaving_region_has_are_not_shown(draining: Any) -> None:
    draining.leaving.add(EU)
    draining.ack(EU, 3)
    assert draining.geo.visible_end == 0
    draining.ack(AP, 2)
    assert draining.geo.visible_end == 2
    assert draining.geo.watermark(2) == 2


async def test_what_it_acknowledged_before_it_left_stays_shown(draining: Any) -> None:
    draining.ack(EU, 2)
    draining.leaving.add(EU)
    draining.ack(EU, 3)
    assert draining.geo.visible_end == 2


async def test_a_new_leader_does_not_take_the_regions_that_stay_for_all_that_were_shown_something(
    draining: Any,
) -> None:
    draining.ack(EU, 3)
    draining.leaving.add(EU)
    draining.stream.lead(leads=False)
    draining.stream.lead(leads=True)
    draining.geo._home._floors.clear()  # another broker led before
    draining.ack(AP, 1)
    draining.ack(EU, 3)
    assert not draining.geo.is_visible_end_known
    draining.ack(AP, 3)
    assert draining.geo.is_visible_end_known


async def test_a_region_that_is_kept_after_all_counts_with_what_it_has(draining: Any) -> None:
    draining.leaving.add(EU)
    draining.ack(EU, 3)
    draining.leaving.clear()
    assert draining.geo.visible_end == 3


async def test_a_publish_that_waits_is_answered_when_the_region_is_kept_after_all(draining: Any) -> None:
    draining.leaving.add(EU)
    draining.join(EU, AP)
    answer = await draining.publish(AskedLevel(durability=Durability(2), deadline_ms=1_000))
    draining.stream.commit()
    draining.ack(EU, 4)
    await asyncio.sleep(0)
    assert not answer.done()
    draining.leaving.clear()
    draining.ack(EU, 4)
    await asyncio.sleep(0)
    assert answer.done()


async def test_whoever_notices_first_that_a_region_is_kept_answers_those_who_waited_for_it(draining: Any) -> None:
    draining.leaving.add(EU)
    draining.join(EU, AP)
    answer = await draining.publish(AskedLevel(durability=Durability(2), deadline_ms=1_000))
    draining.stream.commit()
    draining.ack(EU, 4)
    draining.leaving.clear()
    wakes = draining.stream.wakes
    assert draining.geo.watermark(2) == 4
    await asyncio.sleep(0)
    assert answer.done()
    assert draining.stream.wakes == wakes + 1


async def test_a_publish_that_needs_regions_now_does_not_count_one_that_leaves(draining: Any) -> None:
    draining.join(EU)
    draining.leaving.add(EU)
    with pytest.raises(NotEnoughRegions, match="1 of orders/0 are reached"):
        draining.geo.admit(AskedLevel(durability=Durability(2), needs_live=True))
