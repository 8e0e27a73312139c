"""What consumers of topics with min.insync.regions see, at the home and at mirrors, across elections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import NotLeader
from georelay.ids import Epoch, Offset, RegionNumber


def stored(scene: Any, records: int) -> None:
    scene.stream.append(records)
    scene.stream.commit()


async def test_without_the_setting_consumers_see_what_is_committed(scene: Any) -> None:
    stored(scene, 3)
    assert (scene.geo.visible_end, scene.geo.is_visible_end_known) == (3, True)


async def test_at_the_home_consumers_see_what_enough_regions_have(scene: Any) -> None:
    scene.settings(min_insync_regions=2)
    stored(scene, 3)
    assert scene.geo.visible_end == 0
    wakes = scene.stream.wakes
    scene.ack(2, 2)
    assert scene.geo.visible_end == 2
    assert scene.stream.wakes == wakes + 1
    scene.ack(3, 1)  # no news for readers
    assert scene.stream.wakes == wakes + 1


async def test_a_setting_that_asks_for_more_regions_takes_back_nothing_that_was_shown(scene: Any) -> None:
    stored(scene, 3)
    scene.settings(min_insync_regions=2)
    assert scene.geo.visible_end == 3
    stored(scene, 1)
    assert scene.geo.visible_end == 3


async def test_a_new_leader_at_the_home_waits_until_it_knows_and_does_not_go_back(scene: Any) -> None:
    scene.settings(min_insync_regions=2)
    stored(scene, 3)
    scene.ack(2, 3)
    scene.stream.lead(leads=False)
    scene.stream.lead(leads=True)
    assert scene.geo.visible_end == 3  # this broker remembers what it showed
    assert not scene.geo.is_visible_end_known or scene.geo.visible_end == 3


async def test_who_asks_a_new_leader_for_the_end_waits_for_enough_regions(scene: Any) -> None:
    scene.stream.append(3)
    scene.stream.commit()
    scene.stream.is_leader = False
    scene.settings(min_insync_regions=2)
    scene.geo._home._shown.clear()  # another broker led before
    scene.stream.lead(leads=True)
    assert not scene.geo.is_visible_end_known
    asking = asyncio.ensure_future(scene.geo.until_known())
    await asyncio.sleep(0)
    scene.ack(2, 2)
    await asyncio.sleep(0)
    assert not asking.done()  # the third region may have had everything
    scene.ack(3, 1)
    await asking
    assert scene.geo.visible_end == 2


async def test_a_replica_that_does_not_lead_passes_the_question_on(scene: Any) -> None:
    scene.settings(min_insync_regions=2)
    scene.stream.lead(leads=False)
    assert not scene.geo.is_visible_end_known
    with pytest.raises(NotLeader):
        await scene.geo.until_known()


async def test_a_mirror_shows_its_own_commits_for_two_regions(scene: Any) -> None:
    scene.stream.is_home, scene.stream.home = False, RegionNumber(2)
    scene.settings(min_insync_regions=2)
    stored(scene, 3)
    assert (scene.geo.visible_end, scene.geo.is_visible_end_known) == (3, True)
    scene.stream.lead(leads=False)
    assert (scene.geo.visible_end, scene.geo.is_visible_end_known) == (3, True)  # followers too


async def test_a_mirror_shows_what_its_home_tells_for_three_regions(scene: Any) -> None:
    scene.stream.is_home, scene.stream.home = False, RegionNumber(2)
    scene.stream.is_leader = False
    scene.settings(min_insync_regions=3)
    scene.stream.lead(leads=True)
    stored(scene, 3)
    assert (scene.geo.visible_end, scene.geo.is_visible_end_known) == (0, False)
    scene.geo.told(3, Offset(2))
    assert (scene.geo.visible_end, scene.geo.is_visible_end_known) == (2, True)
    scene.geo.told(3, Offset(9))
    assert scene.geo.visible_end == 3


async def test_mirrors_are_told_watermarks_of_three_and_more_regions_once_they_are_known(scene: Any) -> None:
    scene.settings(min_insync_regions=3)
    (listener,) = scene.join(2)
    stored(scene, 3)
    scene.ack(2, 2)
    scene.ack(3, 1)
    assert listener.told[-1] == (3, 1)
    scene.settings(min_insync_regions=2)
    assert scene.geo.watermark_to_tell() is None  # they count themselves


async def test_a_new_leader_tells_mirrors_nothing_before_it_knows(scene: Any) -> None:
    scene.stream.append(3)
    scene.stream.commit()
    scene.stream.is_leader = False
    scene.settings(min_insync_regions=3)
    scene.geo._home._shown.clear()  # another broker led before
    scene.stream.lead(leads=True)
    (listener,) = scene.join(2)
    scene.ack(2, 3)
    assert listener.told == [None]
    scene.ack(3, 2)
    assert listener.told[-1] == (3, 2)


async def test_an_epoch_that_began_below_what_was_shown_cuts_it(scene: Any) -> None:
    scene.settings(min_insync_regions=2)
    stored(scene, 3)
    scene.ack(2, 3)
    assert scene.geo.visible_end == 3
    scene.stream.table.append((Epoch(2), Offset(1)))  # accepted loss
    scene.stream.high_watermark = scene.stream.next_offset = Offset(1)
    scene.stream.wake()
    assert scene.geo.visible_end == 1
    stored(scene, 2)
    assert scene.geo.visible_end == 1  # the records at 1 and 2 are others now


def led_by_another(scene: Any, *, home: bool, regions: int, raised: bool, records: int = 9) -> None:
    """Let this broker be elected after another one led under other settings; it has heard nobody."""
    scene.stream.is_leader = False
    if not home:
        scene.stream.is_home, scene.stream.home = False, RegionNumber(2)
    stored(scene, records)
    scene.geo.follow_topic(scene.settings_of(min_insync_regions=regions, insync_raised=raised), has_served=False)
    scene.stream.lead(leads=True)


async def test_a_leader_elected_after_more_regions_were_asked_for_knows_only_when_all_it_found_has_reached_them(
    scene: Any,
) -> None:
    led_by_another(scene, home=True, regions=2, raised=True)  # the leader before showed all 9, as the home alone
    scene.ack(2, 4)
    scene.ack(3, 3)
    assert (scene.geo.visible_end, scene.geo.is_visible_end_known) == (4, False)
    scene.ack(2, 9)
    assert (scene.geo.visible_end, scene.geo.is_visible_end_known) == (9, True)


async def test_a_topic_that_always_asked_for_as_many_is_known_once_every_region_was_heard(scene: Any) -> None:
    led_by_another(scene, home=True, regions=2, raised=False)
    scene.ack(2, 4)
    scene.ack(3, 3)
    assert (scene.geo.visible_end, scene.geo.is_visible_end_known) == (4, True)


async def test_a_mirror_elected_after_more_regions_were_asked_for_does_not_go_back_to_what_it_is_told(
    scene: Any,
) -> None:
    led_by_another(scene, home=False, regions=3, raised=True)  # the leader before showed all 9, as one of two
    scene.geo.told(3, Offset(4))
    assert (scene.geo.visible_end, scene.geo.is_visible_end_known) == (4, False)
    scene.geo.told(3, Offset(12))
    assert (scene.geo.visible_end, scene.geo.is_visible_end_known) == (9, True)


async def test_the_leader_that_more_regions_are_asked_of_remembers_what_it_showed(scene: Any) -> None:
    stored(scene, 3)
    scene.settings(min_insync_regions=2, insync_raised=True)
    stored(scene, 1)
    scene.ack(2, 2)
    scene.ack(3, 2)
    assert (scene.geo.visible_end, scene.geo.is_visible_end_known) == (3, True)


async def test_a_leader_that_did_not_know_before_more_regions_were_asked_for_does_not_know_after_it(scene: Any) -> None:
    led_by_another(scene, home=True, regions=2, raised=False)
    scene.ack(2, 4)
    scene.settings(min_insync_regions=3, insync_raised=True)
    scene.ack(3, 3)
    assert (scene.geo.visible_end, scene.geo.is_visible_end_known) == (4, False)
    scene.ack(2, 9)
    scene.ack(3, 9)
    assert (scene.geo.visible_end, scene.geo.is_visible_end_known) == (9, True)
