"""Forced moves after mesh control was recovered: regions may follow epochs that were lost with its majority."""

from __future__ import annotations

import asyncio

from georelay.errors import Unavailable
from georelay.ids import Epoch, Offset
from mesh.home.epoch_core import floor_of
from mesh.home.move_core import Stage
from region.homes.home_requests import LogEnds
from tests.unit.homes.model_wave import FIRST_KEY, ONE, THREE, TWO, Mesh, Says, play

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
