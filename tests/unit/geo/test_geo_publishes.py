"""Publishes that wait for regions: reached, pending, refused; never answered too early, never lowered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.durability import Durability
from georelay.errors import NotEnoughRegions, NotLeader, OffsetOutOfRange, OutcomeUnknown, PolicyViolation
from georelay.ids import Epoch, Offset
from mesh.replication.level import REGION_LEVEL, AskedLevel
from mesh.replication.ports import Published
from region.geo.counters import LevelOutcome, Refusal
from region.geo.lag_core import PAUSE_MS_MAX

TURNS = 4


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def geo(regions: int, *, deadline_ms: int = 1_000, needs_live: bool = False) -> AskedLevel:
    return AskedLevel(durability=Durability(regions), deadline_ms=deadline_ms, needs_live=needs_live)


async def test_a_publish_is_answered_when_its_last_record_is_in_enough_regions(scene: Any) -> None:
    answer = await scene.publish(geo(3), records=3)
    scene.stream.commit()
    scene.ack(2, 3)
    scene.ack(3, 2)
    await turns()
    assert not answer.done()
    scene.ack(3, 3)
    published = await answer
    assert (published.base_offset, published.level, published.regions) == (0, 3, (1, 2, 3))
    assert not published.is_pending
    assert scene.counters.publishes == {(3, LevelOutcome.REACHED): 1}


async def test_acknowledgements_before_the_commit_at_home_do_not_answer_a_publish(scene: Any) -> None:
    scene.ack(2, 1)
    answer = await scene.publish(geo(2))
    await turns()
    assert not answer.done()
    scene.stream.commit()
    assert (await answer).level == 2


async def test_an_acknowledgement_of_an_older_session_epoch_answers_nobody(scene: Any) -> None:
    scene.stream.table.append((Epoch(2), Offset(0)))
    scene.stream.wake()
    answer = await scene.publish(geo(2))
    scene.stream.commit()
    scene.ack(2, 1, epoch=1)
    await turns()
    assert not answer.done()
    scene.ack(2, 1, epoch=2)
    assert (await answer).regions == (1, 2)


async def test_a_duplicate_is_answered_when_the_original_reaches_the_level_that_the_retry_asks(scene: Any) -> None:
    original = await scene.publish(REGION_LEVEL)
    scene.stream.commit()
    assert (await original).base_offset == 0
    admission = scene.geo.admit(geo(2))
    duplicate: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
    duplicate.set_result(Published(epoch=Epoch(1), base_offset=Offset(0), append_us=1))
    retry = scene.geo.gate(admission, duplicate, 1)
    await turns()
    assert not retry.done()
    scene.ack(2, 1)
    assert (await retry).level == 2


async def test_a_publish_at_region_level_waits_for_nobody(scene: Any) -> None:
    assert scene.geo.admit(REGION_LEVEL) is None


async def test_more_regions_than_hold_the_topic_are_refused_and_never_cut_to_what_there_is(scene: Any) -> None:
    with pytest.raises(PolicyViolation, match="4 regions"):
        scene.geo.admit(geo(4))
    assert scene.counters.refusals == {Refusal.TOO_FEW_REGIONS: 1}


async def test_too_few_live_regions_refuse_before_anything_is_stored_where_that_is_asked(scene: Any) -> None:
    with pytest.raises(NotEnoughRegions, match="1 of orders/0"):
        scene.geo.admit(geo(2, needs_live=True))
    scene.join(2)
    assert scene.geo.admit(geo(2, needs_live=True)).level == 2
    with pytest.raises(NotEnoughRegions):
        scene.geo.admit(geo(3, needs_live=True))
    scene.geo.left(2, 2)
    with pytest.raises(NotEnoughRegions):
        scene.geo.admit(geo(2, needs_live=True))
    assert scene.geo.admit(geo(2)).level == 2  # a deadline was given: it may still be reached


async def test_a_topic_that_asks_for_more_regions_than_are_left_is_refused_as_too_few(scene: Any) -> None:
    scene.settings(min_insync_regions=4)
    with pytest.raises(NotEnoughRegions):
        scene.geo.admit(geo(4, needs_live=True))


async def test_who_asks_as_the_topic_says_waits_for_what_it_says_at_the_home(scene: Any) -> None:
    as_topic = AskedLevel(deadline_ms=1_000, needs_live=True, as_topic=True)
    assert scene.geo.admit(as_topic) is None
    scene.settings(min_insync_regions=2)
    with pytest.raises(NotEnoughRegions):
        scene.geo.admit(as_topic)
    scene.join(2)
    assert scene.geo.admit(as_topic).level == 2
    assert scene.geo.admit(REGION_LEVEL) is None  # acks=1 asks for its home alone


async def test_majority_and_all_are_counted_at_the_home(scene: Any) -> None:
    assert scene.geo.admit(AskedLevel(durability=Durability.MAJORITY)).level == 2
    assert scene.geo.admit(AskedLevel(durability=Durability.ALL)).level == 3


async def test_a_deadline_that_passes_first_leaves_it_pending_with_what_was_reached(scene: Any) -> None:
    answer = await scene.publish(geo(3, deadline_ms=20))
    scene.stream.commit()
    scene.ack(2, 1)
    scene.clock.move(19)
    await asyncio.sleep(0.03)
    assert not answer.done()  # the injected clock counts, not that of the loop
    scene.clock.move(2)
    published = await answer
    assert (published.is_pending, published.level, published.regions) == (True, 2, (1, 2))
    assert scene.counters.publishes == {(3, LevelOutcome.PENDING): 1}


@pytest.mark.parametrize("is_answered", [False, True])
async def test_a_short_deadline_does_not_wait_for_a_longer_one_before_it(scene: Any, is_answered: bool) -> None:
    patient = await scene.publish(geo(3, deadline_ms=30_000))
    scene.stream.commit()
    if is_answered:
        scene.ack(2, 1)
        scene.ack(3, 1)
        await patient
    answer = await scene.publish(geo(3, deadline_ms=20))
    scene.stream.commit()
    await turns()
    scene.clock.move(21)
    async with asyncio.timeout(2):
        assert (await answer).is_pending
    assert patient.done() is is_answered


async def test_a_deadline_before_the_commit_leaves_the_outcome_unknown(scene: Any) -> None:
    answer = await scene.publish(geo(2, deadline_ms=5))
    scene.clock.move(6)
    with pytest.raises(OutcomeUnknown):
        await answer
    scene.stream.commit()
    await turns()
    assert scene.counters.publishes == {(2, LevelOutcome.FAILED): 1}


async def test_a_publish_that_is_not_stored_fails_as_it_did(scene: Any) -> None:
    answer = await scene.publish(geo(2))
    scene.stream.waiting[0][1].set_exception(OutcomeUnknown("the leader changed"))
    with pytest.raises(OutcomeUnknown, match="leader changed"):
        await answer


async def test_who_waits_when_the_leadership_is_lost_is_pending_and_not_acknowledged(scene: Any) -> None:
    answer = await scene.publish(geo(2))
    scene.stream.commit()
    await turns()
    scene.stream.lead(leads=False)
    published = await answer
    assert (published.is_pending, published.regions) == (True, (1,))


async def test_who_waits_for_a_record_beyond_the_start_of_a_new_epoch_is_pending(scene: Any) -> None:
    kept, cut = await scene.publish(geo(2)), await scene.publish(geo(2))
    scene.stream.commit()
    await turns()
    scene.stream.table.append((Epoch(2), Offset(1)))
    scene.stream.wake()
    assert (await cut).is_pending
    assert not kept.done()
    scene.ack(2, 1)
    assert not (await kept).is_pending


async def test_closing_answers_who_waits(scene: Any) -> None:
    answer = await scene.publish(geo(2))
    scene.stream.commit()
    await turns()
    scene.geo.close()
    assert (await answer).is_pending


# --- lag bounds -----------------------------------------------------------------------------------


async def test_regions_that_lag_by_records_slow_publishes_and_then_refuse_them(scene: Any) -> None:
    scene.settings(max_geo_lag_records=10)
    with pytest.raises(NotEnoughRegions, match=r"max\.geo\.lag"):
        scene.geo.admit(REGION_LEVEL)  # nobody was heard by this leader: no lag is proven
    scene.ack(2, 0)
    assert scene.geo.admit(REGION_LEVEL) is None
    scene.stream.append(8)
    scene.stream.commit()
    slowed = scene.geo.admit(REGION_LEVEL)
    assert (slowed.level, slowed.pause_ms) == (1, int(PAUSE_MS_MAX * 0.6))
    scene.stream.append(2)
    scene.stream.commit()
    with pytest.raises(NotEnoughRegions):
        scene.geo.admit(REGION_LEVEL)
    scene.ack(3, 10)  # any other region will do: two of three are within the bound
    assert scene.geo.admit(REGION_LEVEL) is None
    assert scene.counters.refusals == {Refusal.LAG: 2}


async def test_regions_that_lag_by_age_refuse_publishes(scene: Any) -> None:
    scene.settings(max_geo_lag_ms=100, min_insync_regions=3)
    scene.ack(2, 0)
    scene.ack(3, 0)
    scene.stream.append()
    scene.stream.commit()
    scene.ack(2, 1)
    scene.clock.move(90)
    assert scene.geo.admit(REGION_LEVEL).pause_ms > 0
    scene.clock.move(20)
    with pytest.raises(NotEnoughRegions):
        scene.geo.admit(REGION_LEVEL)
    scene.ack(3, 1)
    assert scene.geo.admit(REGION_LEVEL) is None


async def test_a_slowed_publish_is_answered_late_and_as_it_was(scene: Any) -> None:
    scene.settings(max_geo_lag_records=100)
    scene.ack(2, 0)
    scene.stream.append(55)
    scene.stream.commit()
    answer = await scene.publish(REGION_LEVEL)
    scene.stream.commit()
    await turns()
    assert not answer.done()
    assert (await answer).base_offset == 55
    assert scene.counters.slowed == 1


# --- asked later ----------------------------------------------------------------------------------


async def test_a_record_is_resolved_by_its_position(scene: Any) -> None:
    scene.stream.append()
    scene.stream.commit()
    holders, is_reached = await scene.geo.resolve(Epoch(1), Offset(0), Durability(2), wait_ms=0)
    assert (holders.regions, holders.level, is_reached) == ((1,), 1, False)
    asking = asyncio.ensure_future(scene.geo.resolve(Epoch(1), Offset(0), Durability(2), wait_ms=1_000))
    await turns()
    scene.ack(3, 1)
    holders, is_reached = await asking
    assert (holders.regions, holders.level, is_reached) == ((1, 3), 2, True)
    assert scene.counters.publishes == {}


async def test_a_record_that_a_new_epoch_cut_off_is_lost(scene: Any) -> None:
    scene.stream.append(3)
    scene.stream.commit()
    scene.stream.table.append((Epoch(2), Offset(2)))
    holders, is_reached = await scene.geo.resolve(Epoch(1), Offset(2), Durability.REGION, wait_ms=0)
    assert (holders.is_lost, is_reached, holders.epoch) == (True, False, 2)
    holders, is_reached = await scene.geo.resolve(Epoch(1), Offset(1), Durability.REGION, wait_ms=0)
    assert (holders.is_lost, is_reached) == (False, True)


async def test_a_home_that_has_not_heard_of_an_epoch_says_nothing_about_its_records(scene: Any) -> None:
    scene.stream.append()
    scene.stream.commit()
    with pytest.raises(NotLeader):
        await scene.geo.resolve(Epoch(2), Offset(0), Durability.REGION, wait_ms=0)
    with pytest.raises(OffsetOutOfRange):
        await scene.geo.resolve(Epoch(1), Offset(1), Durability.REGION, wait_ms=0)
