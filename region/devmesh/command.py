"""The command `georelay up`; registered through the entry point group `georelay.commands`.

Rule: what a mesh is run with is imported when it is run: `georelay --help` needs the options only.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from georelay.credentials import PASSWORD_CHARS_MIN, given_credentials
from georelay.errors import ConfigError, GeorelayError
from georelay.limits import PARTITIONS_PER_TOPIC_MAX
from region.devmesh.plan_core import BASE_PORT_DEFAULT, READY_TIMEOUT_S, check_brokers_per_region, parse_regions

EXIT_FAILED = 1
EXIT_USAGE = 2


def register(app: typer.Typer) -> None:
    """Add `up` to the command line."""
    app.command("up", help="Run a development mesh on this machine until Ctrl-C.")(up)


def up(
    regions: Annotated[str, typer.Option(help="Region names in order; the first one defines topics.")] = "us,eu,ap",
    brokers_per_region: Annotated[int, typer.Option(help="1, 3 or 5.")] = 3,
    data: Annotated[Path, typer.Option(help="Directory of the mesh; it starts again on the same data.")] = Path(
        "georelay-data"
    ),
    base_port: Annotated[
        int | None,
        typer.Option(help=f"First of a block of ports, kept with the data; 0 searches. Default {BASE_PORT_DEFAULT}."),
    ] = None,
    endpoints: Annotated[
        Path, typer.Option(help="JSON file written when the mesh is ready, removed on stop; commands look for it.")
    ] = Path("georelay-endpoints.json"),
    user: Annotated[
        list[str] | None, typer.Option(help="NAME:PASSWORD that clients sign in with, @FILE reads it; may be repeated.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Start brokers again that end by themselves.")] = False,
    start: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Have the `georelay up` that runs on --data start this broker again, such as us-2."
        ),
    ] = "",
    tls: Annotated[
        bool, typer.Option("--tls", help="TLS everywhere, mutual between brokers; certificates are made in DATA/pki.")
    ] = False,
    gossip: Annotated[
        bool | None,
        typer.Option(
            "--gossip/--no-gossip",
            help="Let processes find each other through one seed; keys are made in DATA/gossip. Default: yes.",
        ),
    ] = None,
    traces: Annotated[
        bool,
        typer.Option("--traces/--no-traces", help="Write the traces that `georelay report` reads, and send probes."),
    ] = True,
    num_partitions: Annotated[
        int, typer.Option(min=1, max=PARTITIONS_PER_TOPIC_MAX, help="Of topics that are created without a number.")
    ] = 1,
    ready_timeout_s: Annotated[float, typer.Option(min=1.0, help="Give up when not ready by then.")] = READY_TIMEOUT_S,
    wan: Annotated[
        str,
        typer.Option(
            metavar="PAIRS",
            help="Run it in a WAN test bed with these round trips, us-eu=70ms,us-ap=150ms,eu-ap=120ms; means --tls, "
            "needs --user.",
        ),
    ] = "",
    wan_name: Annotated[str, typer.Option(help="Name of that test bed, for `georelay wan --name`.")] = "dev",
    wan_congestion_control: Annotated[str, typer.Option(help="reno, cubic or bbr in its regions.")] = "",
    link_override: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
    broker_program: Annotated[list[str] | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run a development mesh on this machine until Ctrl-C."""
    if start:
        _start_again(data, start)
        return
    from rich.console import Console

    from georelay.process_guard import refuse_foreign_packages, refuse_optimised_python
    from mesh.testbed.bed_process import BedOptions, open_bed
    from mesh.testbed.plan_core import parse_wan
    from region.devmesh.session import BROKER_ARGV, UpOptions, run
    from region.devmesh.terminal import TerminalProgress

    console = Console(stderr=True, highlight=False)
    try:
        refuse_optimised_python()
        refuse_foreign_packages()
        check_brokers_per_region(brokers_per_region)
        names = parse_regions(regions)
        spec = parse_wan(wan).require(names) if wan else None
        options = UpOptions(
            regions=names,
            brokers_per_region=brokers_per_region,
            directory=data,
            base_port=base_port,
            endpoints=endpoints,
            users=parse_users(user or []),
            restart=restart,
            tls=tls or spec is not None,
            gossip=gossip,
            traces=traces,
            num_partitions=num_partitions,
            link_overrides=tuple(link_override or ()),
            broker_argv=tuple(broker_program or BROKER_ARGV),
            ready_timeout_s=ready_timeout_s,
        )
        with contextlib.ExitStack() as stack:
            if spec is not None:
                bed = stack.enter_context(
                    open_bed(BedOptions(spec=spec, name=wan_name, congestion_control=wan_congestion_control))
                )
                bed.enter_hub()  # before there are threads: a process with several cannot change its namespaces
                options = replace(options, bed=bed)
            progress = stack.enter_context(TerminalProgress(console))
            asyncio.run(run(options, progress))
    except GeorelayError as error:
        typer.echo(f"georelay up: {error}", err=True)
        raise typer.Exit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED) from None


def _start_again(data: Path, name: str) -> None:
    from region.devmesh.starting_again import start_again

    try:
        pid = start_again(data, name)
    except GeorelayError as error:
        typer.echo(f"georelay up: {error}", err=True)
        raise typer.Exit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED) from None
    typer.echo(f"{name} is started, as process {pid} (log: {data}/logs/{name}.log)")


def parse_users(texts: list[str]) -> tuple[tuple[str, str], ...]:
    """Return (name, password) pairs of what `given_credentials` takes.

    Raises:
        ConfigError: as that, a password that is too short, or one name twice.
    """
    pairs = []
    for text in texts:
        name, password = given_credentials(text)
        if len(password) < PASSWORD_CHARS_MIN:
            raise ConfigError(f"--user: the password of {name} is too short: {PASSWORD_CHARS_MIN} characters at least")
        pairs.append((name, password))
    if len({name for name, _ in pairs}) != len(pairs):
        raise ConfigError("--user: a name is given twice")
    return tuple(pairs)
