"""Rows, the book, choices and attempts: values and decisions, one behaviour each."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import BadRequest, Busy, Diverged, Fenced, PolicyViolation
from georelay.fields import FieldError
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.home.failover_core import SILENT_MS, Silence
from mesh.home.home_book_core import EMPTY_EPOCHS_KEPT, Beginning, Ending, HomeBook
from mesh.home.home_row import HomeRow, MoveKind, Moving
from mesh.home.move_core import TRANSITIONS, Move, Stage, Step
from mesh.home.promise_core import PromiseAnswer, agreeing_length, choose, table_after, visible_rows
from mesh.replication.stream_header import first_digest

KEY = StreamKey(b"v" * 16, RegionNumber(0), 0)
ONE, TWO, THREE = RegionNumber(1), RegionNumber(2), RegionNumber(3)
REGIONS = (ONE, TWO, THREE)
DIGEST = first_digest(KEY)
FIRST = HomeRow.first(KEY.topic_id, 0, home=ONE, regions=REGIONS, digest=DIGEST)
MOVED = replace(
    FIRST, home=TWO, epoch=Epoch(3), start=Offset(7), table=((Epoch(1), Offset(0)), (Epoch(3), Offset(7))),
    homes=((Epoch(1), ONE), (Epoch(3), TWO)), last_epoch=Epoch(3), index=9,
)  # fmt: skip
FORCED = replace(
    MOVED, last_epoch=Epoch(4), moving=Moving(move_id="m", kind=MoveKind.FORCED, epoch=Epoch(4), target=RegionNumber(0))
)
PLANNED = replace(FORCED, moving=Moving(move_id="m", kind=MoveKind.PLANNED, epoch=Epoch(4), target=THREE))


def answer(region: RegionNumber, length: int, digest: bytes = b"d" * 16) -> PromiseAnswer:
    return PromiseAnswer(region=region, length=Offset(length), digest=digest)


def answers(*rows: PromiseAnswer) -> dict[RegionNumber, PromiseAnswer]:
    return {row.region: row for row in rows}


# --- rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [FIRST, MOVED, FORCED, PLANNED])
def test_a_row_survives_its_json(row: HomeRow) -> None:
    assert row.fault() == ""
    assert HomeRow.from_json(row.to_json()) == row


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("home", 0), ("epoch", 2), ("start", 8), ("digest", "00"), ("table", [[3, 7], [1, 0]]), ("table", []),
        ("homes", [[1, 1]]), ("homes", [[1, 1], [3, 1]]), ("regions", [2, 1, 3]), ("regions", [1, 3]),
        ("last_epoch", 2), ("index", -1), ("accept_loss", 1), ("table", [[1, 0], [3]]), ("partition", 1000),
        ("moving", {"move_id": "m", "kind": "planned", "epoch": 4, "target": 1}),
        ("moving", {"move_id": "", "kind": "forced", "epoch": 4, "target": 0}),
        ("more", 1),
    ],
)  # fmt: skip
def test_a_row_with_a_fault_is_refused(name: str, value: Any) -> None:
    with pytest.raises(FieldError):
        HomeRow.from_json({**MOVED.to_json(), name: value})


def test_a_row_says_who_was_home_in_an_epoch() -> None:
    assert (MOVED.home_in(Epoch(1)), MOVED.home_in(Epoch(2)), MOVED.home_in(Epoch(3))) == (ONE, None, TWO)


# --- agreeing prefixes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("local", "end", "table", "length"),
    [
        ([(1, 0)], 9, [(1, 0)], 9),
        ([(1, 0)], 9, [(1, 0), (3, 7)], 7),  # what lies beyond is an orphan branch
        ([(1, 0), (3, 7)], 12, [(1, 0), (3, 7)], 12),
        ([(1, 0), (2, 5)], 9, [(1, 0), (3, 7)], 5),  # epoch 2 never happened
        ([(1, 0), (2, 5), (3, 4)], 9, [(1, 0), (3, 4)], 9),  # a later EPOCH hides what lies beyond its start
        ([(1, 0), (2, 4), (3, 4)], 9, [(1, 0), (3, 4)], 9),  # an epoch without a record
        ([], 0, [(1, 0)], 0),
        ([(2, 0)], 3, [(1, 0)], 0),
    ],
)
def test_a_log_agrees_up_to_the_first_record_of_another_epoch(
    local: list[Any], end: int, table: list[Any], length: int
) -> None:
    assert agreeing_length(local, end=Offset(end), table=table) == length


def test_the_visible_rows_of_a_log_are_those_that_no_later_entry_hides() -> None:
    rows = [(Epoch(1), Offset(0)), (Epoch(2), Offset(8)), (Epoch(4), Offset(5)), (Epoch(5), Offset(5))]
    assert visible_rows(rows) == [rows[0], rows[2], rows[3]]


def test_an_epoch_that_would_begin_later_is_not_in_the_history() -> None:
    table = ((Epoch(1), Offset(0)), (Epoch(2), Offset(9)))
    assert table_after(table, epoch=Epoch(3), start=Offset(4)) == ((Epoch(1), Offset(0)), (Epoch(3), Offset(4)))


# --- choices ----------------------------------------------------------------------------------------


def test_the_longest_agreeing_log_continues() -> None:
    choice = choose(FORCED, answers(answer(ONE, 9), answer(THREE, 8)), regions=REGIONS, level=2)
    assert choice is not None
    assert (choice.home, choice.start, choice.kept_level, choice.is_enough) == (ONE, 9, 2, True)


def test_among_equals_the_target_wins_then_the_present_home_then_the_lowest() -> None:
    equal = answers(answer(ONE, 9), answer(TWO, 9), answer(THREE, 9))
    for preferred, home in ((THREE, THREE), (RegionNumber(0), TWO)):
        choice = choose(FORCED, equal, regions=REGIONS, level=2, preferred=preferred)
        assert choice is not None and choice.home == home
    choice = choose(FORCED, answers(answer(ONE, 9), answer(THREE, 9)), regions=REGIONS, level=2)
    assert choice is not None and choice.home == ONE


def test_a_home_that_answers_with_all_of_its_epoch_answers_for_every_level() -> None:
    choice = choose(FORCED, answers(answer(TWO, 12)), regions=REGIONS, level=2)
    assert choice is not None and choice.is_enough and choice.kept_level == 1


def test_a_home_that_never_reached_the_start_of_its_epoch_is_a_region_like_the_others() -> None:
    choice = choose(FORCED, answers(answer(TWO, 6)), regions=REGIONS, level=2)
    assert choice is not None and not choice.is_enough and choice.kept_level == 3


def test_too_few_answers_are_not_enough_and_say_what_they_keep() -> None:
    choice = choose(FORCED, answers(answer(ONE, 9)), regions=REGIONS, level=2)
    assert choice is not None and not choice.is_enough and choice.kept_level == 3


def test_answers_of_regions_that_do_not_hold_the_topic_do_not_count() -> None:
    assert choose(FORCED, answers(answer(RegionNumber(9), 99)), regions=REGIONS, level=2) is None


def test_equal_lengths_with_different_digests_are_a_divergence() -> None:
    with pytest.raises(Diverged, match="different records"):
        choose(FORCED, answers(answer(ONE, 9), answer(THREE, 9, b"e" * 16)), regions=REGIONS, level=2)


# --- the book ---------------------------------------------------------------------------------------


def begin(book: HomeBook, move_id: str, kind: MoveKind, target: RegionNumber, *, index: int) -> HomeRow:
    wish = Beginning(key=KEY, move_id=move_id, kind=kind, target=target)
    return book.begin(wish, first=FIRST, regions=REGIONS, index=index)


def end(book: HomeBook, move_id: str, home: RegionNumber, start: int, *, index: int) -> HomeRow:
    ending = Ending(key=KEY, move_id=move_id, home=home, start=Offset(start), digest=DIGEST)
    return book.end(ending, regions=REGIONS, index=index)


def test_an_attempt_spends_its_epoch_number_whatever_becomes_of_it() -> None:
    book = HomeBook()
    assert begin(book, "a", MoveKind.FORCED, RegionNumber(0), index=1).last_epoch == 2
    assert begin(book, "b", MoveKind.FORCED, RegionNumber(0), index=2).last_epoch == 3
    row = end(book, "b", TWO, 5, index=3)
    assert (row.epoch, row.table, row.moving) == (3, ((1, 0), (3, 5)), None)


def test_to_give_up_is_to_commit_the_same_home_in_the_new_epoch() -> None:
    book = HomeBook()
    begin(book, "a", MoveKind.PLANNED, TWO, index=1)
    row = end(book, "a", ONE, 4, index=2)
    assert (row.home, row.epoch, row.start) == (ONE, 2, 4)


def test_the_same_wish_again_is_the_same_attempt() -> None:
    book = HomeBook()
    assert begin(book, "a", MoveKind.PLANNED, TWO, index=1) == begin(book, "a", MoveKind.PLANNED, TWO, index=2)


def test_a_planned_move_waits_for_an_attempt_and_a_forced_one_takes_its_place() -> None:
    book = HomeBook()
    begin(book, "a", MoveKind.PLANNED, TWO, index=1)
    with pytest.raises(Busy):
        begin(book, "b", MoveKind.PLANNED, THREE, index=2)
    begin(book, "c", MoveKind.FORCED, RegionNumber(0), index=3)
    with pytest.raises(Fenced):
        end(book, "a", TWO, 4, index=4)


@pytest.mark.parametrize(
    ("kind", "target", "error"),
    [
        (MoveKind.PLANNED, ONE, PolicyViolation),
        (MoveKind.PLANNED, RegionNumber(8), PolicyViolation),
        (MoveKind.PLANNED, RegionNumber(0), BadRequest),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(kind: MoveKind, target: RegionNumber, error: type[Exception]) -> None:
    book = HomeBook()
    with pytest.raises(error):
        begin(book, "a", kind, target, index=1)
    assert len(book) == 0


def test_a_planned_move_gives_up_nothing() -> None:
    book = HomeBook()
    begin(book, "a", MoveKind.PLANNED, TWO, index=1)
    end(book, "a", TWO, 9, index=2)
    begin(book, "b", MoveKind.PLANNED, ONE, index=3)
    with pytest.raises(BadRequest, match="cannot start"):
        end(book, "b", ONE, 8, index=4)


def test_rows_are_given_in_the_order_of_their_positions() -> None:
    book = HomeBook()
    for partition in range(5):
        key = replace_partition(partition)
        first = replace(FIRST, partition=partition)
        wish = Beginning(key=key, move_id="a", kind=MoveKind.FORCED, target=RegionNumber(0))
        book.begin(wish, first=first, regions=REGIONS, index=1 + partition // 3)
    listed = book.since((0, b"", -1, -1), limit=2)
    assert [row.partition for row in listed] == [0, 1]
    rest = book.since((1, KEY.topic_id, 1, 0), limit=10)
    assert [(row.index, row.partition) for row in rest] == [(1, 2), (2, 3), (2, 4)]


def replace_partition(partition: int) -> StreamKey:
    return StreamKey(KEY.topic_id, KEY.origin, partition)


def test_the_book_survives_its_snapshot() -> None:
    book = HomeBook()
    begin(book, "a", MoveKind.FORCED, RegionNumber(0), index=1)
    again = HomeBook.restored(book.snapshot(), rows_max=10)
    assert again.snapshot() == book.snapshot()
    with pytest.raises(FieldError):
        HomeBook.restored(book.snapshot(), rows_max=0)


def test_a_home_that_moves_for_ever_keeps_a_short_table() -> None:
    book = HomeBook()
    for turn in range(3 * EMPTY_EPOCHS_KEPT):
        begin(book, str(turn), MoveKind.FORCED, RegionNumber(0), index=2 * turn + 1)
        row = end(book, str(turn), TWO if turn % 2 else ONE, 5 if turn > 3 else 0, index=2 * turn + 2)
    assert len(row.table) <= EMPTY_EPOCHS_KEPT + 1
    assert row.epoch == 3 * EMPTY_EPOCHS_KEPT + 1
    assert row.fault() == ""


# --- attempts ---------------------------------------------------------------------------------------


def test_every_stage_and_step_is_decided() -> None:
    assert set(TRANSITIONS.values()) <= set(Stage)
    for stage, step in itertools.product(Stage, Step):
        if stage is Stage.OVER:
            assert (stage, step) not in TRANSITIONS
    for stage in set(Stage) - {Stage.OVER}:
        assert TRANSITIONS[stage, Step.SUPERSEDED] is Stage.OVER


def test_a_planned_attempt_ends_at_its_target_once_that_has_everything() -> None:
    move = Move(PLANNED, level=2, needs_lease=True)
    move.sealed(Offset(9), b"s" * 16)
    assert not move.target_arrived(PLANNED.epoch, Offset(8))
    assert move.target_arrived(PLANNED.epoch, Offset(9))
    assert move.ending is not None and (move.ending.home, move.ending.start) == (THREE, 9)
    move.committed()
    assert move.is_over


def test_a_target_with_a_longer_branch_of_an_older_epoch_has_not_arrived() -> None:
    move = Move(PLANNED, level=2, needs_lease=False)
    move.sealed(Offset(9), b"s" * 16)
    assert not move.target_arrived(Epoch(1), Offset(100))
    assert move.stage is Stage.FOLLOWING


def test_a_target_that_is_late_leaves_the_home_where_it_was() -> None:
    move = Move(PLANNED, level=2, needs_lease=False)
    move.sealed(Offset(9), b"s" * 16)
    move.target_late()
    assert move.ending is not None and move.ending.home == TWO


def test_a_forced_attempt_waits_for_the_lease_of_a_home_that_did_not_answer() -> None:
    move = Move(FORCED, level=2, needs_lease=True)
    move.promised(answer(ONE, 9))
    move.promised(answer(THREE, 9))
    assert move.consider(waits_for_more=False)
    assert not move.fenced(leases_are_over=False)
    assert move.fenced(leases_are_over=True)
    assert move.stage is Stage.ENDING


def test_a_home_that_promised_need_not_be_waited_for() -> None:
    move = Move(FORCED, level=2, needs_lease=True)
    move.promised(answer(TWO, 9))
    assert move.consider(waits_for_more=True)
    assert move.fenced(leases_are_over=False)


def test_more_answers_are_waited_for_while_they_could_make_the_orphan_branch_shorter() -> None:
    move = Move(FORCED, level=2, needs_lease=False)
    move.promised(answer(ONE, 9))
    move.promised(answer(THREE, 8))
    assert not move.consider(waits_for_more=True)
    assert move.consider(waits_for_more=False)


def test_a_loss_is_accepted_only_when_nobody_else_will_answer() -> None:
    move = Move(FORCED, level=2, needs_lease=False, accept_loss=True)
    move.promised(answer(ONE, 9))
    assert not move.consider(waits_for_more=True)
    assert move.consider(waits_for_more=False)
    assert move.fenced(leases_are_over=False)
    assert move.ending is not None and move.ending.accept_loss


def test_a_row_without_an_attempt_is_no_move() -> None:
    with pytest.raises(ValueError, match="nothing is under way"):
        Move(MOVED, level=2, needs_lease=False)


def test_a_chosen_region_that_is_silent_before_its_epoch_begins_is_left_out() -> None:
    row = replace(FORCED, regions=(ONE, TWO, THREE, RegionNumber(4), RegionNumber(5)))
    move = Move(row, level=3, needs_lease=True)
    for region, length in ((ONE, 9), (THREE, 8), (RegionNumber(4), 7)):
        move.promised(answer(region, length))
    assert move.consider(waits_for_more=False)
    assert not move.note_silent(lambda region: True)
    assert move.note_silent(lambda region: region != ONE)
    assert move.stage is Stage.PROMISING and move.answered == {THREE, 4}
    assert not move.consider(waits_for_more=False), "two of five are fewer than three regions' records need"
    assert (move.waiting.needed, move.waiting.promised, move.waiting.regions) == (3, (THREE, 4), (ONE, TWO, 5))
    move.promised(answer(RegionNumber(5), 3))
    assert move.consider(waits_for_more=False) and move.fenced(leases_are_over=True)
    assert move.ending is not None and (move.ending.home, move.ending.start) == (THREE, 8)


# --- silence ----------------------------------------------------------------------------------------


def lost(silence: Silence, now_ms: int, *, voters: int = 3, leased: tuple[RegionNumber, ...] = REGIONS) -> list[int]:
    return list(silence.lost(REGIONS, leased=leased, voters=voters, now_ns=now_ms * 1_000_000))


def test_silence_counts_from_the_election_at_the_earliest() -> None:
    silence = Silence()
    silence.heard(TWO, 0)
    silence.elected(10_000 * 1_000_000)
    assert lost(silence, 10_000 + SILENT_MS - 1) == []
    assert lost(silence, 10_000 + SILENT_MS) == [1, 2, 3]


def test_a_region_is_lost_until_it_is_heard_again() -> None:
    silence = Silence()
    silence.elected(0)
    silence.heard(ONE, 1_000_000_000)
    assert lost(silence, SILENT_MS) == [2, 3]
    assert lost(silence, SILENT_MS + 100) == [2, 3]
    silence.heard(TWO, 3_000_000_000)
    assert lost(silence, 3_000) == [1, 3]
    assert lost(silence, 3_000 + SILENT_MS) == [1, 2, 3]


def test_nobody_has_to_look_before_the_one_that_is_silent_the_longest_may_be_lost() -> None:
    silence = Silence()
    assert silence.left_ms(REGIONS, 5_000_000_000) == SILENT_MS, "who does not lead finds nobody lost"
    silence.elected(0)
    for region in REGIONS:
        silence.heard(region, 1_000_000_000)
    assert silence.left_ms(REGIONS, 1_400_000_000) == SILENT_MS - 400
    silence.heard(ONE, 1_400_000_000)
    left_ms = silence.left_ms(REGIONS, 1_400_000_000)
    assert lost(silence, 1_400 + left_ms - 1) == [] and lost(silence, 1_400 + left_ms) == [2, 3]
    assert silence.left_ms(REGIONS, 60_000_000_000) == 0


def test_nothing_is_lost_with_two_voters_or_without_leases() -> None:
    silence = Silence()
    silence.elected(0)
    assert lost(silence, 60_000, voters=2) == []
    assert lost(silence, 60_000, leased=()) == []
    assert lost(silence, 60_000, leased=(ONE,)) == [1]


def test_who_does_not_lead_finds_nobody_silent() -> None:
    assert Silence().silent_ms(ONE, 10**18) == 0
