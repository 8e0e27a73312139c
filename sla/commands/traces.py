"""`georelay-sla verify`, `compact` and `rollup`: what is done to trace files before anybody judges them."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from georelay.trace.kinds import TraceKind
from sla.commands import arguments as a
from sla.commands.report import EXIT_OPEN, add_settle
from sla.jobs.doctor import require_spark
from sla.report.wording import count, printable, size, things
from sla.sources.manifest import TraceFiles

BAD_FILES_SHOWN: Final = 50
OLDER_THAN_DEFAULT: Final = "2h"


def register(commands: a.Subparsers) -> None:
    """Add the commands."""
    _add_verify(commands)
    _add_compact(commands)
    _add_rollup(commands)


# --- verify --------------------------------------------------------------------------------------------


def _add_verify(commands: a.Subparsers) -> None:
    parser = commands.add_parser(
        "verify",
        help="prove trace files readable and set bad ones aside",
        description="Read the trace files of a period whole, page checksums included. Exits with 0 when nothing is "
        "missing or damaged, else with 3.",
    )
    a.add_traces(parser)
    a.add_period(parser)
    parser.add_argument("--deep", action="store_true", help="read everything again, also what was proven before")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--quarantine", metavar="DIR", help="where bad files are moved (default: quarantine beside the traces)"
    )
    where.add_argument("--no-quarantine", action="store_true", help="leave bad files where they are")
    parser.set_defaults(run=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    from sla.jobs.verify import PROVEN_NAME, VerifyRequest, run_verify
    from sla.sources.verify import Depth

    period, rollups, traces = a.period_of(arguments), a.rollups_of(arguments), a.traces_of(arguments)
    request = VerifyRequest(
        traces=traces,
        period=period,
        depth=Depth.ALL if arguments.deep else Depth.NEW,
        proven=Path(rollups) / PROVEN_NAME,
        quarantine=arguments.quarantine,
        is_moving=not arguments.no_quarantine,
    )
    with a.progress() as on_step:
        files = run_verify(request, on_step)
    show_files(files, a.output_console())
    return 0 if is_whole(files) else EXIT_OPEN


def is_whole(files: TraceFiles) -> bool:
    """Return whether nothing is known to be missing."""
    return not files.bad and not files.rows_dropped() and not any(files.rows_missing(kind) for kind in TraceKind)


def show_files(files: TraceFiles, console: Console) -> None:
    """Print what there is of each kind, which files are bad, and one line at the end."""
    table = Table()
    for name in ("kind", "files", "rows", "missing rows", "bad files"):
        table.add_column(name, justify="left" if name == "kind" else "right")
    for kind in TraceKind:
        mine = files.of(kind)
        bad = sum(file.kind is kind for file in files.bad)
        if mine.good or bad:
            missing = count(files.rows_missing(kind))
            table.add_row(kind.value, count(len(mine.good)), count(files.rows_of(kind)), missing, count(bad))
    console.print(table)
    for bad_file in files.bad[:BAD_FILES_SHOWN]:
        place = " (moved to the quarantine)" if bad_file.is_moved else ""
        line = f"{printable(bad_file.relative)}: {printable(bad_file.reason)}{place}"
        console.print(Text(line, style="red"), soft_wrap=True)
    if len(files.bad) > BAD_FILES_SHOWN:
        console.print(Text(f"and {count(len(files.bad) - BAD_FILES_SHOWN)} more", style="red"))
    missing_rows = sum(files.rows_missing(kind) for kind in TraceKind)
    console.print(
        f"{things(len(files.good), 'file', 'files')} of {size(files.size_bytes)} can be read; "
        f"{things(len(files.bad), 'file', 'files')} set aside, {things(missing_rows, 'row', 'rows')} missing, "
        f"{things(files.rows_dropped(), 'row', 'rows')} dropped by writers, "
        f"{things(len(files.superseded), 'copy', 'copies')} not counted",
        highlight=False,
    )


# --- compact -------------------------------------------------------------------------------------------


def _add_compact(commands: a.Subparsers) -> None:
    parser = commands.add_parser(
        "compact",
        help="make one file of the many small ones of each closed hour",
        description="Replace the trace files of closed hours by one per writer and kind. Roll-ups stay valid.",
    )
    a.add_traces(parser)
    a.add_period(parser)
    parser.add_argument(
        "--older-than",
        type=a.duration_s,
        default=a.duration_s(OLDER_THAN_DEFAULT),
        metavar="LENGTH",
        help=f"only hours that ended so long ago (default: {OLDER_THAN_DEFAULT})",
    )
    parser.set_defaults(run=_compact)


def _compact(arguments: argparse.Namespace) -> int:
    from sla.jobs.compact import CompactRequest, run_compact

    if arguments.rollups is not None:
        a.rollups_of(arguments)  # nothing of them is read or written, but what cannot be one is refused
    period = a.period_of(arguments)
    request = CompactRequest(traces=a.traces_of(arguments), period=period, older_than_s=arguments.older_than)
    with a.progress() as on_step:
        done = run_compact(request, on_step)
    a.output_console().print(
        f"{things(done.hours, 'hour', 'hours')}: {things(done.files_before, 'file', 'files')} of "
        f"{size(done.bytes_before)} became {count(done.files_after)} of {size(done.bytes_after)}, "
        f"{things(done.rows, 'row', 'rows')}; {things(done.bad_files, 'bad file', 'bad files')} left alone",
        highlight=False,
    )
    return 0


# --- rollup --------------------------------------------------------------------------------------------


def _add_rollup(commands: a.Subparsers) -> None:
    parser = commands.add_parser(
        "rollup",
        help="sum up trace files hour by hour",
        description="Roll up the hours of a period that are missing or whose traces changed, for reports to read.",
    )
    a.add_traces(parser)
    a.add_period(parser)
    add_settle(parser)
    parser.add_argument("--force", action="store_true", help="roll up again what did not change")
    a.add_spark(parser)
    parser.set_defaults(run=_rollup)


def _rollup(arguments: argparse.Namespace) -> int:
    period, rollups, traces = a.period_of(arguments), a.rollups_of(arguments), a.traces_of(arguments)
    require_spark()
    from sla.jobs.rollup import RollupRequest, run_rollup  # the first import of Spark
    from sla.rollups import HourAction

    request = RollupRequest(
        traces=traces,
        rollups=rollups,
        period=period,
        settle_s=arguments.settle,
        is_forced=arguments.force,
        master=arguments.master,
        conf=dict(arguments.conf),
    )
    with a.progress() as on_step:
        result = run_rollup(request, on_step)
    console = a.output_console()
    for run in result.hours:
        hour = datetime.datetime.fromtimestamp(run.hour_s, tz=datetime.UTC)
        if run.left_out_rows:
            rows = things(run.left_out_rows, "row of its files is", "rows of its files are")
            console.print(f"{hour:%Y-%m-%d %H}:00 UTC: kept as it was; {rows} not in it", highlight=False)
        if run.action is HourAction.BUILT:
            words = [things(sum(run.rows_read.values()), "row", "rows"), f"revision {run.revision}"]
            words += ["not final"] * (not run.is_final) + ["revised"] * run.is_revised
            words += [things(run.quarantined, "file set aside", "files set aside")] * bool(run.quarantined)
            words += [things(run.missing_rows, "row missing", "rows missing")] * bool(run.missing_rows)
            console.print(f"{hour:%Y-%m-%d %H}:00 UTC: {', '.join(words)}", highlight=False)
    built, current, kept = (result.count(action) for action in HourAction)
    console.print(
        f"{things(built, 'hour', 'hours')} rolled up, {count(current)} unchanged, {count(kept)} kept whose traces are "
        f"gone; roll-ups in {rollups}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    return 0
