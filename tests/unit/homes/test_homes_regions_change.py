"""Regions that join, leave or are removed while a home moves: who is asked, who counts, and who may be home next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from georelay.errors import BadRequest, NotEnoughRegions, OutcomeUnknown
from georelay.fields import JsonObject
from georelay.ids import Offset, RegionNumber
from mesh.home.home_book_core import Ending
from mesh.home.home_row import HomeRow, MoveKind, first_id, renewed_id
from mesh.home.move_core import Move, Stage
from mesh.home.promise_core import PromiseAnswer, choose
from region.homes.move_desk import MoveAsked
from region.homes.part import begin_command, end_command
from tests.unit.homes.model_wave import FIRST_KEY, FOUR, ONE, THREE, TWO, Control, Mesh, Says, play

NOT_CHOSEN = RegionNumber(0)
DIGEST = b"d" * 16


def end_of(move: str, home: RegionNumber, start: int = 5) -> Any:
    ending = Ending(key=FIRST_KEY, move_id=move, home=home, start=Offset(start), digest=DIGEST)
    return end_command([ending])


async def begin(mesh: Mesh, kind: MoveKind, target: RegionNumber = NOT_CHOSEN) -> HomeRow:
    command = begin_command([FIRST_KEY], move_id="m", kind=kind, target=target)
    assert await mesh.propose("homes", command) == {"refused": []}
    return mesh.row(FIRST_KEY)


# --- regions that leave -------------------------------------------------------------------------------


def promises(**lengths: int) -> dict[RegionNumber, PromiseAnswer]:
    numbers = {"one": ONE, "two": TWO, "three": THREE}
    return {
        numbers[name]: PromiseAnswer(region=numbers[name], length=Offset(length), digest=bytes([length]) * 16)
        for name, length in lengths.items()
    }


@pytest.mark.parametrize(
    ("lengths", "preferred", "leaving", "home"),
    [
        ({"two": 5, "three": 5}, NOT_CHOSEN, {TWO}, THREE),
        ({"one": 5, "three": 5}, NOT_CHOSEN, {ONE}, THREE),
        ({"two": 5, "three": 5}, TWO, {TWO}, THREE),
        ({"two": 6, "three": 5}, NOT_CHOSEN, {TWO}, TWO),
        ({"two": 5, "three": 5}, NOT_CHOSEN, {TWO, THREE}, TWO),
        ({"one": 5, "two": 5, "three": 5}, NOT_CHOSEN, {TWO}, ONE),
    ],
)
def test_a_region_that_leaves_becomes_home_only_if_its_log_is_the_longest_alone(
    lengths: dict[str, int], preferred: RegionNumber, leaving: set[RegionNumber], home: RegionNumber
) -> None:
    row = HomeRow.first(b"r" * 16, 0, home=ONE, regions=(ONE, TWO, THREE), digest=DIGEST)
    choice = choose(row, promises(**lengths), regions=row.regions, level=2, preferred=preferred, avoided=leaving)
    assert choice is not None and choice.home == home
    assert choice.start == max(lengths.values())


def test_a_forced_move_takes_no_home_to_a_region_that_leaves_when_another_one_has_as_much() -> None:
    async def story(mesh: Mesh) -> None:
        mesh.leaving = {TWO}
        move = await mesh.begun(FIRST_KEY)
        await mesh.wave(move).run()
        assert mesh.home(FIRST_KEY) == (3, 5)

    play(story)


async def test_a_region_that_was_removed_becomes_no_home() -> None:
    mesh = Mesh()
    await begin(mesh, MoveKind.FORCED)
    mesh.removed = {THREE}
    refused = (await mesh.propose("homes", end_of("m", THREE)))["refused"]
    assert isinstance(refused, list) and refused[0]["code"] == BadRequest.code
    assert "left the mesh" in refused[0]["text"]
    assert mesh.row(FIRST_KEY).moving is not None
    assert await mesh.propose("homes", end_of("m", TWO)) == {"refused": []}


def test_a_planned_move_to_a_region_that_was_removed_meanwhile_leaves_the_home_where_it_was() -> None:
    async def story(mesh: Mesh) -> None:
        row = await begin(mesh, MoveKind.PLANNED, TWO)
        move = Move(row, level=2, needs_lease=False)
        move.sealed(Offset(5), DIGEST)
        assert move.target_arrived(row.epoch, Offset(5))
        mesh.removed = {TWO}
        await mesh.wave(move).run()
        assert mesh.home(FIRST_KEY) == (1, 5)

    play(story)


def test_a_planned_move_from_a_region_that_leaves_goes_back_there_when_its_target_was_removed() -> None:
    async def story(mesh: Mesh) -> None:
        row = await begin(mesh, MoveKind.PLANNED, TWO)
        move = Move(row, level=2, needs_lease=False)
        move.sealed(Offset(5), DIGEST)
        assert move.target_arrived(row.epoch, Offset(5))
        mesh.leaving, mesh.removed = {ONE}, {TWO}
        await mesh.wave(move).run()
        assert mesh.home(FIRST_KEY) == (1, 5)

    play(story)


def test_a_planned_move_between_two_regions_that_leave_ends_as_it_was_planned() -> None:
    async def story(mesh: Mesh) -> None:
        row = await begin(mesh, MoveKind.PLANNED, TWO)
        move = Move(row, level=2, needs_lease=False)
        move.sealed(Offset(5), DIGEST)
        assert move.target_arrived(row.epoch, Offset(5))
        mesh.leaving = {ONE, TWO}
        await mesh.wave(move).run()
        assert mesh.home(FIRST_KEY) == (2, 5)

    play(story)


def test_a_planned_move_to_a_region_that_began_to_leave_leaves_the_home_where_it_was() -> None:
    async def story(mesh: Mesh) -> None:
        row = await begin(mesh, MoveKind.PLANNED, TWO)
        move = Move(row, level=2, needs_lease=False)
        move.sealed(Offset(5), DIGEST)
        assert move.target_arrived(row.epoch, Offset(5))
        mesh.leaving = {TWO}
        await mesh.wave(move).run()
        assert mesh.home(FIRST_KEY) == (1, 5)

    play(story)


def test_attempts_for_one_wish_have_one_first_name_and_each_its_own() -> None:
    second = renewed_id("forced-0a")
    third = renewed_id(second)
    assert (second, third) == ("forced-0a+1", "forced-0a+2")
    assert {first_id(name) for name in ("forced-0a", second, third)} == {"forced-0a"}


# --- attempts that begin anew -------------------------------------------------------------------------


async def test_what_a_region_that_joined_during_an_attempt_may_have_is_asked_for_before_it_ends() -> None:
    mesh = Mesh()
    await begin(mesh, MoveKind.FORCED)
    mesh.all_regions[FIRST_KEY] = (ONE, TWO, THREE, FOUR)
    refused = (await mesh.propose("homes", end_of("m", TWO)))["refused"]
    assert isinstance(refused, list) and "joined" in refused[0]["text"], refused
    assert mesh.row(FIRST_KEY).moving is not None


async def test_a_planned_move_does_not_mind_regions_that_join() -> None:
    mesh = Mesh()
    await begin(mesh, MoveKind.PLANNED, TWO)
    mesh.all_regions[FIRST_KEY] = (ONE, TWO, THREE, FOUR)
    assert await mesh.propose("homes", end_of("m", TWO)) == {"refused": []}


def test_an_attempt_begins_anew_with_a_region_that_joined_and_keeps_what_that_one_acknowledged() -> None:
    async def story(mesh: Mesh) -> None:
        mesh.config = (("min.insync.regions", "2"),)
        mesh.silent = {ONE, THREE}
        mesh.says = lambda _key, region: Says(told=9 if region == FOUR else 5)  # it and the home have four more
        control = Control(mesh)
        report = control.forces()
        await asyncio.sleep(3.0)
        mesh.all_regions[FIRST_KEY] = (ONE, TWO, THREE, FOUR)
        mesh.silent = {ONE}
        await asyncio.sleep(10.0)
        assert mesh.home(FIRST_KEY) == (4, 9)
        assert mesh.row(FIRST_KEY).epoch == 3, "the number of the first attempt is spent"
        assert report.is_over and list(report.ended) == [FIRST_KEY] and report.refused == {}
        control.stop()

    play(story)


def test_an_attempt_whose_chosen_region_is_removed_begins_anew_without_it() -> None:
    async def story(mesh: Mesh) -> None:
        mesh.config = (("failover", "auto"), ("min.insync.regions", "2"))
        mesh.says = lambda _key, region: Says(told=9 if region == THREE else 5)
        control = Control(mesh, leases_over=False)
        control.forces()
        await asyncio.sleep(1.0)
        move = control.driver.carried(FIRST_KEY)
        assert move is not None and move.stage is Stage.FENCING and move.choice is not None and move.choice.home == 3
        mesh.removed = {THREE}
        mesh.all_regions[FIRST_KEY] = (ONE, TWO)
        await asyncio.sleep(3.0)
        assert mesh.row(FIRST_KEY).regions == (1, 2)
        control.leases_over = True
        await asyncio.sleep(3.0)
        assert mesh.home(FIRST_KEY) == (2, 5)
        control.stop()

    play(story)


def test_a_loss_that_was_accepted_is_accepted_of_the_attempt_that_begins_anew() -> None:
    async def story(mesh: Mesh) -> None:
        mesh.silent = {ONE, THREE}
        control = Control(mesh)
        mesh.says = lambda _key, _region: Says(told=5, after_s=1.0)
        report = control.forces(accept_loss=True)
        await asyncio.sleep(0.5)
        mesh.silent = {ONE, THREE, FOUR}
        mesh.all_regions[FIRST_KEY] = (ONE, TWO, THREE, FOUR)
        await asyncio.sleep(20.0)
        assert mesh.home(FIRST_KEY) == (2, 5)
        assert mesh.row(FIRST_KEY).accept_loss and mesh.row(FIRST_KEY).regions == (1, 2, 3, 4)
        assert list(report.ended) == [FIRST_KEY]
        control.stop()

    play(story)


def renewing(mesh: Mesh, then: Callable[[], Awaitable[None]]) -> None:
    """Have `then` happen right after control committed that an attempt begins anew, the first time."""
    plain, renewals = mesh.propose, iter([True])

    async def propose(part: str, command: JsonObject) -> JsonObject:
        outcome = await plain(part, command)
        is_renewal = command["kind"] == "begin" and "+" in str(command["move_id"])
        if is_renewal and next(renewals, False):
            await then()
        return outcome

    mesh.propose = propose  # type: ignore[method-assign]


async def joins(mesh: Mesh) -> None:
    """Let a fourth region join while one of three promises, slowly, and a loss is accepted."""
    mesh.silent = {ONE, TWO, FOUR}
    await asyncio.sleep(0.5)
    mesh.all_regions[FIRST_KEY] = (ONE, TWO, THREE, FOUR)
    await asyncio.sleep(60.0)


def test_a_loss_is_accepted_of_the_attempt_that_began_anew_though_nobody_heard_that_it_was_committed() -> None:
    async def story(mesh: Mesh) -> None:
        async def lost() -> None:
            raise OutcomeUnknown("the answer was lost")

        renewing(mesh, lost)
        mesh.silent = {ONE, TWO}
        mesh.says = lambda _key, _region: Says(told=5, after_s=1.0)
        control = Control(mesh)
        control.forces(accept_loss=True)
        await joins(mesh)
        assert mesh.home(FIRST_KEY) == (3, 5) and mesh.row(FIRST_KEY).accept_loss
        control.stop()

    play(story)


def test_a_loss_that_is_accepted_for_one_wish_is_not_accepted_for_another_that_took_its_place() -> None:
    async def story(mesh: Mesh) -> None:
        async def others() -> None:
            await mesh.propose("homes", begin_command([FIRST_KEY], move_id="other", kind=MoveKind.FORCED))

        renewing(mesh, others)
        mesh.silent = {ONE, TWO}
        mesh.says = lambda _key, _region: Says(told=5, after_s=1.0)
        control = Control(mesh)
        control.forces(accept_loss=True)
        await joins(mesh)
        moving = mesh.row(FIRST_KEY).moving
        assert moving is not None and moving.move_id == "other"
        control.stop()

    play(story)


def test_a_loss_is_not_accepted_for_a_wish_that_took_the_place_of_one_before_its_leader_looked() -> None:
    async def story(mesh: Mesh) -> None:
        plain = mesh.propose

        async def propose(part: str, command: JsonObject) -> JsonObject:
            outcome = await plain(part, command)
            if command["kind"] == "begin":
                await plain("homes", begin_command([FIRST_KEY], move_id="other", kind=MoveKind.FORCED))
            return outcome

        mesh.propose = propose  # type: ignore[method-assign]
        mesh.silent = {ONE, TWO}
        control = Control(mesh)
        control.forces(accept_loss=True)
        await asyncio.sleep(60.0)
        moving = mesh.row(FIRST_KEY).moving
        assert moving is not None and moving.move_id == "other"
        control.stop()

    play(story)


def test_an_attempt_that_cannot_begin_anew_is_not_asked_for_again_until_the_regions_change() -> None:
    async def story(mesh: Mesh) -> None:
        row = await begin(mesh, MoveKind.FORCED, TWO)
        mesh.removed = {TWO}
        mesh.all_regions[FIRST_KEY] = (ONE, THREE, FOUR)
        before = mesh.index
        move = Move(row, level=2, needs_lease=False)
        running = asyncio.ensure_future(mesh.wave(move).run())
        await asyncio.sleep(60.0)
        assert move.fault is not None and "does not hold" in str(move.fault)
        assert mesh.index - before <= 2, "commands were committed again and again"
        mesh.removed = set()
        mesh.all_regions[FIRST_KEY] = (ONE, TWO, THREE, FOUR)
        await asyncio.sleep(5.0)
        running.cancel()
        moving = mesh.row(FIRST_KEY).moving
        assert moving is not None and moving.move_id == "m+1"

    play(story)


def test_a_failover_is_refused_when_too_few_of_all_regions_that_hold_the_topic_now_answer() -> None:
    async def story(mesh: Mesh) -> None:
        mesh.config = (("min.insync.regions", "2"),)
        await begin(mesh, MoveKind.FORCED)
        assert await mesh.propose("homes", end_of("m", ONE)) == {"refused": []}
        assert mesh.row(FIRST_KEY).regions == (1, 2, 3)
        mesh.all_regions[FIRST_KEY] = (ONE, TWO, THREE, FOUR)
        mesh.silent = {ONE, FOUR}
        control = Control(mesh)
        asked = MoveAsked(keys=(FIRST_KEY,), kind=MoveKind.FORCED, target=NOT_CHOSEN)
        with pytest.raises(NotEnoughRegions, match=r"3 of its regions \[1, 2, 3, 4\]"):
            await control.desk.check_answers(asked)
        mesh.silent = {ONE}
        await control.desk.check_answers(asked)
        control.stop()

    play(story)
