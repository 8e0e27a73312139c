"""`python -m loadtest.bench.sla`: time and memory of verify, roll-up and report, and DuckDB beside them.

Traces are generated (`georelay-sla gen`), so that any size can be had; `--traces DIR` measures those that stand there.
Jobs run in processes of their own, as a user runs them: Java's start is part of the figures.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as datasets
import pyarrow.parquet as pq

from loadtest.bench.machine import Meter, add_directory, describe
from loadtest.bench.process_tree import Cost, measure
from loadtest.bench.sla_cluster import standalone
from loadtest.bench.sla_year import stretch
from loadtest.scratch import scratch_directory

ROWS = 1_000_000
EXECUTOR = "CoarseGrainedExecutorBackend"
REPORT_STATUSES = frozenset({0, 1, 3})  # whatever the verdict: it was made
STANDALONE = "standalone"
STANDALONE_KILLED = "standalone-killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaBench:
    """What is measured.

    Args:
        folder: scratch. rows: delivery rows to generate. traces: these instead.
        masters: Spark's, one after the other; the tables that each makes are compared with those of the first. Besides
            its words: STANDALONE, a cluster of two workers for it, STANDALONE_KILLED: one worker is killed on the way.
        days: days of roll-ups, before those of the traces, for a report of them all; 0: none.
        on_line: called with each report line.
    """

    folder: Path
    rows: int = ROWS
    traces: Path | None = None
    masters: tuple[str, ...] = ("local[2]",)
    days: int = 0
    on_line: Callable[[str], None] = lambda _: None

    def run(self) -> bool:
        """Measure; return whether all masters have made the same tables, and DuckDB the same sums."""
        self.folder.mkdir(parents=True, exist_ok=True)
        machine = Meter({})
        traces = self._made()
        self.on_line(f"  verify --deep: {self._job('verify', '--traces', str(traces), '--deep', '--no-quarantine')}")
        first, are_same = "", True
        for master in self.masters:
            rollups = self.folder / f"rollups-{master.partition('[')[0].replace('/', '')}"
            shutil.rmtree(rollups, ignore_errors=True)
            self._on(master, traces, rollups)
            digest = digest_of(rollups)
            first = first or digest
            if master != self.masters[0]:
                are_same &= digest == first
                same = "equal to" if digest == first else "OTHER THAN"
                self.on_line(f"  {master}: tables {same} those of {self.masters[0]}")
            else:
                are_same &= self._duckdb(traces, rollups)
                if self.days:
                    self._year(master, traces, rollups)
        self.on_line(f"  of the machine's CPU {machine.idle():.0%} was idle meanwhile")
        return are_same

    def _on(self, master: str, traces: Path, rollups: Path) -> None:
        """Measure roll-up and report of one master."""
        places = ["--traces", str(traces), "--rollups", str(rollups)]
        out = ["--out", str(self.folder / "report"), "--format", "html,json"]
        if master not in (STANDALONE, STANDALONE_KILLED):
            spark = ["--master", master]
            self.on_line(f"  {master}: rollup: {self._job('rollup', *places, *spark)}")
            self.on_line(f"  {master}: report of hours rolled up before: {self._job('report', *places, *spark, *out)}")
            return
        with standalone(self.folder / "cluster") as cluster:
            spark = ["--master", cluster.url, "--properties-file", str(cluster.directory / "secret.conf")]
            killed_after: list[float] = []
            began = time.monotonic()

            def kill_once() -> None:
                if not killed_after and any(rollups.glob(".staging-*/*/_SUCCESS")):  # one table stands whole
                    cluster.kill_worker()
                    killed_after.append(time.monotonic() - began)

            on_sample = kill_once if master == STANDALONE_KILLED else lambda: None
            cost = self._job("rollup", *places, *spark, also=EXECUTOR, on_sample=on_sample)
            if master == STANDALONE_KILLED and not killed_after:
                raise RuntimeError("no worker was killed: the job ended before its first table stood")
            killed = f"; a worker was killed after {killed_after[0]:.1f} s" if killed_after else ""
            self.on_line(f"  {master}: rollup: {cost}{killed}")
            cost = self._job("report", *places, *spark, *out, also=EXECUTOR)
            self.on_line(f"  {master}: report of hours rolled up before: {cost}")

    def _year(self, master: str, traces: Path, rollups: Path) -> None:
        """Measure a report of many days, most of them of traces that are gone."""
        store = self.folder / "rollups-year"
        shutil.copytree(rollups, store)
        first, end = (datetime.datetime.fromtimestamp(at_s, tz=datetime.UTC) for at_s in stretch(store, self.days))
        files = list(store.glob("[!._]*/date=*/day-*.parquet"))
        mib = sum(path.stat().st_size for path in files) / 2**20
        places = ["--traces", str(traces), "--rollups", str(store), "--out", str(self.folder / "report-year")]
        period = ["--from", first.isoformat(), "--to", end.isoformat()]
        self.on_line(f"  {master}: {end - first} of roll-ups, {len(files):,} files of days of {mib:.0f} MiB")
        for which in ("first report, which adds the sums of its days", "next report"):
            cost = self._job("report", *places, *period, "--master", master)
            self.on_line(f"  {master}: {which}: {cost}")

    def _made(self) -> Path:
        traces = self.traces
        if traces is None:
            shutil.rmtree(self.folder / "made", ignore_errors=True)
            cost = self._job("gen", "--out", str(self.folder / "made"), "--rows", str(self.rows))
            traces = self.folder / "made" / "traces"
            self.on_line(f"  gen: {cost}")
        files = list(traces.rglob("*.parquet"))
        rows = sum(pq.read_metadata(path).num_rows for path in files)
        mib = sum(path.stat().st_size for path in files) / 2**20
        self.on_line(f"  {rows:,} rows in {len(files):,} files of {mib:.0f} MiB")
        return traces

    def _job(
        self, name: str, *arguments: str, also: str | None = None, on_sample: Callable[[], None] = lambda: None
    ) -> Cost:
        log = self.folder / f"{name}.log"
        cost = measure([sys.executable, "-m", "sla", name, *arguments], log=log, also=also, on_sample=on_sample)
        if cost.status not in REPORT_STATUSES:
            tail = log.read_text().splitlines()[-1:] or ["nothing said"]
            raise RuntimeError(f"{name} failed with {cost.status}: {tail[0]}")
        return cost

    def _duckdb(self, traces: Path, rollups: Path) -> bool:
        """Measure DuckDB; return whether its sums are those of the roll-ups."""
        command = [sys.executable, "-m", "loadtest.bench.sla_duckdb", str(traces)]
        cost = measure(command, log=self.folder / "duckdb.log")
        if cost.status:
            raise RuntimeError(f"DuckDB failed: {(self.folder / 'duckdb.log').read_text()[-500:]}")
        told = json.loads(cost.output)
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in told["seconds"].items())
        minutes = datasets.dataset([str(path) for path in (rollups / "minute").rglob("part-*.parquet")])
        table = minutes.to_table(columns=["n", "n_good"])
        sums = [sum(table[name].to_pylist()) for name in ("n", "n_good")]
        same = "the same sums" if sums == told["sums"] else f"OTHER SUMS: {told['sums']} and {sums}"
        self.on_line(f"  DuckDB {told['version']}, 2 threads, less work (see its file): {cost}; {parts} s; {same}")
        return bool(sums == told["sums"])


def digest_of(rollups: Path) -> str:
    """Return what stands for the rows of all tables: an hour's file is sorted, and named by chance."""
    digest = hashlib.sha256()
    for path in sorted(rollups.glob("[!._]*/date=*/hour=*/part-*.parquet"), key=lambda path: path.parent):
        digest.update(str(path.parent.relative_to(rollups)).encode())
        for row in pq.ParquetFile(path).read().to_pylist():
            digest.update(repr(row).encode())
    return digest.hexdigest()


def run(directory: Path) -> list[str]:
    """Return report lines of the default size, for `python -m loadtest.bench`. Raises RuntimeError: sums differ."""
    lines: list[str] = []
    if not SlaBench(folder=directory, on_line=lines.append).run():
        raise RuntimeError("\n".join(lines))
    return lines


def main() -> int:
    """Print the figures; 1 when tables or sums differ, 2 for a bad call."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.sla", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"delivery rows to generate (default: {ROWS:,})")
    parser.add_argument("--traces", type=Path, help="measure with these instead")
    parser.add_argument(
        "--master",
        action="append",
        dest="masters",
        metavar="MASTER",
        help=f"repeatable: local[N], local-cluster[N,CORES,MIB], {STANDALONE}, {STANDALONE_KILLED}",
    )
    parser.add_argument("--days", type=int, default=0, help="measure a report of so many days of roll-ups too")
    add_directory(parser)
    options = parser.parse_args()
    if options.rows < 1 or options.days < 0:
        parser.error("--rows must be 1 or more, --days 0 or more")
    if options.traces is not None and not options.traces.is_dir():
        parser.error(f"{options.traces} is no directory")
    with scratch_directory("georelay-bench-sla-", options.directory) as scratch:
        for line in (f"sla: {os.cpu_count()} cores", *describe(scratch)):
            print(line, flush=True)
        are_same = SlaBench(
            folder=scratch,
            rows=options.rows,
            traces=options.traces,
            days=options.days,
            masters=tuple(options.masters or ["local[2]"]),
            on_line=lambda line: print(line, flush=True),
        ).run()
    return 0 if are_same else 1


if __name__ == "__main__":
    sys.exit(main())
