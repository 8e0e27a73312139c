"""The footer reader: what pyarrow says of sound files, and nothing but ValueError for any bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from georelay.trace.kinds import TraceKind
from sla.sources.footer import Footer, RowsOfGroup, Said, read_footer
from sla.sources.thrift import read_struct

TraceWriter = Callable[..., str]
# 1: i32 -3, 2: "ab", 3: true, 5: list of i32 [1, 2], 20: struct {1: false}, 21: double
GOLDEN = bytes.fromhex("15051802616211292502040c28120017" + "00" * 8 + "00")


def test_a_structure_is_read_as_its_specification_says() -> None:
    assert read_struct(GOLDEN) == {1: -3, 2: b"ab", 3: True, 5: [1, 2], 20: {1: False}, 21: bytes(8)}


def test_every_beginning_of_a_structure_is_refused() -> None:
    for size in range(len(GOLDEN)):
        with pytest.raises(ValueError, match="footer"):
            read_struct(GOLDEN[:size])


@given(st.binary(max_size=200) | st.integers(0, 30).map(lambda depth: b"\x1c" * depth))
def test_any_bytes_are_a_structure_or_a_value_error(raw: bytes) -> None:
    try:
        read_struct(raw)
    except ValueError as error:
        text = str(error)
    else:
        text = "read"
    assert text


@pytest.mark.parametrize("nesting", [b"\x1c", b"\x19\x19"])
def test_a_footer_that_is_nested_without_end_is_refused(nesting: bytes) -> None:
    with pytest.raises(ValueError, match="nested deeper"):
        read_struct(nesting * 100_000)


def test_a_list_that_claims_more_than_there_is_takes_no_memory() -> None:
    with pytest.raises(ValueError, match="no room"):
        read_struct(bytes.fromhex("19f5ffffffff0f"))


def test_statistics_are_those_that_pyarrow_reads(tmp_path: Path, write_trace: TraceWriter) -> None:
    rows = [
        {"group": name, "from_offset": offset, "attempt": 3} for name, offset in (("ü", -5), (None, 2**40), ("z", 7))
    ]
    for kind in (TraceKind.LEDGER, TraceKind.LATENCY_HIST):
        changed = rows if kind is TraceKind.LEDGER else [{"n": 3}, {"n": 4}, {"n": 5}]
        path = tmp_path / write_trace(tmp_path, changed, kind=kind, writing={"row_group_size": 2})
        with pa.OSFile(str(path)) as source:
            footer = read_footer(source)
        theirs = pq.read_metadata(path)
        assert len(footer.groups) == theirs.num_row_groups == 2
        compared = 0
        for number, group in enumerate(footer.groups):
            for index in range(theirs.num_columns):
                column = theirs.row_group(number).column(index)
                if "." in column.path_in_schema:
                    assert column.path_in_schema not in group
                    continue
                said, expected = group[column.path_in_schema], column.statistics
                assert said.nulls == expected.null_count
                if expected.has_min_max:
                    bounds = [
                        bound.encode() if isinstance(bound, str) else bound for bound in (expected.min, expected.max)
                    ]
                    assert [said.lows[0], said.highs[0]] == bounds, column.path_in_schema
                    compared += 1
        assert compared > 20


def test_times_need_every_row_group() -> None:
    said = Said(lows=(7_000_000_000,), highs=(9_999_999_999,))
    assert Footer(crc=0, groups=({"first_ns": said}, {"first_ns": said})).times(TraceKind.LEDGER) == (7, 9)
    assert Footer(crc=0, groups=({"first_ns": said}, {})).times(TraceKind.LEDGER) == (None, None)
    assert Footer(crc=0, groups=()).times(TraceKind.LEDGER) == (None, None)


@pytest.mark.parametrize(
    ("said", "is_right"),
    [
        (Said(lows=(3, 3), highs=(7, 7), nulls=1), True),
        (Said(), True),
        (Said(lows=(2,), highs=(8,), is_exact=False), True),
        (Said(nulls=0), False),
        (Said(lows=(4,)), False),
        (Said(highs=(6,)), False),
        (Said(lows=(3, 4)), False),
    ],
)
def test_rows_are_compared_over_all_batches(said: Said, *, is_right: bool) -> None:
    schema = pa.schema([("a", pa.int64())])
    rows = RowsOfGroup({"a": said}, schema)
    for values in ([7, None], [3, 5]):
        rows.add(pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=schema))
    assert rows.bounds("a") == (3, 7)
    if is_right:
        rows.finish()
        return
    with pytest.raises(ValueError, match="column a"):
        rows.finish()


def test_a_column_with_data_and_without_a_place_in_the_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="column b has data"):
        RowsOfGroup({"b": Said()}, pa.schema([("a", pa.int64())]))
