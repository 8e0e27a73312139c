"""Forced moves after mesh control was recovered: regions may follow epochs that were lost with its majority."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from georelay.errors import GeorelayError, NotEnoughRegions, Unavailable
from georelay.fields import JsonObject
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.home.epoch_core import floor_of
from mesh.home.home_row import MoveKind
from mesh.home.move_core import Stage
from region.homes.home_requests import ENDS_METHOD, SEAL_METHOD, LogEnds
from region.homes.move_desk import MoveAsked
from region.homes.part import begin_command
from tests.unit.homes.model_wave import FIRST_KEY, FOUR, ONE, THREE, TWO, Control, Mesh, Says, play

FLOOR = floor_of(2, "0" * 32)


def ends(epoch: int, high_watermark: int) -> LogEnds:
    end = Offset(high_watermark)
    return LogEnds(epoch=Epoch(epoch), next_offset=end, high_watermark=end, log_start=Offset(0))


def recovered(mesh: Mesh) -> None:
    """Give the mesh a control of the second generation, which knows one epoch; each region agrees up to 5."""
    mesh.part.book.floor = FLOOR
    mesh.ends = {region: ends(1, 5) for region in (ONE, TWO, THREE)}


def test_records_of_an_epoch_that_control_lost_are_not_given_up_without_a_word() -> None:
    async def story(mesh: Mesh) -> None:
        recovered(mesh)
        mesh.ends[TWO] = ends(2, 9)  # it became home, and four records of that are in the third region, too
        mesh.ends[THREE] = ends(2, 9)
        move = await mesh.begun(FIRST_KEY)
        running = asyncio.ensure_future(mesh.wave(move).run())
        await asyncio.sleep(30.0)
        assert move.stage is Stage.PROMISING
        assert move.waiting.promised == (2, 3)
        assert "regions [2, 3] follow epochs [2]" in move.waiting.fault and "from offset 5 on" in move.waiting.fault
        move.accept_loss = True
        await running
        assert mesh.home(FIRST_KEY) == (2, 5)
        assert mesh.row(FIRST_KEY).accept_loss

    play(story)


def test_a_home_that_has_everything_of_its_epoch_does_not_answer_for_an_epoch_that_control_lost() -> None:
    async def story(mesh: Mesh) -> None:
        recovered(mesh)
        mesh.silent = set()
        mesh.says = lambda _key, region: Says(told=8 if region == ONE else 5)
        mesh.ends |= {ONE: ends(1, 8), TWO: ends(2, 9)}
        move = await mesh.begun(FIRST_KEY)
        running = asyncio.ensure_future(mesh.wave(move).run())
        await asyncio.sleep(30.0)
        assert move.stage is Stage.PROMISING and "regions [2] follow epochs [2]" in move.waiting.fault
        running.cancel()

    play(story)


def test_regions_that_know_what_control_knows_are_moved_as_ever() -> None:
    async def story(mesh: Mesh) -> None:
        recovered(mesh)
        mesh.ends[TWO] = ends(1, 9)  # a branch of its own, in an epoch that is known
        move = await mesh.begun(FIRST_KEY)
        await mesh.wave(move).run()
        assert mesh.home(FIRST_KEY) == (2, 5)
        assert mesh.row(FIRST_KEY).epoch == FLOOR + 1

    assert play(story) < 1.0


def test_an_epoch_that_control_lost_and_nothing_was_published_in_holds_up_nothing() -> None:
    async def story(mesh: Mesh) -> None:
        recovered(mesh)
        mesh.ends[TWO] = ends(2, 5)
        move = await mesh.begun(FIRST_KEY)
        await mesh.wave(move).run()
        assert mesh.home(FIRST_KEY) == (2, 5)

    play(story)


def test_a_promise_counts_once_its_region_said_which_epoch_it_follows() -> None:
    async def story(mesh: Mesh) -> None:
        recovered(mesh)
        mesh.ends[TWO] = Unavailable("an election")
        move = await mesh.begun(FIRST_KEY)
        running = asyncio.ensure_future(mesh.wave(move).run())
        await asyncio.sleep(5.0)
        assert move.answered == {THREE}
        mesh.ends[TWO] = ends(1, 5)
        await running
        assert mesh.home(FIRST_KEY) == (2, 5)

    play(story)


def test_a_home_that_answers_first_does_not_end_a_move_before_enough_others_said_which_epoch_they_follow() -> None:
    async def story(mesh: Mesh) -> None:
        recovered(mesh)
        mesh.silent = set()
        mesh.says = lambda _key, region: Says(told=8) if region == ONE else Says(told=5, after_s=0.05)
        mesh.ends |= {ONE: ends(1, 8), TWO: ends(2, 9), THREE: ends(2, 9)}  # both hold what epoch 2 acknowledged
        move = await mesh.begun(FIRST_KEY)
        running = asyncio.ensure_future(mesh.wave(move).run())
        await asyncio.sleep(30.0)
        assert move.stage is Stage.PROMISING and "follow epochs [2]" in move.waiting.fault
        running.cancel()

    play(story)


@pytest.mark.parametrize("is_recovered", [True, False])
def test_a_home_that_answers_alone_keeps_everything_only_where_no_epoch_can_have_been_lost(
    *, is_recovered: bool
) -> None:
    async def story(mesh: Mesh) -> None:
        mesh.silent = {TWO, THREE}
        mesh.ends = {ONE: ends(1, 5)}
        if is_recovered:
            mesh.part.book.floor = FLOOR
        move = await mesh.begun(FIRST_KEY)
        running = asyncio.ensure_future(mesh.wave(move).run())
        await asyncio.sleep(30.0)
        assert (move.stage is Stage.PROMISING) is is_recovered
        running.cancel()

    play(story)


@pytest.mark.parametrize("is_recovered", [True, False])
def test_a_failover_after_a_recovery_is_refused_where_only_the_home_would_answer(*, is_recovered: bool) -> None:
    async def story(mesh: Mesh) -> None:
        mesh.silent = {TWO, THREE}
        if is_recovered:
            mesh.part.book.floor = FLOOR
        control = Control(mesh)
        asked = MoveAsked(keys=(FIRST_KEY,), kind=MoveKind.FORCED, target=RegionNumber(0))
        if is_recovered:
            with pytest.raises(NotEnoughRegions, match=r"2 of its regions \[1, 2, 3\]"):
                await control.desk.check_answers(asked)
        else:
            await control.desk.check_answers(asked)
        control.stop()

    play(story)


# --- planned moves --------------------------------------------------------------------------------------


def plan(others: dict[RegionNumber, LogEnds | Unavailable]) -> dict[StreamKey, GeorelayError]:
    """Return why a planned move to the second region is refused where `others` say where their logs end."""
    refused: dict[StreamKey, GeorelayError] = {}

    async def story(mesh: Mesh) -> None:
        mesh.silent = set()
        mesh.all_regions[FIRST_KEY] = (ONE, TWO, THREE, FOUR)
        mesh.part.book.floor = FLOOR
        mesh.ends = {ONE: ends(1, 5), TWO: ends(1, 5), **others}
        control = Control(mesh)
        report = control.desk.begin(MoveAsked(keys=(FIRST_KEY,), kind=MoveKind.PLANNED, target=TWO))
        await asyncio.sleep(40.0)
        refused.update(report.refused)
        control.stop()

    play(story)
    return refused


def test_a_planned_move_is_refused_while_regions_follow_an_epoch_that_control_lost() -> None:
    refused = plan({THREE: ends(2, 9), FOUR: ends(2, 9)})
    assert "epoch 2" in str(refused[FIRST_KEY]) and "georelay home failover" in str(refused[FIRST_KEY])


def test_a_planned_move_is_refused_while_a_region_does_not_say_which_epoch_it_follows() -> None:
    refused = plan({THREE: ends(1, 5), FOUR: Unavailable("an election")})
    assert "region 4 did not say" in str(refused[FIRST_KEY])


def test_a_stream_that_moved_since_the_recovery_needs_no_more_answers_than_before() -> None:
    asked: list[RegionNumber] = []

    async def story(mesh: Mesh) -> None:
        recovered(mesh)
        await mesh.wave(await mesh.begun(FIRST_KEY)).run()
        mesh.ends |= {TWO: ends(FLOOR + 1, 5), THREE: ends(FLOOR + 1, 5)}
        real = mesh.ask

        async def ask(region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> Mapping[str, Any]:
            if method == ENDS_METHOD:
                asked.append(region)
            return await real(region, method, body, timeout_s=timeout_s)

        mesh.ask = ask  # type: ignore[method-assign]
        control = Control(mesh)
        control.desk.begin(MoveAsked(keys=(FIRST_KEY,), kind=MoveKind.PLANNED, target=THREE))
        await asyncio.sleep(0.01)
        assert set(asked) == {TWO, THREE}
        control.stop()

    play(story)


def test_a_region_that_joins_while_a_planned_move_asks_around_did_not_say_which_epoch_it_follows() -> None:
    async def story(mesh: Mesh) -> None:
        recovered(mesh)
        mesh.silent = set()
        real = mesh.ask

        async def ask(region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> Mapping[str, Any]:
            mesh.all_regions[FIRST_KEY] = (ONE, TWO, THREE, FOUR)
            mesh.ends[FOUR] = Unavailable("it has just begun")
            return await real(region, method, body, timeout_s=timeout_s)

        mesh.ask = ask  # type: ignore[method-assign]
        control = Control(mesh)
        report = control.desk.begin(MoveAsked(keys=(FIRST_KEY,), kind=MoveKind.PLANNED, target=TWO))
        await asyncio.sleep(40.0)
        assert "region 4 did not say" in str(report.refused[FIRST_KEY])
        control.stop()

    play(story)


def test_a_planned_move_of_before_the_recovery_waits_while_regions_follow_an_epoch_that_control_lost() -> None:
    async def story(mesh: Mesh) -> None:
        mesh.silent = set()
        command = begin_command([FIRST_KEY], move_id="planned-1", kind=MoveKind.PLANNED, target=TWO)
        await mesh.propose("homes", command)
        recovered(mesh)
        # What the survivor does not know: the third region became home, and acknowledged with the second.
        mesh.ends = {ONE: ends(1, 8), TWO: ends(3, 9), THREE: ends(3, 9)}
        sealed: list[RegionNumber] = []
        plain = mesh.ask

        async def ask(region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> JsonObject:
            if method == SEAL_METHOD:
                sealed.append(region)
            return dict(await plain(region, method, body, timeout_s=timeout_s))

        mesh.ask = ask  # type: ignore[method-assign]
        control = Control(mesh)
        await asyncio.sleep(20.0)
        row = mesh.row(FIRST_KEY)
        assert row.moving is not None and row.epoch == 1 and sealed == []
        control.stop()

    play(story)
