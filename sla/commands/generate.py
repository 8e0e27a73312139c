"""`georelay-sla gen`: synthetic traces with injected faults, and what a report must find in them."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import Final

from sla.commands import arguments as a
from sla.generate.request import FAULTS, Fault, GenerateRequest
from sla.report.wording import count

SECONDS_DEFAULT: Final = 600
REGIONS_DEFAULT: Final = "us,eu,ap"
RATE_DEFAULT: Final = 300


def register(commands: a.Subparsers) -> None:
    """Add the command."""
    faults = "; ".join(
        f"{kind.value}{':' if names else ''}{','.join(f'{name}={value}' for name, value in names.items())}"
        for kind, names in FAULTS.items()
    )
    parser = commands.add_parser(
        "gen",
        help="make synthetic traces with injected faults",
        description="Write OUT/traces as brokers would, and OUT/expected.json: what a report must find in them. "
        f"Faults, with what is left out: {faults}.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory; it must have no traces yet")
    parser.add_argument(
        "--start", type=a.moment, metavar="TIME", help="first moment, 1970 to 2259 (default: the last full hour)"
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds", type=int, default=SECONDS_DEFAULT, help=f"length of the traffic (default: {SECONDS_DEFAULT})"
    )
    length.add_argument("--rows", type=int, help="delivery rows to make; the length follows")
    parser.add_argument(
        "--regions", default=REGIONS_DEFAULT, metavar="LIST", help=f"names (default: {REGIONS_DEFAULT})"
    )
    parser.add_argument(
        "--rate", type=int, default=RATE_DEFAULT, help=f"records per second in the mesh (default: {RATE_DEFAULT})"
    )
    parser.add_argument("--seed", type=int, default=1, help="one seed makes the same rows (default: 1)")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="KIND[:ARG]", help="what goes wrong, repeatable"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    now = datetime.datetime.now(tz=datetime.UTC)
    request = GenerateRequest(
        out=arguments.out,
        start=arguments.start or now.replace(minute=0, second=0, microsecond=0) - datetime.timedelta(hours=1),
        seconds=arguments.seconds,
        regions=tuple(arguments.regions.split(",")),
        rate_per_s=arguments.rate,
        seed=arguments.seed,
        faults=tuple(Fault.parse(text) for text in arguments.fault),
        rows=arguments.rows,
    )
    request.check()
    from sla.generate.run import run_generate  # the first import of numpy

    with a.progress() as on_step:
        expected = run_generate(request, on_step)
    rows = ", ".join(f"{count(value)} {name}" for name, value in expected.files.items() if isinstance(value, int))
    console = a.output_console()
    console.print(f"wrote {expected.traces} and expected.json beside it: {rows}", highlight=False, markup=False)
    return 0
