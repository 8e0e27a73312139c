"""`python -m loadtest.peers`: georelay and what one would pick instead, side by side.

`install` brings the foreign brokers into build/peers. `run` measures all contenders in turn and stores a result file
for each run in a folder below out/peers; `table` makes the page of such a folder; `again` holds a second run against
what the rounds of a first one said of it. Only one contender runs at a time;
every round takes them in another order, so that what else the machine does falls on all of them. `--regions`: the same
for three regions that are far from each other, in a WAN test bed, which needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.bench.figures_core import Row
from loadtest.bench.machine import add_directory, describe, disk_of
from loadtest.bench.schedule_core import Load
from loadtest.peers import one_run, regional_run
from loadtest.peers.again_core import again
from loadtest.peers.contenders import CONTENDERS, REGIONAL, Contender
from loadtest.peers.installation import ROOT, Installed, PeersMissing, install
from loadtest.peers.page_core import ONE_REGION, THREE_REGIONS, Part, Promise, page
from loadtest.peers.regions import missing_here
from loadtest.peers.workloads import REGIONAL_WORKLOADS, WORKLOADS, Workload
from loadtest.scratch import scratch_directory

PAGE: Final = ROOT / "docs" / "benchmarks.md"
MACHINE: Final = "machine.json"
WARM_UP: Final = Workload(key="warm-up", rate_per_s=1_000, seconds=1)
ROUNDS: Final = 3
FAULT_ROUNDS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is compared: whom, by what, how, and where it is told.

    Args:
        warm_up: what is sent before anything is measured.
    """

    contenders: Sequence[Contender[Any]]
    workloads: Sequence[Workload]
    measure: Callable[[Any, Workload], tuple[dict[str, Any], list[Row]]]
    part: Part
    results: Path
    warm_up: Sequence[Workload] = ()

    @property
    def promises(self) -> dict[str, Promise]:
        """What an acknowledgement of each contender promises."""
        return {one.name: (one.durability, one.client, one.synced) for one in self.contenders}


HERE: Final = Comparison(
    contenders=CONTENDERS,
    workloads=WORKLOADS,
    measure=one_run.measure,
    part=ONE_REGION,
    results=ROOT / "out" / "peers",
    warm_up=(WARM_UP,),
)
FAR: Final = Comparison(
    contenders=REGIONAL,
    workloads=REGIONAL_WORKLOADS,
    measure=regional_run.measure,
    part=THREE_REGIONS,
    results=ROOT / "out" / "peers-regions",
)


def requirements() -> list[str]:
    """Return the Python packages that only the clients need."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return list(groups["peers"])


async def run(options: argparse.Namespace, compared: Comparison, installed: Installed, results: Path) -> int:
    """Measure; return how many runs failed."""
    chosen = [one for one in compared.contenders if not options.only or any(word in one.name for word in options.only)]
    failed = 0
    began = time.monotonic()
    for number in range(options.rounds):
        turned = chosen[number % len(chosen) :] + chosen[: number % len(chosen)]
        workloads = [one for one in compared.workloads if not options.workloads or one.key in options.workloads]
        if number >= options.fault_rounds:
            workloads = [one for one in workloads if one.fault is None]
        for contender in turned:
            try:
                with scratch_directory("georelay-peers-", options.directory) as scratch:
                    place = scratch / "run"
                    failed += await _contender(compared, contender, workloads, number, place, installed, results)
            except RuntimeError as error:  # the others are measured all the same
                failed += len(workloads)
                print(f"FAIL {contender.name}: {error}", file=sys.stderr, flush=True)
            print(f"{time.monotonic() - began:.0f} s: round {number + 1}, {contender.name}", flush=True)
    return failed


async def _contender(
    compared: Comparison,
    contender: Contender[Any],
    workloads: Sequence[Workload],
    number: int,
    folder: Path,
    installed: Installed,
    results: Path,
) -> int:
    """Run the workloads on a fresh cluster; return how many could not be run."""
    failed = 0
    async with contender.running(folder, installed) as cluster:
        await asyncio.to_thread(cluster.create, _topics([*compared.warm_up, *workloads], cluster.protocol))
        for workload in compared.warm_up:
            await asyncio.to_thread(compared.measure, cluster, workload)
        for workload in workloads:
            if workload.fault and not contender.synced:
                continue  # what is not durable is the same broker, and fails over the same way
            try:
                figures, rows = await asyncio.to_thread(compared.measure, cluster, workload)
            except RuntimeError as error:
                failed += 1
                print(f"FAIL {contender.name}, {workload.key}: {error}", file=sys.stderr, flush=True)
                continue
            told = {
                "contender": contender.name,
                "version": contender.version(installed),
                "workload": workload.key,
                "round": number,
                "figures": figures,
                "rows": rows,
            }
            name = f"{number}-{contender.name.replace(', ', '-').replace(' ', '-')}-{workload.key}.json"
            (results / name).write_text(json.dumps(told))
            print(f"  {contender.name}, {workload.key}: {_short(figures)}", flush=True)
    return failed


def _topics(workloads: Sequence[Workload], protocol: str) -> list[str]:
    loads: list[Load] = [one.load(protocol) for one in workloads]
    return sorted({topic for load in loads for topic in load.topics})


def _short(figures: dict[str, object]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in figures.items()
        if name != "began"
    )


def write_page(compared: Comparison, results: Path, to: Path) -> None:
    """Write the page of a folder of results; what stands below its mark in the old page stays."""
    machine = json.loads((results / MACHINE).read_text())
    old = to.read_text() if to.exists() else ""
    to.write_text(page(_told(results), machine, compared.promises, old, compared.part))


def _told(results: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(results.glob("[0-9]*.json"))]


def main() -> int:
    """Return the exit code: 0 all was measured, 1 a run failed, 2 something is missing or a bad call."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.peers", description=__doc__)
    parser.add_argument("what", choices=["install", "run", "table", "again", "all"], nargs="?", default="all")
    parser.add_argument("--regions", action="store_true", help="three regions far from each other; needs root")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--fault-rounds", type=int, default=FAULT_ROUNDS, help="in how many rounds nodes are killed")
    parser.add_argument("--only", nargs="+", help="contenders with one of these words in their name")
    parser.add_argument("--workloads", nargs="+", choices=[one.key for one in (*WORKLOADS, *REGIONAL_WORKLOADS)])
    parser.add_argument("--results", type=Path, help="a folder of results (table); default: a new one, or the newest")
    parser.add_argument("--second", type=Path, help="again: the folder of the second run")
    parser.add_argument("--page", type=Path, default=PAGE)
    add_directory(parser)
    options = parser.parse_args()
    disk_of(parser, options)
    compared = FAR if options.regions else HERE
    if options.what == "again":
        if options.results is None or options.second is None:
            parser.error("again needs two folders: --results FIRST --second SECOND")
        print(again(_told(options.results), _told(options.second), compared.promises, compared.part))
        return 0
    failed = 0
    if options.regions and options.what in ("run", "all") and (lacks := missing_here()):
        print(lacks, file=sys.stderr)
        return 2
    if options.what != "table":
        try:
            installed = install(requirements())
        except PeersMissing as error:
            print(error, file=sys.stderr)
            return 2
    if options.what in ("run", "all"):
        options.results = options.results or compared.results / time.strftime("%Y%m%d-%H%M%S")
        options.results.mkdir(parents=True, exist_ok=True)
        lines = [*describe(options.directory), f"command: `python -m loadtest.peers {shlex.join(sys.argv[1:])}`"]
        (options.results / MACHINE).write_text(json.dumps(lines))
        failed = asyncio.run(run(options, compared, installed, options.results))
    if options.what in ("table", "all"):
        write_page(compared, options.results or max(compared.results.iterdir()), options.page)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
