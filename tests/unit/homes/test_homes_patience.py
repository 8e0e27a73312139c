"""For whom a forced move waits before it chooses or accepts a loss: each stream for itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from georelay.errors import NotLeader
from georelay.ids import Epoch, Offset, RegionNumber
from mesh.home.home_row import HomeRow, MoveKind, Moving
from mesh.home.move_core import Move
from mesh.home.patience_core import GRACE_MS, LOSS_WAIT_MS, Patience
from mesh.home.promise_core import PromiseAnswer
from tests.unit.homes.model_wave import FIRST_KEY, FOUR, ONE, SECOND_KEY, THREE, TWO, Mesh, Says, play

MS = 1_000_000


def test_a_stream_with_enough_promises_makes_no_other_one_accept_a_loss_too_early() -> None:
    async def story(mesh: Mesh) -> None:
        mesh.all_regions[SECOND_KEY] = (ONE, TWO, THREE, FOUR)
        mesh.says = lambda _key, region: Says(told=9, after_s=2.0) if region == FOUR else Says(told=5)
        first, second = await mesh.begun(FIRST_KEY), await mesh.begun(SECOND_KEY, accept_loss=True)
        await mesh.wave(first, second).run()
        assert mesh.home(FIRST_KEY) == (2, 5)
        assert mesh.home(SECOND_KEY) == (4, 9)
        assert not mesh.row(SECOND_KEY).accept_loss, "three of four promised: nothing had to be accepted"

    play(story)


def test_a_loss_is_not_accepted_while_a_living_region_elects_a_leader() -> None:
    async def story(mesh: Mesh) -> None:
        loop = asyncio.get_running_loop()
        elected_s = loop.time() + 1.0
        mesh.says = lambda _key, region: (
            Says(told=9 if loop.time() >= elected_s else NotLeader(leader=-1)) if region == THREE else Says(told=5)
        )
        move = await mesh.begun(FIRST_KEY, accept_loss=True)
        await mesh.wave(move).run()
        assert mesh.home(FIRST_KEY) == (3, 9)

    play(story)


def test_a_living_region_that_cannot_promise_is_waited_for_until_a_deadline_and_no_longer() -> None:
    async def story(mesh: Mesh) -> None:
        mesh.says = lambda _key, region: Says(told=NotLeader(leader=-1) if region == THREE else 5)
        move = await mesh.begun(FIRST_KEY, accept_loss=True)
        await mesh.wave(move).run()
        assert mesh.home(FIRST_KEY) == (2, 5)
        assert mesh.row(FIRST_KEY).accept_loss

    assert 5.0 < play(story) < 9.0


def test_a_silent_region_holds_up_no_loss_that_is_accepted() -> None:
    async def story(mesh: Mesh) -> None:
        mesh.silent = {ONE, THREE}
        move = await mesh.begun(FIRST_KEY, accept_loss=True)
        await mesh.wave(move).run()
        assert mesh.home(FIRST_KEY) == (2, 5)

    assert play(story) < 1.0


def test_a_region_that_is_heard_again_is_waited_for_although_it_was_silent_for_long() -> None:
    async def story(mesh: Mesh) -> None:
        mesh.silent = {ONE, THREE}
        mesh.says = lambda _key, region: Says(told=9, after_s=2.0) if region == THREE else Says(told=5)
        move = await mesh.begun(FIRST_KEY)
        running = asyncio.ensure_future(mesh.wave(move).run())
        await asyncio.sleep(60.0)
        mesh.silent.remove(THREE)
        move.accept_loss = True
        await running
        assert mesh.home(FIRST_KEY) == (3, 9)

    play(story)


def promising(*regions: RegionNumber, accept_loss: bool = False) -> Move:
    """Return an attempt that these of three regions promised; two have to."""
    moving = Moving(move_id="m", kind=MoveKind.FORCED, epoch=Epoch(2), target=RegionNumber(0))
    first = HomeRow.first(b"p" * 16, 0, home=ONE, regions=(ONE, TWO, THREE), digest=b"d" * 16)
    move = Move(replace(first, moving=moving, last_epoch=Epoch(2)), level=2, needs_lease=False, accept_loss=accept_loss)
    for region in regions:
        move.promised(PromiseAnswer(region=region, length=Offset(5), digest=b"e" * 16))
    move.consider(waits_for_more=True)
    return move


def test_the_grace_of_a_stream_begins_when_its_own_promises_suffice() -> None:
    patience = Patience()
    move = promising(TWO)

    def is_over(now_ms: int, *, asked: tuple[RegionNumber, ...]) -> bool:
        return patience.is_over(move, asked=asked, is_heard=lambda _: True, now_ns=now_ms * MS)

    assert not is_over(0, asked=(ONE, THREE))
    move.promised(PromiseAnswer(region=THREE, length=Offset(5), digest=b"e" * 16))
    move.consider(waits_for_more=True)
    assert move.has_enough
    assert not is_over(1_000, asked=(ONE,))
    assert not is_over(1_000 + GRACE_MS - 1, asked=(ONE,))
    assert patience.is_in_grace((1_000 + GRACE_MS - 1) * MS)
    assert is_over(1_000 + GRACE_MS, asked=(ONE,))
    assert not patience.is_in_grace((1_000 + GRACE_MS) * MS)


def test_nobody_waits_in_the_grace_for_a_region_that_answered_or_is_silent() -> None:
    move = promising(TWO, THREE)
    assert Patience().is_over(move, asked=(), is_heard=lambda _: True, now_ns=0)
    assert Patience().is_over(move, asked=(ONE,), is_heard=lambda _: False, now_ns=0)
    assert not Patience().is_over(move, asked=(ONE,), is_heard=lambda _: True, now_ns=0)


def test_each_region_that_is_heard_has_a_deadline_of_its_own_before_a_loss_is_accepted() -> None:
    patience = Patience()
    move = promising(TWO, accept_loss=True)
    heard = {ONE}

    def is_over(now_ms: int) -> bool:
        return patience.is_over(move, asked=(), is_heard=lambda region: region in heard, now_ns=now_ms * MS)

    assert not is_over(0)
    heard.add(THREE)
    assert not is_over(1_000)
    assert not is_over(LOSS_WAIT_MS)
    assert is_over(1_000 + LOSS_WAIT_MS)
    heard.remove(ONE)
    assert is_over(2_000 + LOSS_WAIT_MS)
    heard.add(ONE)
    assert not is_over(3_000 + LOSS_WAIT_MS)
