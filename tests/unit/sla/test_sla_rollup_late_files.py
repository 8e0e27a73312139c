"""Rows that were missing and come later are missing no more; those that nobody read stay missing, each counted once."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from georelay.trace.kinds import TraceKind
from sla.jobs import rollup
from sla.jobs.rollup import roll_up
from sla.jobs.rollup_inputs import InputRows, stored_rows
from sla.jobs.rollup_plan import EARLY_HOURS, HOURS_PER_BATCH, LATE_HOURS, HourInputs
from sla.jobs.verify import VerifyRequest, run_verify
from sla.rollups import HourAction, HourRun, RollupStore
from sla.sources.layout import Period, hour_folder
from sla.tables import HOUR_S
from tests.sla.conftest import TRACE_HOUR_S as T0
from tests.sla.conftest import TraceWriter
from tests.sla.conftest import write_trace as write_trace  # a fixture

NO_SPARK: Any = None
LATER_S = T0 + 99 * HOUR_S
Write = Callable[..., Path]
Counts = tuple[int, int, int]  # missing, dropped, gone


@pytest.fixture
def write(tmp_path: Path, write_trace: TraceWriter) -> Write:
    """Write a file of rows (so many, of the ledger), numbered from `first` on, into an hour from T0."""

    def write(hour: int, first: int, rows: Any, **changes: Any) -> Path:
        relative = write_trace(tmp_path / "traces", rows, first=first, hour_s=T0 + hour * HOUR_S, **changes)
        return tmp_path / "traces" / relative

    return write


@pytest.fixture
def told_of(write: Write) -> Write:
    """Write a file of an hour's rows (so many, of a histogram) into the folder of another hour."""

    def told_of(hour: int, folder: int, first: int, rows: int, **changes: Any) -> Path:
        return write(folder, first, [{"second": T0 + hour * HOUR_S}] * rows, kind=TraceKind.LATENCY_HIST, **changes)

    return told_of


@pytest.fixture(autouse=True)
def inputs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours are made of the one table that tells what is missing: no other one says anything of it."""
    monkeypatch.setattr(rollup._Job, "_write_tables", lambda job, staging, hours: None)


def store_of(tmp_path: Path) -> RollupStore:
    return RollupStore.open(tmp_path / "rollups")


def roll(tmp_path: Path, first: int = 0, last: int = 5, *, now_s: float = LATER_S) -> dict[int, HourRun]:
    """Roll up some hours from T0, both ends included, by a job that looks at no more files than it must."""
    start, end = (datetime.datetime.fromtimestamp(T0 + hour * HOUR_S, tz=datetime.UTC) for hour in (first, last + 1))
    files = run_verify(
        VerifyRequest(
            traces=tmp_path / "traces",
            period=Period(start=start, end=end),
            hours_before=EARLY_HOURS,
            hours_after=LATE_HOURS,
        )
    )
    hours = range(T0 + first * HOUR_S, T0 + (last + 1) * HOUR_S, HOUR_S)
    done = roll_up(NO_SPARK, files, store_of(tmp_path), hours, now_s=now_s).hours
    return {(run.hour_s - T0) // HOUR_S: run for run in done}


def counts(tmp_path: Path) -> dict[int, Counts]:
    """Return what is missing of each hour from T0 that has rows."""
    rows = stored_rows(store_of(tmp_path), T0 - HOUR_S, LATER_S)
    return {
        (row["ts_s"] - T0) // HOUR_S: (row["missing_rows"], row["dropped_rows"], row["gone_rows"])
        for row in rows
        if row["files"]
    }


def missing(tmp_path: Path) -> dict[int, int]:
    return {hour: rows for hour, (rows, _, _) in counts(tmp_path).items()}


def test_missing_rows_that_come_later_are_missing_no_more(tmp_path: Path, write: Write) -> None:
    write(0, 0, 100)
    write(5, 150, 50)
    roll(tmp_path)
    assert counts(tmp_path) == {0: (0, 0, 0), 5: (50, 0, 50)}
    write(3, 100, 50)
    done = roll(tmp_path)
    assert (done[3].action, done[5].action) == (HourAction.BUILT, HourAction.CURRENT)
    assert counts(tmp_path) == {0: (0, 0, 0), 3: (0, 0, 0), 5: (0, 0, 0)}


def test_it_does_not_matter_which_job_makes_the_hour_of_the_late_file(tmp_path: Path, write: Write) -> None:
    write(0, 0, 100)
    write(5, 150, 50)
    roll(tmp_path)
    write(1, 100, 50)
    roll(tmp_path, 0, 2)
    assert missing(tmp_path)[5] == 50, "nobody looked at that hour"
    roll(tmp_path, 5, 5)  # it does not list the file, the roll-ups have its rows
    assert missing(tmp_path) == {0: 0, 1: 0, 5: 0}


@pytest.mark.parametrize("hours_per_batch", [1, HOURS_PER_BATCH])
def test_a_late_file_in_the_hour_before_leaves_each_missing_row_counted_once_however_hours_are_batched(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, hours_per_batch: int
) -> None:
    monkeypatch.setattr(rollup, "HOURS_PER_BATCH", hours_per_batch)
    write(0, 0, 100)
    write(5, 150, 50)
    roll(tmp_path)
    write(4, 120, 10)
    done = roll(tmp_path)
    assert [hour for hour, run in done.items() if run.action is HourAction.BUILT] == [3, 4, 5]
    assert counts(tmp_path) == {0: (0, 0, 0), 4: (20, 0, 20), 5: (20, 0, 20)}
    run = "ledger/eu/2001/b0"
    assert (done[4].missing_ranges, done[5].missing_ranges) == ({run: [[100, 119]]}, {run: [[130, 149]]})


def test_of_missing_rows_that_come_in_part_the_others_stay_missing_once(tmp_path: Path, write: Write) -> None:
    write(0, 0, 100)
    write(5, 150, 50)
    roll(tmp_path)
    write(3, 120, 10)
    for period in ((0, 5), (5, 5), (3, 5), (0, 5)):
        roll(tmp_path, *period)
        assert missing(tmp_path) == {0: 0, 3: 20, 5: 20}


def test_an_hour_becomes_final_without_the_missing_rows_that_came_until_then(tmp_path: Path, write: Write) -> None:
    write(0, 0, 100)
    write(5, 150, 50)
    early = roll(tmp_path, now_s=T0 + 6 * HOUR_S)
    assert (early[5].is_final, missing(tmp_path)[5]) == (False, 50)
    write(3, 100, 50)
    late = roll(tmp_path)
    assert (late[5].action, late[5].is_final, missing(tmp_path)[5]) == (HourAction.CURRENT, True, 0)


def test_what_writers_gave_up_counts_in_the_hour_of_the_file_behind_it_only(tmp_path: Path, write: Write) -> None:
    write(0, 0, 100)
    write(5, 150, 50, dropped=10)
    roll(tmp_path)
    assert counts(tmp_path)[5] == (50, 10, 50)
    write(3, 110, 40, dropped=10)
    roll(tmp_path)
    assert counts(tmp_path) == {0: (0, 0, 0), 3: (10, 10, 10), 5: (0, 0, 0)}
    roll(tmp_path, 5, 5)
    assert counts(tmp_path)[5] == (0, 0, 0)


def test_rows_that_were_read_once_do_not_become_missing_when_their_files_are_gone(tmp_path: Path, write: Write) -> None:
    files = [write(0, 0, 100), write(3, 120, 10)]
    write(5, 150, 50)
    roll(tmp_path)
    assert missing(tmp_path) == {0: 0, 3: 20, 5: 20}
    for file in reversed(files):
        file.unlink()
        for period in ((5, 5), (4, 5)):
            roll(tmp_path, *period)
            assert missing(tmp_path)[5] == 20


def test_missing_rows_are_not_forgotten_when_nothing_is_left_that_says_so(tmp_path: Path, write: Write) -> None:
    before = write(0, 0, 100)
    write(5, 150, 50)
    roll(tmp_path)
    before.unlink()
    for hour in range(5):
        (tmp_path / "rollups" / "_runs" / hour_folder(T0 + hour * HOUR_S) / "_run.json").unlink(missing_ok=True)
    roll(tmp_path, 5, 5)
    assert counts(tmp_path)[5] == (50, 0, 50)
    write(4, 140, 10)  # what came since is there, the others were never seen
    roll(tmp_path, 5, 5)
    assert counts(tmp_path)[5] == (40, 0, 40)


def test_a_late_file_heals_the_gap_of_its_own_writer_only(tmp_path: Path, write: Write) -> None:
    for broker in (2001, 2002):
        write(0, 0, 100, broker=broker)
        write(5, 150, 50, broker=broker)
    roll(tmp_path)
    assert missing(tmp_path)[5] == 100
    write(3, 100, 50, broker=2002)
    roll(tmp_path)
    assert missing(tmp_path)[5] == 50


def test_an_hour_whose_manifest_does_not_name_the_missing_rows_keeps_their_number(tmp_path: Path, write: Write) -> None:
    write(0, 0, 100)
    write(5, 150, 50)
    run = roll(tmp_path)[5]
    store_of(tmp_path).write_run(dataclasses.replace(run, missing_ranges=None))
    write(3, 100, 50)
    roll(tmp_path)
    assert missing(tmp_path)[5] == 50


def test_a_job_that_is_killed_before_the_manifest_leaves_the_hour_as_it_was_and_the_next_one_mends_it(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(0, 0, 100)
    write(5, 150, 50)
    roll(tmp_path)
    write(3, 100, 50)
    roll(tmp_path, 0, 3)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RollupStore, "write_run", killed)
        with pytest.raises(KeyboardInterrupt):
            roll(tmp_path, 5, 5)
    assert missing(tmp_path)[5] == 50
    roll(tmp_path, 5, 5)
    assert missing(tmp_path)[5] == 0


def test_what_is_said_already_is_not_written_again(tmp_path: Path, write: Write) -> None:
    write(0, 0, 100)
    gone = write(3, 120, 10)
    write(5, 150, 50)
    roll(tmp_path)
    gone.unlink()
    roll(tmp_path)

    def files() -> dict[Path, bytes]:
        found = (tmp_path / "rollups").rglob("*.*")
        return {path: path.read_bytes() for path in found if path.is_file() and path.name != "_unneeded.json"}

    before = files()
    for period in ((0, 5), (5, 5), (0, 5)):
        roll(tmp_path, *period)
        assert files() == before


def test_what_is_missing_before_a_file_that_is_gone_stays_until_its_rows_come(tmp_path: Path, told_of: Write) -> None:
    """The file told of another hour than its folder's: that hour is kept, the one of the folder is as it was."""
    told_of(0, 0, 0, 100)
    late = told_of(2, 5, 150, 50)
    told_of(6, 6, 200, 5)
    roll(tmp_path, 0, 6)
    assert missing(tmp_path) == {0: 0, 5: 50, 6: 0}
    late.unlink()
    roll(tmp_path, 3, 6)
    assert missing(tmp_path) == {0: 0, 5: 50, 6: 0}
    roll(tmp_path, 2, 5)
    roll(tmp_path, 6, 6)
    assert missing(tmp_path) == {0: 0, 5: 50, 6: 0}, "while the other hour does not say it, this one does"
    for _ in range(2):
        assert roll(tmp_path, 0, 6)[2].action is HourAction.KEPT
    for _ in range(2):
        roll(tmp_path, 0, 6)
        assert missing(tmp_path) == {0: 0, 5: 0, 6: 50}, "they are missing before the file that is left"
    told_of(3, 3, 100, 50)
    roll(tmp_path, 0, 6)
    assert missing(tmp_path) == {0: 0, 3: 0, 5: 0, 6: 0}


def test_an_hour_behind_all_files_keeps_its_rows_when_some_of_what_it_misses_comes(
    tmp_path: Path, told_of: Write
) -> None:
    told_of(0, 0, 0, 100)
    late = told_of(2, 5, 150, 50, dropped=30)
    roll(tmp_path, 0, 6)
    assert counts(tmp_path)[5] == (50, 30, 50)
    late.unlink()
    told_of(3, 3, 100, 10)
    assert roll(tmp_path, 0, 6)[5].action is HourAction.CURRENT
    assert counts(tmp_path) == {0: (0, 0, 0), 3: (0, 0, 0), 5: (40, 30, 50)}


def test_an_hour_behind_all_files_keeps_its_rows_when_it_becomes_final(tmp_path: Path, told_of: Write) -> None:
    told_of(0, 0, 0, 100)
    late = told_of(2, 5, 150, 50)
    early = roll(tmp_path, now_s=T0 + 6 * HOUR_S)
    assert not early[5].is_final
    before = counts(tmp_path)
    late.unlink()
    assert roll(tmp_path)[5].is_final
    assert counts(tmp_path) == before


def test_an_hour_whose_missing_rows_are_missing_before_its_own_file_looks_at_no_other_hour(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hour in range(6):
        for broker in (2001, 2002):
            write(hour, hour * 20, 10, broker=broker)
    roll(tmp_path)
    assert missing(tmp_path) == {0: 0, 1: 20, 2: 20, 3: 20, 4: 20, 5: 20}
    files = run_verify(VerifyRequest(traces=tmp_path / "traces"))
    store = store_of(tmp_path)
    named = {run.hour_s: run.missing_ranges for run in store.runs()}
    rows = InputRows(files, HourInputs(files, settle_s=0), store)
    assert rows.joined(T0, named=named[T0]) is None
    looked_at: list[int] = []
    monkeypatch.setattr(store, "run", looked_at.append)
    assert [rows.joined(hour_s, named=named[hour_s]) for hour_s in files.hours()] == [None] * 6
    assert looked_at == []
