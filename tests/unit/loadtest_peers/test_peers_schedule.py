"""What the producers of a comparison send, and their books."""

from __future__ import annotations

import pytest

from loadtest.bench.ledger_core import STAY_NS, Deliveries, Ledger
from loadtest.bench.schedule_core import Load, read_value

S = 1_000_000_000
RETRY_NS = 3 * S


def _load(rate_per_s: int = 1_000, *, value_bytes: int = 100, window: int = 0) -> Load:
    return Load(topics=("a", "b"), rate_per_s=rate_per_s, seconds=2.5, value_bytes=value_bytes, window=window)


def test_a_record_is_due_by_its_number_alone() -> None:
    load = _load()
    assert load.count == 2_500
    assert [load.due_ns(7 * S, number) for number in (0, 1, 1_500)] == [7 * S, 7 * S + S // 1_000, 8 * S + S // 2]


def test_records_go_round_the_topics() -> None:
    assert [_load().topic(number) for number in range(4)] == ["a", "b", "a", "b"]


def test_a_value_has_its_size_and_says_when_it_was_due_and_which_it_is() -> None:
    value = _load(value_bytes=1_024).value(123_456_789_012, 42)
    assert len(value) == 1_024
    assert read_value(value) == (123_456_789_012, 42)


@pytest.mark.parametrize(("rate_per_s", "value_bytes", "window"), [(-1, 100, 0), (1, 31, 0), (0, 100, 0)])
def test_a_load_that_cannot_be_sent_is_refused(rate_per_s: int, value_bytes: int, window: int) -> None:
    with pytest.raises(ValueError, match="a load "):
        _load(rate_per_s, value_bytes=value_bytes, window=window)


def test_a_record_without_an_answer_is_due_again_once_until_it_is_sent_again() -> None:
    ledger = Ledger(RETRY_NS)
    ledger.sent(1, 0)
    assert ledger.again(RETRY_NS - 1) == []
    assert ledger.again(RETRY_NS) == [1]
    assert ledger.again(RETRY_NS) == []
    ledger.sent(1, RETRY_NS)
    assert ledger.again(2 * RETRY_NS) == [1]


def test_an_answered_record_is_not_due_again_and_counts_once() -> None:
    ledger = Ledger(RETRY_NS)
    ledger.sent(1, 0)
    ledger.answered(1)
    ledger.answered(1)
    assert (ledger.acknowledged, ledger.open, ledger.again(RETRY_NS)) == ([1], 0, [])


def test_a_refused_record_is_due_soon_and_not_a_second_time_when_its_first_wait_ends() -> None:
    ledger = Ledger(RETRY_NS)
    ledger.sent(1, 0)
    ledger.refused(1, S)
    assert ledger.again(S) == []
    assert ledger.again(2 * S) == [1]
    ledger.sent(1, 2 * S)
    assert ledger.again(RETRY_NS) == []


def test_a_consumer_stays_a_little_after_the_last_record_for_what_comes_twice() -> None:
    load = _load()
    book = Deliveries(from_ns=S, expected=2, end_ns=99 * S)
    for number in (0, 1, 1):
        book.add(load.value(2 * S, number), 3 * S)
    assert [row[0] for row in book.rows] == [0, 1, 1]
    assert book.more(3 * S + STAY_NS - 1)
    assert not book.more(3 * S + STAY_NS)


def test_a_record_of_an_earlier_run_does_not_count() -> None:
    book = Deliveries(from_ns=S, expected=1, end_ns=99 * S)
    book.add(_load().value(S - 1, 0), 3 * S)
    assert book.rows == []
    assert book.more(98 * S)
    assert not book.more(99 * S)
