"""What holds for any traffic: histograms merge, samples agree, spools never invent a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from georelay.trace.histogram import LatencyHistogram, merge
from georelay.trace.kinds import TraceKind
from georelay.trace.schema import RECORDED_COLUMNS
from georelay.trace.spool import SpoolError, read_spool
from mesh.tracing.recorder_core import RecorderCore
from mesh.tracing.sampling_core import VALUE_BITS, sample_value, stream_seed

latencies = st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 1_000)), max_size=30)


def histogram(values: Sequence[tuple[int, int]]) -> LatencyHistogram:
    made = LatencyHistogram(clock_error_us=700)
    for latency_us, count in values:
        made.add(latency_us, count)
    return made


def sums(made: LatencyHistogram) -> tuple[int, ...]:
    return made.n, made.n_good, made.n_good_lo, made.n_good_hi, made.lat_sum_us


@given(parts=st.lists(latencies, min_size=1, max_size=5), order=st.randoms(use_true_random=False))
def test_histograms_merge_in_any_order_to_the_one_of_all_records(
    parts: list[list[tuple[int, int]]], order: Any
) -> None:
    whole = histogram([value for part in parts for value in part])
    made = [histogram(part) for part in parts]
    order.shuffle(made)
    merged: dict[int, int] = {}
    for each in made:
        merge(merged, each.buckets.items())
    assert merged == whole.buckets
    assert tuple(map(sum, zip(*(sums(each) for each in made), strict=True))) == sums(whole)
    assert sum(whole.buckets.values()) == whole.n
    assert whole.n_good_lo <= whole.n_good <= whole.n_good_hi <= whole.n


@given(
    origin=st.integers(0, 32_767),
    topic=st.text(min_size=1, max_size=20),
    partition=st.integers(0, 999),
    epoch=st.integers(1, 2**32 - 1),
    base_offset=st.integers(0, 2**62),
    shifts=st.tuples(st.integers(0, 30), st.integers(0, 30)),
)
def test_what_a_region_samples_every_region_that_samples_more_does(
    origin: int, topic: str, partition: int, epoch: int, base_offset: int, shifts: tuple[int, int]
) -> None:
    value = sample_value(stream_seed(origin=origin, topic=topic, partition=partition), epoch, base_offset)
    assert 0 <= value < 1 << VALUE_BITS
    rare, often = sorted(shifts, reverse=True)
    assert value >= 1 << (VALUE_BITS - rare) or value < 1 << (VALUE_BITS - often)


batches = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-20, 20), st.integers(1, 10), st.integers(0, 3_000)), max_size=40
)


@given(steps=batches, every=st.integers(1, 7))
def test_every_record_delivered_is_in_the_ledger_once_and_every_live_one_in_a_histogram(
    steps: list[tuple[int, int, int, int]], every: int
) -> None:
    """However sessions jump and drains fall, nothing is counted twice or forgotten."""
    core = RecorderCore(region="eu", broker=1, first_session=0, region_name=str, rows_per_s_max=10**6)
    sessions = [core.open_session(topic="t", origin=0, partition=p, offset=0) for p in range(4)]
    for session in sessions:
        session.caught_up(0)
    ledger = hist = delivery = expected = now_ns = 0

    def collect(final: bool = False) -> None:
        nonlocal ledger, hist, delivery
        rows = core.drain(now_ns, final=final).finished()
        names = RECORDED_COLUMNS
        first, end = names[TraceKind.LEDGER].index("from_offset"), names[TraceKind.LEDGER].index("to_offset")
        ledger += sum(row[end] - row[first] for row in rows.get(TraceKind.LEDGER, []))
        hist += sum(row[names[TraceKind.LATENCY_HIST].index("n")] for row in rows.get(TraceKind.LATENCY_HIST, []))
        delivery += sum(row[names[TraceKind.DELIVERY].index("count")] for row in rows.get(TraceKind.DELIVERY, []))

    for index, (which, jump, count, pause_ms) in enumerate(steps):
        now_ns += pause_ms * 1_000_000
        session = sessions[which]
        base = max(0, session.next_offset + (jump if jump % 3 == 0 else 0))
        session.delivered(
            epoch=1, base_offset=base, record_count=count, entry_region=1, received_ns=now_ns, delivered_ns=now_ns + 1
        )
        expected += count
        if index % every == 0:
            collect()
    collect(final=True)
    assert (ledger, hist, delivery) == (expected, expected, expected)


@given(raw=st.binary(max_size=300))
def test_garbage_is_no_spool(raw: bytes) -> None:
    try:
        spool = read_spool(raw)
    except SpoolError:
        return
    assert spool.lost_bytes <= len(raw)
