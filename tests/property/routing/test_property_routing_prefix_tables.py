"""Prefix tables: what goes in comes out, in whatever order they are merged; nothing else is taken for one."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.routing.distance_core import NEAR_MS, Leg, Source, estimate
from mesh.distance.prefix_core import Prefix
from mesh.distance.prefix_table_core import (
    EXPIRY_MIN,
    HEAD,
    ROW_BYTES,
    RTT_MS_MAX,
    PrefixDistance,
    PrefixTable,
    PrefixTableFault,
    merge,
)
from mesh.gossip.distance_pages_core import PagesRead, answer, question

PREFIXES = st.sampled_from([Prefix(bytes([10, 0, n])) for n in range(5)]) | st.binary(min_size=6, max_size=6).map(
    Prefix
)
ROWS = st.builds(
    PrefixDistance,
    PREFIXES,
    st.integers(1, 65_535).map(lambda units: units / 10),
    st.integers(1, 6),
    st.integers(0, EXPIRY_MIN - 1),
)
TABLES = st.lists(ROWS, max_size=30).map(PrefixTable.of)
MS = st.floats(0.1, 5_000)


@settings(deadline=None, max_examples=30)
@given(st.lists(ROWS, max_size=200, unique_by=lambda row: row.prefix.raw))
def test_every_row_is_found_again_after_its_way_in_pages(rows: list[PrefixDistance]) -> None:
    table = PrefixTable.of(rows)
    assert PrefixTable.read(table.raw).raw == table.raw == HEAD + b"".join(table.page(b"", 1_000) for _ in range(1))
    pages = PagesRead()
    while not pages.is_over:
        page = answer(question(pages.after, "eu"), lambda region: table if region == "eu" else None)
        assert page is not None and len(page) <= 860
        pages.take(page)
    came = pages.table()
    assert sorted(came, key=lambda row: row.prefix.raw) == sorted(rows, key=lambda row: row.prefix.raw)
    assert all(came.find(row.prefix) == row for row in rows)
    assert came.find(Prefix(b"\xff" * 6)) in (None, *rows) and came.find(Prefix(b"\xff" * 3)) in (None, *rows)


@settings(deadline=None, max_examples=30)
@given(TABLES, TABLES, TABLES)
def test_it_does_not_matter_in_which_order_tables_are_merged_or_how_often(
    one: PrefixTable, two: PrefixTable, three: PrefixTable
) -> None:
    whole = merge([one, two, three])
    assert whole.raw == merge([three, merge([two, one]), two]).raw
    assert merge([whole, whole]).raw == whole.raw
    for row in whole:
        same = [found for table in (one, two, three) if (found := table.find(row.prefix)) is not None]
        assert row in same and row.addresses == max(each.addresses for each in same)


@settings(deadline=None, max_examples=30)
@given(TABLES, st.integers(0, 90), st.integers(0, 90))
def test_rows_grow_older_and_less_sure_and_are_gone_after_an_hour(table: PrefixTable, first: int, second: int) -> None:
    aged = table.aged(first).aged(second)
    assert aged.raw == table.aged(first + second).raw
    assert len(aged) == sum(row.age_min + first + second < EXPIRY_MIN for row in table)
    for row in aged:
        young = table.find(row.prefix)
        assert young is not None and row.error_ms >= young.error_ms >= 1.0
        assert row.error_ms <= max(1.0, 0.6 * row.rtt_ms)


@example(HEAD + b"\4" + bytes(6) + b"\0\1\1\0" * 1)
@given(st.binary(max_size=60) | st.binary(max_size=6 * ROW_BYTES).map(lambda raw: HEAD + raw))
def test_what_is_no_table_is_refused_and_what_is_one_is_kept_as_it_came(raw: bytes) -> None:
    try:
        table = PrefixTable.read(raw)
    except PrefixTableFault:
        return
    assert table.raw == raw
    assert PrefixTable.of(table).raw == raw


@given(far=ROWS, leg_ms=MS, kernel_ms=MS | st.none(), observed_ms=MS | st.none())
def test_what_others_say_counts_within_the_triangle_and_never_above_what_was_measured_here(
    far: PrefixDistance, leg_ms: float, kernel_ms: float | None, observed_ms: float | None
) -> None:
    leg = Leg(rtt_ms=leg_ms)
    without = estimate(leg=leg, kernel_ms=kernel_ms, observed_ms=observed_ms)
    found = estimate(leg=leg, kernel_ms=kernel_ms, observed_ms=observed_ms, far=far)
    if observed_ms is not None or (kernel_ms is not None and leg_ms <= NEAR_MS):
        assert found == without
        return
    assert found.source is Source.PREFIX and found.error_ms >= 1.0
    if kernel_ms is not None:
        assert 0.5 * abs(leg_ms - kernel_ms) <= found.rtt_ms <= 3 * (leg_ms + kernel_ms)
        assert found.error_ms >= abs(found.rtt_ms - far.rtt_ms)
    assert found.rtt_ms <= RTT_MS_MAX or (kernel_ms is not None and not math.isinf(found.rtt_ms))


@pytest.mark.parametrize("payload", [b"", b"--", b"- EU", b"zz", b"00 eu", b"\xff", b"- " + b"e" * 100])
def test_a_question_that_is_none_is_not_answered(payload: bytes) -> None:
    assert answer(payload, lambda _: PrefixTable()) is None
