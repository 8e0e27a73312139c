"""`python -m loadtest.chaos`: one fault after the other on a mesh of real broker processes under load, all recorded.

Producers (confluent-kafka, idempotent, acks=all) and a consumer (aiokafka) write down what they were told; after each
fault everything is healed, every partition is read completely in every region, and the history is judged. Exit code 1
when a promise was broken (or a goal missed, with --require-goals), 2 when the campaign could not run.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.campaign.command_line import carry_out, new_parser
from loadtest.campaign.mesh import CampaignFailed
from loadtest.chaos.chaos_mesh import ChaosMesh
from loadtest.chaos.chaos_run import ChaosRun, Load, run_once
from loadtest.chaos.nemesis import NEMESES
from loadtest.chaos.report_core import Goal, Outcome, Row, goal_text, row_of

KEPT_LOG_BYTES_MAX: Final = 64 * 1024 * 1024


def schedule(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Yield (nemesis, number of its run): RUNS of each, or rounds of all in random order for MINUTES."""
    if not options.minutes:
        for name in options.nemesis:
            yield from ((name, number) for number in range(options.runs))
        return
    ends = time.monotonic() + 60 * options.minutes
    order = random.Random(f"{options.seed}/order")
    number = 0
    while True:
        for name in order.sample(options.nemesis, len(options.nemesis)):
            if time.monotonic() >= ends:
                return
            yield name, number
        number += 1


async def campaign(options: argparse.Namespace, console: Console) -> int:
    """Return the exit code."""
    runs: dict[str, list[ChaosRun]] = defaultdict(list)
    load = Load(
        per_second=options.rate,
        producers=options.producers,
        partitions=options.partitions,
        settle_seconds=options.settle,
        request_timeout_ms=options.request_timeout_ms,
        linear_ends=not options.old_ends_allowed,
    )
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    total = None if options.minutes else options.runs * len(options.nemesis)
    failure = ""
    with tempfile.TemporaryDirectory(prefix="georelay-chaos-", dir=options.scratch) as scratch, bar:
        task = bar.add_task("starting the mesh", total=total)
        directory = Path(scratch)
        try:
            async with ChaosMesh(directory, options.regions) as mesh:
                for name, number in schedule(options):
                    bar.update(task, description=f"{name} {number + 1}")
                    rng = random.Random(f"{options.seed}/{name}/{number}")
                    topic = f"{name}-{number + 1}"
                    run = await run_once(mesh, name, NEMESES[name], topic, load=load, rng=rng, directory=directory)
                    runs[name].append(run)
                    bar.update(task, advance=1)
                    bar.console.print(described(run, number), markup=False, highlight=False)
                    if not run.is_clean:
                        kept = keep(run, directory, options.keep / f"{options.seed}-{topic}")
                        bar.console.print(f"  kept in {kept}", markup=False, highlight=False)
                    for history in run.histories:
                        history.unlink(missing_ok=True)
        except CampaignFailed as error:  # what was measured so far is shown all the same
            failure = str(error)
            keep_logs(directory, options.keep / f"{options.seed}-failed")
    rows = [
        row_of(name, [_outcome(run) for run in done], _goal(name), must_fail=NEMESES[name].must_fail)
        for name, done in runs.items()
    ]
    if rows:
        console.print(table_of(f"chaos: seed {options.seed}, {options.rate:g} records/s per producer", rows))
    if failure:
        console.print(f"the campaign could not go on: {failure}", markup=False)
        return 2
    late = options.require_goals and any(row.is_in_time is False for row in rows)
    return 0 if all(row.is_as_wanted for row in rows) and not late else 1


def _outcome(run: ChaosRun) -> Outcome:
    return Outcome(verdict=run.verdict, gap_ms=run.gap_ms, complaints=len(run.complaints))


def _goal(name: str) -> Goal:
    return Goal(median_ms_max=NEMESES[name].median_ms_max, worst_ms_max=NEMESES[name].worst_ms_max)


def described(run: ChaosRun, number: int) -> str:
    """Return the lines of one run: one when it is clean."""
    head = (
        f"{run.nemesis} {number + 1}: {run.fault}; gap {run.gap_ms:.0f} ms, healed in {run.recovery_ms:.0f} ms; "
        f"{run.verdict.acknowledged:,} acknowledged"
    )
    if run.is_clean:
        return f"{head}; valid"
    said = [f"  complaint: {complaint}" for complaint in run.complaints]
    return "\n".join([head, *said, *(f"  {line}" for line in run.verdict.describe().splitlines())])


def table_of(title: str, rows: list[Row]) -> Table:
    """Return the table of all nemeses."""
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column("nemesis", no_wrap=True)
    for column in ("runs", "acked", "read", "lost", "doubled", "disordered", "stale", "wrong", "complaints"):
        table.add_column(column, justify="right")
    for column in ("gap median ms", "gap worst ms"):
        table.add_column(column, justify="right")
    table.add_column("goal")
    table.add_column("verdict")
    for row in rows:
        done = (row.runs, row.acknowledged, row.records_read)
        counts = (*done, row.lost, row.doubled, row.disordered, row.stale, row.wrong, row.complaints)
        gaps = (f"{row.median_gap_ms:.0f}", f"{row.worst_gap_ms:.0f}")
        table.add_row(row.nemesis, *(f"{count:,}" for count in counts), *gaps, goal_text(row), row.verdict)
    runs = sum(row.runs for row in rows)
    lost, doubled = sum(row.lost for row in rows), sum(row.doubled for row in rows)
    table.caption = (
        f"{runs} runs, {sum(row.acknowledged for row in rows):,} acknowledged: {lost} lost, {doubled} doubled"
    )
    return table


def keep(run: ChaosRun, directory: Path, target: Path) -> Path:
    """Copy what explains a run that is not clean; return where."""
    keep_logs(directory, target)
    for history in run.histories:
        if history.exists():
            shutil.copy(history, target)
    (target / "verdict.txt").write_text(described(run, 0) + "\n", encoding="utf-8")
    return target


def keep_logs(directory: Path, target: Path) -> None:
    """Copy the brokers' logs, unless they are huge."""
    target.mkdir(parents=True, exist_ok=True)
    for log in directory.glob("*.log"):
        if log.stat().st_size <= KEPT_LOG_BYTES_MAX:
            shutil.copy(log, target)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    faults = "\n".join(f"  {name.ljust(16)}{nemesis.text}" for name, nemesis in NEMESES.items())
    parser = new_parser("chaos", __doc__, epilog=f"nemeses:\n{faults}")
    parser.add_argument("--runs", type=int, default=2, help="of each nemesis (default 2)")
    parser.add_argument("--minutes", type=float, default=0, help="rounds of all nemeses for so long instead of --runs")
    parser.add_argument("--seed", type=int, default=1, help="chooses targets, times and order (default 1)")
    parser.add_argument("--nemesis", type=_names, default=[], help="comma separated; default: all that fit the regions")
    parser.add_argument(
        "--regions", type=lambda text: text.split(","), default=["us"], help="default us; us,eu,ap for a 3x3 mesh"
    )
    parser.add_argument("--rate", type=float, default=1_000, help="records per second and producer (default 1000)")
    parser.add_argument("--producers", type=int, default=1, help="per region, in the first two regions (default 1)")
    parser.add_argument("--partitions", type=int, default=3, help="of each run's topic (default 3)")
    parser.add_argument("--settle", type=float, default=2, help="seconds of load before a fault and after (default 2)")
    parser.add_argument(
        "--request-timeout-ms", type=int, default=1_000, help="clients give up on a silent broker (default 1000)"
    )
    parser.add_argument(
        "--old-ends-allowed", action="store_true", help="do not judge end offsets against acknowledgements"
    )
    parser.add_argument("--keep", type=Path, default=Path("out/chaos"), help="logs and histories of runs that failed")
    parser.add_argument("--require-goals", action="store_true", help="a goal that is missed is a failure")
    return parser


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in NEMESES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(NEMESES)}")
    return names


def main() -> int:
    """Run it."""
    options = parser().parse_args()
    if min(options.runs, options.rate, options.producers, options.partitions, options.request_timeout_ms) <= 0:
        parser().error("--runs, --rate, --producers, --partitions and --request-timeout-ms must be positive")
    fitting = [name for name, nemesis in NEMESES.items() if nemesis.regions_min <= len(options.regions)]
    options.nemesis = options.nemesis or [name for name in fitting if not NEMESES[name].must_fail]
    if unfit := set(options.nemesis) - set(fitting):
        parser().error(f"--nemesis {', '.join(sorted(unfit))} needs more --regions")
    return carry_out(campaign, options, width_chars=160)


if __name__ == "__main__":
    sys.exit(main())
