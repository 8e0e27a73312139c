"""Stories of three regions: homes move as planned and by force, regions are lost, come back, and fail back."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from georelay.errors import NotEnoughRegions
from georelay.fields import JsonObject
from georelay.ids import RegionNumber

World = Any
Play = Callable[..., None]
Story = Callable[[World], Coroutine[Any, Any, None]]
ONE, TWO, THREE = RegionNumber(1), RegionNumber(2), RegionNumber(3)


def moved(report: JsonObject) -> int:
    rows = report["moved"]
    assert isinstance(rows, list)
    return len(rows)


async def settle(world: World) -> None:
    await world.until(lambda: all(not world.states[world.leader].part.row(key).moving for key in world.keys))
    for state in world.states.values():
        state.catch_up()
    world.is_publishing = False
    await world.until(
        lambda: all(
            len({len(world.streams[region, key].entries) for region in world.regions}) == 1
            and len({world.streams[region, key].epoch for region in world.regions}) == 1
            for key in world.keys
        )
    )
    world.check()


def test_a_planned_move_loses_nothing_and_makes_no_orphan_branch(play: Play) -> None:
    async def story(world: World) -> None:
        await world.until(lambda: len(world.acks.get(world.keys[0], [])) > 20)
        report = await world.operate("home.move", {"streams": world.streams_json(), "target": TWO})
        assert moved(report) == len(world.keys) and report["refused"] == []
        assert all(world.home(key) == TWO for key in world.keys)
        await world.until(lambda: world.acks[world.keys[0]][-1].epoch == 2)
        await settle(world)
        assert not any(stream.orphans for stream in world.streams.values())

    play(story)


def test_the_pause_of_a_planned_move_is_a_few_round_trips(play: Play) -> None:
    async def story(world: World) -> None:
        await world.until(lambda: len(world.acks.get(world.keys[0], [])) > 20)
        await world.operate("home.move", {"streams": world.streams_json(), "target": THREE})
        await world.until(lambda: world.acks[world.keys[0]][-1].epoch == 2)
        acks = world.acks[world.keys[0]]
        first = next(row for row, ack in enumerate(acks) if ack.epoch == 2)
        assert acks[first].at_s - acks[first - 1].at_s < 0.8

    play(story)


def test_a_forced_move_keeps_what_two_regions_had_and_lists_the_rest_as_an_orphan_branch(play: Play) -> None:
    async def story(world: World) -> None:
        await world.until(lambda: len(world.acks.get(world.keys[0], [])) > 20)
        world.cut_off(ONE)  # an isolated home with failover=manual goes on
        await world.until(lambda: world.leader not in (None, ONE))
        report = await world.operate("home.failover", {"region": ONE, "streams": [], "accept_loss": False})
        assert moved(report) == len(world.keys), report
        await world.until(lambda: any(ack.epoch == 2 for ack in world.acks[world.keys[0]]))
        world.heal()
        await settle(world)
        assert world.streams[ONE, world.keys[0]].orphans

    play(story)


def test_five_regions_refuse_with_two_answers_and_accept_the_loss_when_told(play: Play) -> None:
    async def story(world: World) -> None:
        await world.until(lambda: len(world.acks.get(world.keys[0], [])) > 20)
        world.want_level(2)  # four of five have to promise
        world.crash(ONE)
        world.crash(TWO)
        await world.until(lambda: world.leader not in (None, ONE, TWO))
        with pytest.raises(NotEnoughRegions, match="have to promise"):
            await world.operate("home.failover", {"region": ONE, "streams": [], "accept_loss": False})
        assert not any(True for _ in world.states[world.leader].part.book.attempts())
        report = await world.operate("home.failover", {"region": ONE, "streams": [], "accept_loss": True})
        rows = report["moved"]
        assert isinstance(rows, list) and len(rows) == len(world.keys), report
        assert all(row["accept_loss"] and row["kept_level"] == 3 for row in rows)

    play(story, regions=5)


def test_the_home_of_a_lost_region_moves_without_an_operator(play: Play) -> None:
    async def story(world: World) -> None:
        await world.until(lambda: len(world.acks.get(world.keys[0], [])) > 20)
        begun = world.loop.time()
        world.crash(ONE)
        await world.until(lambda: world.leader is not None and all(world.home(key) != ONE for key in world.keys))
        await world.until(lambda: world.acks[world.keys[0]][-1].at_s > begun + 0.1)
        assert world.loop.time() - begun < 8.0
        world.restart(ONE)
        await settle(world)

    play(story, automatic=True)


def test_an_isolated_home_stops_acknowledging_before_the_next_epoch_starts(play: Play) -> None:
    async def story(world: World) -> None:
        await world.until(lambda: len(world.acks.get(world.keys[0], [])) > 20)
        world.cut_off(ONE)
        await world.until(lambda: any(ack.epoch == 2 for ack in world.acks[world.keys[0]]))
        epochs = [ack.epoch for ack in world.acks[world.keys[0]]]
        assert epochs == sorted(epochs)  # the world asserts it at every acknowledgement, too
        world.heal()
        await settle(world)

    play(story, automatic=True)


def test_an_attempt_is_carried_on_by_the_next_leader_of_control(play: Play) -> None:
    async def story(world: World) -> None:
        await world.until(lambda: len(world.acks.get(world.keys[0], [])) > 20)
        old = world.leader
        others = [region for region in world.regions if region not in (old, ONE)]
        target = others[0]
        await world.begin("home.move", {"streams": world.streams_json(), "target": target})
        await world.until(lambda: any(world.states[old].part.book.attempts()))
        world.states[old].leader.deposed()
        world.leader = None
        await world.until(lambda: world.leader is not None and all(world.home(key) == target for key in world.keys))
        await settle(world)

    play(story)


def test_a_returning_home_fails_back_without_a_rebuild(play: Play) -> None:
    async def story(world: World) -> None:
        await world.until(lambda: len(world.acks.get(world.keys[0], [])) > 20)
        world.crash(ONE)
        await world.until(lambda: world.leader is not None and all(world.home(key) != ONE for key in world.keys))
        held = len(world.streams[ONE, world.keys[0]].entries)
        world.restart(ONE)
        await world.until(lambda: world.streams[ONE, world.keys[0]].epoch == 2)
        assert len(world.streams[ONE, world.keys[0]].entries) >= held - len(world.streams[ONE, world.keys[0]].orphans)
        await world.operate("home.move", {"streams": world.streams_json(), "target": ONE})
        assert all(world.home(key) == ONE for key in world.keys)
        await settle(world)

    play(story, automatic=True)
