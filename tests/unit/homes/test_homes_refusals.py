"""What the cores of moves refuse or let pass: late words about an attempt, full tables, generations without epochs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from georelay.errors import BadRequest
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from mesh.home import home_book_core, lease_core
from mesh.home.epoch_core import GENERATIONS_MAX, floor_of
from mesh.home.home_book_core import Beginning, Ending, HomeBook
from mesh.home.home_row import HomeRow, MoveKind, Moving
from mesh.home.lease_core import LEASE_MS, LeaseBook
from mesh.home.move_core import Move, Stage
from mesh.home.promise_core import PromiseAnswer
from mesh.replication.stream_header import first_digest

KEY = StreamKey(b"r" * 16, RegionNumber(0), 0)
ONE, TWO, THREE, FOUR = (RegionNumber(number) for number in (1, 2, 3, 4))
REGIONS = (ONE, TWO, THREE)
FIRST = HomeRow.first(KEY.topic_id, 0, home=ONE, regions=REGIONS, digest=first_digest(KEY))
MS = 1_000_000


def moving(kind: MoveKind, target: RegionNumber) -> HomeRow:
    return replace(
        FIRST, last_epoch=Epoch(2), moving=Moving(move_id="m", kind=kind, epoch=Epoch(2), target=target)
    )  # fmt: skip


def promise(region: RegionNumber, length: int) -> PromiseAnswer:
    return PromiseAnswer(region=region, length=Offset(length), digest=b"d" * 16)


# --- attempts ---------------------------------------------------------------------------------------


def test_a_planned_attempt_says_whom_it_waits_for_in_every_stage() -> None:
    move = Move(moving(MoveKind.PLANNED, THREE), level=2, needs_lease=False)
    assert (move.waiting.stage, move.waiting.regions) == (Stage.SEALING, (ONE,))
    move.sealed(Offset(9), b"s" * 16)
    assert (move.waiting.stage, move.waiting.regions) == (Stage.FOLLOWING, (THREE,))
    move.target_late()
    assert (move.waiting.stage, move.waiting.regions) == (Stage.ENDING, ())


def test_a_forced_attempt_hears_no_promise_after_its_choice_and_is_fenced_once() -> None:
    move = Move(moving(MoveKind.FORCED, RegionNumber(0)), level=2, needs_lease=True)
    assert not move.fenced(leases_are_over=True)
    for region in (TWO, THREE):
        move.promised(promise(region, 9))
    assert move.consider(waits_for_more=False)
    move.promised(promise(ONE, 99))
    assert move.answered == {TWO, THREE}
    assert (move.waiting.stage, move.waiting.regions) == (Stage.FENCING, (ONE,))
    assert move.fenced(leases_are_over=True)
    assert not move.fenced(leases_are_over=True)


def test_an_attempt_that_control_says_is_over_is_over_however_often_it_is_said() -> None:
    move = Move(moving(MoveKind.FORCED, TWO), level=2, needs_lease=False)
    move.superseded()
    assert move.is_over
    move.superseded()
    assert (move.stage, move.ending) == (Stage.OVER, None)


# --- the book ---------------------------------------------------------------------------------------


def begun(book: HomeBook, move_id: str, index: int) -> HomeRow:
    wish = Beginning(key=KEY, move_id=move_id, kind=MoveKind.FORCED, target=TWO)
    return book.begin(wish, first=FIRST, regions=REGIONS, index=index)


def ended(book: HomeBook, move_id: str, home: RegionNumber, start: int, index: int) -> HomeRow:
    ending = Ending(key=KEY, move_id=move_id, home=home, start=Offset(start), digest=b"d" * 16)
    return book.end(ending, regions=REGIONS, index=index)


def test_a_region_that_was_not_asked_cannot_become_home() -> None:
    book = HomeBook()
    begun(book, "m", 1)
    with pytest.raises(BadRequest, match="region 4 was not asked"):
        ended(book, "m", FOUR, 5, 2)
    assert ended(book, "m", TWO, 5, 2).home == TWO


def test_a_table_that_is_full_begins_no_further_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_book_core, "HOME_EPOCHS_MAX", 2)
    book = HomeBook()
    begun(book, "m", 1)
    ended(book, "m", TWO, 5, 2)
    with pytest.raises(BadRequest, match="moved too often"):
        begun(book, "n", 3)


@pytest.mark.parametrize("generation", [0, 1, GENERATIONS_MAX + 1])
def test_a_generation_that_was_not_recovered_has_no_epochs_of_its_own(generation: int) -> None:
    with pytest.raises(ValueError, match="no epochs of its own"):
        floor_of(generation, "0" * 32)


# --- leases -----------------------------------------------------------------------------------------


def test_a_book_of_leases_that_is_full_forgets_those_that_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_core, "HOLDERS_MAX", 2)
    book = LeaseBook()
    book.elected(0)
    book.granted(BrokerId(1001), now_ns=0)
    book.granted(BrokerId(2001), now_ns=LEASE_MS * MS)
    book.granted(BrokerId(3001), now_ns=LEASE_MS * MS + 1)
    assert [book.newest_ns(region) for region in REGIONS] == [None, LEASE_MS * MS, LEASE_MS * MS + 1]
    assert book.is_free(ONE, LEASE_MS * MS)
    assert not book.is_free(TWO, LEASE_MS * MS)
