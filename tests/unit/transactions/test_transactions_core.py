"""The states of a transactional id, and the book of them: what may follow what, what is kept."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from georelay.errors import ProducerFenced
from georelay.ids import RegionNumber, StreamKey
from region.transactions.book_core import TransactionBook, put_command, remove_command
from region.transactions.transaction_core import (
    EPOCH_LAST,
    NUMBER_LAST,
    TRANSITIONS,
    ProducerIdNeeded,
    State,
    Transaction,
    abort_by_fencing,
    add,
    complete,
    initialize,
    may_follow,
)
from tests.tiers import in_one_test

KEY = StreamKey(bytes(16), RegionNumber(0), 3)
ROW = Transaction(transactional_id="t", producer_id=7, producer_epoch=3, timeout_ms=1_000)


def test_a_decision_never_changes_to_the_other_one() -> None:
    assert State.PREPARE_ABORT not in TRANSITIONS[State.PREPARE_COMMIT]
    assert State.PREPARE_COMMIT not in TRANSITIONS[State.PREPARE_ABORT]
    assert TRANSITIONS[State.PREPARE_COMMIT] == {State.COMPLETE_COMMIT}
    assert TRANSITIONS[State.PREPARE_ABORT] == {State.COMPLETE_ABORT}


def test_only_an_id_without_an_open_transaction_may_be_forgotten() -> None:
    may = {state for state, following in TRANSITIONS.items() if State.DEAD in following}
    assert may == {State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}


@in_one_test(("state", "following"), list(itertools.product(State, State)))
def test_a_command_takes_effect_only_along_the_table_and_from_the_newest_version(
    state: State, following: State
) -> None:
    current = replace(ROW, state=state, version=5)
    assert may_follow(current, replace(ROW, state=following, version=6)) == (following in TRANSITIONS[state])
    assert not may_follow(current, replace(ROW, state=following, version=5))
    assert not may_follow(current, replace(ROW, state=following, version=7))


def test_an_exhausted_epoch_or_number_gets_a_new_producer_id() -> None:
    for exhausted in (replace(ROW, producer_epoch=EPOCH_LAST), replace(ROW, number=NUMBER_LAST)):
        with pytest.raises(ProducerIdNeeded):
            initialize(exhausted, transactional_id="t", timeout_ms=1)
        fresh = initialize(exhausted, transactional_id="t", timeout_ms=1, new_producer_id=8)
        assert (fresh.producer_id, fresh.producer_epoch, fresh.number) == (8, 0, 0)


def test_the_last_epoch_still_has_one_above_it_that_aborts() -> None:
    ongoing = replace(ROW, producer_epoch=EPOCH_LAST, state=State.ONGOING)
    assert abort_by_fencing(ongoing).producer_epoch == EPOCH_LAST + 1
    assert abort_by_fencing(replace(ongoing, producer_epoch=EPOCH_LAST + 1)).producer_epoch == EPOCH_LAST + 1


def test_no_transaction_begins_without_a_number() -> None:
    with pytest.raises(ProducerFenced):
        add(replace(ROW, number=NUMBER_LAST), partitions=frozenset({KEY}))


def test_a_transaction_begins_at_the_append_time_of_its_first_command() -> None:
    book = TransactionBook()
    book.apply(put_command(ROW), append_us=10)
    begun = add(ROW, partitions=frozenset({KEY}))
    assert begun is not None
    book.apply(put_command(begun), append_us=20)
    grown = add(begun, groups=frozenset({"g"}))
    assert grown is not None
    book.apply(put_command(grown), append_us=30)
    found = book.get("t")
    assert found is not None
    assert (found.started_us, found.updated_us, found.number) == (20, 30, 1)


def test_a_command_from_another_version_changes_nothing() -> None:
    book = TransactionBook()
    book.apply(put_command(ROW), append_us=1)
    before = book.snapshot()
    assert book.apply(put_command(ROW), append_us=2) is None
    assert book.apply(remove_command(replace(ROW, version=7)), append_us=2) is None
    assert book.snapshot() == before
    book.apply(remove_command(ROW), append_us=2)
    assert len(book) == 0


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"put":{}}', b'{"remove":"t"}', b"[1]", b"\xff", put_command(ROW)[:-1]])
def test_what_is_no_command_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        TransactionBook().apply(raw, append_us=1)


@pytest.mark.parametrize("raw", [b"2", b"1\n{}", b"1\n", b"x"])
def test_what_is_no_snapshot_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        TransactionBook().restore(raw)


def test_an_owner_whose_abort_took_the_last_epoch_gets_a_new_producer_id() -> None:
    ongoing = replace(ROW, producer_epoch=EPOCH_LAST, state=State.ONGOING)
    aborting = initialize(ongoing, transactional_id="t", timeout_ms=1, expected=(ROW.producer_id, EPOCH_LAST))
    aborted = complete(aborting)
    with pytest.raises(ProducerIdNeeded):
        initialize(aborted, transactional_id="t", timeout_ms=1, expected=(ROW.producer_id, EPOCH_LAST))
    fresh = initialize(
        aborted, transactional_id="t", timeout_ms=1, expected=(ROW.producer_id, EPOCH_LAST), new_producer_id=8
    )
    assert (fresh.producer_id, fresh.producer_epoch, fresh.number) == (8, 0, 0)
