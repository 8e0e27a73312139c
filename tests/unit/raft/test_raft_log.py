"""The in-memory view of the log."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.ids import BrokerId, Term
from region.raft.core import (
    PENDING,
    HardState,
    InvariantViolated,
    Membership,
    RaftConfig,
    RaftLog,
    RaftNode,
    Snapshot,
)
from region.raft.core.durability import Durability


def filled(item: Any, *terms: int) -> RaftLog[Any]:
    log: RaftLog[Any] = RaftLog()
    log.append([item(Term(t), i) for i, t in enumerate(terms, 1)])
    log.take_unwritten()
    log.made_stable(len(terms))
    return log


def test_terms_are_kept_as_runs(item: Any) -> None:
    log = filled(item, 1, 1, 3, 3, 3, 7)
    assert [log.term(i) for i in range(8)] == [0, 1, 1, 3, 3, 3, 7, None]


def test_floor_skips_whole_terms(item: Any) -> None:
    log = filled(item, 1, 1, 3, 3, 3, 7)
    assert [log.floor(6, Term(t)) for t in (0, 1, 2, 3, 6, 7, 9)] == [0, 2, 2, 5, 5, 6, 6]
    assert log.floor(4, Term(9)) == 4


def test_entries_are_cut_to_bytes_but_never_to_nothing(item: Any) -> None:
    log = filled(item, *[1] * 10)
    for bytes_max in range(0, 1100, 50):
        found = log.entries(3, 11, bytes_max)
        assert found is not PENDING and len(found) == min(8, max(1, bytes_max // 100))


def test_evicted_entries_are_pending_and_the_last_one_stays(item: Any) -> None:
    log = filled(item, *[1] * 10)
    assert log.evict(4) == 5
    assert log.entries(4, 6, 1000) is PENDING
    found = log.entries(5, 7, 1000)
    assert found is not PENDING and [e.index for e in found] == [5, 6]
    assert log.evict(99) == 10 and log.last_entry() == item(Term(1), 10)


def test_what_is_not_durable_is_never_evicted(item: Any) -> None:
    log = filled(item, 1, 1)
    log.append([item(Term(1), 3), item(Term(1), 4)])
    assert log.evict(4) == 3


@pytest.mark.parametrize(
    ("bytes_max", "up_to", "first"), [(1000, 10, 1), (999, 10, 2), (250, 10, 9), (250, 4, 5), (0, 10, 10)]
)
def test_trimming_evicts_just_enough(item: Any, bytes_max: int, up_to: int, first: int) -> None:
    log = filled(item, *[1] * 10)
    assert log.trim(bytes_max, up_to) == first
    assert log.tail_bytes == (11 - first) * 100


def test_a_truncation_into_evicted_entries_leaves_an_empty_tail_that_grows_again(item: Any) -> None:
    log = filled(item, *[1] * 10)
    log.evict(8)
    log.truncate_from(4)
    assert (log.last_index, log.tail_first, log.last_entry(), log.tail_bytes) == (3, 4, None, 0)
    log.append([item(Term(2), 4)])
    assert log.take_unwritten() == (4, [item(Term(2), 4)])
    assert log.term(4) == 2 and log.stable_index == 3


def test_two_truncations_before_a_write_become_the_lower_one(item: Any) -> None:
    log = filled(item, *[1] * 6)
    log.truncate_from(5)
    log.append([item(Term(2), 5)])
    log.truncate_from(3)
    log.append([item(Term(3), 3)])
    assert log.take_unwritten() == (3, [item(Term(3), 3)])
    assert not log.unwritten


def test_a_truncation_of_entries_that_storage_never_saw_is_not_told_to_it(item: Any) -> None:
    log = filled(item, 1)
    log.append([item(Term(1), 2), item(Term(1), 3)])
    log.truncate_from(3)
    log.append([item(Term(2), 3)])
    assert log.take_unwritten() == (None, [item(Term(1), 2), item(Term(2), 3)])


def test_a_recovered_log_needs_only_its_last_entries(item: Any) -> None:
    log = RaftLog(first_index=4, term_runs=[(2, Term(1)), (6, Term(5))], last_index=8, tail=[item(Term(5), 8)])
    assert [log.term(i) for i in range(2, 10)] == [None, 1, 1, 1, 5, 5, 5, None]
    assert log.entries(4, 9, 100) is PENDING
    assert (log.stable_index, log.unwritten, log.last_term) == (8, False, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"last_index": 3},
        {"last_index": 3, "term_runs": [(1, Term(2)), (2, Term(1))]},
        {"last_index": 3, "term_runs": [(4, Term(2))]},
        {"last_index": 3, "term_runs": [(1, Term(2))], "tail": [(1, 3)]},
        {"last_index": 3, "term_runs": [(1, Term(2))], "tail": [(2, 2)]},
        {"first_index": 3, "last_index": 3, "term_runs": [(1, Term(2))], "tail": [(2, 2), (2, 3)]},
    ],
)
def test_a_recovered_log_that_contradicts_itself_is_refused(item: Any, wrong: dict[str, Any]) -> None:
    tail = [item(Term(t), i) for t, i in wrong.get("tail", [])]
    with pytest.raises(ValueError, match=r"log|tail"):
        RaftLog(**{**wrong, "tail": tail})


def test_wrong_ranges_are_our_bug(item: Any) -> None:
    log = filled(item, 1, 1)
    for lo, hi in ((0, 1), (1, 4), (2, 2), (3, 4)):
        with pytest.raises(InvariantViolated):
            log.entries(lo, hi, 100)
    with pytest.raises(InvariantViolated):
        log.truncate_from(3)
    with pytest.raises(InvariantViolated):
        log.made_stable(3)
    with pytest.raises(InvariantViolated):
        log.append([item(Term(0), 3)])


def test_a_hard_state_older_than_the_log_is_refused(item: Any) -> None:
    config = RaftConfig(id=BrokerId(1), voters=(BrokerId(1),))
    with pytest.raises(InvariantViolated, match="ends in term 3"):
        RaftNode(config, filled(item, 3), HardState(Term(2)), None, item)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [{"voters": (), "outgoing": (1,)}, {"voters": (1, 1)}, {"voters": (0,)}, {"voters": (1, 2), "learners": (2,)}],
)
def test_a_membership_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"voter|twice|vote"):
        Membership(**wrong)


@pytest.mark.parametrize("wrong", [{"election_ticks": 1}, {"heartbeat_ticks": 10}, {"uncommitted_bytes_max": 0}])
def test_a_configuration_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"election_ticks|positive"):
        RaftConfig(id=BrokerId(1), voters=(BrokerId(1),), **wrong)


def test_a_reset_forgets_what_storage_was_still_to_be_told(item: Any) -> None:
    log = filled(item, 1, 1, 1)
    log.truncate_from(2)
    log.append([item(Term(2), 2)])
    log.reset(9, Term(2))
    assert not log.unwritten and log.take_unwritten() == (None, [])
    assert (log.first_index, log.last_index, log.stable_index, log.tail_bytes) == (10, 9, 0, 0)
    assert [log.term(i) for i in (0, 8, 9, 10)] == [None, None, 2, None]
    log.append([item(Term(3), 10)])
    assert log.take_unwritten() == (None, [item(Term(3), 10)]) and log.floor(10, Term(2)) == 9


def test_an_install_alone_is_a_write(item: Any) -> None:
    disk = Durability[Any](filled(item, 1))
    assert not disk.pending
    membership = Membership(voters=(BrokerId(1),))
    disk.install(
        Snapshot(
            from_=BrokerId(2),
            to=BrokerId(1),
            term=Term(1),
            index=5,
            snapshot_term=Term(1),
            membership=membership,
            data=b"",
        )
    )
    assert disk.pending
    write = disk.take_write(HardState(Term(1)))
    assert write is not None and write.install is not None and not disk.pending
    again = disk.take_write(HardState(Term(1)))
    assert again is None


def test_adopted_entries_continue_the_terms(item: Any) -> None:
    log = filled(item, 1, 1, 3)
    log.adopt(9, [(4, Term(3)), (7, Term(5))])
    assert [log.term(i) for i in range(1, 11)] == [1, 1, 3, 3, 3, 3, 5, 5, 5, None]
    assert (log.last_index, log.stable_index, log.tail_first, log.unwritten) == (9, 9, 10, False)
    assert [log.floor(9, Term(t)) for t in (1, 3, 4, 5)] == [2, 6, 6, 9]
    log.truncate_from(6)
    assert (log.last_term, log.last_index) == (3, 5)


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [(3, 3)],
        [(5, 3)],
        [(4, 2)],
        [(4, 3), (10, 4)],
        [(4, 3), (6, 3)],
        [(4, 3), (4, 4)],
    ],
)
def test_adopted_entries_that_do_not_follow_are_refused(item: Any, runs: list[tuple[int, int]]) -> None:
    log = filled(item, 1, 1, 3)
    with pytest.raises(InvariantViolated, match="do not follow"):
        log.adopt(9, [(start, Term(term)) for start, term in runs])


def test_nothing_is_adopted_behind_an_end_that_is_not_durable(item: Any) -> None:
    log = filled(item, 1)
    log.append([item(Term(1), 2)])
    with pytest.raises(InvariantViolated, match="durable up to 1"):
        log.adopt(9, [(3, Term(1))])
    log.take_unwritten()
    with pytest.raises(InvariantViolated, match="durable up to 1"):
        log.adopt(9, [(3, Term(1))])
    cut = filled(item, 1, 1)
    cut.truncate_from(2)
    with pytest.raises(InvariantViolated, match="do not follow"):
        cut.adopt(9, [(2, Term(1))])


@pytest.mark.parametrize(
    ("lo", "hi", "bytes_max", "end"),
    [(1, 11, 10**6, 11), (5, 11, 250, 7), (5, 11, 1, 6), (1, 11, 200, 6), (1, 11, 1, 4), (1, 3, 1, 3), (5, 6, 1, 6)],
)
def test_a_range_is_cut_to_the_bytes_of_its_entries_in_memory(
    item: Any, lo: int, hi: int, bytes_max: int, end: int
) -> None:
    log = filled(item, *[1] * 10)
    log.evict(3)
    assert log.cut(lo, hi, bytes_max) == end
