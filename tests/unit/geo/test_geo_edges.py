"""Where a level, or what is shown, could be more than is true: settings that change, homes and epochs that begin."""

from __future__ import annotations

import asyncio
from typing import Any

from georelay.durability import Durability
from georelay.ids import Epoch, Offset, RegionNumber
from mesh.replication.level import AskedLevel

GEO_2 = AskedLevel(durability=Durability.geo(2), deadline_ms=1_000)


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_a_changed_setting_leaves_shown_is_not_taken_for_acknowledged(scene: Any) -> None:
    answer = await scene.publish(GEO_2)
    scene.stream.commit()
    await turns()
    scene.settings(min_insync_regions=2)
    await turns()
    assert scene.geo.visible_end == 1  # it was shown already
    assert not answer.done()  # and nobody but its home has it
    holders, is_reached = await scene.geo.resolve(Epoch(1), Offset(0), Durability.geo(2), wait_ms=0)
    assert (holders.level, is_reached) == (1, False)
    scene.ack(2, 1)
    await turns()
    assert (answer.result().level, answer.result().regions) == (2, (1, 2))


async def test_what_a_changed_setting_leaves_shown_counts_for_no_publish_that_comes_later(scene: Any) -> None:
    scene.stream.append(3)
    scene.stream.commit()
    scene.settings(min_insync_regions=2)
    assert scene.geo.watermark(2) == 0
    assert scene.geo.visible_end == 3


async def test_a_home_that_became_a_mirror_does_not_show_what_only_it_has(scene: Any) -> None:
    scene.settings(min_insync_regions=2)
    scene.stream.append(5)
    scene.stream.commit()
    scene.ack(2, 3)
    assert scene.geo.visible_end == 3
    scene.stream.decide(epoch=2, start=3, home=2)  # control's word; the EPOCH entry is to come
    assert scene.geo.visible_end == 3
    scene.stream.table.append((Epoch(2), Offset(3)))
    scene.stream.high_watermark = scene.stream.next_offset = Offset(3)
    scene.stream.wake()
    assert scene.geo.visible_end == 3
    scene.stream.high_watermark = scene.stream.next_offset = Offset(4)  # from the new home
    scene.stream.wake()
    assert scene.geo.visible_end == 4


async def test_a_mirror_that_misses_several_epochs_shows_what_all_of_them_agree_about(scene: Any) -> None:
    scene.settings(min_insync_regions=2)
    scene.stream.append(9)
    scene.stream.commit()
    scene.stream.decide(epoch=2, start=4, home=2)
    scene.stream.decide(epoch=3, start=6, home=2)
    assert scene.geo.visible_end == 4


async def test_two_epochs_that_begin_at_once_cut_what_the_lower_start_cuts(scene: Any) -> None:
    scene.settings(min_insync_regions=3)
    scene.stream.append(10)
    scene.stream.commit()
    scene.ack(2, 10)
    scene.ack(3, 10)
    assert scene.geo.visible_end == 10
    scene.stream.table += [(Epoch(2), Offset(5)), (Epoch(3), Offset(8))]  # 5..7 are other records by now
    scene.stream.high_watermark = scene.stream.next_offset = Offset(8)
    scene.stream.wake()
    assert scene.geo.visible_end == 5


async def test_two_epochs_that_begin_at_once_cut_what_a_mirror_was_told(scene: Any) -> None:
    scene.stream.home, scene.stream.is_home = RegionNumber(2), False
    scene.settings(min_insync_regions=3)
    scene.stream.append(10)
    scene.stream.commit()
    scene.geo.told(3, Offset(10))
    assert scene.geo.visible_end == 10
    scene.stream.table += [(Epoch(2), Offset(5)), (Epoch(3), Offset(8))]
    scene.stream.high_watermark = scene.stream.next_offset = Offset(8)
    scene.stream.wake()
    assert scene.geo.visible_end == 5


async def test_a_record_that_is_cut_off_in_the_turn_of_its_commit_is_never_acknowledged(scene: Any) -> None:
    answer = await scene.publish(GEO_2)
    (base, stored) = scene.stream.waiting.pop()
    scene.stream.high_watermark = Offset(1)
    stored.set_result(scene.published(base))
    scene.stream.decide(epoch=2, start=0, home=2)  # before the answer of the log was heard
    scene.stream.table.append((Epoch(2), Offset(0)))
    scene.stream.high_watermark = scene.stream.next_offset = Offset(0)
    scene.stream.wake()
    await turns()
    scene.stream.high_watermark = scene.stream.next_offset = Offset(1)  # another record, mirrored
    scene.stream.wake()
    await turns()
    assert answer.done()
    assert answer.result().is_pending


async def test_who_asks_while_the_stream_is_closed_is_answered(scene: Any) -> None:
    scene.stream.append()
    scene.stream.commit()
    asking = asyncio.ensure_future(scene.geo.resolve(Epoch(1), Offset(0), Durability.geo(2), wait_ms=30_000))
    await asyncio.sleep(0)
    scene.geo.close()
    async with asyncio.timeout(1):
        holders, is_reached = await asking
    assert (holders.level, is_reached) == (1, False)


async def test_mirrors_are_told_when_a_setting_asks_for_more_regions_and_nothing_is_published(scene: Any) -> None:
    scene.settings(min_insync_regions=2)
    scene.stream.append(3)
    scene.stream.commit()
    listeners = scene.join(2, 3)
    scene.ack(2, 3)
    scene.ack(3, 3)
    scene.settings(min_insync_regions=3)
    assert [listener.told[-1] for listener in listeners] == [(3, 3), (3, 3)]


async def test_settings_that_came_while_the_log_was_read_show_nothing_more(scene: Any) -> None:
    scene.stream.append(3)
    scene.stream.commit()
    scene.geo.follow_topic(scene.settings_of(min_insync_regions=2), has_served=False)
    assert scene.geo.visible_end == 0
