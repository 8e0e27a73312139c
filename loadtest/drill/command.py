"""The command `georelay drill`; registered through the entry point group `georelay.commands`."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.errors import GeorelayError
from loadtest.drill.shot import DrillPlan, How, Kind
from loadtest.load.command import EXIT_CANNOT_RUN, need_extra

RUNS_MAX: Final = 1_000


def register(app: typer.Typer) -> None:
    """Add `drill` to the command line."""
    app.command("drill")(drill)


def drill(
    kind: Annotated[Kind, typer.Argument(help="What is lost.")],
    runs: Annotated[int, typer.Option(min=1, max=RUNS_MAX)] = 1,
    how: Annotated[
        How | None, typer.Option(help="Of region-loss: kill all brokers, cut the region off, or both in turn.")
    ] = None,
    wan: Annotated[
        str, typer.Option(metavar="PAIRS", help="Round trips of the test bed that is started; default: three regions.")
    ] = "",
    loopback: Annotated[bool, typer.Option("--loopback", help="Start a mesh without a test bed: no delays.")] = False,
    brokers_per_region: Annotated[int | None, typer.Option(help="1, 3 or 5; default 1, and 3 for broker-loss.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Keep the started mesh's data here; of a running mesh: the --data of its `up`.")
    ] = None,
    endpoints: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Use the RUNNING mesh that wrote this; asks first.")
    ] = None,
    user: Annotated[str, typer.Option(metavar="NAME:PASSWORD", help="Of the running mesh (or GEORELAY_USER).")] = "",
    bed: Annotated[str, typer.Option(metavar="NAME", help="Test bed of the running mesh (its --wan-name).")] = "",
    break_command: Annotated[
        str, typer.Option("--break", metavar="COMMAND", help="Kills {broker} of {region} for good.")
    ] = "",
    mend_command: Annotated[str, typer.Option("--mend", metavar="COMMAND", help="Starts it again.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before breaking a running mesh.")] = False,
    rate: Annotated[float, typer.Option(min=1.0, max=5_000.0, help="Records per second of each publisher.")] = 50.0,
    fault_s: Annotated[float, typer.Option(min=1.0, max=600.0, help="How long it is broken, at least.")] = 10.0,
    out: Annotated[Path, typer.Option(help="Where drill-KIND-TIME.json and .md go.")] = Path(),
) -> None:
    """Lose a region, a link or a broker on purpose; count what was kept, and write it down.

    Starts a mesh of its own in a WAN test bed (`--loopback`: without one), or breaks a running one (`--endpoints`).
    Ends with 0 when all was kept, 1 when a promise was broken, 2 when a run is invalid, 3 when it could not run.
    """
    need_extra("drill")
    from loadtest.campaign.mesh import CampaignFailed
    from loadtest.drill.drill_run import carry_out
    from loadtest.drill.report_core import EXIT_CODES
    from loadtest.load.campaign import Topology
    from loadtest.load.campaign_file import CampaignError, ends_of_pairs
    from loadtest.load.running_mesh import RunningMesh
    from loadtest.wan.wan_mesh import PAIRS

    count = brokers_per_region or (3 if kind is Kind.BROKER_LOSS else 1)
    if user:
        os.environ["GEORELAY_USER"] = user
    try:
        if endpoints is None:
            topology = Topology(kind="up", brokers_per_region=count)
            if not loopback:
                pairs = wan or PAIRS
                topology = replace(topology, kind="wan", pairs=pairs, regions=ends_of_pairs(pairs))
        else:
            if wan or loopback:
                text = "--endpoints is a running mesh, --wan and --loopback start one"
                raise CommandFailed(text, exit_code=EXIT_USAGE)
            topology = Topology(
                kind="endpoints",
                endpoints=str(endpoints.resolve()),
                data="" if data is None else str(data.resolve()),
                bed=bed,
                break_command=break_command,
                mend_command=mend_command,
            )
            mesh = RunningMesh(topology)
            fewest = min(len(each["kafka"]) for each in mesh.endpoints["regions"].values())
            topology = replace(topology, regions=tuple(mesh.regions), brokers_per_region=3 if fewest > 2 else 1)
            _confirm(str(mesh.endpoints["mesh"]), kind, yes=yes)
        plan = DrillPlan(
            kind=kind,
            topology=topology,
            runs=runs,
            how=how or "",
            data=data if endpoints is None else None,
            rate_per_s=rate,
            fault_s=fault_s,
            out=out,
        )
        code = EXIT_CODES[asyncio.run(carry_out(plan, say=typer.echo))]
    except BrokenPipeError:  # who read what we print has left
        raise
    except (CampaignFailed, CampaignError, GeorelayError, OSError) as error:
        raise CommandFailed(str(error), exit_code=EXIT_CANNOT_RUN) from error
    raise typer.Exit(code)


def _confirm(mesh_id: str, kind: Kind, *, yes: bool) -> None:
    """Go on only with --yes, or when a person types the mesh id (CommandFailed)."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(
            f"{kind} breaks the running mesh {mesh_id}: add --yes, or type its id at a terminal",
            exit_code=EXIT_USAGE,
        )
    typed = typer.prompt(f"{kind} breaks the running mesh {mesh_id}. Type its id to go on", default="")
    if typed.strip() != mesh_id:
        raise CommandFailed("that is not its id; nothing was done", exit_code=EXIT_USAGE)
