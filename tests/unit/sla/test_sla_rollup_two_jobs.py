"""Of two jobs at once the one that lists the files first and writes last says nothing false of the other's rows."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from sla.jobs import report as report_job
from sla.jobs.report import ReportRequest, run_report
from sla.jobs.rollup import RollupRequest, run_rollup
from sla.jobs.rollup_code import code_version
from sla.jobs.rollup_plan import EARLY_HOURS, LATE_HOURS, HourInputs
from sla.jobs.verify import VerifyRequest, run_verify
from sla.judging.facts import HourFacts
from sla.rollups import HourAction, HourRun, RollupStore
from sla.sources.layout import Period, hour_folder
from sla.sources.manifest import TraceFiles
from sla.tables import HOUR_S
from sla.targets import Targets
from tests.sla.conftest import TRACE_HOUR_S as T0
from tests.sla.conftest import TraceWriter
from tests.sla.conftest import write_trace as write_trace  # a fixture

SETTLE_S = 900
NOW_S = T0 + 1_800.0  # the hour is open: files come while jobs run
LATER_S = NOW_S + 60
PERIOD = Period(
    start=datetime.datetime.fromtimestamp(T0, tz=datetime.UTC),
    end=datetime.datetime.fromtimestamp(T0 + HOUR_S, tz=datetime.UTC),
)


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours that stand, or are kept, need no Spark; one that is built fails for want of it."""
    monkeypatch.setattr("sla.session.build_session", lambda **_: None)
    monkeypatch.setattr("sla.jobs.rollup.build_session", lambda **_: None)
    monkeypatch.setattr(report_job, "require_spark", lambda: None)


def listed(traces: Path) -> TraceFiles:
    return run_verify(VerifyRequest(traces=traces, period=PERIOD, hours_before=EARLY_HOURS, hours_after=LATE_HOURS))


def manifest(traces: Path, at_s: float, **changes: Any) -> HourRun:
    """Return the manifest of the hour, made of all files that are there by a job that listed them at some moment."""
    made_of = HourInputs(listed(traces), settle_s=SETTLE_S).of(T0)
    built_at = datetime.datetime.fromtimestamp(at_s, tz=datetime.UTC).isoformat(timespec="seconds")
    values: dict[str, Any] = {
        "hour_s": T0, "revision": 1, "is_final": False, "is_revised": False, "input_hash": made_of.hash,
        "carry_hash": "", "carry_out_hash": "", "rows_read": {}, "files": len(made_of.files.good), "quarantined": 0,
        "missing_rows": 0, "settle_s": SETTLE_S, "row_ranges": made_of.row_ranges(), "built_at": built_at,
        "code_version": code_version(), "parts": {},
    }  # fmt: skip
    return HourRun(**(values | changes))


@dataclasses.dataclass
class Clock:
    """A wall clock that a test moves on."""

    now_s: float = NOW_S

    def __call__(self) -> float:
        return self.now_s


def other_job(tmp_path: Path, write_trace: TraceWriter, clock: Clock, **changes: Any) -> Callable[[str], None]:
    """Return what makes another job list one more file, and write the hour, while a job starts Spark."""

    def on_step(text: str) -> None:
        if text == "starting Spark":
            write_trace(tmp_path / "traces", 10, first=40)
            clock.now_s = LATER_S
            RollupStore.open(tmp_path / "rollups").write_run(manifest(tmp_path / "traces", LATER_S, **changes))

    return on_step


def rolled_up(tmp_path: Path, clock: Clock, on_step: Callable[[str], None]) -> list[HourRun]:
    request = RollupRequest(
        traces=tmp_path / "traces", rollups=tmp_path / "rollups", period=PERIOD, settle_s=SETTLE_S, now_s=clock
    )
    return run_rollup(request, on_step).hours


def test_an_hour_that_another_job_made_of_more_files_meanwhile_is_unchanged_and_not_kept(
    tmp_path: Path, write_trace: TraceWriter
) -> None:
    write_trace(tmp_path / "traces", 40)
    clock, steps = Clock(), []
    other = other_job(tmp_path, write_trace, clock)

    def on_step(text: str) -> None:
        steps.append(text)
        other(text)

    (run,) = rolled_up(tmp_path, clock, on_step)
    assert (run.action, run.left_out_rows) == (HourAction.CURRENT, 0)
    assert steps.count(f"listing {tmp_path / 'traces'}") == 2


def test_a_report_beside_another_job_does_not_say_that_traces_are_gone(
    tmp_path: Path, write_trace: TraceWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_trace(tmp_path / "traces", 40)
    said: list[HourFacts] = []
    monkeypatch.setattr("sla.jobs.collect.collect", lambda *_, **__: None)
    monkeypatch.setattr(report_job, "judge", lambda *_, hours, **__: said.append(hours))
    monkeypatch.setattr(report_job, "write", lambda *_: None)
    clock = Clock()
    request = ReportRequest(
        traces=tmp_path / "traces", rollups=tmp_path / "rollups", period=PERIOD, targets=Targets(targets=()),
        out=tmp_path / "out", settle_s=SETTLE_S, now_s=clock,
    )  # fmt: skip
    run_report(request, other_job(tmp_path, write_trace, clock))
    assert [(hours.kept, hours.unseen, hours.not_final) for hours in said] == [(0, 0, 1)]


def test_an_hour_whose_files_are_gone_is_kept_though_another_job_wrote_it_meanwhile(
    tmp_path: Path, write_trace: TraceWriter
) -> None:
    write_trace(tmp_path / "traces", 40)
    clock = Clock()
    other = other_job(tmp_path, write_trace, clock, row_ranges={"ledger/2001/b0": [[0, 99]]}, input_hash="i")
    (run,) = rolled_up(tmp_path, clock, other)
    assert run.action is HourAction.KEPT


@pytest.mark.parametrize("built_at", ["", "yesterday", "2023-11-14T22:20:00", "2023-11-14T21:31:00+00:00"])
def test_a_manifest_that_does_not_say_when_or_by_a_clock_that_is_behind_is_looked_at_as_one_of_just_now(
    tmp_path: Path, write_trace: TraceWriter, built_at: str
) -> None:
    write_trace(tmp_path / "traces", 40)
    clock = Clock()
    (run,) = rolled_up(tmp_path, clock, other_job(tmp_path, write_trace, clock, built_at=built_at))
    assert run.action is HourAction.CURRENT


def test_files_are_listed_once_where_an_hour_was_kept_long_ago(tmp_path: Path, write_trace: TraceWriter) -> None:
    gone = tmp_path / "traces" / write_trace(tmp_path / "traces", 40)
    write_trace(tmp_path / "traces", 10, first=40)
    store = RollupStore.open(tmp_path / "rollups")
    store.write_run(manifest(tmp_path / "traces", NOW_S))
    gone.unlink()
    steps: list[str] = []
    (run,) = rolled_up(tmp_path, Clock(NOW_S + 24 * HOUR_S), steps.append)
    assert run.action is HourAction.KEPT
    assert steps.count(f"listing {tmp_path / 'traces'}") == 1


def test_an_hour_is_final_when_its_files_were_listed_after_its_settle_time(
    tmp_path: Path, write_trace: TraceWriter
) -> None:
    """What comes between the listing and the write is in no figure: the hour is made again for it."""
    write_trace(tmp_path / "traces", 40)
    RollupStore.open(tmp_path / "rollups").write_run(manifest(tmp_path / "traces", NOW_S))
    settled_s = T0 + HOUR_S + SETTLE_S
    clock = Clock(settled_s - 1)

    def on_step(text: str) -> None:
        if text == "starting Spark":
            clock.now_s = settled_s

    (early,) = rolled_up(tmp_path, clock, on_step)
    assert not early.is_final
    (late,) = rolled_up(tmp_path, clock, on_step)
    assert late.is_final


def test_a_report_whose_traces_are_all_gone_when_it_lists_them_again_changes_no_hour(
    tmp_path: Path, write_trace: TraceWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_trace(tmp_path / "traces", 40)
    clock = Clock()
    other = other_job(tmp_path, write_trace, clock)
    path = tmp_path / "rollups" / "_runs" / hour_folder(T0) / "_run.json"
    said: list[HourFacts] = []
    stood: list[bytes] = []

    def on_step(text: str) -> None:
        other(text)
        if text.startswith("another job wrote"):
            stood.append(path.read_bytes())
            for file in (tmp_path / "traces" / first).parent.iterdir():
                file.unlink()

    monkeypatch.setattr("sla.jobs.collect.collect", lambda *_, **__: None)
    monkeypatch.setattr(report_job, "judge", lambda *_, hours, **__: said.append(hours))
    monkeypatch.setattr(report_job, "write", lambda *_: None)
    request = ReportRequest(
        traces=tmp_path / "traces", rollups=tmp_path / "rollups", period=PERIOD, targets=Targets(targets=()),
        out=tmp_path / "out", settle_s=SETTLE_S, now_s=clock,
    )  # fmt: skip
    run_report(request, on_step)
    assert [(hours.kept, hours.is_without_traces) for hours in said] == [(1, True)]
    assert stood == [path.read_bytes()]
