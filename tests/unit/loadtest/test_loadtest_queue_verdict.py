"""The judge of the queue campaign finds what it is there to find."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.load.queue_history import QueueEvent
from loadtest.load.queue_verdict_core import QueueVerdict, judge


def _event(kind: str, delivery: int, at_ms: float, **more: Any) -> QueueEvent:
    return QueueEvent(kind=kind, record="a:1", delivery=delivery, at_ms=at_ms, **more)


GOT = _event("got", 1, 100, until_ms=1100)
ACKED = [_event("acking", 1, 110), _event("acked", 1, 120)]


def _judged(*events: QueueEvent, letters: tuple[str, ...] = ("a:2",)) -> QueueVerdict:
    return judge(good=["a:1"], poison=["a:2"], events=events, dead_letters=letters)


def wrong(verdict: QueueVerdict) -> list[str]:
    return [what for what, records in verdict.wrong().items() if records]


def test_one_acknowledge_is_exact() -> None:
    verdict = _judged(GOT, *ACKED)
    assert not wrong(verdict) and verdict.acknowledged_once == 1


def test_an_acknowledge_whose_answer_nobody_read_counts_as_one() -> None:
    verdict = _judged(GOT, ACKED[0])
    assert not wrong(verdict) and verdict.answer_lost == 1


@pytest.mark.parametrize("answer", [[_event("over", 1, 1160)], []], ids=["it is told so", "nobody tells it"])
def test_a_reject_after_the_end_of_the_lease_delays_nothing(answer: list[QueueEvent]) -> None:
    late = _event("rejecting", 1, 1150, delay_ms=500)
    again = [_event("got", 2, 1200, until_ms=2200), _event("acking", 2, 1210), _event("acked", 2, 1220)]
    assert not wrong(_judged(GOT, late, *answer, *again))


@pytest.mark.parametrize(
    ("events", "field"),
    [
        ([GOT], "never_acknowledged"),
        ([GOT, ACKED[0], _event("got", 2, 1200, until_ms=2200)], "never_acknowledged"),
        ([GOT, *ACKED, _event("got", 2, 1200, until_ms=2200)], "delivered_after"),
        ([GOT, *ACKED, _event("got", 2, 1200, until_ms=2200), _event("acked", 2, 1300)], "acknowledged_twice"),
        ([GOT, _event("got", 2, 900, until_ms=1900), _event("acked", 2, 950)], "early"),
        (
            [
                GOT,
                _event("rejecting", 1, 150, delay_ms=500),
                _event("rejected", 1, 160),
                _event("got", 2, 600, until_ms=1600),
                _event("acked", 2, 610),
            ],
            "early",
        ),
    ],
)
def test_what_must_not_be_is_found(events: list[QueueEvent], field: str) -> None:
    verdict = _judged(*events)
    assert getattr(verdict, field) == ["a:1"]
    assert wrong(verdict)


@pytest.mark.parametrize(
    ("letters", "field", "found"),
    [
        ((), "dead_letters_missing", ["a:2"]),
        (("a:2", "a:2"), "dead_letters_twice", ["a:2"]),
        (("a:1", "a:2"), "dead_letters_wrong", ["a:1"]),
    ],
)
def test_dead_letters_are_compared(letters: tuple[str, ...], field: str, found: list[str]) -> None:
    verdict = _judged(GOT, *ACKED, letters=letters)
    assert getattr(verdict, field) == found
    assert wrong(verdict)
