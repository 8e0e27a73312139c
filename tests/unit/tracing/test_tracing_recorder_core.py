"""What the core makes of deliveries and commits. Times are made up; one unit is a millisecond."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.trace.kinds import LedgerKind, TraceKind
from georelay.trace.schema import RECORDED_COLUMNS
from georelay.wire.control_batch import build_marker
from georelay.wire.header import TRANSACTIONAL
from mesh.tracing import latency_cells_core, recorder_core
from mesh.tracing.aborted_core import ATTRIBUTES_AT
from mesh.tracing.latency_cells_core import UNKNOWN_CLOCK, Correction
from mesh.tracing.recorder_core import DeliverySession, Drained, RecorderCore
from mesh.tracing.sampling_core import HARD_FACTOR

MS = 1_000_000
SECOND = 1_000 * MS


def rows(drained: Drained, kind: TraceKind) -> list[dict[str, Any]]:
    return [dict(zip(RECORDED_COLUMNS[kind], row, strict=True)) for row in drained.finished().get(kind, [])]


def ledger(drained: Drained) -> list[dict[str, Any]]:
    return rows(drained, TraceKind.LEDGER)


def histograms(drained: Drained, stage: str = "total") -> list[dict[str, Any]]:
    return [row for row in rows(drained, TraceKind.LATENCY_HIST) if row["stage"] == stage]


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
        "attempt": 1, "session_epoch": 100, "deliver_seq": 0, "records": None,
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
    assert ledger(core.drain(0, final=True)) == []


def test_reading_the_past_is_no_latency(core: RecorderCore) -> None:
    session = session_of(core)
    deliver(session, 0, received=5_000 * MS)
    session.caught_up(6_000 * MS)
    deliver(session, 10, received=5_999 * MS)
    assert histograms(core.drain(0, final=True)) == []
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
    assert core.cells.negative_latencies == 10


def test_an_unknown_clock_error_is_null_never_zero() -> None:
    core = RecorderCore(
        region="eu", broker=1, first_session=0, region_name=str, correction=lambda _region: UNKNOWN_CLOCK
    )
    session = session_of(core)
    session.caught_up(0)
    deliver(session, 0)
    (row,) = histograms(core.drain(0, final=True))
    assert [row[name] for name in ("n_good_lo", "n_good_hi", "clock_offset_us", "clock_err_us")] == [None] * 4


def test_the_running_second_stays_open_until_it_is_over(core: RecorderCore) -> None:
    session = session_of(core)
    session.caught_up(0)
    deliver(session, 0, received=5_000 * MS)
    open_still = core.drain(5_900 * MS)
    assert (ledger(open_still), histograms(open_still), open_still.dropped) == ([], [], {})
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
    assert (len(ledger(drained)), drained.dropped) == (2, {TraceKind.LEDGER: 2})
    assert core.drain(0, final=True).dropped == {}


def test_histograms_beyond_the_limit_share_one_of_no_topic(core: RecorderCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency_cells_core, "CELLS_OPEN_MAX", 1)
    for topic in ("a", "b", "c"):
        session = core.open_session(topic=topic, origin=0, partition=0, offset=0)
        session.caught_up(0)
        deliver(session, 0, received=1 * SECOND)
    drained = core.drain(0, final=True)
    assert [(row["topic"], row["n"]) for row in histograms(drained)] == [("a", 10), ("", 20)]
    assert drained.dropped == {}


def test_a_latency_is_corrected_by_the_clock_it_began_on_and_says_so() -> None:
    core = RecorderCore(
        region="eu", broker=1, first_session=0, region_name=str, correction=lambda _region: Correction(-30_000, 4_000)
    )
    session = session_of(core)
    session.caught_up(0)
    deliver(session, 0, took_ms=75)  # 45 ms, surely between 41 and 49
    deliver(session, 10, took_ms=78)  # 48 ms, perhaps 52
    deliver(session, 20, took_ms=83)  # 53 ms, perhaps 49
    deliver(session, 30, took_ms=90)
    (row,) = histograms(core.drain(0, final=True))
    assert [row[name] for name in ("n", "n_good_lo", "n_good", "n_good_hi")] == [40, 10, 20, 30]
    assert (row["clock_offset_us"], row["clock_err_us"], row["lat_max_us"]) == (-30_000, 4_000, 60_000)


def test_a_latency_below_what_the_clocks_allow_is_counted_as_impossible() -> None:
    core = RecorderCore(
        region="eu", broker=1, first_session=0, region_name=str, correction=lambda _region: Correction(-5_000, 2_000)
    )
    session = session_of(core)
    session.caught_up(0)
    deliver(session, 0, took_ms=4)  # -1 ms: within the bound
    deliver(session, 10, took_ms=1)  # -4 ms: not
    assert (core.cells.negative_latencies, core.cells.impossible_latencies) == (20, 10)


class Entry:
    """What the recorder asks of a committed entry."""

    def __init__(self, base: int, count: int, *, received_ns: int, append_us: int, payload: bytes = bytes(61)) -> None:
        self.base_offset, self.record_count = base, count
        self.received_ns, self.append_us, self.entry_region, self.producer_id = received_ns, append_us, 1, 7
        self.payload = memoryview(payload)

    def header(self) -> Entry:
        return self


def commit(core: RecorderCore, kind: LedgerKind, *entries: Entry, now_ns: int) -> None:
    core.log_advanced(
        kind, topic="orders", origin=0, partition=3, epoch=1, from_offset=entries[0].base_offset,
        to_offset=entries[-1].base_offset + entries[-1].record_count, now_ns=now_ns, home=1, entries=entries,
    )  # fmt: skip


def test_a_commit_at_home_has_a_latency_from_the_first_broker(core: RecorderCore) -> None:
    commit(core, LedgerKind.COMMIT, Entry(0, 10, received_ns=5_000 * MS, append_us=5_001_000), now_ns=5_003 * MS)
    (row,) = histograms(core.drain(0, final=True), "commit")
    assert (row["origin"], row["dest"], row["n"], row["lat_max_us"]) == ("us", "eu", 10, 3_000)


def test_a_commit_at_a_mirror_has_a_latency_from_the_append_at_home(core: RecorderCore) -> None:
    commit(core, LedgerKind.REPLICATED, Entry(0, 10, received_ns=0, append_us=5_001_000), now_ns=5_041 * MS)
    (row,) = histograms(core.drain(0, final=True), "replicate")
    assert (row["second"], row["origin"], row["lat_max_us"]) == (5, "us", 40_000)


def test_history_that_a_new_region_is_given_has_no_latency() -> None:
    core = RecorderCore(region="eu", broker=1, first_session=9 * SECOND, region_name=str)
    commit(core, LedgerKind.REPLICATED, Entry(0, 10, received_ns=0, append_us=8_999_999), now_ns=9_041 * MS)
    drained = core.drain(0, final=True)
    assert (histograms(drained, "replicate"), len(ledger(drained))) == ([], 1)


def test_delivery_is_measured_from_the_local_commit(core: RecorderCore) -> None:
    session = session_of(core)
    session.caught_up(0)
    commit(core, LedgerKind.REPLICATED, Entry(0, 10, received_ns=0, append_us=5_020_000), now_ns=5_030 * MS)
    deliver(session, 0, took_ms=31)
    drained = core.drain(0, final=True)
    (row,) = histograms(drained, "deliver")
    assert (row["origin"], row["dest"], row["n"], row["lat_max_us"]) == ("us", "eu", 10, 1_000)
    (delivery,) = rows(drained, TraceKind.DELIVERY)
    assert (delivery["replicated_ns"], delivery["commit_ns"]) == (5_030 * MS, None)


def test_every_batch_has_a_row_until_the_cap(core: RecorderCore) -> None:
    session = session_of(core)
    session.caught_up(0)
    session.delivered(
        epoch=2, base_offset=0, record_count=10, entry_region=1, received_ns=5_000 * MS, delivered_ns=5_004 * MS,
        size_bytes=123,
    )  # fmt: skip
    (row,) = rows(core.drain(0, final=True), TraceKind.DELIVERY)
    assert row == {
        "origin_region": "us", "origin_broker": None, "dest_region": "eu", "dest_broker": "2001", "topic": "orders",
        "partition": 3, "epoch": 2, "group": None, "session_epoch": 100, "base_offset": 0, "count": 10, "bytes": 123,
        "publish_first_ns": 5_000 * MS, "publish_last_ns": 5_000 * MS, "commit_ns": None, "replicated_ns": None,
        "delivered_first_ns": 5_004 * MS, "delivered_last_ns": 5_004 * MS, "acked_ns": None, "lat_max_us": 4_000,
        "attempt": 1, "deliver_seq": 0, "sample_weight": 1.0, "sample_reason": "sampled", "traceparent": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("took_ms", "base", "attempt", "reason"),
    [(41, 10, 1, "late"), (1, 5, 1, "duplicate"), (1, 10, 2, "retried")],
)
def test_what_went_wrong_is_kept_whatever_the_probability(
    core: RecorderCore, took_ms: int, base: int, attempt: int, reason: str
) -> None:
    core.sampler.shift, core.sampler.threshold, core.sampler.weight = 30, 0, 2.0**30
    session = session_of(core)
    session.caught_up(0)
    deliver(session, 0)
    session.delivered(
        epoch=1, base_offset=base, record_count=10, entry_region=1, received_ns=5_000 * MS,
        delivered_ns=(5_000 + took_ms) * MS, attempt=attempt,
    )  # fmt: skip
    kept = rows(core.drain(0, final=True), TraceKind.DELIVERY)
    assert [(row["sample_reason"], row["sample_weight"]) for row in kept] == [(reason, 1.0)]


def test_a_drain_of_many_ranges_is_cut_short_and_goes_on(core: RecorderCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_core, "RUNS_PER_DRAIN", 2)
    for _ in range(5):
        deliver(session_of(core), 0)
    drains = [core.drain(9 * SECOND) for _ in range(3)]
    assert [(len(ledger(drained)), drained.has_more) for drained in drains] == [(2, True), (2, True), (1, False)]


def test_a_stream_without_news_is_forgotten(core: RecorderCore) -> None:
    commit(core, LedgerKind.COMMIT, Entry(0, 10, received_ns=0, append_us=0), now_ns=5 * SECOND)
    core.drain(6 * SECOND)
    assert len(core._logs) == 1
    core.drain(40 * SECOND)
    assert core._logs == {}


def test_commits_of_one_second_and_region_share_a_histogram_and_others_do_not(core: RecorderCore) -> None:
    near, far = 5_000 * MS, 6_000 * MS
    entries = [Entry(*at, received_ns=when, append_us=0) for *at, when in ((0, 10, near), (10, 5, near), (15, 1, far))]
    commit(core, LedgerKind.COMMIT, *entries, now_ns=6_002 * MS)
    found = histograms(core.drain(0, final=True), "commit")
    assert [(row["second"], row["n"]) for row in found] == [(5, 15), (6, 1)]


def test_replications_of_one_second_share_a_histogram(core: RecorderCore) -> None:
    first, second = Entry(0, 10, received_ns=0, append_us=5_001_000), Entry(10, 5, received_ns=0, append_us=5_002_000)
    commit(core, LedgerKind.REPLICATED, first, second, now_ns=5_041 * MS)
    assert [row["n"] for row in histograms(core.drain(0, final=True), "replicate")] == [15]


def test_deliveries_of_one_second_share_the_histogram_of_the_way_from_the_commit(core: RecorderCore) -> None:
    session = session_of(core)
    session.caught_up(0)
    commit(core, LedgerKind.REPLICATED, Entry(0, 20, received_ns=0, append_us=5_020_000), now_ns=5_030 * MS)
    deliver(session, 0, took_ms=31)
    deliver(session, 10, took_ms=33)
    (row,) = histograms(core.drain(0, final=True), "deliver")
    assert (row["n"], row["lat_max_us"]) == (20, 3_000)


def test_an_aborted_transaction_has_a_ledger_row_of_its_own(core: RecorderCore) -> None:
    written = bytearray(61)
    written[ATTRIBUTES_AT] = TRANSACTIONAL
    marker = build_marker(producer_id=7, producer_epoch=0, is_commit=False, coordinator_epoch=1, timestamp_ms=0)
    batch = Entry(0, 10, received_ns=0, append_us=0, payload=bytes(written))
    commit(core, LedgerKind.COMMIT, batch, Entry(10, 1, received_ns=0, append_us=0, payload=marker), now_ns=SECOND)
    found = ledger(core.drain(0, final=True))
    assert [(row["kind"], row["from_offset"], row["to_offset"]) for row in found] == [
        ("commit", 0, 11),
        ("aborted", 0, 10),
    ]


def test_rows_over_the_hard_limit_of_a_second_are_dropped_and_counted_late_ones_too() -> None:
    core = RecorderCore(region="eu", broker=1, first_session=0, region_name=str, rows_per_s_max=1)
    session = session_of(core)
    session.caught_up(0)
    for number in range(HARD_FACTOR):
        deliver(session, 10 * number)
    deliver(session, 10 * HARD_FACTOR, took_ms=90)  # late: kept if there were room
    drained = core.drain(0, final=True)
    assert len(rows(drained, TraceKind.DELIVERY)) == HARD_FACTOR
    assert drained.dropped == {TraceKind.DELIVERY: 1}
    assert drained.counts()[TraceKind.DELIVERY] == HARD_FACTOR + 1


def test_many_streams_without_news_are_forgotten_a_few_at_a_time(
    core: RecorderCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_core, "LOGS_PER_DRAIN", 1)
    for topic in ("a", "b", "c"):
        core.log_advanced(
            LedgerKind.COMMIT, topic=topic, origin=0, partition=0, epoch=1, from_offset=0, to_offset=1, now_ns=SECOND
        )
    core.drain(2 * SECOND)  # closes the runs, and sees the last stream while it is too young
    left = [(core.drain(second * SECOND), len(core._logs))[1] for second in (40, 41, 42)]
    assert left == [2, 1, 0]


def test_records_that_seem_to_arrive_before_they_were_sent_are_told(core: RecorderCore) -> None:
    session = session_of(core)
    session.caught_up(0)
    deliver(session, 0, took_ms=-1)
    assert core.negative_latencies == 10
