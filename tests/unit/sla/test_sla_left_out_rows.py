"""Rows that no figure has: they are missing like rows that are gone, and the report says how many."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from georelay.trace.kinds import TraceKind
from sla.jobs.rollup_inputs import InputRows, stored_rows, write_rows
from sla.jobs.rollup_plan import LATE_HOURS, HourInputs
from sla.jobs.verify import VerifyRequest, run_verify
from sla.judging.completeness import Completeness
from sla.judging.facts import Facts, HourFacts
from sla.judging.judge import judge
from sla.report.model import Note
from sla.rollups import HourRun, RollupStore
from sla.sources.layout import hour_folder
from sla.tables import DDL, HOUR_S, RollupTable
from sla.targets_file import load_targets
from tests.sla import judging_facts as build
from tests.sla.conftest import TRACE_HOUR_S, TraceWriter
from tests.sla.conftest import write_trace as write_trace  # a fixture
from tests.sla.sample_report import sample_report

LEFT_OUT = {"ts_s": TRACE_HOUR_S, "kind": "ledger", "region": "eu"}


def test_rows_that_no_figure_has_are_missing() -> None:
    facts = build.inputs(rows=900, missing_rows=0, left_out_rows=100)
    assert Completeness([facts]).missing_share(TraceKind.LEDGER, "eu") == pytest.approx(0.1)


def test_the_report_warns_of_rows_that_no_figure_has() -> None:
    inputs = (build.inputs(left_out_rows=1_200), build.inputs(kind="probe", left_out_rows=0))
    report = judge(
        Facts(now=build.period(inputs=inputs), before=build.period()),
        load_targets(),
        made=build.MADE,
        hours=HourFacts(expected=1, rolled_up=1, revised=0, not_final=0, kept=1),
    )
    (note,) = [note for note in report.notes if note.code == "ROWS_LEFT_OUT"]
    assert note.is_warning
    assert note.text == (
        "1,200 rows of traces are in no figure, and count as missing: ledger of eu; they are more than 24 hours from "
        "their time, or came when other traces of their hour were gone"
    )


def test_the_page_does_not_say_that_everything_was_counted() -> None:
    from sla.report.html import to_html

    left_out = Note(code="ROWS_LEFT_OUT", text="1 row", is_warning=True)
    report = sample_report()
    inputs = dataclasses.replace(report.inputs, rows=(), quarantined=(), hours=1, hours_expected=1)
    page = to_html(dataclasses.replace(report, inputs=inputs, series=(), notes=(left_out,)))
    assert "No: rows that are in no figure" in page
    assert "nothing is known to be missing" not in page


def run(hour_s: int, **changes: Any) -> HourRun:
    values: dict[str, Any] = {
        "hour_s": hour_s, "revision": 1, "is_final": True, "is_revised": False, "input_hash": "i", "carry_hash": "",
        "carry_out_hash": "", "rows_read": {}, "files": 1, "quarantined": 0, "missing_rows": 0, "settle_s": 900,
        "row_ranges": {}, "built_at": "", "code_version": "v1",
    }  # fmt: skip
    return HourRun(**(values | changes))


def input_rows(traces: Path, store: RollupStore) -> InputRows:
    files = run_verify(VerifyRequest(traces=traces, hours_after=LATE_HOURS))
    return InputRows(files, HourInputs(files, settle_s=900), store)


def install(store: RollupStore, hour_s: int, rows: list[dict[str, Any]]) -> None:
    with store.writing():
        staging = store.staging()
        write_rows(rows, staging / RollupTable.INPUTS_HOUR.value / hour_folder(hour_s))
        store.install(staging, run(hour_s))


def test_of_a_file_with_late_rows_only_those_that_came_too_late_are_left_out(
    tmp_path: Path, write_trace: TraceWriter
) -> None:
    late_s, hour_s = TRACE_HOUR_S, TRACE_HOUR_S + 30 * HOUR_S
    times = [late_s, late_s + 1, hour_s - LATE_HOURS * HOUR_S, hour_s, hour_s + 3 * HOUR_S - 1, hour_s + 3 * HOUR_S]
    hist = TraceKind.LATENCY_HIST
    write_trace(tmp_path / "t", [{"second": second} for second in times], kind=hist, hour_s=hour_s)
    write_trace(tmp_path / "t", [{"second": late_s}], kind=hist, hour_s=hour_s, first=6)
    (row,) = input_rows(tmp_path / "t", RollupStore.open(tmp_path / "r")).of(hour_s)
    assert (row["files"], row["rows"], row["left_out_rows"], row["missing_rows"]) == (2, 3, 4, 0)


def test_what_came_for_an_hour_that_cannot_be_made_again_is_said_once_and_never_taken_back(
    tmp_path: Path, write_trace: TraceWriter
) -> None:
    store = RollupStore.open(tmp_path / "r")
    write_trace(tmp_path / "t", 3)
    rows = input_rows(tmp_path / "t", store)
    install(store, TRACE_HOUR_S, rows.of(TRACE_HOUR_S))
    assert rows.with_left_out(TRACE_HOUR_S, {}) is None
    said = rows.with_left_out(TRACE_HOUR_S, {(TraceKind.LEDGER, "eu"): 5, (TraceKind.PROBE, "us"): 2})
    assert said is not None
    install(store, TRACE_HOUR_S, said)
    found = {(row["kind"], row["region"]): row for row in stored_rows(store, TRACE_HOUR_S, TRACE_HOUR_S + HOUR_S)}
    assert {key: (row["rows"], row["left_out_rows"]) for key, row in found.items()} == {
        ("ledger", "eu"): (3, 0), ("probe", "us"): (0, 0),
    }  # fmt: skip
    assert rows.with_left_out(TRACE_HOUR_S, {(TraceKind.LEDGER, "eu"): 4}) is None
    assert _too_late(found) == {("ledger", "eu"): 5, ("probe", "us"): 2}
    assert rows.with_left_out(TRACE_HOUR_S, {(TraceKind.LEDGER, "eu"): 6}) is not None


def _too_late(rows: dict[tuple[str, str], dict[str, Any]]) -> dict[tuple[str, str], int]:
    return {key: row["too_late_rows"] for key, row in rows.items()}


def test_what_came_for_an_hour_that_cannot_be_made_again_is_added_to_what_was_too_late_for_any_hour(
    tmp_path: Path, write_trace: TraceWriter
) -> None:
    store = RollupStore.open(tmp_path / "r")
    write_trace(tmp_path / "t", 3)
    rows = input_rows(tmp_path / "t", store)
    install(store, TRACE_HOUR_S, [row | {"left_out_rows": 100} for row in rows.of(TRACE_HOUR_S)])
    for count in (50, 50, 60):
        said = rows.with_left_out(TRACE_HOUR_S, {(TraceKind.LEDGER, "eu"): count})
        if said is not None:
            install(store, TRACE_HOUR_S, said)
    (row,) = stored_rows(store, TRACE_HOUR_S, TRACE_HOUR_S + HOUR_S)
    assert (row["left_out_rows"], row["too_late_rows"]) == (100, 60)


def test_a_broker_that_fell_silent_before_the_traces_begin_is_known_from_the_roll_ups(
    tmp_path: Path, write_trace: TraceWriter
) -> None:
    store = RollupStore.open(tmp_path / "r")
    empty = dict.fromkeys(("files", "bytes", "rows", "quarantined_files", "missing_rows", "dropped_rows"), 0)
    clocks = empty | {"kind": "clock", "region": "eu", "writers": ["eu/2001", "eu/2002"], "silent_writers": []}
    for hours in (4, 3):
        install(store, TRACE_HOUR_S - hours * HOUR_S, [clocks | {"ts_s": TRACE_HOUR_S - hours * HOUR_S}])
    write_trace(tmp_path / "t", 3)
    silent = {row["kind"]: row["silent_writers"] for row in input_rows(tmp_path / "t", store).of(TRACE_HOUR_S)}
    assert silent == {"ledger": (), "clock": ("eu/2001", "eu/2002")}


def test_rows_are_written_with_the_columns_of_the_table(tmp_path: Path) -> None:
    write_rows([LEFT_OUT | {"writers": [], "silent_writers": []}], tmp_path / "hour")
    (path,) = (tmp_path / "hour").iterdir()
    declared = [column.split()[0] for column in DDL[RollupTable.INPUTS_HOUR].split(",")]
    assert pq.read_schema(path).names == declared
    write_rows([], tmp_path / "none")
    assert not (tmp_path / "none").exists()
