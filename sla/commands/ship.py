"""`georelay-sla ship`: the trace files of this host to one place for the whole mesh."""

from __future__ import annotations

import argparse
from typing import Final

from sla.commands import arguments as a
from sla.report.wording import count, printable, size, things

MEGA: Final = 1_000_000
MB_PER_S_DEFAULT: Final = 8.0
MB_PER_S_RANGE: Final = (0.001, 10_000.0)
KEPT_SHOWN: Final = 10


def register(commands: a.Subparsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "ship",
        help="copy closed trace files to a bucket or directory",
        description="Copy the closed trace files of this host to one place, for one report on the whole mesh. Nothing "
        "is deleted, here or there; interrupted and run again, it goes on.",
    )
    parser.add_argument("--traces", metavar="DIR", help="directory that a broker or gateway writes to (its trace_dir)")
    parser.add_argument(
        "--into", dest="to", required=True, metavar="URI", help="directory or s3://, gs://, abfs:// URI"
    )
    parser.add_argument(
        "--mb-per-s", type=_mb_per_s, default=MB_PER_S_DEFAULT, metavar="N",
        help=f"send so many megabytes a second at most (default: {MB_PER_S_DEFAULT:g})",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="send again what was shipped before and is not there")
    parser.set_defaults(run=_run)


def _mb_per_s(text: str) -> float:
    low, high = MB_PER_S_RANGE
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not low <= found <= high:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from {low:g} to {high:g}")
    return found


def _run(arguments: argparse.Namespace) -> int:
    from sla.jobs.ship import ShipRequest, run_ship
    from sla.sources.location import Location

    request = ShipRequest(
        traces=a.traces_of(arguments),
        to=arguments.to,
        bytes_per_s=int(arguments.mb_per_s * MEGA),
        is_again=arguments.again,
    )
    with a.progress() as on_step:
        done = run_ship(request, on_step)
    console, place = a.output_console(), printable(Location.open(request.to).shown)
    for relative in done.kept[:KEPT_SHOWN]:
        console.print(f"{printable(relative)}: another file is there and is kept", highlight=False, soft_wrap=True)
    words = [f"{things(done.files, 'file', 'files')} of {size(done.size_bytes)} sent to {place}"]
    words.append(f"{count(done.known)} sent before")
    words += [f"{things(len(done.kept), 'other file', 'other files')} kept there"] * bool(done.kept)
    words += [f"{count(done.gone)} expired before their turn"] * bool(done.gone)
    console.print(", ".join(words), highlight=False, markup=False, soft_wrap=True)
    return 0
