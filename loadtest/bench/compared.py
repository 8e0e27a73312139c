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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import uvloop

from loadtest.bench import loads
from loadtest.bench.machine import Meter, add_directory, describe, disk_of, revision
from loadtest.bench.measured import START_S, WARM_S, Figures, in_turns, measure
from loadtest.bench.mesh_asks import pids_of
from loadtest.bench.schedule_core import Load
from loadtest.mesh_process import MeshProcess
from loadtest.scratch import scratch_directory

RATES_PER_SECOND = (100, 300, 1_000, 3_000)
PAIRS = 5
IDLE_SECONDS = 10
LADDER_PER_SECOND = (500, 1_000, 1_500, 2_000, 3_000, 4_000, 6_000, 8_000)
HELD_P99_MS_MAX = 50
BATCHED_BYTES = (100, 1_024)
SINGLE = {  # figures of a rate
    "CPU s per 100,000 records": "cpu_s_per_100k",
    "context switches per record": "switches",
    "publish->deliver p50 ms": "p50_ms",
    "p99 ms": "p99_ms",
    "p99.9 ms": "p999_ms",
}

Meshes = Mapping[str, MeshProcess]  # by "old" and "new"
Found = Mapping[str, Sequence[Mapping[str, Figures]]]  # the same: runs, by region


async def _compare(directory: Path, options: argparse.Namespace) -> None:
    for line in describe(directory):
        print(line, flush=True)
    checkouts = {"old": options.old, "new": options.new}
    for name, checkout in checkouts.items():
        print(f"{name}: {revision(checkout)}")
    print(
        f"{options.regions}, {options.brokers} brokers each, single records of 100 B over {len(loads.TOPICS)} topics, "
        f"fsync on; medians of {options.pairs} pairs"
    )
    shape = {"regions": options.regions, "brokers_per_region": options.brokers}
    meshes = {
        name: MeshProcess(directory / name, checkout=checkout.resolve(), **shape)
        for name, checkout in checkouts.items()
    }
    async with meshes["old"], meshes["new"]:
        await asyncio.to_thread(_measure, meshes, options)


def _measure(meshes: Meshes, options: argparse.Namespace) -> None:
    for mesh in meshes.values():
        loads.prepare(mesh, loads.single_load())
    for part in options.parts:
        for line in PARTS[part](meshes, options):
            print(line, flush=True)


def _rates(meshes: Meshes, options: argparse.Namespace) -> Iterator[str]:
    yield from _idle(meshes)
    for rate in options.rates:
        _warm_up(meshes, loads.single_load(rate, seconds=2))
        yield from _lines_of_regions(f"{rate}/s", _turns(meshes, loads.single_load(rate, options.seconds), options))
        if options.system_calls:
            counts = [_system_calls(mesh, rate, options.seconds) for mesh in meshes.values()]
            yield f"  system calls per record: {counts[0]:.1f} -> {counts[1]:.1f}"


def _active(meshes: Meshes, options: argparse.Namespace) -> Iterator[str]:
    load = loads.active_load(options.seconds)
    for mesh in meshes.values():
        loads.prepare(mesh, load)
    _warm_up(meshes, load)
    yield from _lines_of_regions(f"{loads.ACTIVE_PARTITIONS:,} active partitions", _turns(meshes, load, options))


def _highest(meshes: Meshes, options: argparse.Namespace) -> Iterator[str]:
    pairs = []
    for number in range(options.pairs):
        names = ("new", "old") if number % 2 else ("old", "new")
        held = {name: _held(meshes[name], options.seconds) for name in names}
        pairs.append((held["old"], held["new"]))
    yield _line(f"highest single records/s with p99 <= {HELD_P99_MS_MAX} ms", pairs)


def _held(mesh: MeshProcess, seconds: int) -> int:
    highest = 0
    for rate in LADDER_PER_SECOND:
        if not 0 < _p99_ms(mesh, rate, seconds) <= HELD_P99_MS_MAX:
            break
        highest = rate
    return highest


def _p99_ms(mesh: MeshProcess, rate: int, seconds: int) -> float:
    figures, _ = measure(loads.of(mesh, loads.single_load(rate, seconds)))
    return float(figures[loads.HOME]["p99_ms"])


def _batched(meshes: Meshes, options: argparse.Namespace) -> Iterator[str]:
    for value_bytes in BATCHED_BYTES:
        load = loads.batches(f"batched-{value_bytes}", value_bytes=value_bytes)
        for mesh in meshes.values():
            loads.prepare(mesh, load)
        found = _turns(meshes, load, options)
        yield f"batched, {value_bytes} B, as fast as two producers can:"
        yield _line("records/s", _pairs(found, loads.HOME, "records_per_s"), digits=0)
        yield _line("CPU s per 100,000 records", _pairs(found, loads.HOME, "cpu_s_per_100k"), digits=3)


PARTS: dict[str, Callable[[Meshes, argparse.Namespace], Iterator[str]]] = {
    "rates": _rates,
    "active": _active,
    "highest": _highest,
    "batched": _batched,
}


def _idle(meshes: Meshes) -> Iterator[str]:
    for name, mesh in meshes.items():
        meter = Meter(pids_of(mesh))
        time.sleep(IDLE_SECONDS)
        count = len(meter.pids)
        cores, switches = meter.share() / count, meter.switches() / meter.seconds / count
        yield f"{name}, nothing to do: {cores:.1%} of a core and {switches:.0f} context switches/s per broker"


def _warm_up(meshes: Meshes, load: Load) -> None:
    """Open connections and first segments, and fill caches."""
    for mesh in meshes.values():
        measure(loads.of(mesh, load))


def _turns(meshes: Meshes, load: Load, options: argparse.Namespace) -> Found:
    return in_turns({name: loads.of(mesh, load) for name, mesh in meshes.items()}, options.pairs)


def _pairs(found: Found, region: str, name: str) -> list[tuple[float, float]]:
    """Return a figure of old and new, for each pair of runs that were neighbours."""
    return [(old[region][name], new[region][name]) for old, new in zip(found["old"], found["new"], strict=True)]


def _lines_of_regions(what: str, found: Found) -> Iterator[str]:
    """Yield what a load costs at home, and by what mirrors are later."""
    home, *mirrors = found["old"][0]
    yield f"{what}:"
    for title, name in SINGLE.items():
        yield _line(title, _pairs(found, home, name))
    for region in mirrors:
        yield f"  in {region}, above {home}:"
        for name in ("p50_ms", "p99_ms"):
            both = zip(_pairs(found, region, name), _pairs(found, home, name), strict=True)
            above = [(mirror[0] - at[0], mirror[1] - at[1]) for mirror, at in both]
            yield _line(name.replace("_", " "), above)


def _line(what: str, values: Sequence[Sequence[float]], *, digits: int = 1) -> str:
    """Return the medians of both, and the median of the ratios of each pair."""
    old, new = (statistics.median(column) for column in zip(*values, strict=True))
    ratios = sorted(after / before for before, after in values if before)
    spread = f", pair by pair x {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else ""
    return f"  {what}: {old:,.{digits}f} -> {new:,.{digits}f}{spread}"


def _system_calls(mesh: MeshProcess, rate: int, seconds: int) -> float:
    """Return the system calls of the brokers per record of one more run. Raises RuntimeError when perf may not look."""
    pids = ",".join(map(str, pids_of(mesh).values()))
    wait_ms = int(START_S + WARM_S) * 1_000  # until the load is steady
    command = ["perf", "stat", "-x", ",", "-D", str(wait_ms), "-e", "raw_syscalls:sys_enter", "-p", pids]
    command += ["--", "sleep", str(wait_ms // 1_000 + seconds - 1)]
    counting = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    measure(loads.of(mesh, loads.single_load(rate, seconds + START_S)))
    _, said = counting.communicate(timeout=60)
    first = next((line for line in said.splitlines() if "sys_enter" in line), "").partition(",")[0].strip()
    if counting.returncode or not first.isdecimal():
        raise RuntimeError(f"perf did not count system calls: {said.strip()}")
    return int(first) / (rate * (seconds - 1))


def main() -> int:
    """Compare; 2 for a bad call."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.compared", description="Two checkouts of the code under load, in turn."
    )
    here = Path(__file__).resolve().parents[2]
    parser.add_argument("old", type=Path, help="a checkout made ready by `make setup`")
    parser.add_argument("new", type=Path, nargs="?", default=here, help="another one; default: this")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["rates"], help="default: rates")
    parser.add_argument("--regions", default=loads.HOME, help="names, with commas; the first is the home, us")
    parser.add_argument("--brokers", type=int, default=3, help="of each region")
    parser.add_argument("--rates", type=int, nargs="+", default=RATES_PER_SECOND, help="records per second")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="runs of each checkout and rate")
    parser.add_argument("--seconds", type=int, default=loads.SECONDS, help="of one run, from 3")
    parser.add_argument("--system-calls", action="store_true", help="count them too, with perf")
    add_directory(parser)
    options = parser.parse_args()
    for checkout in (options.old, options.new):
        if not (checkout / ".venv" / "bin" / "python").exists():
            parser.error(f"{checkout} has no .venv: run `make setup` there")
    if options.pairs < 1 or options.seconds < 3 or min(options.rates) < 1:
        parser.error("--pairs and --rates are from 1, --seconds from 3")
    if options.regions.split(",")[0] != loads.HOME:
        parser.error(f"the first of --regions is {loads.HOME}")
    if options.system_calls and shutil.which("perf") is None:
        parser.error("--system-calls needs the program perf")
    with scratch_directory("georelay-compared-", disk_of(parser, options)) as scratch:
        uvloop.run(_compare(scratch, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
