"""Small rules of the log in memory and of its writes: each was once changed without another test noticing."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.ids import BrokerId, Term
from region.raft.core import (
    PENDING,
    AppendResponse,
    HardState,
    InvariantViolated,
    RaftLog,
)
from region.raft.core.durability import Durability

A, B, C, D = (BrokerId(n) for n in (1, 2, 3, 4))
STATE = HardState(Term(1), A)


def filled(item: Any, *terms: int) -> RaftLog[Any]:
    """Return a log of these terms, durable."""
    log: RaftLog[Any] = RaftLog()
    log.append([item(Term(term), index) for index, term in enumerate(terms, 1)])
    log.take_unwritten()
    log.made_stable(len(terms))
    return log


def accepted(index: int, *, to: BrokerId = A, rejected: bool = False) -> AppendResponse:
    return AppendResponse(from_=B, to=to, term=Term(1), index=index, rejected=rejected)


# -- what a write asks of the disk ------------------------------------------------------------------------------


def test_a_write_that_only_releases_answers_changes_nothing(item: Any) -> None:
    disk = Durability(filled(item, 1))
    disk.hold(accepted(1))
    write = disk.take_write(STATE)
    assert write is not None
    assert (write.hard_state, write.truncate_from, write.entries, write.responses) == (None, None, [], [accepted(1)])
    assert disk.take_write(STATE) is None


def test_a_write_of_entries_alone_stores_no_vote(item: Any) -> None:
    log = filled(item, 1)
    log.append([item(Term(1), 2)])
    write = Durability(log).take_write(STATE)
    assert write is not None and write.hard_state is None and [entry.index for entry in write.entries] == [2]


def test_a_write_may_only_cut(item: Any) -> None:
    log = filled(item, 1, 1)
    log.truncate_from(2)
    write = Durability(log).take_write(STATE)
    assert write is not None and (write.truncate_from, write.entries) == (2, [])


def test_a_vote_alone_is_written_and_told_once(item: Any) -> None:
    disk = Durability(filled(item, 1))
    disk.hard_state_changed()
    write = disk.take_write(STATE)
    assert write is not None and write.hard_state == STATE
    assert not disk.hard_state_durable and disk.take_write(STATE) is None
    assert disk.written(write, Term(1)) and disk.hard_state_durable


def test_the_completion_of_a_write_before_a_cut_makes_nothing_durable(item: Any) -> None:
    log = filled(item, 1)
    disk = Durability(log)
    writes = []
    for term in (2, 3, 4):  # three leaders in turn replace entry 2
        log.append([item(Term(term), 2)])
        write = disk.take_write(STATE)
        assert write is not None
        writes.append(write)
        log.truncate_from(2)
    log.append([item(Term(5), 2)])
    assert [disk.written(write, Term(1)) for write in writes] == [False, False, False]
    assert log.stable_index == 1


def test_the_completion_of_a_write_before_a_snapshot_makes_nothing_durable(item: Any) -> None:
    log = filled(item, 1)
    disk = Durability(log)
    log.append([item(Term(1), 2)])
    write = disk.take_write(STATE)
    assert write is not None
    log.truncate_from(2)
    log.reset(9, Term(1))
    assert not disk.written(write, Term(1)) and log.stable_index == 0


def test_acknowledgements_become_one_only_for_the_same_leader(item: Any) -> None:
    disk = Durability(filled(item, 1))
    for answer in (accepted(1), accepted(2), accepted(2), accepted(1), accepted(3, rejected=True), accepted(4, to=C)):
        disk.hold(answer)
    write = disk.take_write(STATE)
    assert write is not None
    assert [(m.index, m.rejected, m.to) for m in write.responses if isinstance(m, AppendResponse)] == [
        (2, False, A),
        (1, False, A),
        (3, True, A),
        (4, False, C),
    ]


# -- the log ----------------------------------------------------------------------------------------------------


def test_a_cut_at_the_first_entry_of_a_term_ends_that_term(item: Any) -> None:
    log = filled(item, 1, 1, 3)
    log.truncate_from(3)
    assert (log.last_term, log.term(2), log.term(3)) == (1, 1, None)
    log.append([item(Term(2), 3)])
    assert [log.term(index) for index in range(5)] == [0, 1, 1, 2, None]
    log.truncate_from(1)
    assert (log.last_term, log.last_index) == (0, 0)


def test_every_cut_begins_another_epoch_of_the_log(item: Any) -> None:
    log = filled(item, 1, 1, 1)
    seen = [log.log_epoch]
    for index in (3, 2):
        log.truncate_from(index)
        seen.append(log.log_epoch)
    log.reset(5, Term(2))
    seen.append(log.log_epoch)
    log.reset(7, Term(2))
    seen.append(log.log_epoch)
    assert seen == sorted(set(seen))


@pytest.mark.parametrize(("lo", "hi"), [(3, 3), (4, 3), (3, 12), (1, 12), (11, 12), (0, 3)])
def test_a_range_outside_the_log_is_refused_and_never_pending(item: Any, lo: int, hi: int) -> None:
    log = filled(item, *[1] * 10)
    log.evict(4)
    with pytest.raises(InvariantViolated, match=rf"entries \[{lo}, {hi}\) of a log \[1, 10\]"):
        log.entries(lo, hi, 1000)
    assert log.entries(4, 11, 1000) is PENDING


def test_a_cut_outside_the_log_is_refused(item: Any) -> None:
    log = filled(item, 1, 1)
    for index in (0, 3):
        with pytest.raises(InvariantViolated, match=rf"truncating from {index} a log \[1, 2\]"):
            log.truncate_from(index)
    with pytest.raises(InvariantViolated, match="index 3 became durable in a log that ends at 2"):
        log.made_stable(3)


def test_the_first_stored_entry_is_compared_as_well(item: Any) -> None:
    assert filled(item, 1).held([item(Term(2), 1), item(Term(2), 2)]) == 0


def test_no_term_is_looked_for_below_the_entry_before_the_log(item: Any) -> None:
    log = filled(item, 2, 2, 2, 5)
    log.advance_start(3)
    assert [log.floor(4, Term(term)) for term in (1, 2, 5)] == [2, 3, 4]


def test_adopted_entries_of_a_new_term_begin_a_run_and_of_the_same_term_do_not(item: Any) -> None:
    log = filled(item, 1, 1)
    log.adopt(4, [(3, Term(1))])
    log.adopt(6, [(5, Term(2)), (6, Term(3))])
    assert [log.term(index) for index in range(8)] == [0, 1, 1, 1, 1, 2, 3, None]
    assert (log.tail_bytes, log.bytes_after(6), log.stable_index) == (0, 0, 6)


def test_the_bytes_after_an_evicted_entry_are_those_in_memory(item: Any) -> None:
    log = filled(item, *[1] * 10)
    log.evict(4)
    assert [log.bytes_after(index) for index in (0, 3, 4, 5, 9, 10)] == [600, 600, 600, 500, 100, 0]


def test_a_cut_at_the_first_unwritten_entry_is_not_told_to_storage(item: Any) -> None:
    log = filled(item, 1)
    log.append([item(Term(1), 2)])
    log.truncate_from(2)
    assert not log.unwritten and log.take_unwritten() == (None, [])


def test_trimming_to_a_multiple_of_an_entry_evicts_no_entry_too_many(item: Any) -> None:
    for bytes_max, first in ((900, 2), (800, 3), (1000, 1)):
        log = filled(item, *[1] * 10)
        assert log.trim(bytes_max, 10) == first


def test_the_completions_of_two_writes_may_come_in_any_order(item: Any) -> None:
    log = filled(item, 1)
    disk = Durability(log)
    writes = []
    for index in (2, 3):
        disk.hard_state_changed()
        log.append([item(Term(1), index)])
        write = disk.take_write(STATE)
        assert write is not None
        writes.append(write)
    assert disk.written(writes[1], Term(1)) and disk.hard_state_durable and log.stable_index == 3
    assert disk.written(writes[0], Term(1)) and disk.hard_state_durable and log.stable_index == 3


def test_an_empty_log_ends_before_its_first_entry() -> None:
    assert RaftLog[Any](first_index=5, term_runs=[(4, Term(2))]).last_index == 4


@pytest.mark.parametrize(
    ("last_index", "runs"), [(1, []), (3, [(1, 1), (1, 2)]), (3, [(1, 1), (2, 1)]), (3, [(2, 1), (1, 2)])]
)
def test_terms_that_do_not_rise_with_the_indexes_are_no_log(last_index: int, runs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="do not describe a log"):
        RaftLog[Any](last_index=last_index, term_runs=[(index, Term(term)) for index, term in runs])


def test_a_run_of_terms_may_begin_at_an_index_that_is_the_number_of_the_term_before(item: Any) -> None:
    log: RaftLog[Any] = RaftLog(last_index=9, term_runs=[(1, Term(5)), (5, Term(6))])
    assert [log.term(index) for index in (1, 4, 5, 9)] == [5, 5, 6, 6]
