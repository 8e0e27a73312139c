"""What the roll-up job does with hours that need no Spark: kept, empty, and those that nothing is known of."""

from __future__ import annotations

import datetime
import functools
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from sla import cli
from sla.errors import JobFailed, UsageError
from sla.jobs.rollup import RollupResult, hours_of, roll_up
from sla.jobs.rollup_inputs import stored_rows
from sla.jobs.verify import VerifyRequest, run_verify
from sla.rollup_files_core import KEEP_S
from sla.rollups import HourAction, HourRun, RollupSnapshot, RollupStore
from sla.sources.layout import Period, hour_folder
from sla.tables import HOUR_S, RollupTable
from tests.sla.conftest import TRACE_HOUR_S as T0
from tests.sla.conftest import TraceWriter
from tests.sla.conftest import write_trace as write_trace  # a fixture

LATER_S = T0 + 1_000 * HOUR_S
NO_SPARK: Any = None


def roll(
    traces: Path,
    store: RollupStore,
    hours: list[int],
    *,
    now_s: float = LATER_S,
    snapshot: RollupSnapshot | None = None,
) -> RollupResult:
    files = run_verify(VerifyRequest(traces=traces))
    return roll_up(NO_SPARK, files, store, hours, now_s=now_s, snapshot=snapshot)


def run(hour_s: int, **changes: Any) -> HourRun:
    values: dict[str, Any] = {
        "hour_s": hour_s, "revision": 1, "is_final": True, "is_revised": False, "input_hash": "i", "carry_hash": "",
        "carry_out_hash": "", "rows_read": {}, "files": 1, "quarantined": 0, "missing_rows": 0, "settle_s": 900,
        "row_ranges": {"ledger/2001/run1": [[0, 9]]}, "built_at": "", "code_version": "v1", "parts": {},
    }  # fmt: skip
    return HourRun(**(values | changes))


def test_a_report_takes_the_manifests_that_the_job_before_it_read(
    tmp_path: Path, write_trace: TraceWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RollupStore.open(tmp_path / "rollups")
    hours = [T0, T0 + HOUR_S]
    for hour_s in hours:
        store.write_run(run(hour_s))
    write_trace(tmp_path / "traces", 40, boot="run2")
    decoded: list[int] = []
    decode = HourRun.decode

    def counted(raw: bytes) -> HourRun:
        found = decode(raw)
        decoded.append(found.hour_s)
        return found

    monkeypatch.setattr(HourRun, "decode", counted)
    snapshot = store.snapshot()
    roll(tmp_path / "traces", store, hours, snapshot=snapshot)
    decoded.clear()
    store.write_run(run(T0, revision=7))  # of another job, which began when this one had ended
    assert [found.revision for found in snapshot.runs(T0, T0 + 2 * HOUR_S)] == [1, 1]
    assert decoded == [], "each was looked at once"
    assert [found.hour_s for found in snapshot.runs(T0 - HOUR_S)] == hours


def left_out(store: RollupStore) -> dict[int, int]:
    return {row["ts_s"]: row["too_late_rows"] for row in stored_rows(store, T0 - HOUR_S, T0 + 9 * HOUR_S)}


def test_an_hour_that_is_kept_says_which_rows_it_was_not_made_of(tmp_path: Path, write_trace: TraceWriter) -> None:
    """The traces of a load test were deleted, its roll-ups not; the next test is in the same hour."""
    store = RollupStore.open(tmp_path / "rollups")
    store.write_run(run(T0))
    write_trace(tmp_path / "traces", 40, boot="run2")
    (kept,) = roll(tmp_path / "traces", store, [T0]).hours
    assert (kept.action, kept.revision, left_out(store)) == (HourAction.KEPT, 1, {T0: 40})
    assert kept.left_out_rows == 40
    before = sorted(path for path in (tmp_path / "rollups").rglob("*.parquet"))
    assert [found.action for found in roll(tmp_path / "traces", store, [T0]).hours] == [HourAction.KEPT]
    assert sorted(path for path in (tmp_path / "rollups").rglob("*.parquet")) == before, "it was said already"
    write_trace(tmp_path / "traces", 5, first=40, boot="run2")
    roll(tmp_path / "traces", store, [T0])
    assert left_out(store) == {T0: 45}


def test_an_hour_that_is_kept_with_all_of_its_rows_says_nothing(tmp_path: Path, write_trace: TraceWriter) -> None:
    store = RollupStore.open(tmp_path)
    store.write_run(run(T0, row_ranges={"ledger/2001/b0": [[0, 80]]}))
    write_trace(tmp_path / "traces", 40, first=20)  # retention took the first ones
    (kept,) = roll(tmp_path / "traces", store, [T0]).hours
    assert (kept.action, left_out(store), kept.left_out_rows) == (HourAction.KEPT, {}, 0)


def test_the_command_names_kept_hours_whose_new_rows_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hours = [run(T0, action=HourAction.KEPT, left_out_rows=1_200), run(T0 + HOUR_S, action=HourAction.KEPT)]
    monkeypatch.setattr("sla.jobs.rollup.run_rollup", lambda *_: RollupResult(hours=hours))
    monkeypatch.setattr("sla.commands.traces.require_spark", lambda: None)
    assert cli.main(["rollup", "--traces", str(tmp_path), "--rollups", "r"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "2023-11-14 22:00 UTC: kept as it was; 1,200 rows of its files are not in it"
    assert others == ["0 hours rolled up, 0 unchanged, 2 kept whose traces are gone; roll-ups in r"]


def test_hours_before_and_behind_all_that_is_known_are_not_written(tmp_path: Path, write_trace: TraceWriter) -> None:
    store = RollupStore.open(tmp_path / "rollups")
    for hour in (0, 4):
        write_trace(tmp_path / "traces", 1, hour_s=T0 + hour * HOUR_S, boot=f"b{hour}")
    hours = [T0 + hour * HOUR_S for hour in (-9_000, -3, 2, 8, 9_000)]
    assert [(done.hour_s - T0) // HOUR_S for done in roll(tmp_path / "traces", store, hours).hours] == [2]
    assert [path.name for path in (tmp_path / "rollups" / "_runs").glob("date=*/hour=*")] == ["hour=00"]


def test_an_hour_behind_the_files_is_written_while_something_is_handed_on_to_it(
    tmp_path: Path, write_trace: TraceWriter
) -> None:
    store = RollupStore.open(tmp_path / "rollups")
    write_trace(tmp_path / "traces", 1, hour_s=T0 - 9 * HOUR_S)
    store.write_run(run(T0, row_ranges={}, files=0, carry_out_hash="c"))
    before_it = roll(tmp_path / "traces", store, [T0 + HOUR_S], now_s=T0 + HOUR_S - 1)
    assert before_it.hours == [], "the hour has not begun"
    with pytest.raises((AttributeError, PySparkException)):  # it asks Spark for what is handed on, and there is none
        roll(tmp_path / "traces", store, [T0 + HOUR_S], now_s=T0 + HOUR_S)


@pytest.mark.parametrize("raw", [b"{torn", b'{"manifest_version": 4}'])
def test_a_manifest_that_cannot_be_read_stops_the_job_before_it_changes_anything(
    tmp_path: Path, write_trace: TraceWriter, raw: bytes
) -> None:
    store = RollupStore.open(tmp_path / "rollups")
    store.write_run(run(T0))
    path = tmp_path / "rollups" / "_runs" / hour_folder(T0) / "_run.json"
    path.write_bytes(raw)
    write_trace(tmp_path / "traces", 1)
    with pytest.raises(JobFailed, match=r"_run\.json"):
        roll(tmp_path / "traces", store, [T0, T0 + HOUR_S])
    with pytest.raises(JobFailed, match=r"_run\.json"):  # of the same day
        roll(tmp_path / "traces", store, [T0 + HOUR_S])
    assert path.read_bytes() == raw
    assert sorted(found.name for found in (tmp_path / "rollups").rglob("*") if found.is_file()) == [
        ".lock",
        "_run.json",
    ]


def test_more_than_ten_years_and_a_settle_time_beyond_all_late_rows_are_refused(
    tmp_path: Path, write_trace: TraceWriter
) -> None:
    write_trace(tmp_path, 1)
    files = run_verify(VerifyRequest(traces=tmp_path))
    long_ago = Period(start=datetime.datetime(1923, 11, 21, tzinfo=datetime.UTC))
    with pytest.raises(UsageError, match="10 years at most"):
        hours_of(long_ago, files)
    store = RollupStore.open(tmp_path / "rollups")
    with pytest.raises(UsageError, match="10 years at most"):
        roll_up(NO_SPARK, files, store, range(T0 - 876_600 * HOUR_S, T0, HOUR_S), now_s=LATER_S)
    with pytest.raises(UsageError, match="--settle must be 24h at most"):
        roll_up(NO_SPARK, files, store, [T0 + 9 * HOUR_S], settle_s=24 * HOUR_S + 1, now_s=LATER_S)


def test_a_file_that_nobody_needs_stays_an_hour_from_when_it_was_found_however_long_a_job_waited_before(
    tmp_path: Path, write_trace: TraceWriter
) -> None:
    store = RollupStore.open(tmp_path / "rollups")
    store.write_run(run(T0))
    write_trace(tmp_path / "traces", 40, boot="run2")
    files = run_verify(VerifyRequest(traces=tmp_path / "traces"))
    unneeded = store.hour_path(RollupTable.STREAM_HOUR, T0) / "part-old.parquet"
    unneeded.parent.mkdir(parents=True)
    unneeded.touch()
    found_s = LATER_S + 2 * KEEP_S  # the list was made two hours before
    for clock_s, is_there in ((found_s, True), (found_s + KEEP_S - 1, True), (found_s + KEEP_S, False)):
        clock = functools.partial(float, clock_s)
        roll_up(NO_SPARK, files, store, [T0], now_s=LATER_S, clock_s=clock, list_again=None)
        assert unneeded.exists() is is_there, clock_s
