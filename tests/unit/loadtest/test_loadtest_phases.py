"""Latencies and pauses are counted in the phase they belong to, and a pause is one of a single partition."""

from __future__ import annotations

import pytest

from loadtest.campaign.phases_core import Phase, Span, lines_of, phases_of, report, spans_of
from loadtest.history.operation import Kind, Operation, Outcome

MS = 1_000_000


def send(number: int, *, at_ms: int, took_ms: int | None, partition: int = 0) -> Operation:
    return Operation(
        process="p",
        number=number,
        kind=Kind.PRODUCE,
        key=f"load/{partition}",
        value=f"p:{number}",
        invoked_ns=at_ms * MS,
        completed_ns=None if took_ms is None else (at_ms + took_ms) * MS,
        outcome=Outcome.UNKNOWN if took_ms is None else Outcome.OK,
        offset=None if took_ms is None else number,
    )


def phase(name: str, from_ms: int, to_ms: int) -> Phase:
    return Phase(name=name, from_ns=from_ms * MS, to_ns=to_ms * MS)


def test_a_record_counts_where_it_was_sent_and_not_between_phases() -> None:
    sends = [send(0, at_ms=5, took_ms=100), send(1, at_ms=15, took_ms=2), send(2, at_ms=25, took_ms=4)]
    before, after = report([phase("before", 0, 10), phase("after", 20, 30)], sends)
    assert (before.sent, before.worst_ms) == (1, 100)
    assert (after.sent, after.worst_ms) == (1, 4)


def test_a_record_without_an_answer_is_sent_and_has_no_latency() -> None:
    (row,) = report([phase("only", 0, 10)], [send(0, at_ms=1, took_ms=None), send(1, at_ms=2, took_ms=3)])
    assert (row.sent, row.p50_ms, row.p99_ms) == (2, 3, 3)


def test_the_p99_is_the_latency_that_one_in_a_hundred_reaches() -> None:
    sends = [send(number, at_ms=number, took_ms=number + 1) for number in range(200)]
    (row,) = report([phase("only", 0, 200)], sends)
    assert (row.p50_ms, row.p99_ms, row.worst_ms) == (101, 199, 200)


def test_a_pause_of_one_partition_is_not_hidden_by_another_one() -> None:
    sends = [send(number, at_ms=number * 10, took_ms=1, partition=0) for number in range(10)]
    sends += [send(10, at_ms=0, took_ms=1, partition=1), send(11, at_ms=80, took_ms=1, partition=1)]
    (row,) = report([phase("only", 0, 100)], sends)
    assert row.longest_pause_ms == 80


def test_a_pause_counts_where_it_ends() -> None:
    sends = [send(0, at_ms=0, took_ms=1), send(1, at_ms=50, took_ms=1)]
    before, after = report([phase("before", 0, 20), phase("after", 20, 60)], sends)
    assert (before.longest_pause_ms, after.longest_pause_ms) == (0, 50)


@pytest.mark.parametrize("sends", [[], [send(0, at_ms=500, took_ms=1)]])
def test_a_phase_in_which_nothing_was_sent_is_empty(sends: list[Operation]) -> None:
    (row,) = report([phase("only", 0, 100)], sends)
    assert (row.sent, row.p50_ms, row.longest_pause_ms, row.seconds) == (0, 0, 0, 0.1)


def event(what: str, of: str, at_ms: int, took_ms: int) -> dict[str, object]:
    return {"what": what, "of": of, "ns": at_ms * MS, "took_s": took_ms / 1e3}


def test_events_cut_the_load_into_what_was_before_while_and_after_they_were_done() -> None:
    sends = [send(number, at_ms=number * 100, took_ms=1) for number in range(100)]
    events = [event("grow", "us", 3_000, 1_000), event("healed", "us", 7_000, 2_000), event("kill", "us-1", 9_000, 1)]
    assert [(row.name, round(row.seconds, 1)) for row in phases_of(events, sends)] == [
        ("before", 2.0),
        ("grow us: at it", 1.0),
        ("grow us", 2.0),
        ("us healed: at it", 2.0),
        ("us healed", 2.0),
        ("kill us-1", 0.9),
    ]


def test_what_is_done_after_the_load_is_no_phase_of_it() -> None:
    sends = [send(number, at_ms=number * 100, took_ms=1) for number in range(20)]
    names = [row.name for row in phases_of([event("grow", "us", 9_000, 8_000)], sends)]
    assert names == ["before", "grow us: at it"]
    assert phases_of([event("grow", "us", 9_000, 8_000)], []) == []
    assert phases_of([], sends) == []


def test_phases_are_shown_with_a_column_for_each_figure() -> None:
    assert lines_of([]) == []
    head, row = lines_of(report([phase("before", 0, 100)], [send(0, at_ms=1, took_ms=2)]))
    assert len(head) == len(row)
    assert row.split() == ["before", "0.1", "1", "2.0", "2.0", "2.0", "0"]


def test_two_faults_of_one_broker_that_overlap_have_each_its_own_begin_and_end() -> None:
    events = [
        {"second": 2.0, "what": "disk-slow", "of": "us-1"},
        {"second": 3.0, "what": "kill", "of": "us-1"},
        {"second": 5.0, "what": "healed", "of": "us-1", "fault": "disk-slow"},
        {"second": 6.0, "what": "healed", "of": "us-1", "fault": "kill"},
        {"second": 8.0, "what": "stop", "of": "eu-1"},
    ]
    healed, others = spans_of(events)
    assert healed == [Span("disk-slow", "us-1", 2.0, 5.0), Span("kill", "us-1", 3.0, 6.0)]
    assert others == [Span("stop", "eu-1", 8.0, 8.0)]
