"""What the core makes of deliveries and commits. Times are made up; one unit is a millisecond."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.trace.schema import LATENCY_HIST_SCHEMA, LEDGER_SCHEMA, LedgerKind
from mesh.tracing import recorder_core
from mesh.tracing.recorder_core import DeliverySession, Drained, RecorderCore, Row

MS = 1_000_000
SECOND = 1_000 * MS


def ledger(drained: Drained) -> list[dict[str, Any]]:
    return [dict(zip(LEDGER_SCHEMA.names, row, strict=True)) for row in drained.ledger]


def histograms(drained: Drained) -> list[dict[str, Any]]:
    return [dict(zip(LATENCY_HIST_SCHEMA.names, row, strict=True)) for row in drained.latency_hist]


def ranges(drained: Drained) -> list[tuple[int, int, int]]:
    return [(row["from_offset"], row["to_offset"], row["deliver_seq"]) for row in ledger(drained)]


def session_of(core: RecorderCore, offset: int = 0) -> DeliverySession:
    return core.open_session(topic="orders", origin=0, partition=3, offset=offset)


def deliver(
    session: DeliverySession,
    base: int,
    count: int = 10,
    *,
    received: int = 5_000 * MS,
    took_ms: int = 4,
    entry: int = 1,
) -> None:
    session.delivered(
        epoch=1,
        base_offset=base,
        record_count=count,
        entry_region=entry,
        received_ns=received,
        delivered_ns=received + took_ms * MS,
    )


def test_touching_batches_of_a_second_are_one_ledger_row(core: RecorderCore) -> None:
    session = session_of(core)
    for base in (0, 10, 20):
        deliver(session, base)
    (row,) = ledger(core.drain(0, final=True))
    assert row == {
        "kind": "delivered", "region": "eu", "broker": "2001", "origin": "", "topic": "orders", "partition": 3,
        "epoch": 1, "group": None, "from_offset": 0, "to_offset": 30, "first_ns": 5_004 * MS, "last_ns": 5_004 * MS,
        "attempt": 1, "session_epoch": 100, "deliver_seq": 0,
    }  # fmt: skip
    assert session.next_offset == 30


@pytest.mark.parametrize("base", [5, 20, 0], ids=["overlap", "gap", "again"])
def test_a_jump_starts_a_row_that_keeps_its_place_in_the_session(core: RecorderCore, base: int) -> None:
    session = session_of(core)
    deliver(session, 0)
    deliver(session, base)
    assert ranges(core.drain(0, final=True)) == [(0, 10, 0), (base, base + 10, 1)]


def test_a_row_never_spans_two_seconds(core: RecorderCore) -> None:
    session = session_of(core)
    deliver(session, 0, received=1_998 * MS, took_ms=1)
    deliver(session, 10, received=1_998 * MS, took_ms=2)
    assert ranges(core.drain(0, final=True)) == [(0, 10, 0), (10, 20, 1)]


def test_a_new_epoch_starts_a_row(core: RecorderCore) -> None:
    for epoch, start in ((1, 0), (2, 10)):
        core.log_advanced(
            LedgerKind.COMMIT, topic="t", origin=1, partition=0, epoch=epoch, from_offset=start, to_offset=start + 10,
            now_ns=SECOND,
        )  # fmt: skip
    rows = ledger(core.drain(0, final=True))
    assert [(row["kind"], row["origin"], row["epoch"], row["from_offset"]) for row in rows] == [
        ("commit", "us", 1, 0),
        ("commit", "us", 2, 10),
    ]


def test_an_empty_range_leaves_no_row(core: RecorderCore) -> None:
    core.log_advanced(
        LedgerKind.REPLICATED, topic="t", origin=0, partition=0, epoch=1, from_offset=4, to_offset=4, now_ns=SECOND
    )
    assert ledger(core.drain(0, final=True)) == []


def test_the_first_batch_counts_from_the_offset_that_was_asked_for(core: RecorderCore) -> None:
    session = session_of(core, offset=7)
    session.caught_up(0)
    deliver(session, 0)
    drained = core.drain(0, final=True)
    assert ranges(drained) == [(7, 10, 0)]
    assert histograms(drained)[0]["n"] == 3


def test_a_batch_that_lies_below_the_session_counts_nothing(core: RecorderCore) -> None:
    deliver(session_of(core, offset=10), 0)
    assert core.drain(0, final=True).ledger == []


def test_reading_the_past_is_no_latency(core: RecorderCore) -> None:
    session = session_of(core)
    deliver(session, 0, received=5_000 * MS)
    session.caught_up(6_000 * MS)
    deliver(session, 10, received=5_999 * MS)
    assert core.drain(0, final=True).latency_hist == []
    deliver(session, 20, received=6_000 * MS)
    assert [row["n"] for row in histograms(core.drain(0, final=True))] == [10]


def test_being_caught_up_again_does_not_move_the_start_of_live(core: RecorderCore) -> None:
    session = session_of(core)
    session.caught_up(1 * SECOND)
    session.caught_up(9 * SECOND)
    assert session.live_since_ns == 1 * SECOND


def test_latencies_are_kept_per_second_of_publish_and_entry_region(core: RecorderCore) -> None:
    session = session_of(core)
    session.caught_up(0)
    deliver(session, 0, received=5_000 * MS, took_ms=40)
    deliver(session, 10, received=5_100 * MS, took_ms=60)
    deliver(session, 20, received=5_200 * MS, took_ms=1, entry=2)
    deliver(session, 30, received=6_000 * MS, took_ms=1)
    rows = histograms(core.drain(0, final=True))
    assert [
        (row["second"], row["origin"], row["dest"], row["n"], row["n_good"], row["lat_max_us"]) for row in rows
    ] == [
        (5, "us", "eu", 20, 10, 60_000),
        (5, "eu", "eu", 10, 10, 1_000),
        (6, "us", "eu", 10, 10, 1_000),
    ]
    assert rows[0]["hist"] == [{"b": 489, "n": 10}, {"b": 507, "n": 10}]


def test_sessions_of_one_topic_share_a_histogram(core: RecorderCore) -> None:
    for _ in range(2):
        session = session_of(core)
        session.caught_up(0)
        deliver(session, 0)
    assert [row["n"] for row in histograms(core.drain(0, final=True))] == [20]


def test_an_arrival_before_its_publish_counts_as_zero_and_is_noted(core: RecorderCore) -> None:
    session = session_of(core)
    session.caught_up(0)
    deliver(session, 0, took_ms=-3)
    (row,) = histograms(core.drain(0, final=True))
    assert (row["lat_sum_us"], row["hist"]) == (0, [{"b": 0, "n": 10}])
    assert core.negative_latencies == 10


def test_an_unknown_clock_error_is_null_never_zero() -> None:
    core = RecorderCore(region="eu", broker=1, first_session=0, region_name=str, clock_error_us=None)
    session = session_of(core)
    session.caught_up(0)
    deliver(session, 0)
    (row,) = histograms(core.drain(0, final=True))
    assert [row[name] for name in ("n_good_lo", "n_good_hi", "clock_offset_us", "clock_err_us")] == [None] * 4


def test_the_running_second_stays_open_until_it_is_over(core: RecorderCore) -> None:
    session = session_of(core)
    session.caught_up(0)
    deliver(session, 0, received=5_000 * MS)
    assert core.drain(5_900 * MS) == Drained(latency_hist=[], ledger=[], latency_hist_dropped=0, ledger_dropped=0)
    deliver(session, 10, received=5_950 * MS)
    drained = core.drain(6_000 * MS)
    assert ranges(drained) == [(0, 20, 0)]
    assert [row["n"] for row in histograms(drained)] == [20]


def test_a_record_that_comes_after_its_second_was_drained_is_another_row(core: RecorderCore) -> None:
    session = session_of(core)
    session.caught_up(0)
    deliver(session, 0, received=5_000 * MS)
    core.drain(6_000 * MS)
    deliver(session, 10, received=5_500 * MS, took_ms=900)
    drained = core.drain(7_000 * MS)
    assert [(row["second"], row["n"]) for row in histograms(drained)] == [(5, 10)]
    assert ranges(drained) == [(10, 20, 1)]


def test_every_session_has_its_own_number(core: RecorderCore) -> None:
    assert [session_of(core).session_epoch for _ in range(3)] == [100, 101, 102]


def test_rows_beyond_the_limit_are_dropped_and_counted(core: RecorderCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_core, "ROWS_WAITING_MAX", 2)
    session = session_of(core)
    for base in (0, 100, 200, 300):
        deliver(session, base)
    drained = core.drain(0, final=True)
    assert (len(drained.ledger), drained.ledger_dropped) == (2, 2)
    assert core.drain(0, final=True).ledger_dropped == 0


def test_histograms_beyond_the_limit_are_dropped_and_counted(
    core: RecorderCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_core, "CELLS_OPEN_MAX", 1)
    session = session_of(core)
    session.caught_up(0)
    deliver(session, 0, received=1 * SECOND)
    deliver(session, 10, received=2 * SECOND)
    drained: Drained = core.drain(0, final=True)
    rows: list[Row] = drained.latency_hist
    assert (len(rows), drained.latency_hist_dropped) == (1, 1)
