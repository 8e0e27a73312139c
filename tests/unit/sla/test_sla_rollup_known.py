"""What is missing of an hour is the same whatever period was asked for first, and what is known of it stays."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from georelay.trace.kinds import TraceKind
from sla.jobs.rollup import roll_up
from sla.jobs.rollup_code import code_version
from sla.jobs.rollup_inputs import InputRows, stored_rows, write_rows
from sla.jobs.rollup_plan import EARLY_HOURS, LATE_HOURS, HourInputs, decide
from sla.jobs.verify import VerifyRequest, run_verify
from sla.rollups import HourAction, HourRun, RollupStore
from sla.sources.layout import Period, hour_folder
from sla.sources.manifest import SILENT_HOURS_MAX, TraceFiles
from sla.tables import HOUR_S, RollupTable
from tests.sla.conftest import TRACE_HOUR_S as T0
from tests.sla.conftest import TraceWriter
from tests.sla.conftest import write_trace as write_trace  # a fixture

SETTLE_S = 900
NO_SPARK: Any = None
Missing = dict[str, tuple[int, list[str]]]  # kind -> rows, silent writers


def exchange(hour: int) -> dict[str, Any]:
    at_ns = (T0 + hour * HOUR_S) * 10**9
    return {
        "region": "eu", "broker": "2001", "peer": "1001", "t1_ns": at_ns, "t2_ns": at_ns, "t3_ns": at_ns,
        "t4_ns": at_ns, "theta_ns": 0, "delta_ns": 1_000, "host_maxerr_us": None, "host_unsync": True,
        "mono_ns": at_ns, "boot_id": "b0", "schema_version": 2,
    }  # fmt: skip


@pytest.fixture
def write(tmp_path: Path, write_trace: TraceWriter) -> Any:
    """Write a file of an hour (from T0): rows of the ledger from a number on, or one clock row of a broker."""

    def ledger(hour: int, first: int, rows: int) -> str:
        return write_trace(tmp_path / "traces", [{"from_offset": 0}] * rows, first=first, hour_s=T0 + hour * HOUR_S)

    def clock(hour: int, broker: int) -> str:
        kind = TraceKind.CLOCK
        return write_trace(
            tmp_path / "traces", [exchange(hour)], first=hour, hour_s=T0 + hour * HOUR_S, kind=kind, broker=broker
        )

    return ledger, clock


def listed(tmp_path: Path, first_hour: int, last_hour: int) -> TraceFiles:
    """Return the files that a job looks at whose period is of some hours, both ends included."""
    start, end = (datetime.datetime.fromtimestamp(T0 + hour * HOUR_S, tz=datetime.UTC)
                  for hour in (first_hour, last_hour + 1))  # fmt: skip
    period = Period(start=start, end=end)
    return run_verify(
        VerifyRequest(traces=tmp_path / "traces", period=period, hours_before=EARLY_HOURS, hours_after=LATE_HOURS)
    )


def store_of(tmp_path: Path) -> RollupStore:
    return RollupStore.open(tmp_path / "rollups")


def missing(tmp_path: Path, hour: int, first_hour: int) -> Missing:
    """Return what is missing of an hour, by a job that is asked for the hours from another one on."""
    files = listed(tmp_path, first_hour, hour)
    rows = InputRows(files, HourInputs(files, settle_s=SETTLE_S), store_of(tmp_path)).of(T0 + hour * HOUR_S)
    return {row["kind"]: (row["missing_rows"], list(row["silent_writers"])) for row in rows}


def manifest(files: TraceFiles, hour: int) -> HourRun:
    """Return the manifest of an hour that was made of these files by this code."""
    made_of = HourInputs(files, settle_s=SETTLE_S).of(T0 + hour * HOUR_S)
    return HourRun(
        hour_s=made_of.hour_s, revision=1, is_final=True, is_revised=False, input_hash=made_of.hash, carry_hash="",
        carry_out_hash="", rows_read={}, files=len(made_of.files.good), quarantined=0, missing_rows=0,
        settle_s=SETTLE_S, row_ranges=made_of.row_ranges(), built_at="", code_version=code_version(), parts={},
    )  # fmt: skip


def install(tmp_path: Path, files: TraceFiles, hour: int) -> None:
    """Put an hour into the store as a job would that lists these files."""
    store, run = store_of(tmp_path), manifest(files, hour)
    with store.writing():
        staging = store.staging()
        rows = InputRows(files, HourInputs(files, settle_s=SETTLE_S), store).of(run.hour_s)
        write_rows(rows, staging / RollupTable.INPUTS_HOUR.value / hour_folder(run.hour_s))
        store.install(staging, run, [RollupTable.INPUTS_HOUR])
        shutil.rmtree(staging)


def test_a_broker_that_died_before_the_period_is_silent_in_it(tmp_path: Path, write: Any) -> None:
    _, clock = write
    for hour in range(12):
        clock(hour, 2001)
    for hour in range(5):
        clock(hour, 2002)
    assert [missing(tmp_path, 10, first) for first in (0, 8, 10)] == [{"clock": (0, ["eu/2002"])}] * 3


def test_a_gap_before_the_first_file_of_a_period_is_missing_in_it(tmp_path: Path, write: Any) -> None:
    ledger, _ = write
    ledger(0, 0, 100)
    ledger(5, 150, 50)
    for first in (0, 5):
        assert missing(tmp_path, 5, first)["ledger"] == (50, [])


def test_of_two_files_before_the_newest_that_can_be_read_ends_the_gap(tmp_path: Path, write: Any) -> None:
    ledger, _ = write
    ledger(0, 0, 100)
    torn = ledger(1, 100, 40)
    (tmp_path / "traces" / torn).write_bytes(b"torn")
    ledger(9, 150, 50)
    for first in (0, 9):
        assert missing(tmp_path, 9, first)["ledger"] == (50, [])


def test_it_looks_back_a_week(tmp_path: Path, write: Any) -> None:
    ledger, _ = write
    ledger(0, 0, 100)
    ledger(SILENT_HOURS_MAX, 150, 1)
    ledger(SILENT_HOURS_MAX + 1, 160, 1)
    assert missing(tmp_path, SILENT_HOURS_MAX, SILENT_HOURS_MAX)["ledger"] == (50, [])
    shutil.rmtree(tmp_path / "traces" / hour_folder(T0 + SILENT_HOURS_MAX * HOUR_S))
    assert missing(tmp_path, SILENT_HOURS_MAX + 1, SILENT_HOURS_MAX + 1)["ledger"] == (0, [])


def test_rows_that_roll_ups_were_made_of_are_known_when_their_files_are_gone(tmp_path: Path, write: Any) -> None:
    ledger, _ = write
    gone = [ledger(0, 0, 100), ledger(3, 100, 20)]
    ledger(8, 150, 50)
    install(tmp_path, listed(tmp_path, 0, 3), 0)
    install(tmp_path, listed(tmp_path, 0, 3), 3)
    (tmp_path / "traces" / gone[1]).unlink()
    for first in (0, 8):
        assert missing(tmp_path, 8, first)["ledger"] == (30, [])
    (tmp_path / "traces" / gone[0]).unlink()
    assert missing(tmp_path, 8, 8)["ledger"] == (30, [])


def test_an_hour_that_did_not_change_learns_what_a_wider_period_knows_once(tmp_path: Path, write: Any) -> None:
    ledger, clock = write
    ledger(5, 150, 50)
    clock(5, 2001)
    narrow = listed(tmp_path, 5, 5)
    install(tmp_path, narrow, 5)
    ledger(0, 0, 100)  # nobody looked at these: they were copied to this machine since
    clock(0, 2002)
    wide, store = listed(tmp_path, 0, 5), store_of(tmp_path)
    assert decide(manifest(wide, 5), store.run(T0 + 5 * HOUR_S), is_forced=False).action is HourAction.CURRENT

    def known() -> dict[str, tuple[int, int, list[str]]]:
        rows = stored_rows(store, T0 + 5 * HOUR_S, T0 + 6 * HOUR_S)
        return {row["kind"]: (row["rows"], row["missing_rows"], row["silent_writers"]) for row in rows}

    def roll(files: TraceFiles) -> HourRun:
        (done,) = roll_up(NO_SPARK, files, store, [T0 + 5 * HOUR_S], now_s=T0 + 99 * HOUR_S).hours
        return done

    assert known() == {"clock": (1, 0, []), "ledger": (50, 0, [])}
    assert roll(wide).action is HourAction.CURRENT
    assert known() == {"clock": (1, 0, ["eu/2002"]), "ledger": (50, 50, [])}
    before = {path: path.read_bytes() for path in (tmp_path / "rollups").rglob("*.*") if path.is_file()}
    for files in (wide, narrow):
        assert roll(files).action is HourAction.CURRENT
        assert {path: path.read_bytes() for path in before} == before, "it says all of that already"
