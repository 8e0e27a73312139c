"""Each category has a smallest history that breaks it, and one beside it that does not."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest

from loadtest.history.checker_core import check
from loadtest.history.operation import HistoryError, Outcome
from loadtest.history.verdict import EXAMPLES_MAX, Category

HistoryBed: TypeAlias = Any  # of conftest


def found(bed: HistoryBed) -> dict[Category, int]:
    return dict(check(bed.operations).counts)


def test_a_history_in_which_nothing_happened_is_valid(bed: HistoryBed) -> None:
    assert found(bed) == {}


def test_an_acknowledged_record_that_a_reader_jumps_over_is_lost(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b", 1), bed.send("c", 2)
    bed.read((0, "a"), (2, "c"))
    assert found(bed) == {Category.LOST_WRITE: 1, Category.POLL_SKIP: 1}


def test_an_acknowledged_record_above_all_that_was_read_is_not_lost(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b", 1)
    bed.read((0, "a"))
    assert found(bed) == {}


def test_it_is_unseen_when_that_read_was_the_complete_one(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b", 1)
    bed.read((0, "a"), final=True)
    assert found(bed) == {Category.UNSEEN: 1}


def test_a_record_that_was_never_acknowledged_may_be_missing(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b"), bed.send("c", 1)
    bed.read((0, "a"), (1, "c"), final=True)
    assert found(bed) == {}


def test_a_record_acknowledged_without_an_offset_must_be_in_the_complete_read(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b", outcome=Outcome.OK), bed.send("c", 1)
    bed.read((0, "a"), (1, "c"), final=True)
    assert found(bed) == {Category.LOST_WRITE: 1}


def test_a_record_acknowledged_without_an_offset_may_be_missing_where_nobody_read_everything(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b", outcome=Outcome.OK)
    bed.read((0, "a"))
    assert found(bed) == {}


def test_a_record_acknowledged_without_an_offset_may_be_below_the_log_start(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b", outcome=Outcome.OK), bed.send("c", 2)
    bed.start(2)
    bed.read((2, "c"), position=2, final=True)
    assert found(bed) == {}


def test_a_record_acknowledged_without_an_offset_is_at_the_one_where_it_was_read(bed: HistoryBed) -> None:
    bed.send("a", process="one", outcome=Outcome.OK), bed.send("b", 0, process="other")
    bed.end(1)
    bed.read((0, "b"), (1, "a"), final=True)
    assert found(bed) == {Category.OVERTAKEN_SEND: 1, Category.STALE_END: 1}


def test_what_is_missing_in_one_site_is_lost_although_another_has_it(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b", 1)
    bed.read((0, "a"), (1, "b"), process="us", site="us", position=0, final=True)
    bed.read((1, "b"), process="eu", site="eu", position=1, final=True)
    assert found(bed) == {Category.LOST_WRITE: 1}


def test_a_record_below_a_log_start_that_was_announced_may_be_gone(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b", 1)
    bed.start(1)
    bed.read((1, "b"), position=1, final=True)
    assert found(bed) == {}


def test_a_record_that_only_a_reader_saw_has_vanished_when_the_complete_read_lacks_it(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b")
    bed.read((0, "a"), (1, "b"))
    bed.read((0, "a"), process="last", final=True)
    assert found(bed) == {Category.VANISHED: 1}


def test_a_record_that_a_reader_saw_and_the_complete_read_too_has_not(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b")
    bed.read((0, "a"), (1, "b"))
    bed.read((0, "a"), (1, "b"), process="last", final=True)
    assert found(bed) == {}


def test_one_value_at_two_offsets_is_a_duplicate(bed: HistoryBed) -> None:
    bed.send("a", 0)
    bed.read((0, "a"), (1, "a"))
    assert found(bed) == {Category.DUPLICATE: 1}


def test_one_value_read_twice_at_one_offset_is_none(bed: HistoryBed) -> None:
    bed.send("a", 0)
    bed.read((0, "a"))
    bed.read((0, "a"), process="other")
    assert found(bed) == {}


def test_one_value_in_two_keys_is_none(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("a", 4, key="orders/1", process="q")
    bed.read((0, "a"))
    bed.read((4, "a"), key="orders/1", process="other", position=4)
    assert found(bed) == {}


def test_two_values_at_one_offset_are_inconsistent(bed: HistoryBed) -> None:
    bed.send("a"), bed.send("b", process="q")
    bed.read((0, "a"), process="us")
    bed.read((0, "b"), process="eu")
    assert found(bed) == {Category.INCONSISTENT_OFFSET: 1}


def test_an_acknowledgement_counts_as_what_is_at_its_offset(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b", process="q")
    bed.read((0, "b"))
    assert found(bed)[Category.INCONSISTENT_OFFSET] == 1


def test_a_later_record_of_a_producer_in_front_is_non_monotonic(bed: HistoryBed) -> None:
    bed.send("a", 1), bed.send("b", 0)
    assert found(bed) == {Category.NON_MONOTONIC_SEND: 1}


def test_it_is_so_when_only_a_reader_knows_where_they_are(bed: HistoryBed) -> None:
    bed.send("a"), bed.send("b")
    bed.read((0, "b"), (1, "a"))
    assert found(bed) == {Category.NON_MONOTONIC_SEND: 1}


def test_what_a_producer_has_given_up_may_be_stored_behind_what_it_sent_later(bed: HistoryBed) -> None:
    bed.send("a", loose=True), bed.send("b", 0, loose=True), bed.send("c", 1, loose=True)
    bed.read((0, "b"), (1, "c"), (2, "a"))
    assert found(bed) == {}
    bed.send("d", 4, loose=True), bed.send("e", 3, loose=True)
    assert found(bed) == {Category.NON_MONOTONIC_SEND: 1}


def test_two_producers_at_the_same_time_have_no_order(bed: HistoryBed) -> None:
    bed.send("a", 1, at=(0, 30)), bed.send("b", 0, process="q", at=(10, 20))
    assert found(bed) == {}


def test_a_record_sent_after_anothers_acknowledgement_must_not_overtake_it(bed: HistoryBed) -> None:
    bed.send("a", 1, at=(0, 10)), bed.send("b", 0, process="q", at=(11, 20))
    assert found(bed) == {Category.OVERTAKEN_SEND: 1}


def test_a_reader_that_goes_back_by_itself_is_non_monotonic(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b", 1)
    bed.read((0, "a"), (1, "b"))
    bed.read((0, "a"), (1, "b"))
    assert found(bed) == {Category.NON_MONOTONIC_POLL: 1}


def test_a_reader_that_asks_to_go_back_is_not(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b", 1)
    bed.read((0, "a"), (1, "b"))
    bed.read((0, "a"), (1, "b"), position=0)
    assert found(bed) == {}


def test_records_below_the_position_asked_for_are_non_monotonic(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b", 1)
    bed.read((0, "a"), (1, "b"), position=1)
    assert found(bed) == {Category.NON_MONOTONIC_POLL: 1}


def test_a_jump_over_a_known_record_is_a_skip(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b", 1), bed.send("c", 2)
    bed.read((0, "a"))
    bed.read((2, "c"))
    bed.read((1, "b"), process="other", position=1)
    assert found(bed) == {Category.POLL_SKIP: 1}


def test_a_jump_over_offsets_that_hold_no_record_is_none(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("c", 2)
    bed.read((0, "a"))
    bed.read((2, "c"))
    assert found(bed) == {}


def test_a_first_read_at_the_wrong_place_is_a_skip_when_the_position_was_given(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b", 1)
    bed.read((1, "b"), position=0)
    bed.read((0, "a"), process="other")
    assert found(bed) == {Category.POLL_SKIP: 1}


def test_a_refused_value_that_is_read_is_an_aborted_read(bed: HistoryBed) -> None:
    bed.send("a", outcome=Outcome.FAIL)
    bed.read((0, "a"))
    assert found(bed) == {Category.ABORTED_READ: 1}


def test_a_value_with_unknown_outcome_may_be_read(bed: HistoryBed) -> None:
    bed.send("a", outcome=Outcome.UNKNOWN)
    bed.read((0, "a"))
    assert found(bed) == {}


def test_an_end_that_does_not_count_what_was_acknowledged_before_is_stale(bed: HistoryBed) -> None:
    bed.send("a", 0)
    bed.end(0)
    assert found(bed) == {Category.STALE_END: 1}


def test_an_end_asked_for_before_the_acknowledgement_is_not(bed: HistoryBed) -> None:
    bed.send("a", 0, at=(0, 20))
    bed.end(0, at=(20, 30))
    assert found(bed) == {}


def test_an_end_that_promises_nothing_may_be_old(bed: HistoryBed) -> None:
    bed.send("a", 0)
    bed.end(0, linear=False)
    assert found(bed) == {}


def test_ends_that_go_back_are_stale(bed: HistoryBed) -> None:
    bed.end(2)
    bed.end(1)
    assert found(bed) == {Category.STALE_END: 1}


def test_an_end_below_what_was_read_before_is_stale(bed: HistoryBed) -> None:
    bed.send("a")
    bed.read((0, "a"))
    bed.end(0)
    assert found(bed) == {Category.STALE_END: 1}


def test_a_value_that_nobody_sent_is_wrong_bytes(bed: HistoryBed) -> None:
    bed.send("a", 0)
    bed.read((0, "a"), (1, "bytes:00"))
    assert found(bed) == {Category.WRONG_BYTES: 1}


def test_a_value_that_was_sent_to_another_key_is_wrong_bytes(bed: HistoryBed) -> None:
    bed.send("a", 0, key="orders/1")
    bed.read((0, "a"))
    assert found(bed) == {Category.WRONG_BYTES: 1}


def test_a_value_sent_twice_cannot_be_judged(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("a", 1)
    with pytest.raises(HistoryError, match="sent twice"):
        check(bed.operations)


def test_an_operation_that_is_there_twice_cannot_be_judged(bed: HistoryBed) -> None:
    operation = bed.send("a", 0)
    with pytest.raises(HistoryError, match="p#0 is there twice"):
        check([operation, operation])


def test_the_verdict_names_the_counter_example(bed: HistoryBed) -> None:
    bed.send("a", 0), bed.send("b", 1)
    bed.read((0, "a"), site="us", final=True)
    assert check(bed.operations).describe() == (
        "NOT VALID: 1 keys, 2 acknowledged, 0 refused, 0 unknown, 1 records read\n"
        "  1 x unseen at the end: acknowledged, above everything that the complete read returned\n"
        "    orders/0: 'b' was acknowledged at offset 1, all that is there ends at 0 in us\n"
        "      [0.000000 .. 0.000000] p#1 produce 'b' to orders/0 -> offset 1\n"
        "      [0.000000 .. 0.000000] reader#0 final fetch orders/0@us on -> [0='a']"
    )


def test_every_finding_is_counted_and_a_few_are_shown(bed: HistoryBed) -> None:
    for number in range(3 * EXAMPLES_MAX):
        bed.send(f"a{number}", number)
    bed.read(final=True)
    verdict = check(bed.operations)
    assert (verdict.count(Category.UNSEEN), len(verdict.findings)) == (3 * EXAMPLES_MAX, EXAMPLES_MAX)
    assert not verdict.is_valid
