"""`python -m loadtest.bench.sla`: time and memory of verify, roll-up and report, and DuckDB beside them.

Traces are generated (`georelay-sla gen`), so that any size can be had; `--traces DIR` measures those that stand there.
Jobs run in processes of their own, as a user runs them: Java's start is part of the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as datasets
import pyarrow.parquet as pq

from loadtest.bench.machine import IdleWatch
from loadtest.bench.process_tree import Cost, measure

ROWS = 1_000_000
EXECUTOR = "CoarseGrainedExecutorBackend"
REPORT_STATUSES = frozenset({0, 1, 3})  # whatever the verdict: it was made


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaBench:
    """What is measured.

    Args:
        folder: scratch. rows: delivery rows to generate. traces: these instead.
        master: Spark's; properties_file: settings with a cluster's secret. conf: further settings, `k=v`.
    """

    folder: Path
    rows: int = ROWS
    traces: Path | None = None
    master: str = "local[2]"
    properties_file: Path | None = None
    conf: tuple[str, ...] = ()

    def run(self) -> list[str]:
        """Return report lines."""
        self.folder.mkdir(parents=True, exist_ok=True)
        watch = IdleWatch()
        watch.start()
        traces, lines = self._made()
        rollups = self.folder / "rollups"
        shutil.rmtree(rollups, ignore_errors=True)
        places = ["--traces", str(traces), "--rollups", str(rollups)]
        spark = ["--master", self.master]
        if self.properties_file is not None:
            spark += ["--properties-file", str(self.properties_file)]
        for setting in self.conf:
            spark += ["--conf", setting]
        report = [*places, *spark, "--out", str(self.folder / "report"), "--format", "html,json"]
        lines.append(f"  verify --deep: {self._job('verify', '--traces', str(traces), '--deep', '--no-quarantine')}")
        lines.append(f"  rollup: {self._job('rollup', *places, *spark)}")
        lines.append(f"  report of hours rolled up before: {self._job('report', *report)}")
        lines += self._duckdb(traces, rollups)
        lines.append(f"  of the machine's CPU {watch.share():.0%} was idle meanwhile; master {self.master}")
        return lines

    def _made(self) -> tuple[Path, list[str]]:
        lines = []
        traces = self.traces
        if traces is None:
            shutil.rmtree(self.folder / "made", ignore_errors=True)
            cost = self._job("gen", "--out", str(self.folder / "made"), "--rows", str(self.rows))
            traces = self.folder / "made" / "traces"
            lines.append(f"  gen: {cost}")
        files = list(traces.rglob("*.parquet"))
        rows = sum(pq.read_metadata(path).num_rows for path in files)
        mib = sum(path.stat().st_size for path in files) / 2**20
        return traces, [f"  {rows:,} rows in {len(files):,} files of {mib:.0f} MiB", *lines]

    def _job(self, name: str, *arguments: str) -> Cost:
        log = self.folder / f"{name}.log"
        also = EXECUTOR if self.master.startswith("spark://") else None
        cost = measure([sys.executable, "-m", "sla", name, *arguments], log=log, also=also)
        if cost.status not in REPORT_STATUSES:
            tail = log.read_text().splitlines()[-1:] or ["nothing said"]
            raise RuntimeError(f"{name} failed with {cost.status}: {tail[0]}")
        return cost

    def _duckdb(self, traces: Path, rollups: Path) -> list[str]:
        command = [sys.executable, "-m", "loadtest.bench.sla_duckdb", str(traces)]
        cost = measure(command, log=self.folder / "duckdb.log")
        if cost.status:
            raise RuntimeError(f"DuckDB failed: {(self.folder / 'duckdb.log').read_text()[-500:]}")
        told = json.loads(cost.output)
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in told["seconds"].items())
        minutes = datasets.dataset([str(path) for path in (rollups / "minute").rglob("part-*.parquet")])
        table = minutes.to_table(columns=["n", "n_good"])
        sums = [sum(table[name].to_pylist()) for name in ("n", "n_good")]
        is_same = "the same sums" if sums == told["sums"] else f"OTHER SUMS: {told['sums']} and {sums}"
        return [f"  DuckDB {told['version']}, 2 threads, less work (see its file): {cost}; {parts} s; {is_same}"]


def run(directory: Path) -> list[str]:
    """Return report lines of the default size, for `python -m loadtest.bench`."""
    return SlaBench(folder=directory).run()


def main() -> int:
    """Print the figures; 2 for a bad call."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.sla", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"delivery rows to generate (default: {ROWS:,})")
    parser.add_argument("--traces", type=Path, help="measure with these instead")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--properties-file", type=Path, help="Spark settings, such as secret.conf of a cluster")
    parser.add_argument("--conf", action="append", default=[], metavar="K=V", help="Spark setting, repeatable")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="for scratch files")
    options = parser.parse_args()
    if options.rows < 1:
        parser.error("--rows must be 1 or more")
    if options.traces is not None and not options.traces.is_dir():
        parser.error(f"{options.traces} is no directory")
    print(f"sla: {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory(prefix="georelay-bench-sla-", dir=options.directory) as scratch:
        bench = SlaBench(
            folder=Path(scratch),
            rows=options.rows,
            traces=options.traces,
            master=options.master,
            properties_file=options.properties_file,
            conf=tuple(options.conf),
        )
        for line in bench.run():
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
