"""A producer that has not published for a day is forgotten: by append time in the log, alike on every replica."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from georelay.errors import ProducerFenced, UnknownProducer
from georelay.ids import RaftIndex
from region.topics.producer_rows import decode_producers, encode_producers
from region.topics.producer_table_core import NO_CHECKSUM, ProducerState, ProducerTable

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US


def check(table: ProducerTable, sequence: int, append_us: int, *, epoch: int = 0) -> int | None:
    found = table.check(
        producer_id=7, epoch=epoch, base_sequence=sequence, record_count=1, checksum=0, append_us=append_us
    )
    return None if found is None else found.index


def visible(table: ProducerTable, index: int, append_us: int) -> list[tuple[int, ProducerState]]:
    return table.rows_at(RaftIndex(index), append_us)


def test_a_producer_is_known_for_a_day_and_then_unknown(make_header: Any) -> None:
    table = ProducerTable()
    table.appended(RaftIndex(1), make_header(producer=7, sequence=0, append_us=5), 0)
    assert check(table, 1, DAY_US + 5) is None
    assert check(table, 0, DAY_US + 5) == 1
    with pytest.raises(UnknownProducer):
        check(table, 1, DAY_US + 6)


def test_an_expired_producer_that_was_fenced_is_unknown_and_not_fenced(make_header: Any) -> None:
    table = ProducerTable()
    table.appended(RaftIndex(1), make_header(producer=7, epoch=3, sequence=0), 0)
    with pytest.raises(ProducerFenced):
        check(table, 4, DAY_US, epoch=2)
    with pytest.raises(UnknownProducer):
        check(table, 4, DAY_US + 1, epoch=2)


def test_an_expired_producer_begins_again_without_its_old_batches(make_header: Any) -> None:
    table = ProducerTable()
    table.appended(RaftIndex(1), make_header(producer=7, sequence=0), 0)
    table.appended(RaftIndex(2), make_header(producer=7, sequence=0, append_us=DAY_US + 1), 0)
    ((_, state),) = visible(table, 2, DAY_US + 1)
    assert [batch.index for batch in state.batches] == [2]


def test_a_truncated_append_brings_the_state_back_that_it_made_expire(make_header: Any) -> None:
    table = ProducerTable()
    table.appended(RaftIndex(1), make_header(producer=7, sequence=0), 0)
    table.appended(RaftIndex(2), make_header(producer=7, sequence=0, append_us=DAY_US + 1), 0)
    assert table.truncated(RaftIndex(2))
    assert check(table, 0, DAY_US) == 1


def test_the_expired_leave_the_memory_when_the_append_that_outdates_them_is_committed(make_header: Any) -> None:
    table = ProducerTable()
    for producer in range(5):
        table.appended(RaftIndex(producer + 1), make_header(producer=producer, sequence=0, append_us=producer), 0)
    table.appended(RaftIndex(6), make_header(producer=9, sequence=0, append_us=DAY_US + 3), 0)
    assert len(table) == 6
    table.committed(RaftIndex(6), DAY_US + 3)
    assert [producer for producer, _ in visible(table, 6, DAY_US + 3)] == [3, 4, 9]
    assert len(table) == 3


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.integers(0, 30)),
        st.tuples(st.just("truncate"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("commit"), st.integers(0, 3), st.just(0)),
    ),
    max_size=60,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # it returns a function
@given(steps=steps, producers_max=st.integers(1, 4))
def test_replicas_agree_whatever_they_truncated_committed_and_restored(
    make_header: Any, steps: list[tuple[str, int, int]], producers_max: int
) -> None:
    log: list[Any] = []
    live = ProducerTable(producers_max=producers_max)
    committed = 0
    for kind, number, hours in steps:
        now_us = log[-1].append_us if log else 0
        if kind == "append":
            log.append(
                make_header(producer=number, sequence=len(log), base=len(log), append_us=now_us + hours * HOUR_US)
            )
            live.appended(RaftIndex(len(log)), log[-1], 0)
        elif kind == "truncate" and len(log) >= committed + number:
            del log[len(log) - number :]
            assert live.truncated(RaftIndex(len(log) + 1))
        elif kind == "commit" and len(log) - number > committed:
            committed = len(log) - number
            live.committed(RaftIndex(committed), log[committed - 1].append_us)
        end_us = log[-1].append_us if log else 0
        replayed = ProducerTable(producers_max=producers_max)
        for index, header in enumerate(log, 1):
            replayed.appended(RaftIndex(index), header, 0)
        assert visible(live, len(log), end_us) == visible(replayed, len(log), end_us)
        committed_us = log[committed - 1].append_us if committed else 0
        restored = ProducerTable(producers_max=producers_max)
        raw = encode_producers(visible(live, committed, committed_us), checksums=True)
        restored.restore(RaftIndex(committed), decode_producers(raw, checksums=True))
        for index, header in enumerate(log[committed:], committed + 1):
            restored.appended(RaftIndex(index), header, 0)
        assert visible(restored, len(log), end_us) == visible(live, len(log), end_us)


def test_a_full_table_takes_no_more_than_the_bound(make_header: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ProducerTable(producers_max=50)
    for index in range(1, 1000):
        table.appended(RaftIndex(index), make_header(producer=index % 70, sequence=index), 0)
    raw = encode_producers(visible(table, 999, 0), checksums=True)
    assert len(raw) <= 4 + 50 * (11 + 5 * 44)
    assert decode_producers(raw, checksums=True) == visible(table, 999, 0)
    monkeypatch.setattr("region.topics.producer_rows.PRODUCERS_PER_STREAM_MAX", 49)
    with pytest.raises(ValueError, match="over 49"):
        decode_producers(raw, checksums=True)


def test_checksums_are_in_the_second_layout_only(make_header: Any) -> None:
    table = ProducerTable()
    table.appended(RaftIndex(1), make_header(producer=7, sequence=0), 2**32 - 1)
    table.appended(RaftIndex(2), make_header(producer=7, sequence=1), 5)
    rows = visible(table, 2, 0)
    assert decode_producers(encode_producers(rows, checksums=True), checksums=True) == rows
    ((_, known),) = decode_producers(encode_producers(rows))
    assert [batch.checksum for batch in known.batches] == [NO_CHECKSUM] * 2
    assert [(batch.base_sequence, batch.index) for batch in known.batches] == [(0, 1), (1, 2)]


@pytest.mark.parametrize("batches", [0, 6])
def test_a_producer_with_no_or_too_many_batches_is_refused(batches: int) -> None:
    raw = (1).to_bytes(4, "big") + (7).to_bytes(8, "big") + bytes(2) + bytes([batches]) + bytes(36 * batches)
    with pytest.raises(ValueError, match="cannot be"):
        decode_producers(raw)


def test_a_truncated_skip_brings_back_every_state_that_it_replaced(make_header: Any) -> None:
    table = ProducerTable()
    for producer in (7, 8):
        table.appended(RaftIndex(producer), make_header(producer=producer, sequence=0, base=producer), 0)
    before = visible(table, 8, 0)
    table.skipped(RaftIndex(9), before[:1])
    table.appended(RaftIndex(10), make_header(producer=9, sequence=0, base=20), 0)
    assert [producer for producer, _ in visible(table, 10, 0)] == [7, 9]
    assert visible(table, 8, 0) == before  # a state at the applied index does not know of it yet
    assert table.truncated(RaftIndex(9))
    assert visible(table, 8, 0) == before
