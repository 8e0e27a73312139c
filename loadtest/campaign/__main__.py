"""`python -m loadtest.campaign`: faults under load on this machine, again and again, and a table of what was lost.

leader-kill     kill -9 of the broker that leads the partition; it is started again
region-restart  kill -9 of every broker of every region at once, then the same mesh started on the same data
link-cut        every connection between two regions reset and refused for a while, then healed
grow            one region of one broker becomes three, then five, then three, then one
replace-disk    kill -9 of one of three brokers, its data directory deleted, started again
reassign        all replicas of a topic that holds much move from one broker to another
flood           100,000 connection attempts, then slow clients (options: `flood --help`)
bit-flip        one bit of one file of a broker, every kind of file in turn (options: `bit-flip --help`)
queue           consumers of a work queue die and are killed, its coordinator too (options: `queue --help`)
transactions    kill -9 of brokers and clients while transactions are written (options: `transactions --help`)
groups          consumer groups of all clients; members and coordinator come and go (options: `groups --help`)
region-add      a fourth region joins and is filled under load (options: `region-add --help`)
report          a cut and a kill under load, then the report: every record accounted for (options: `report --help`)
gossip          a pool of fifty members: how fast news and deaths get around (options: `gossip --help`)

Foreign producers (confluent-kafka, idempotent, acks=all) send meanwhile. Exit code 1 when an acknowledged record
is missing, a record is there twice or out of order, or a region or a replica differs; 2 when it could not run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.campaign import bit_flip, flood, gossip, group_runs, queue, region_add, report_run, transactions, upgrade
from loadtest.campaign.membership_runs import MEMBERSHIP_RUNS, Work
from loadtest.campaign.mesh import CampaignFailed
from loadtest.campaign.phases_table import print_report
from loadtest.campaign.runs import Load, Run, cut_link, kill_leader, mesh_with_cuttable_links, new_mesh, restart_all
from loadtest.campaign.verdict_core import median_and_worst
from loadtest.scratch import scratch_directory

TABLE_WIDTH_CHARS: Final = 140


async def leader_kill(options: argparse.Namespace, scratch: Path) -> AsyncIterator[Run]:
    """One mesh for all runs, a new topic for each."""
    async with new_mesh(scratch, options.regions, "--restart") as mesh:
        for number in range(options.runs):
            topic = f"kill-{number + 1}"
            yield await kill_leader(mesh, topic, home=options.regions[0], directory=scratch, load=_load(options))


async def region_restart(options: argparse.Namespace, scratch: Path) -> AsyncIterator[Run]:
    """The same data for all runs: each adds a topic."""
    for number in range(options.runs):
        yield await restart_all(scratch, options.regions, f"restart-{number + 1}", load=_load(options))


async def link_cut(options: argparse.Namespace, scratch: Path) -> AsyncIterator[Run]:
    """One mesh for all runs, a new topic for each."""
    if len(options.regions) < 2:
        raise CampaignFailed("link-cut needs two regions")
    async with mesh_with_cuttable_links(scratch, options.regions) as (mesh, links):
        for number in range(options.runs):
            yield await cut_link(
                mesh,
                links,
                f"cut-{number + 1}",
                regions=options.regions,
                directory=scratch,
                load=_load(options),
                cut_seconds=options.cut_seconds,
            )


CAMPAIGNS: Final[dict[str, Callable[[argparse.Namespace, Path], AsyncIterator[Run]]]] = {
    "leader-kill": leader_kill,
    "region-restart": region_restart,
    "link-cut": link_cut,
}


def _load(options: argparse.Namespace) -> Load:
    return Load(per_second=options.rate, seconds=options.seconds, fault_after_seconds=options.fault_after)


def table_of(title: str, runs: list[Run], *, done: bool) -> Table:
    """Return the table of the runs so far."""
    table = Table(title=title, title_justify="left")
    for column in ("run", "fault", "sent", "acked", "found", "missing", "extra", "disordered", "mirrors"):
        table.add_column(column, justify="left" if column in ("fault", "mirrors") else "right")
    table.add_column("longest gap ms", justify="right")
    table.add_column("catch-up ms", justify="right")
    for number, run in enumerate(runs, start=1):
        verdict = run.verdict
        table.add_row(
            str(number),
            run.fault,
            *(f"{count:,}" for count in (verdict.sent, verdict.acked, verdict.found, verdict.missing, verdict.extra)),
            str(verdict.disordered),
            f"differ: {', '.join(verdict.mirrors_differ)}" if verdict.mirrors_differ else "equal",
            f"{verdict.longest_gap_ms:.0f}",
            f"{run.catch_up_ms:.0f}" if run.catch_up_ms else "",
        )
    if done and runs:
        median, worst = median_and_worst([run.verdict.longest_gap_ms for run in runs])
        missing, extra = (sum(getattr(run.verdict, name) for run in runs) for name in ("missing", "extra"))
        table.caption = (
            f"{len(runs)} runs: missing {missing}, extra {extra}; longest gap between acknowledgements: "
            f"median {median:.0f} ms, worst {worst:.0f} ms"
        )
        table.caption_justify = "left"
    return table


async def run_work(options: argparse.Namespace, console: Console) -> int:
    """Run one campaign about brokers that come and go; return the exit code."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    exact = True
    for _ in range(options.runs):
        with scratch_directory("georelay-campaign-", options.scratch) as scratch:
            work = Work(
                directory=scratch,
                say=say,
                per_second=options.rate,
                partitions=options.partitions,
                quiet_seconds=options.quiet_seconds,
                bulk_bytes=options.bulk_mib << 20,
                bulk_bytes_per_s=options.bulk_mb_per_s * 1_000_000,
            )
            report = await MEMBERSHIP_RUNS[options.campaign](work)
        print_report(report, console)
        exact = exact and report.is_exact
    return 0 if exact else 1


async def run_campaign(options: argparse.Namespace, console: Console) -> int:
    """Return the exit code."""
    runs: list[Run] = []
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    title = (
        f"{options.campaign}: {options.rate:g} records/s, {options.seconds:g} s, regions {','.join(options.regions)}"
    )
    with scratch_directory("georelay-campaign-", options.scratch) as scratch, bar:
        task = bar.add_task(f"{options.campaign} (starting the mesh)", total=options.runs)
        async for run in CAMPAIGNS[options.campaign](options, scratch):
            runs.append(run)
            gap = f"{run.fault}, gap {run.verdict.longest_gap_ms:.0f} ms"
            outcome = gap if run.verdict.is_exact else f"{gap}, NOT EXACT: {run.verdict}"
            bar.update(task, advance=1, description=options.campaign)
            bar.console.print(f"run {len(runs)}: {outcome}", markup=False, highlight=False)
    console.print(table_of(title, runs, done=True))
    return 0 if all(run.verdict.is_exact for run in runs) else 1


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.campaign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("campaign", choices=[*CAMPAIGNS, *MEMBERSHIP_RUNS])
    parser.add_argument("--runs", type=int, default=1, help="how often (default 1)")
    parser.add_argument(
        "--rate", type=float, default=1_000, help="records per second (default 1000); link-cut: of each region"
    )
    parser.add_argument("--seconds", type=float, default=6, help="how long is sent in each run (default 6)")
    parser.add_argument("--fault-after", type=float, default=2, help="seconds of load before the fault (default 2)")
    parser.add_argument("--cut-seconds", type=float, default=3, help="how long a link stays cut (default 3)")
    parser.add_argument(
        "--regions", type=lambda text: text.split(","), default=["us", "eu", "ap"], help="default us,eu,ap"
    )
    work = parser.add_argument_group("grow, replace-disk, reassign")
    work.add_argument("--partitions", type=int, default=4, help="of each topic (default 4)")
    work.add_argument("--quiet-seconds", type=float, default=5, help="measured between changes (default 5)")
    work.add_argument("--bulk-mib", type=int, default=1024, help="what reassign moves (default 1024)")
    work.add_argument("--bulk-mb-per-s", type=int, default=0, help="how fast it may (default: what brokers do)")
    parser.add_argument("--scratch", type=Path, default=None, help="directory for the data (default: the system's)")
    return parser


def main() -> int:
    """Run it."""
    if sys.argv[1:2] == ["bit-flip"]:
        return bit_flip.main(sys.argv[2:])
    if sys.argv[1:2] == ["flood"]:
        return flood.main(sys.argv[2:])
    if sys.argv[1:2] == ["transactions"]:
        return transactions.main(sys.argv[2:])
    if sys.argv[1:2] == ["groups"]:
        return group_runs.main(sys.argv[2:])
    if sys.argv[1:2] == ["gossip"]:
        return gossip.main(sys.argv[2:])
    if sys.argv[1:2] == ["region-add"]:
        return region_add.main(sys.argv[2:])
    if sys.argv[1:2] == ["report"]:
        return report_run.main(sys.argv[2:])
    if sys.argv[1:2] == ["queue"]:
        return queue.main(sys.argv[2:])
    if sys.argv[1:2] == ["upgrade"]:
        return upgrade.main(sys.argv[2:])
    options = parser().parse_args()
    if options.runs < 1 or options.rate <= 0 or options.seconds <= options.fault_after:
        parser().error("--runs and --rate must be positive and --seconds longer than --fault-after")
    if options.partitions < 1 or options.bulk_mib < 1 or options.bulk_mb_per_s < 0:
        parser().error("--partitions and --bulk-mib must be positive and --bulk-mb-per-s not negative")
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH_CHARS)
    try:
        run = run_work if options.campaign in MEMBERSHIP_RUNS else run_campaign
        return uvloop.run(run(options, console))
    except (CampaignFailed, RuntimeError, OSError) as error:
        console.print(f"the campaign could not run: {error}", markup=False)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
