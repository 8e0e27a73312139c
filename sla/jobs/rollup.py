"""The roll-up job: from verified trace files to the tables of sla.tables, hour by hour, each once.

Rule 1: an hour is built again only when its rows, what the hour before hands on, or the code changed.
Rule 2: hours are built in order: consumers' positions go from each to the next. Consecutive ones are one batch of
        Spark jobs; how they are batched changes nothing in the result.
Rule 3: an hour without files and without anything carried into it is written without Spark; one before, or behind, all
        that is known is not written at all.
Rule 4: files are listed before the lock is held. An hour that another job made since of rows that this list lacks says
        nothing of files that are gone: they are listed once more, under the lock.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sla.errors import JobFailed
from sla.jobs.rollup_code import code_version
from sla.jobs.rollup_inputs import InputRows, Said, write_rows
from sla.jobs.rollup_plan import (
    BATCH_BYTES_MAX,
    EARLY_HOURS,
    HOURS_PER_BATCH,
    KINDS,
    LATE_HOURS,
    NO_CARRY,
    Decision,
    HourInput,
    HourInputs,
    built,
    check_length,
    decide,
    is_since,
    rows_by_kind,
)
from sla.jobs.rollup_tables import HourTables, check_rows, write_table
from sla.jobs.verify import PROVEN_NAME, VerifyRequest, run_verify
from sla.rollup_files_core import day_of
from sla.rollups import HourAction, HourRun, RollupSnapshot, RollupStore
from sla.session import QUICK_BYTES_MAX, build_session
from sla.sources.layout import Period
from sla.sources.manifest import TraceFiles
from sla.tables import DDL, HOUR_S, RollupTable
from sla.transforms.latency import latency_by_hour

SETTLE_S: Final = 900
QUERIES_AT_ONCE: Final = 2
JVM_LOG_NAME: Final = "_spark.log"
_STEP_EVERY_DAYS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupRequest:
    """What to roll up.

    Args:
        traces, rollups: directories or URIs.
        period: its hours, as a whole; open ends: from the first file, to the last.
        settle_s: how long after its end an hour still looks for what became of its records, s.
        is_forced: build hours again that did not change.
        master, conf: of Spark.
        now_s: wall clock, seconds since 1970.
    """

    traces: str | Path
    rollups: str | Path
    period: Period = field(default_factory=Period)
    settle_s: int = SETTLE_S
    is_forced: bool = False
    master: str = "local[2]"
    conf: Mapping[str, str] = field(default_factory=dict)
    now_s: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Verified trace files, and the wall clock when listing them began (seconds since 1970)."""

    files: TraceFiles
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupResult:
    """The hours that were asked for; `HourRun.action` says what was done with each."""

    hours: list[HourRun]

    def count(self, action: HourAction) -> int:
        """Return the hours with which something was done."""
        return sum(run.action is action for run in self.hours)


def run_rollup(request: RollupRequest, on_step: Callable[[str], None] = lambda _: None) -> RollupResult:
    """Roll up the hours of a period.

    Raises:
        NoTraces: there is no trace file of the period.
        UsageError: a path or URI that cannot be used.
        JobFailed: Spark or the file system failed.
    """
    store = RollupStore.open(request.rollups)

    def listed() -> Listed:
        now_s = request.now_s()  # first: of what comes while they are listed nobody knows
        verify = VerifyRequest(
            traces=request.traces,
            period=request.period,
            hours_before=EARLY_HOURS,
            hours_after=LATE_HOURS,
            proven=store.root / PROVEN_NAME,
        )
        return Listed(files=run_verify(verify, on_step), now_s=now_s)

    found = listed()
    hours = hours_of(request.period, found.files)
    store.root.mkdir(parents=True, exist_ok=True)
    jvm_log = store.root / JVM_LOG_NAME
    is_quick = found.files.of(*KINDS).size_bytes <= QUICK_BYTES_MAX
    on_step("starting Spark")
    with spark_errors(jvm_log):
        spark = build_session(master=request.master, conf=request.conf, is_quick=is_quick, jvm_log=jvm_log)
        return roll_up(
            spark,
            found.files,
            store,
            hours,
            settle_s=request.settle_s,
            now_s=found.now_s,
            clock_s=request.now_s,
            is_forced=request.is_forced,
            on_step=on_step,
            list_again=listed,
        )


@contextlib.contextmanager
def spark_errors(jvm_log: Path) -> Iterator[None]:
    """Turn what Spark raises into one line that says where to look.

    Raises:
        JobFailed: Spark failed.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        text = f"Spark failed: {first_line} (see {jvm_log}; `georelay-sla doctor` checks Java)"
        raise JobFailed(text) from error


def hours_of(period: Period, files: TraceFiles) -> list[int]:
    """Return the starts of the hours that a period touches, those of the files where it is open.

    Raises:
        UsageError: they are of more than ten years.
    """
    folders = files.hours()
    first = int(period.start.timestamp()) if period.start is not None else min(folders, default=0)
    end = int(-(-period.end.timestamp() // 1)) if period.end is not None else max(folders, default=-HOUR_S) + HOUR_S
    check_length(first, end)
    return list(range(first - first % HOUR_S, end, HOUR_S))


def roll_up(
    spark: SparkSession,
    files: TraceFiles,
    store: RollupStore,
    hours: Sequence[int],
    *,
    settle_s: int = SETTLE_S,
    now_s: float,
    clock_s: Callable[[], float] | None = None,
    is_forced: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
    snapshot: RollupSnapshot | None = None,
    list_again: Callable[[], Listed] | None = None,
) -> RollupResult:
    """Build the hours that are missing or whose inputs changed.

    Args:
        files: verified; those of EARLY_HOURS before and of LATE_HOURS behind the hours too, or rows are not seen.
        hours: starts, ascending, seconds since 1970. Those of which nothing is known are passed over.
        now_s: wall clock when listing the files began: decides which hours are final.
        clock_s: wall clock: says, with the lock held, which files nobody needs any more for long enough; None: `now_s`.
        snapshot: of the store, new: looks at these hours while the manifests that the job read are still known.
        list_again: lists the files anew, of the same period: called once, with the lock held, when another job made
            one of the hours meanwhile of rows that `files` lack. None: such an hour is kept.

    Raises:
        UsageError: the hours are of more than ten years; the settle time is longer than late rows are looked for.
        JobFailed: a manifest of these days cannot be read, or the file system failed.
    """
    if hours:
        check_length(hours[0], hours[-1] + HOUR_S)
    with store.writing(on_step, hours=hours, clock_s=(lambda: now_s) if clock_s is None else clock_s):
        job = _Job(spark, files, store, settle_s=settle_s, now_s=now_s, is_forced=is_forced, on_step=on_step)
        if list_again is not None and job.is_outdated(hours):
            on_step("another job wrote meanwhile: listing once more")
            again = list_again()
            files, now_s = again.files, again.now_s
            job = _Job(spark, files, store, settle_s=settle_s, now_s=now_s, is_forced=is_forced, on_step=on_step)
        result = RollupResult(hours=job.run(list(hours)))
        _merge_days(store, hours, now_s=now_s, on_step=on_step)
        if snapshot is not None and hours:
            snapshot.runs(hours[0], hours[-1] + HOUR_S)
        return result


def _merge_days(store: RollupStore, hours: Sequence[int], *, now_s: float, on_step: Callable[[str], None]) -> None:
    """Make files of days where nothing late can come any more: a year is then read from hundreds, not 100,000."""
    merged = 0
    try:
        for day_s in sorted({day_of(hour_s) for hour_s in hours}):
            if store.merge(day_s, now_s=now_s):
                merged += 1
                if merged % _STEP_EVERY_DAYS == 0:
                    on_step(f"merging hours into days: {merged:,}")
    except (OSError, pa.ArrowException) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise JobFailed(f"the hours of a day cannot be merged, and stand as they were: {first_line}") from error


class _Job:
    def __init__(
        self,
        spark: SparkSession,
        files: TraceFiles,
        store: RollupStore,
        *,
        settle_s: int,
        now_s: float,
        is_forced: bool,
        on_step: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._all = files
        self._inputs = HourInputs(files, settle_s=settle_s)
        self._store = store
        self._input_rows = InputRows(files, self._inputs, store)
        self._settle_s = settle_s
        self._now_s = now_s
        self._is_forced = is_forced
        self._on_step = on_step
        self._code_version = code_version()

    def is_outdated(self, hours: Iterable[int]) -> bool:
        """Return whether another job made one of the hours, since the files were listed, of rows that they lack."""
        for hour_s in hours:
            found = self._store.run(hour_s)
            if found is not None and is_since(found.built_at, self._now_s):
                made_of = self._inputs.of(hour_s)
                if made_of.lacks(found):
                    return True
        return False

    def run(self, hours: list[int]) -> list[HourRun]:
        done: list[HourRun] = []
        at = 0
        while at < len(hours):
            batch: list[tuple[HourInput, HourRun, HourRun | None]] = []
            size_bytes = 0
            while at < len(hours):
                hour_s = hours[at]
                if not self._is_known(hour_s):
                    if batch:
                        break  # what the batch hands on decides whether there is anything to say of this hour
                    at += 1
                    continue
                is_next = not batch or batch[-1][0].hour_s == hour_s - HOUR_S
                size_bytes += self._inputs.of(hour_s).files.size_bytes
                if batch and (not is_next or len(batch) == HOURS_PER_BATCH or size_bytes > BATCH_BYTES_MAX):
                    break
                made_of, wanted, found, decision = self._look(hour_s, is_behind_batch=bool(batch))
                if decision.action is not HourAction.BUILT:
                    if batch:
                        break  # what the batch hands on decides whether this hour stays
                    done.append(self._settle(made_of, found, decision))
                    at += 1
                    continue
                batch.append((made_of, wanted, found))
                at += 1
            if batch:
                done.extend(self._build(batch))
        return done

    def _is_known(self, hour_s: int) -> bool:
        """Return whether there is anything to say of an hour: of traces, of a roll-up, of what is handed on to it."""
        if self._inputs.is_known(hour_s) or self._store.run(hour_s) is not None:
            return True
        before = self._store.run(hour_s - HOUR_S)
        return before is not None and before.carry_out_hash != NO_CARRY and hour_s <= self._now_s

    def _look(self, hour_s: int, *, is_behind_batch: bool) -> tuple[HourInput, HourRun, HourRun | None, Decision]:
        made_of = self._inputs.of(hour_s)
        found = self._store.run(hour_s)
        before = self._store.run(hour_s - HOUR_S)
        carry_hash = NO_CARRY if before is None else before.carry_out_hash
        if is_behind_batch and found is not None:
            carry_hash = found.carry_hash  # not known yet; its own inputs decide alone
        wanted = HourRun(
            hour_s=hour_s,
            revision=0,
            is_final=self._now_s >= hour_s + HOUR_S + self._settle_s,
            is_revised=False,
            input_hash=made_of.hash,
            carry_hash=carry_hash,
            carry_out_hash="",
            rows_read=rows_by_kind(made_of.files),
            files=len(made_of.files.good),
            quarantined=len(made_of.files.bad),
            missing_rows=sum(made_of.files.rows_missing(kind) for kind in KINDS),
            settle_s=self._settle_s,
            row_ranges=made_of.row_ranges(),
            built_at=datetime.datetime.fromtimestamp(self._now_s, tz=datetime.UTC).isoformat(timespec="seconds"),
            code_version=self._code_version,
        )
        return made_of, wanted, found, decide(wanted, found, is_forced=self._is_forced)

    def _settle(self, made_of: HourInput, found: HourRun | None, decision: Decision) -> HourRun:
        assert found is not None, made_of.hour_s  # an hour without a manifest is built
        said: Said | None = None
        left_out_rows = 0
        if decision.is_final_now:
            found = replace(found, is_final=True)
            # Who is silent is known only when the next hour came.
            said = self._input_rows.joined(made_of.hour_s, named=found.missing_ranges, is_new=True)
        elif decision.action is HourAction.CURRENT:
            # More than this hour may be known of the time before.
            said = self._input_rows.joined(made_of.hour_s, named=found.missing_ranges)
        elif decision.action is HourAction.KEPT:
            left_out = made_of.rows_not_of(found)
            left_out_rows = sum(left_out.values())
            rows = self._input_rows.with_left_out(made_of.hour_s, left_out) if left_out else None
            said = None if rows is None else Said(rows=rows, missing=found.missing_ranges)
        if said is not None:
            staging = self._store.staging()
            try:
                write_rows(said.rows, self._staged(staging, RollupTable.INPUTS_HOUR, made_of.hour_s))
                found = replace(found, missing_ranges=said.missing)
                found = self._store.install(staging, found, [RollupTable.INPUTS_HOUR])
            finally:
                shutil.rmtree(staging, ignore_errors=True)
        return replace(found, action=decision.action, left_out_rows=left_out_rows)

    def _build(self, batch: list[tuple[HourInput, HourRun, HourRun | None]]) -> list[HourRun]:
        hours = [made_of.hour_s for made_of, _, _ in batch]
        first = datetime.datetime.fromtimestamp(hours[0], tz=datetime.UTC)
        self._on_step(f"rolling up {len(hours)} hour{'s' * (len(hours) > 1)} from {first:%Y-%m-%d %H:%M}")
        staging = self._store.staging()
        try:
            said = self._input_rows.said(hours)
            for hour_s in hours:
                write_rows(said[hour_s].rows, self._staged(staging, RollupTable.INPUTS_HOUR, hour_s))
            self._write_tables(staging, hours)
            runs = []
            carry_hash = batch[0][1].carry_hash
            for made_of, wanted, found in batch:
                out = _carry_hash(self._staged(staging, RollupTable.SESSIONS_HOUR, wanted.hour_s))
                missing = said[wanted.hour_s].missing
                wanted = replace(wanted, carry_hash=carry_hash, carry_out_hash=out, missing_ranges=missing)
                has_new_rows = found is not None and bool(made_of.rows_not_of(found))
                run = built(wanted, found, has_new_rows=has_new_rows)
                runs.append(self._store.install(staging, run))
                carry_hash = out
            return runs
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _write_tables(self, staging: Path, hours: list[int]) -> None:
        """Write the other tables, which Spark makes."""
        files = self._inputs.of_all(hours)
        before = self._store.run(hours[0] - HOUR_S)
        has_carry = before is not None and before.carry_out_hash != NO_CARRY
        if not files.good and not has_carry:
            return
        check_rows(self._spark, files)
        tables = HourTables(
            self._spark, files, self._all.writers(), hours, settle_s=self._settle_s, work=staging / "_work"
        )
        # Of an hour that was never rolled up, its rows in our files say as much as they can.
        carry = None
        if before is None:
            carry = tables.cold_carry()
        elif has_carry:
            carry = self._store.read(self._spark, RollupTable.SESSIONS_HOUR, before.hour_s, before.hour_s + HOUR_S)
        frames = tables.built(carry)
        with ThreadPoolExecutor(QUERIES_AT_ONCE) as pool:
            list(pool.map(lambda table: write_table(frames[table], table, staging), frames))
        if RollupTable.MINUTE in frames:
            # With the schema: a table without rows has no file that could say it.
            minutes = self._spark.read.schema(DDL[RollupTable.MINUTE]).parquet(str(staging / RollupTable.MINUTE.value))
            write_table(latency_by_hour(minutes.drop("date", "hour")), RollupTable.HOUR, staging)

    def _staged(self, staging: Path, table: RollupTable, hour_s: int) -> Path:
        return staging / self._store.hour_path(table, hour_s).relative_to(self._store.root)


def _carry_hash(folder: Path) -> str:
    """Return what stands for the rows of a written `sessions_hour`, NO_CARRY when there are none."""
    rows = pq.read_table(folder).combine_chunks() if folder.exists() else None
    if rows is None or not rows.num_rows:
        return NO_CARRY
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema.remove_metadata()) as stream:
        stream.write_table(rows.replace_schema_metadata())
    return hashlib.sha256(sink.getvalue()).hexdigest()
