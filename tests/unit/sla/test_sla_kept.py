"""A report of roll-ups alone: its hours, its minutes, and how much there is to read."""

from __future__ import annotations

import dataclasses
import datetime
import shutil
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from georelay.trace.files import TraceFileMetadata, TraceFileName
from georelay.trace.kinds import TraceKind
from sla.errors import JobFailed, NoTraces, UsageError
from sla.jobs.kept import kept_hours, kept_span, rollup_bytes
from sla.jobs.report import bytes_to_read, hour_facts, period_span
from sla.judging.facts import HourFacts, Span
from sla.rollups import HourAction, RollupStore
from sla.sources.layout import FilePlace, Period, date_folder, hour_folder
from sla.sources.location import Location
from sla.sources.manifest import GoodFile, TraceFiles
from sla.tables import HOUR_S, MINUTE_S, RollupTable
from sla.targets_file import load_targets
from tests.sla.rollup_days import DAY0_S, LATER_S, run

ALWAYS = Period()


def install(
    root: Path,
    hour: int,
    minutes: dict[RollupTable, list[int]],
    probes: dict[int, list[int]] | None = None,
    **of_run: Any,
) -> None:
    """Put an hour into a store: minutes with a row by table, and the probes of each pair by minute."""
    store = RollupStore(root)
    at_s = DAY0_S + hour * HOUR_S
    staging = store.staging()
    tables = {table: {"ts_s": [at_s + MINUTE_S * minute for minute in found]} for table, found in minutes.items()}
    if probes:
        counts = [(at_s + MINUTE_S * minute, count) for minute, counts in probes.items() for count in counts]
        tables[RollupTable.AVAIL_MINUTE] = {"ts_s": [m for m, _ in counts], "probes": [n for _, n in counts]}
    for table, columns in tables.items():
        folder = staging / table.value / hour_folder(at_s)
        folder.mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / f"part-{uuid.uuid4().hex}.parquet")
    store.install(staging, run(hour, **of_run))
    shutil.rmtree(staging)


def period(start: float | None, end: float | None) -> Period:
    """Return the period between two hours of the first day."""
    ends = (
        None if at is None else datetime.datetime.fromtimestamp(DAY0_S + at * HOUR_S, tz=datetime.UTC)
        for at in (start, end)
    )
    return Period(start=next(ends), end=next(ends))


def span_of(root: Path, asked: Period = ALWAYS) -> Span:
    store = RollupStore(root)
    return kept_span(store, asked, kept_hours(store, asked))


def minute_s(hour: int, minute: int) -> int:
    return DAY0_S + hour * HOUR_S + minute * MINUTE_S


def ledger_file(hour: int, size_bytes: int) -> GoodFile:
    name = TraceFileName(kind=TraceKind.LEDGER, broker=2001, boot_id="b0", sequence=0)
    metadata = TraceFileMetadata(
        kind=TraceKind.LEDGER, writer="eu/2001", boot_id="b0", first_row_seq=0, last_row_seq=0, rows=1, dropped=0,
        hist_grid=5,
    )  # fmt: skip
    place = FilePlace(hour_s=minute_s(hour, 0), region="eu", name=name, relative="x")
    return GoodFile(place=place, metadata=metadata, size_bytes=size_bytes, digest=1)


def test_hours_that_were_made_of_traces_are_kept_and_others_are_not(tmp_path: Path) -> None:
    install(tmp_path, 3, {RollupTable.MINUTE: [1]})
    install(tmp_path, 4, {}, files=0)
    install(tmp_path, 6, {RollupTable.MINUTE: [1]}, is_final=False)
    store = RollupStore(tmp_path)
    runs = kept_hours(store, ALWAYS)
    assert [(found.hour_s, found.action) for found in runs] == [
        (minute_s(3, 0), HourAction.KEPT), (minute_s(6, 0), HourAction.KEPT)
    ]  # fmt: skip
    assert [len(kept_hours(store, asked)) for asked in (period(None, 6), period(4, 6), period(6.5, None))] == [1, 0, 1]
    span = Span(start_s=minute_s(3, 0), end_s=minute_s(6, 5))
    assert hour_facts(runs, span) == HourFacts(expected=4, rolled_up=2, revised=0, not_final=0, kept=2, unseen=1)
    again = [dataclasses.replace(found, action=HourAction.BUILT) for found in runs]
    facts = hour_facts(again, span, is_without_traces=True)
    assert (facts.not_final, facts.kept, facts.unseen, facts.is_without_traces) == (1, 0, 0, True)


def test_an_open_period_is_of_the_minutes_with_rows(tmp_path: Path) -> None:
    install(tmp_path, 3, {RollupTable.CLOCK_HOUR: [0]})
    install(tmp_path, 4, {RollupTable.MINUTE: [20, 30], RollupTable.REQUESTS_MINUTE: [17]})
    install(tmp_path, 6, {RollupTable.MINUTE: [5, 7]})
    install(tmp_path, 7, {})
    found = span_of(tmp_path)
    assert (found.start_s, found.end_s, found.probed) == (minute_s(4, 17), minute_s(6, 8), (found.start_s, found.end_s))
    found = span_of(tmp_path, period(4.5, None))
    assert (found.start_s, found.end_s) == (minute_s(4, 30), minute_s(6, 8))
    found = span_of(tmp_path, period(None, 6.11))
    assert (found.start_s, found.end_s) == (minute_s(4, 17), minute_s(6, 7))
    with pytest.raises(NoTraces, match="no row of a roll-up"):
        span_of(tmp_path, period(6.5, None))


def test_traces_behind_the_period_do_not_hide_that_its_own_are_gone(tmp_path: Path) -> None:
    install(tmp_path, 3, {RollupTable.MINUTE: [10, 20]})
    store = RollupStore(tmp_path)
    later = TraceFiles(location=Location.open("traces"), good=(ledger_file(9, 1),))  # they are looked at for late rows
    found = period_span(period(None, 4), later, store)
    assert (found.start_s, found.end_s) == (minute_s(3, 10), minute_s(4, 0))
    with pytest.raises(NoTraces, match="in that period"):
        period_span(period(None, 2), later, store)
    found = period_span(ALWAYS, later, store)
    assert (found.start_s, found.end_s) == (minute_s(9, 0), minute_s(10, 0))


def test_hours_without_a_row_of_any_minute_are_whole(tmp_path: Path) -> None:
    install(tmp_path, 3, {RollupTable.CLOCK_HOUR: [0]})
    found = span_of(tmp_path)
    assert (found.start_s, found.end_s) == (minute_s(3, 0), minute_s(4, 0))


@pytest.mark.parametrize("end", ["2040-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00"])
def test_more_than_ten_years_are_refused_whatever_is_left_of_them(tmp_path: Path, end: str) -> None:
    install(tmp_path, 3, {RollupTable.MINUTE: [10]})
    store = RollupStore(tmp_path)
    asked = Period(end=datetime.datetime.fromisoformat(end))
    for good in ((), (ledger_file(4, 1),)):
        with pytest.raises(UsageError, match="10 years at most; give a shorter period with --from and --to"):
            period_span(asked, TraceFiles(location=Location.open("traces"), good=good), store)


def test_a_roll_up_that_is_damaged_stops_the_report_with_its_path(tmp_path: Path) -> None:
    install(tmp_path, 3, {RollupTable.MINUTE: [10]})
    (path,) = (tmp_path / RollupTable.MINUTE.value).rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(JobFailed, match=f"{path.name} cannot be read: "):
        span_of(tmp_path)


def test_minutes_are_found_in_a_file_of_a_day_too(tmp_path: Path) -> None:
    for hour in (3, 4, 6):
        install(tmp_path, hour, {RollupTable.MINUTE: [hour, 30 + hour]})
    before = span_of(tmp_path)
    assert RollupStore(tmp_path).merge(DAY0_S, now_s=LATER_S)
    assert span_of(tmp_path) == before
    assert (before.start_s, before.end_s) == (minute_s(3, 3), minute_s(6, 37))


def test_probes_of_the_first_and_the_last_minute_say_where_they_began_and_ended(tmp_path: Path) -> None:
    install(tmp_path, 3, {RollupTable.MINUTE: [10]}, {10: [13, 12], 11: [60, 60], 12: [60, 41]})
    install(tmp_path, 4, {}, {0: [60], 1: [5, 7]})
    found = span_of(tmp_path)
    assert (found.start_s, found.end_s) == (minute_s(3, 10), minute_s(4, 2))
    assert found.probed == (minute_s(3, 10) + 47, minute_s(4, 1) + 6)
    asked = span_of(tmp_path, period(3, 5))
    assert asked.probed == (minute_s(3, 0), minute_s(5, 0))


def test_the_bytes_of_roll_ups_are_those_of_the_hours_that_are_read(tmp_path: Path) -> None:
    for folder, size_bytes in (
        (f"minute/{hour_folder(minute_s(3, 0))}", 1), (f"minute/{hour_folder(minute_s(4, 0))}", 10),
        (f"clock_hour/{hour_folder(minute_s(5, 0))}", 100), (f"hour/{date_folder(DAY0_S)}", 1_000),
        (f"hour/{date_folder(DAY0_S - 1)}", 10_000), (f"_runs/{hour_folder(minute_s(4, 0))}", 100_000),
    ):  # fmt: skip
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "file").write_bytes(bytes(size_bytes))
    assert rollup_bytes(tmp_path, minute_s(4, 59), minute_s(5, 1)) == 1_110
    assert rollup_bytes(tmp_path, minute_s(3, 0), minute_s(5, 0)) == 1_011
    assert rollup_bytes(tmp_path, minute_s(-1, 0), minute_s(3, 1)) == 11_001
    assert rollup_bytes(tmp_path / "absent", 0, HOUR_S) == 0


def test_a_report_counts_the_traces_and_the_roll_ups_of_all_that_it_looks_at(tmp_path: Path) -> None:
    def at(hour: int, size_bytes: int) -> None:
        folder = tmp_path / "minute" / hour_folder(minute_s(hour, 0))
        folder.mkdir(parents=True)
        (folder / "part-1.parquet").write_bytes(bytes(size_bytes))

    at(100, 1)
    at(99, 10)  # the previous period
    at(100 - 71, 100)  # the longest burn window
    at(100 - 73, 1_000)  # before it
    at(101, 10_000)  # behind the period
    files = TraceFiles(location=Location.open("traces"), good=(ledger_file(100, 100_000),))
    span = Span(start_s=minute_s(100, 0), end_s=minute_s(101, 0))
    targets = load_targets(None)
    assert max(rule.long_minutes for rule in targets.burn_rules) == 72 * 60
    assert bytes_to_read(files, RollupStore(tmp_path), targets, span) == 100_111
