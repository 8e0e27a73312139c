"""The judge of the queue campaign finds what it is there to find."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.campaign.queue_history import QueueEvent
from loadtest.campaign.queue_verdict_core import QueueVerdict, judge


def _event(kind: str, delivery: int, at_ms: float, **more: Any) -> QueueEvent:
    return QueueEvent(kind=kind, number=1, delivery=delivery, at_ms=at_ms, **more)


GOT = _event("got", 1, 100, until_ms=1100)
ACKED = [_event("acking", 1, 110), _event("acked", 1, 120)]


def _judged(*events: QueueEvent, letters: tuple[int, ...] = (2,)) -> QueueVerdict:
    return judge(good=[1], poison=[2], events=events, dead_letters=letters)


def test_one_acknowledge_is_exact() -> None:
    verdict = _judged(GOT, *ACKED)
    assert verdict.is_exact and verdict.acknowledged_once == 1


def test_an_acknowledge_whose_answer_nobody_read_counts_as_one() -> None:
    verdict = _judged(GOT, ACKED[0])
    assert verdict.is_exact and verdict.answer_lost == 1


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
    assert getattr(verdict, field) == [1]
    assert not verdict.is_exact


@pytest.mark.parametrize(
    ("letters", "field", "found"),
    [((), "dead_letters_missing", [2]), ((2, 2), "dead_letters_twice", [2]), ((1, 2), "dead_letters_wrong", [1])],
)
def test_dead_letters_are_compared(letters: tuple[int, ...], field: str, found: list[int]) -> None:
    verdict = _judged(GOT, *ACKED, letters=letters)
    assert getattr(verdict, field) == found
    assert not verdict.is_exact
