"""Two checkouts of the code under the same loads, in turn: what a record costs and how long it takes, before and after.

`python -m loadtest.bench.compared OLD [NEW]` takes two directories with a checkout each, made ready by `make setup`
(`git worktree add ../old REF && make -C ../old setup`); NEW is this one unless said otherwise. A mesh, of one region of
three brokers unless said otherwise, runs from each of them, all the time; the load goes to one of them while the other
has nothing to do, then to the other, and the order changes with every pair, so that what else the machine does falls on
both alike. The clients are those of this checkout for both.

Parts: `rates`, single records at each of --rates; `active`, 1,000 partitions with one record per second each;
`highest`, the highest rate of single records whose p99 is at most 50 ms; `batched`, as fast as two producers can.

CPU is user and system time of the broker processes with all their threads, an idle second of theirs included;
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import uvloop

from loadtest.bench import active
from loadtest.bench.batched import VALUE_BYTES, Way, create_topic, in_turns
from loadtest.bench.machine import MEMORY_FILE_SYSTEMS, context_switches, cpu_seconds, describe, file_system
from loadtest.bench.single import SETTLE_SECONDS, TOPICS, WARM_UP_SECONDS, Figure, run_once
from loadtest.mesh_process import MeshProcess
from loadtest.scratch import scratch_directory

T = TypeVar("T")

REGION = "us"
RATES_PER_SECOND = (100, 300, 1_000, 3_000)
PAIRS = 5
SECONDS = 10
IDLE_SECONDS = 10
TOPIC_NAMES = [f"single-{number}" for number in range(TOPICS)]

ACTIVE_SETTLE_SECONDS = 15  # of 1,000 new partitions
LADDER_PER_SECOND = (500, 1_000, 1_500, 2_000, 3_000, 4_000, 6_000, 8_000)
HELD_P99_MS_MAX = 50
BATCHED_BYTES = (VALUE_BYTES, 1_024)

Pair = tuple[Figure, Figure]  # old, new
Meshes = Mapping[str, MeshProcess]  # by "old" and "new"


async def _compare(directory: Path, options: argparse.Namespace) -> None:
    for line in describe(directory):
        print(line, flush=True)
    checkouts = {"old": options.old, "new": options.new}
    for name, checkout in checkouts.items():
        print(f"{name}: {revision(checkout)}")
    print(
        f"{options.regions}, {options.brokers} brokers each, single records of 100 B over {TOPICS} topics, fsync on; "
        f"medians of {options.pairs} pairs"
    )
    meshes = {
        name: MeshProcess(
            directory / name,
            regions=options.regions,
            brokers_per_region=options.brokers,
            checkout=checkout.resolve(),
        )
        for name, checkout in checkouts.items()
    }
    async with meshes["old"], meshes["new"]:
        await asyncio.to_thread(_measure, meshes, options)


def _measure(meshes: Meshes, options: argparse.Namespace) -> None:
    for mesh in meshes.values():
        for topic in TOPIC_NAMES:
            create_topic(mesh, topic, 1)
    time.sleep(SETTLE_SECONDS)
    for part in options.parts:
        for line in PARTS[part](meshes, options):
            print(line, flush=True)


def _rates(meshes: Meshes, options: argparse.Namespace) -> Iterator[str]:
    yield from _idle(meshes)
    for rate in options.rates:

        def run(name: str, rate: int = rate) -> dict[str, Figure]:
            return _run(meshes[name], rate, options.seconds)

        for mesh in meshes.values():  # connections, first segments, warm caches
            _run(mesh, rate, seconds=2)
        yield from _lines_of_regions(rate, _pairs(options, run))
        if options.system_calls:
            counts = [_system_calls(mesh, rate, options.seconds) for mesh in meshes.values()]
            yield f"  system calls per record: {counts[0]:.1f} -> {counts[1]:.1f}"


def _active(meshes: Meshes, options: argparse.Namespace) -> Iterator[str]:
    for mesh in meshes.values():
        create_topic(mesh, "active", active.PARTITIONS)
    time.sleep(ACTIVE_SETTLE_SECONDS)

    def run(name: str) -> dict[str, Figure]:
        figures, _ = run_once(meshes[name], ["active"], partitions=active.PARTITIONS, seconds=options.seconds)
        return figures

    for name in meshes:
        run(name)  # first segments
    yield f"{active.PARTITIONS:,} active partitions:"
    yield from _lines_of_regions(active.PARTITIONS, _pairs(options, run))


def _highest(meshes: Meshes, options: argparse.Namespace) -> Iterator[str]:
    def held(name: str) -> int:
        highest = 0
        for rate in LADDER_PER_SECOND:
            if not 0 < _run(meshes[name], rate, options.seconds)[REGION].p99_ms <= HELD_P99_MS_MAX:
                break
            highest = rate
        return highest

    yield _line(f"highest single records/s with p99 <= {HELD_P99_MS_MAX} ms", _pairs(options, held))


def _batched(meshes: Meshes, options: argparse.Namespace) -> Iterator[str]:
    for value_bytes in BATCHED_BYTES:
        topic = f"batched-{value_bytes}"
        ways = [Way(label=name, mesh=mesh, topic=topic, value_bytes=value_bytes) for name, mesh in meshes.items()]
        old, new = in_turns(ways, options.pairs)
        yield f"batched, {value_bytes} B, as fast as two producers can:"
        yield _line("records/s", [(a.records_per_s, b.records_per_s) for a, b in zip(old, new, strict=True)], digits=0)
        cpu_s = [(a.cpu_s, b.cpu_s) for a, b in zip(old, new, strict=True)]
        yield _line("CPU s per 100,000 records", cpu_s, digits=3)


PARTS: dict[str, Callable[[Meshes, argparse.Namespace], Iterator[str]]] = {
    "rates": _rates,
    "active": _active,
    "highest": _highest,
    "batched": _batched,
}


def _idle(meshes: Meshes) -> list[str]:
    lines = []
    for name, mesh in meshes.items():
        pids = _pids(mesh)
        cpu_s, switches = sum(map(cpu_seconds, pids)), sum(map(context_switches, pids))
        time.sleep(IDLE_SECONDS)
        cpu = (sum(map(cpu_seconds, pids)) - cpu_s) / IDLE_SECONDS / len(pids)
        a_second = (sum(map(context_switches, pids)) - switches) / IDLE_SECONDS / len(pids)
        lines.append(f"{name}, nothing to do: {cpu:.1%} of a core and {a_second:.0f} context switches/s per broker")
    return lines


def _pids(mesh: MeshProcess) -> list[int]:
    regions = mesh.endpoints["regions"]
    return [mesh.pid_of(f"{name}-{number + 1}") for name in regions for number in range(len(regions[name]["kafka"]))]


def _pairs(options: argparse.Namespace, run: Callable[[str], T]) -> list[tuple[T, T]]:
    """Run "old" and "new" in turn, in another order with every pair."""
    pairs = []
    for number in range(options.pairs):
        names = ("new", "old") if number % 2 else ("old", "new")
        outcomes = {name: run(name) for name in names}
        pairs.append((outcomes["old"], outcomes["new"]))
    return pairs


def _run(mesh: MeshProcess, rate: int, seconds: int) -> dict[str, Figure]:
    figures, _ = run_once(mesh, TOPIC_NAMES, partitions=1, seconds=seconds, rate_per_second=rate)
    return figures


def _lines_of_regions(rate: int, pairs: Sequence[tuple[Mapping[str, Figure], Mapping[str, Figure]]]) -> Iterator[str]:
    home, *mirrors = pairs[0][0]
    yield from lines_of(rate, [(old[home], new[home]) for old, new in pairs])
    for region in mirrors:
        yield f"  in {region}, above {home}:"
        for what in ("p50_ms", "p99_ms"):
            above = [[getattr(side[region], what) - getattr(side[home], what) for side in pair] for pair in pairs]
            yield _line(what.replace("_", " "), above)


def lines_of(rate: int, pairs: Sequence[Pair]) -> list[str]:
    """Return the report lines of one rate: medians of both, and the median of the ratios of each pair."""
    rows = {
        "CPU s per 100,000 records": [[figure.cpu / rate * 1e5 for figure in pair] for pair in pairs],
        "context switches per record": [[figure.switches for figure in pair] for pair in pairs],
        "publish->deliver p50 ms": [[figure.p50_ms for figure in pair] for pair in pairs],
        "p99 ms": [[figure.p99_ms for figure in pair] for pair in pairs],
        "p99.9 ms": [[figure.p999_ms for figure in pair] for pair in pairs],
    }
    return [f"{rate}/s:", *(_line(what, values) for what, values in rows.items())]


def _line(what: str, values: Sequence[Sequence[float]], *, digits: int = 1) -> str:
    """Return the medians of both, and the median of the ratios of each pair."""
    old, new = (statistics.median(column) for column in zip(*values, strict=True))
    ratios = sorted(after / before for before, after in values if before)
    spread = f", pair by pair x {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else ""
    return f"  {what}: {old:,.{digits}f} -> {new:,.{digits}f}{spread}"


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
        prog="python -m loadtest.bench.compared", description="Two checkouts of the code under load, in turn."
    )
    here = Path(__file__).resolve().parents[2]
    parser.add_argument("old", type=Path, help="a checkout made ready by `make setup`")
    parser.add_argument("new", type=Path, nargs="?", default=here, help="another one; default: this")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["rates"], help="default: rates")
    parser.add_argument("--regions", default=REGION, help="names, with commas; the first is the home, us")
    parser.add_argument("--brokers", type=int, default=3, help="of each region")
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
    if options.regions.split(",")[0] != REGION or ("batched" in options.parts and options.brokers != 3):
        parser.error(f"the first of --regions is {REGION}; batched needs --brokers 3")
    if options.system_calls and shutil.which("perf") is None:
        parser.error("--system-calls needs the program perf")
    if file_system(options.directory) in MEMORY_FILE_SYSTEMS:
        parser.error(f"{options.directory} is in memory: a sync costs nothing there; give --directory on a disk")
    with scratch_directory("georelay-compared-", options.directory) as scratch:
        uvloop.run(_compare(scratch, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
