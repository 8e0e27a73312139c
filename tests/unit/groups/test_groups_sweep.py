"""What the leader drops by itself: offsets that nobody has used for long, and groups that have nothing left."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.errors import DiskFull
from georelay.ids import RegionNumber, StreamKey
from georelay.wire.api import ErrorCode
from georelay.wire.consumer_protocol import Subscription, encode_subscription
from region.groups.offsets_core import CommittedOffset
from region.groups.values import Identity
from tests.unit.groups.coordinator_world import (
    DAY_S,
    KEY,
    ORDERS,
    World,
    commit,
    committed,
    stable,
    turn,
)


async def test_offsets_expire_seven_days_after_the_last_member_left_and_the_group_after_them(world: World) -> None:
    who = await stable(world)
    await commit(world, who, 5)
    world.log.clock.advance(6)
    world.part.leave("g", [who])
    await turn()
    world.log.clock.advance(6.9 * DAY_S)
    await turn()
    assert committed(world) == 5
    world.log.clock.advance(0.2 * DAY_S)
    await turn()
    assert committed(world) == -1
    world.log.clock.advance(120)
    await turn()
    assert world.part.group("g") is None
    assert world.part.snapshot() == b'{"groups":[],"v":1}'


async def test_offsets_last_seven_days_too_when_it_could_not_be_stored_that_the_last_member_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = await stable(world, subscription=encode_subscription(Subscription(topics=("orders",))), session_ms=1_800_000)
    await commit(world, who, 5)
    for _ in range(8 * 96):
        world.log.clock.advance(900)
        assert world.part.heartbeat("g", who) is ErrorCode.NONE
    await turn()

    def full(*_: object, **__: object) -> None:
        raise DiskFull("there is no room")

    with monkeypatch.context() as patch:
        patch.setattr(world.log, "propose", full)
        world.part.leave("g", [who])
        await turn()
        world.log.clock.advance(61)
        await turn()
    for seconds in (61, 61, 6.9 * DAY_S):
        world.log.clock.advance(seconds)
        await turn()
        assert committed(world) == 5
    world.log.clock.advance(0.2 * DAY_S)
    await turn()
    assert committed(world) == -1


async def test_offsets_of_a_group_that_lives_do_not_expire_but_those_of_topics_it_gave_up_do(world: World) -> None:
    other = StreamKey(b"c" * 16, RegionNumber(2), 0)
    who = await stable(world, subscription=encode_subscription(Subscription(topics=("orders",))), session_ms=1_800_000)
    await commit(world, who, 5)
    await commit(world, who, 6, key=other)
    for _ in range(8 * 96):
        world.log.clock.advance(900)
        assert world.part.heartbeat("g", who) is ErrorCode.NONE
    await turn()
    world.log.clock.advance(60)
    await turn()
    assert (committed(world), committed(world, key=other)) == (5, -1)


async def test_offsets_of_a_deleted_topic_are_dropped_and_those_of_an_unknown_one_are_not(world: World) -> None:
    unknown = StreamKey(b"u" * 16, RegionNumber(0), 0)
    await commit(world, Identity(), 5)
    await commit(world, Identity(), 6, key=unknown)
    world.deleted.add(ORDERS)
    world.log.clock.advance(61)
    await turn()
    assert (committed(world), committed(world, key=unknown)) == (-1, 6)


async def test_a_sweep_leaves_a_group_alone_that_something_was_proposed_for(world: World) -> None:
    await commit(world, Identity(), 5)
    world.log.clock.advance(8 * DAY_S - 30)
    await turn()
    assert committed(world) == -1  # the sweep before: what is committed now is new
    world.log.hold()
    done: list[Any] = []
    world.part.commit("g", Identity(), {KEY: CommittedOffset(offset=9)}, done.append)
    world.log.clock.advance(61)
    world.log.release()
    await turn()
    assert (done, committed(world)) == ([{KEY: ErrorCode.NONE}], 9)
