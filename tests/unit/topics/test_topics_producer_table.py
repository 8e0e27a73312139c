"""The producer table is a function of the log alone, also after truncations and evictions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from georelay.errors import OutOfOrderSequence, ProducerFenced, UnknownProducer
from georelay.ids import RaftIndex
from georelay.limits import PRODUCER_BATCHES_REMEMBERED
from region.topics.producer_table_core import (
    DISPUTED_MAX,
    NO_CHECKSUM,
    SEQUENCE_MODULUS,
    ProducerState,
    ProducerTable,
    last_sequence,
)

Row = tuple[int, int, int, int]  # producer, epoch, sequence, record count


def check(
    table: ProducerTable, producer: int, epoch: int, sequence: int, count: int = 1, *, checksum: int = 0
) -> int | None:
    """Return the index of the original, None when the batch is new."""
    found = table.check(
        producer_id=producer,
        epoch=epoch,
        base_sequence=sequence,
        record_count=count,
        checksum=checksum,
        append_us=0,
    )
    return None if found is None else found.index


class Log:
    """A table and the log it follows."""

    def __init__(self, make_header: Any, producers_max: int = 100) -> None:
        self.make_header = make_header
        self.producers_max = producers_max
        self.rows: list[Row] = []
        self.table = ProducerTable(producers_max=producers_max)

    def append(self, *row: int) -> None:
        producer, epoch, sequence, count = row
        self.rows.append((producer, epoch, sequence, count))
        self.follow(self.table, len(self.rows), self.rows[-1])

    def follow(self, table: ProducerTable, index: int, row: Row) -> None:
        producer, epoch, sequence, count = row
        header = self.make_header(producer=producer, epoch=epoch, sequence=sequence, count=count, base=index * 10)
        table.appended(RaftIndex(index), header, 0)

    def truncate(self, index: int) -> bool:
        del self.rows[index - 1 :]
        return self.table.truncated(RaftIndex(index))

    def replayed(self) -> dict[int, ProducerState]:
        table = ProducerTable(producers_max=self.producers_max)
        for index, row in enumerate(self.rows, 1):
            self.follow(table, index, row)
        return table.snapshot()


@pytest.fixture
def log(make_header: Any) -> Log:
    return Log(make_header, producers_max=DISPUTED_MAX + 1)


def test_an_unknown_producer_begins_with_sequence_zero(log: Log) -> None:
    assert check(log.table, 7, 0, 0) is None
    with pytest.raises(OutOfOrderSequence):
        check(log.table, 7, 0, 1)


def test_the_next_sequence_is_new_and_the_same_again_is_a_duplicate(log: Log) -> None:
    log.append(7, 0, 0, 3)
    assert check(log.table, 7, 0, 0, 3) == 1
    assert check(log.table, 7, 0, 3) is None
    with pytest.raises(OutOfOrderSequence):
        check(log.table, 7, 0, 4)


def test_other_bytes_under_a_sequence_that_is_taken_are_no_duplicate(log: Log) -> None:
    log.append(7, 0, 0, 1)
    with pytest.raises(UnknownProducer, match="another batch is stored under sequence 0"):
        check(log.table, 7, 0, 0, checksum=1)
    assert check(log.table, 7, 0, 0) == 1


def test_what_was_sent_behind_a_batch_whose_sequence_is_taken_does_not_pass_it(log: Log) -> None:
    log.append(7, 0, 0, 1)
    with pytest.raises(UnknownProducer):
        check(log.table, 7, 0, 0, checksum=1)
    with pytest.raises(UnknownProducer, match="others use its sequences"):
        check(log.table, 7, 0, 1)
    assert check(log.table, 7, 1, 0) is None


def test_producers_whose_sequences_others_used_are_bounded(log: Log) -> None:
    for producer in range(DISPUTED_MAX + 1):
        log.append(producer, 0, 0, 1)
        with pytest.raises(UnknownProducer):
            check(log.table, producer, 0, 0, checksum=1)
    assert check(log.table, 0, 0, 1) is None
    with pytest.raises(UnknownProducer):
        check(log.table, 1, 0, 1)


def test_a_batch_of_a_state_from_before_checksums_is_recognised_by_its_numbers(log: Log) -> None:
    log.table.appended(RaftIndex(1), log.make_header(producer=7, epoch=0, sequence=0, count=1, base=0), NO_CHECKSUM)
    assert check(log.table, 7, 0, 0, checksum=5) == 1


def test_a_batch_that_shares_only_its_first_sequence_with_another_is_no_duplicate(log: Log) -> None:
    log.append(7, 0, 0, 3)
    with pytest.raises(OutOfOrderSequence):
        check(log.table, 7, 0, 0, 2)


def test_the_newest_batches_are_remembered_and_older_ones_refused(log: Log) -> None:
    for sequence in range(PRODUCER_BATCHES_REMEMBERED + 1):
        log.append(7, 0, sequence, 1)
    assert check(log.table, 7, 0, 1) == 2
    with pytest.raises(OutOfOrderSequence):
        check(log.table, 7, 0, 0)


def test_a_newer_producer_epoch_begins_at_zero_and_fences_the_older(log: Log) -> None:
    log.append(7, 0, 0, 5)
    with pytest.raises(OutOfOrderSequence):
        check(log.table, 7, 1, 5)
    assert check(log.table, 7, 1, 0) is None
    log.append(7, 1, 0, 1)
    with pytest.raises(ProducerFenced):
        check(log.table, 7, 0, 5)


def test_sequences_wrap_to_zero(log: Log) -> None:
    log.append(7, 0, SEQUENCE_MODULUS - 1, 2)
    assert last_sequence(SEQUENCE_MODULUS - 1, 2) == 0
    assert check(log.table, 7, 0, SEQUENCE_MODULUS - 1, 2) == 1
    assert check(log.table, 7, 0, 1) is None


def test_batches_without_a_producer_are_never_duplicates(log: Log) -> None:
    log.append(-1, -1, -1, 1)
    assert check(log.table, -1, -1, -1) is None
    assert len(log.table) == 0


def test_a_truncated_batch_is_forgotten_and_its_predecessor_is_the_newest_again(log: Log) -> None:
    log.append(7, 0, 0, 1)
    log.append(7, 1, 0, 1)
    assert log.truncate(2)
    assert log.table.snapshot() == log.replayed()
    assert check(log.table, 7, 0, 1) is None


def test_what_is_committed_cannot_be_undone(log: Log) -> None:
    log.append(7, 0, 0, 1)
    log.table.committed(RaftIndex(1), 0)
    assert not log.table.truncated(RaftIndex(1))
    assert check(log.table, 7, 0, 0) == 1


def test_the_producer_that_published_least_recently_is_evicted(make_header: Any) -> None:
    log = Log(make_header, producers_max=2)
    log.append(1, 0, 0, 1)
    log.append(2, 0, 0, 1)
    log.append(1, 0, 1, 1)
    log.append(3, 0, 0, 1)
    assert set(log.table.snapshot()) == {1, 3}


def test_an_undone_eviction_brings_the_producer_back_in_its_place(make_header: Any) -> None:
    log = Log(make_header, producers_max=2)
    log.append(1, 0, 0, 1)
    log.append(2, 0, 0, 1)
    log.append(3, 0, 0, 1)  # evicts 1
    log.truncate(3)
    log.append(4, 0, 0, 1)  # evicts 1 again, not 2
    assert set(log.table.snapshot()) == {2, 4}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.integers(0, 1)),
        st.tuples(st.just("truncate"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("commit"), st.integers(0, 3), st.just(0)),
    ),
    max_size=60,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # it returns a function
@given(steps=steps, producers_max=st.integers(1, 4))
def test_after_any_history_the_table_equals_a_replay_of_the_log(
    make_header: Any, steps: list[tuple[str, int, int]], producers_max: int
) -> None:
    log = Log(make_header, producers_max)
    committed = 0
    for kind, number, epoch in steps:
        if kind == "append":
            batches = [row for row in log.rows if row[0] == number]
            newest = max((row[1] for row in batches), default=0)
            epoch = max(epoch, newest)
            log.append(number, epoch, sum(row[3] for row in batches if row[1] == epoch), 1 + len(log.rows) % 3)
        elif kind == "truncate" and len(log.rows) >= committed + number:
            assert log.truncate(len(log.rows) + 1 - number)
        elif kind == "commit":
            committed = max(committed, len(log.rows) - number)
            log.table.committed(RaftIndex(committed), 0)
        assert log.table.snapshot() == log.replayed()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=st.lists(st.integers(0, 9), max_size=60))
def test_however_a_client_resends_each_batch_is_stored_once_and_in_order(make_header: Any, sent: list[int]) -> None:
    log = Log(make_header)
    for sequence in sent:
        try:
            original = check(log.table, 7, 0, sequence)
        except OutOfOrderSequence:
            stored = len(log.rows)
            assert sequence > stored or sequence < stored - PRODUCER_BATCHES_REMEMBERED
            continue
        if original is None:
            log.append(7, 0, sequence, 1)
        else:
            assert log.rows[original - 1][2] == sequence
    assert [row[2] for row in log.rows] == list(range(len(log.rows)))


def test_a_producer_that_is_not_known_is_told_apart_from_one_with_a_gap() -> None:
    table = ProducerTable()
    with pytest.raises(UnknownProducer):
        check(table, 7, 0, 5)
    assert check(table, 7, 0, 0) is None
