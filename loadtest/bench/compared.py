"""Single records on two checkouts of the code, in turn: what a record costs the brokers, before and after.

`python -m loadtest.bench.compared OLD [NEW]` takes two directories with a checkout each, made ready by `make setup`
(`git worktree add ../old REF && make -C ../old setup`); NEW is this one unless said otherwise. A region of three
brokers runs from each of them, all the time; the load goes to one of them while the other has nothing to do, then to
the other, and the order changes with every pair, so that what else the machine does falls on both alike. The clients
are those of this checkout for both.

CPU is user and system time of the three broker processes with all their threads, an idle second of theirs included;
context switches are theirs. With `--system-calls`, and where `perf` may count them, one more run of each rate counts
the system calls of the brokers.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from loadtest.bench.batched import create_topic
from loadtest.bench.machine import MEMORY_FILE_SYSTEMS, context_switches, cpu_seconds, describe, file_system
from loadtest.bench.single import SETTLE_SECONDS, TOPICS, WARM_UP_SECONDS, Figure, run_once
from loadtest.mesh_process import MeshProcess
from loadtest.scratch import scratch_directory

REGION = "us"
BROKERS = 3
RATES_PER_SECOND = (100, 300, 1_000, 3_000)
PAIRS = 5
SECONDS = 10
IDLE_SECONDS = 10
TOPIC_NAMES = [f"single-{number}" for number in range(TOPICS)]

Pair = tuple[Figure, Figure]  # old, new


async def _compare(directory: Path, options: argparse.Namespace) -> None:
    for line in describe(directory):
        print(line, flush=True)
    checkouts = {"old": options.old, "new": options.new}
    for name, checkout in checkouts.items():
        print(f"{name}: {revision(checkout)}")
    print(
        f"region of {BROKERS}, single records of 100 B over {TOPICS} topics, fsync on; medians of {options.pairs} pairs"
    )
    meshes = {
        name: MeshProcess(directory / name, regions=REGION, brokers_per_region=BROKERS, checkout=checkout.resolve())
        for name, checkout in checkouts.items()
    }
    async with meshes["old"], meshes["new"]:
        await asyncio.to_thread(_measure, meshes, options)


def _measure(meshes: dict[str, MeshProcess], options: argparse.Namespace) -> None:
    for mesh in meshes.values():
        for topic in TOPIC_NAMES:
            create_topic(mesh, topic, 1)
    time.sleep(SETTLE_SECONDS)
    for line in _idle(meshes):
        print(line, flush=True)
    for rate in options.rates:
        for mesh in meshes.values():  # connections, first segments, warm caches
            _run(mesh, rate, seconds=2)
        pairs = [_pair(meshes, rate, options.seconds, turned=bool(number % 2)) for number in range(options.pairs)]
        for line in lines_of(rate, pairs):
            print(line, flush=True)
        if options.system_calls:
            counts = [_system_calls(mesh, rate, options.seconds) for mesh in meshes.values()]
            print(f"  system calls per record: {counts[0]:.1f} -> {counts[1]:.1f}", flush=True)


def _idle(meshes: dict[str, MeshProcess]) -> list[str]:
    lines = []
    for name, mesh in meshes.items():
        cpu_s, switches = sum(map(cpu_seconds, _pids(mesh))), sum(map(context_switches, _pids(mesh)))
        time.sleep(IDLE_SECONDS)
        cpu = (sum(map(cpu_seconds, _pids(mesh))) - cpu_s) / IDLE_SECONDS / BROKERS
        a_second = (sum(map(context_switches, _pids(mesh))) - switches) / IDLE_SECONDS / BROKERS
        lines.append(f"{name}, nothing to do: {cpu:.1%} of a core and {a_second:.0f} context switches/s per broker")
    return lines


def _pids(mesh: MeshProcess) -> list[int]:
    return [mesh.pid_of(f"{REGION}-{number + 1}") for number in range(BROKERS)]


def _pair(meshes: dict[str, MeshProcess], rate: int, seconds: int, *, turned: bool) -> Pair:
    names = ("new", "old") if turned else ("old", "new")
    figures = {name: _run(meshes[name], rate, seconds) for name in names}
    return figures["old"], figures["new"]


def _run(mesh: MeshProcess, rate: int, seconds: int) -> Figure:
    figures, _ = run_once(mesh, TOPIC_NAMES, partitions=1, seconds=seconds, rate_per_second=rate)
    return figures[REGION]


def lines_of(rate: int, pairs: Sequence[Pair]) -> list[str]:
    """Return the report lines of one rate: medians of both, and the median of the ratios of each pair."""
    rows = {
        "CPU s per 100,000 records": [[figure.cpu / rate * 1e5 for figure in pair] for pair in pairs],
        "context switches per record": [[figure.switches for figure in pair] for pair in pairs],
        "publish->deliver p50 ms": [[figure.p50_ms for figure in pair] for pair in pairs],
        "p99 ms": [[figure.p99_ms for figure in pair] for pair in pairs],
        "p99.9 ms": [[figure.p999_ms for figure in pair] for pair in pairs],
    }
    lines = [f"{rate}/s:"]
    for what, values in rows.items():
        old, new = (statistics.median(column) for column in zip(*values, strict=True))
        ratios = sorted(after / before for before, after in values if before)
        spread = (
            f", pair by pair x {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else ""
        )
        lines.append(f"  {what}: {old:.1f} -> {new:.1f}{spread}")
    return lines


def _system_calls(mesh: MeshProcess, rate: int, seconds: int) -> float:
    """Return the system calls of the brokers per record of one more run. Raises RuntimeError when perf may not look."""
    pids = ",".join(map(str, _pids(mesh)))
    wait_ms = (SETTLE_SECONDS + WARM_UP_SECONDS) * 1_000  # until the load is steady
    command = ["perf", "stat", "-x", ",", "-D", str(wait_ms), "-e", "raw_syscalls:sys_enter", "-p", pids]
    command += ["--", "sleep", str(wait_ms // 1_000 + seconds - 1)]
    counting = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    _run(mesh, rate, seconds)
    _, said = counting.communicate(timeout=60)
    first = next((line for line in said.splitlines() if "sys_enter" in line), "").partition(",")[0].strip()
    if counting.returncode or not first.isdecimal():
        raise RuntimeError(f"perf did not count system calls: {said.strip()}")
    return int(first) / (rate * (seconds - 1))


def revision(checkout: Path) -> str:
    """Return what a checkout holds, with a word when it has changes that are no commit."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=7"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return said.stdout.strip() or f"no repository ({checkout})"


def main() -> int:
    """Compare; 2 for a bad call."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.compared", description="Single records on two checkouts of the code, in turn."
    )
    here = Path(__file__).resolve().parents[2]
    parser.add_argument("old", type=Path, help="a checkout made ready by `make setup`")
    parser.add_argument("new", type=Path, nargs="?", default=here, help="another one; default: this")
    parser.add_argument("--rates", type=int, nargs="+", default=RATES_PER_SECOND, help="records per second")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="runs of each checkout and rate")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of one run, from 3")
    parser.add_argument("--system-calls", action="store_true", help="count them too, with perf")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    options = parser.parse_args()
    for checkout in (options.old, options.new):
        if not (checkout / ".venv" / "bin" / "python").exists():
            parser.error(f"{checkout} has no .venv: run `make setup` there")
    if options.pairs < 1 or options.seconds < 3 or min(options.rates) < 1:
        parser.error("--pairs and --rates are from 1, --seconds from 3")
    if options.system_calls and shutil.which("perf") is None:
        parser.error("--system-calls needs the program perf")
    if file_system(options.directory) in MEMORY_FILE_SYSTEMS:
        parser.error(f"{options.directory} is in memory: a sync costs nothing there; give --directory on a disk")
    with scratch_directory("georelay-compared-", options.directory) as scratch:
        uvloop.run(_compare(scratch, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
