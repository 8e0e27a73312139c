"""Refused records per stream and second: counted once, handed over when the second is over, bounded."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from georelay.trace.kinds import LedgerKind, TraceKind
from georelay.trace.schema import RECORDED_COLUMNS
from mesh.tracing import recorder_core, refusals_core
from mesh.tracing.recorder_core import RecorderCore
from mesh.tracing.refusals_core import Refusals, RefusedStream

SECOND = 1_000_000_000
ORDERS = RefusedStream(LedgerKind.REFUSED, "orders", 1, 3)


def ledger(core: RecorderCore, now_ns: int, *, final: bool = False) -> list[dict[str, Any]]:
    rows = core.drain(now_ns, final=final).finished().get(TraceKind.LEDGER, [])
    return [dict(zip(RECORDED_COLUMNS[TraceKind.LEDGER], row, strict=True)) for row in rows]


def test_a_second_of_refusals_is_one_row_of_its_stream(core: RecorderCore) -> None:
    core.refusals.add(ORDERS, 2, 5 * SECOND + 1)
    core.refusals.add(ORDERS, 3, 5 * SECOND + 9)
    assert ledger(core, 5 * SECOND + 10) == []
    assert ledger(core, 6 * SECOND) == [
        {
            "kind": "refused", "region": "eu", "broker": "2001", "origin": "us", "topic": "orders", "partition": 3,
            "epoch": 0, "group": None, "from_offset": 0, "to_offset": 0, "first_ns": 5 * SECOND + 1,
            "last_ns": 5 * SECOND + 9, "attempt": 1, "session_epoch": 0, "deliver_seq": 0, "records": 5,
        }
    ]  # fmt: skip
    assert ledger(core, 7 * SECOND) == []


def test_the_last_second_is_written_when_the_broker_stops(core: RecorderCore) -> None:
    core.refusals.add(ORDERS._replace(kind=LedgerKind.UNDECIDED), 4, 5 * SECOND)
    (row,) = ledger(core, 5 * SECOND, final=True)
    assert (row["kind"], row["records"]) == ("undecided", 4)


def test_what_finds_no_room_is_counted_as_dropped(core: RecorderCore, monkeypatch: Any) -> None:
    monkeypatch.setattr(refusals_core, "CELLS_MAX", 1)
    core.refusals.add(ORDERS, 1, SECOND)
    core.refusals.add(ORDERS._replace(partition=4), 1, SECOND)
    drained = core.drain(2 * SECOND)
    assert drained.dropped == {TraceKind.LEDGER: 1}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 4 * SECOND)), max_size=50))
def test_no_record_is_counted_twice_or_forgotten(events: list[tuple[int, int, int]]) -> None:
    refusals, taken = Refusals(), 0
    for number, (partition, records, at_ns) in enumerate(sorted(events, key=lambda event: event[2])):
        refusals.add(ORDERS._replace(partition=partition), records, at_ns)
        if number % 7 == 0:
            taken += sum(count.records for _, count in refusals.take(at_ns // SECOND))
    taken += sum(count.records for _, count in refusals.take(0, final=True))
    assert taken == sum(records for _, records, _ in events)


def test_a_drain_makes_no_more_rows_of_refusals_than_it_looks_at_ranges(core: RecorderCore, monkeypatch: Any) -> None:
    monkeypatch.setattr(recorder_core, "RUNS_PER_DRAIN", 4)
    for partition in range(10):
        core.refusals.add(ORDERS._replace(partition=partition), 1, SECOND)
    pieces = []
    while True:
        drained = core.drain(2 * SECOND)
        pieces.append(len(drained.rows.get(TraceKind.LEDGER, [])))
        if not drained.has_more:
            break
    assert pieces == [4, 4, 2]
    core.refusals.add(ORDERS, 1, 2 * SECOND)
    assert not core.drain(2 * SECOND).has_more


def test_a_broker_that_stops_hands_over_all_refusals_at_once(core: RecorderCore, monkeypatch: Any) -> None:
    monkeypatch.setattr(recorder_core, "RUNS_PER_DRAIN", 4)
    for partition in range(10):
        core.refusals.add(ORDERS._replace(partition=partition), 1, SECOND)
    drained = core.drain(SECOND, final=True)
    assert (len(drained.rows[TraceKind.LEDGER]), drained.has_more) == (10, False)


def test_publishes_of_one_stream_and_second_without_room_are_one_row_dropped(
    core: RecorderCore, monkeypatch: Any
) -> None:
    monkeypatch.setattr(refusals_core, "CELLS_MAX", 1)
    for at_ns in (SECOND, SECOND, 2 * SECOND):
        for partition in range(3):
            core.refusals.add(ORDERS._replace(partition=partition), 1, at_ns)
    assert core.drain(3 * SECOND).dropped == {TraceKind.LEDGER: 2 + 3}
    for _ in range(2):
        core.refusals.add(ORDERS._replace(partition=8), 1, 3 * SECOND)
        core.refusals.add(ORDERS._replace(partition=9), 1, 3 * SECOND)
    assert core.drain(4 * SECOND).dropped == {TraceKind.LEDGER: 1}
