"""Regions that join, leave or are removed while a home moves: who is asked, who counts, and who may be home next."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import BadRequest, NotEnoughRegions
from georelay.ids import Offset, RegionNumber
from mesh.home.home_book_core import Ending
from mesh.home.home_row import HomeRow, MoveKind, first_id, renewed_id
from mesh.home.move_core import Move, Stage
from mesh.home.promise_core import PromiseAnswer, choose
from region.homes.driver import MoveDriver
from region.homes.move_desk import MoveAsked, MoveDesk
from region.homes.part import begin_command, end_command
from tests.unit.homes.model_wave import FIRST_KEY, FOUR, ONE, THREE, TWO, Mesh, Says, play

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


class Control:
    """The shipping driver and desk of a control leader over a mesh."""

    def __init__(self, mesh: Mesh, *, leases_over: bool = True) -> None:
        self.leases_over = leases_over
        clock = mesh.clock()
        self.driver = MoveDriver(
            part=mesh.part, topics=mesh, control=mesh, ask=mesh.ask, clock=clock,
            is_heard=lambda region: region not in mesh.silent, leases_over=lambda _: self.leases_over,
            over=lambda _: self.desk.look(),
        )  # fmt: skip
        self.desk = MoveDesk(
            part=mesh.part, topics=mesh, control=mesh, ask=mesh.ask, driver=self.driver, clock=clock, rng=mesh.rng
        )
        self.driver.start()

    def stop(self) -> None:
        self.desk.stop()
        self.driver.stop()

    def forces(self, *, accept_loss: bool = False) -> Any:
        asked = MoveAsked(keys=(FIRST_KEY,), kind=MoveKind.FORCED, target=NOT_CHOSEN, accept_loss=accept_loss)
        return self.desk.begin(asked)


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
