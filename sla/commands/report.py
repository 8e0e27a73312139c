"""`georelay-sla report`: verify, roll up what is missing, judge, write."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.text import Text

from sla.commands import arguments as a
from sla.errors import UsageError
from sla.judging.verdict import Verdict
from sla.targets_file import load_targets

FORMATS: Final = ("html", "md", "json", "parquet", "junit")
FORMATS_DEFAULT: Final = ("html", "md", "json", "parquet")
SETTLE_DEFAULT: Final = "15m"
EXIT_BREACH: Final = 1
EXIT_OPEN: Final = 3
FAIL_ON: Final[Mapping[str, Mapping[Verdict, int]]] = {
    "inconclusive": {
        Verdict.BREACH: EXIT_BREACH,
        Verdict.INCONCLUSIVE: EXIT_OPEN,
        Verdict.NO_DATA: EXIT_OPEN,
    },
    "breach": {Verdict.BREACH: EXIT_BREACH},
    "never": {},
}


def register(commands: a.Subparsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "report",
        help="judge a period and write the report",
        description="Judge what the brokers of a mesh measured against its targets. Hours that are not rolled up yet, "
        "or whose traces changed, are rolled up first.",
    )
    parser.add_argument("period", nargs="?", choices=["all"], default="all", help="all traces (the default)")
    a.add_traces(parser)
    a.add_period(parser)
    parser.add_argument("--targets", type=Path, metavar="FILE", help="what to judge by (default: our own targets.toml)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: report beside the traces)")
    parser.add_argument(
        "--format",
        type=_formats,
        default=FORMATS_DEFAULT,
        metavar="LIST",
        help=f"files to write, of {','.join(FORMATS)} (default: {','.join(FORMATS_DEFAULT)})",
    )
    parser.add_argument(
        "--fail-on",
        choices=sorted(FAIL_ON),
        default="inconclusive",
        help="what exits with another code than 0 (default: inconclusive: breach 1, inconclusive and no data 3)",
    )
    add_settle(parser)
    a.add_spark(parser)
    parser.set_defaults(run=_run)


def add_settle(parser: argparse.ArgumentParser) -> None:
    """Add `--settle`."""
    parser.add_argument(
        "--settle",
        type=a.settle_s,
        default=a.settle_s(SETTLE_DEFAULT),
        metavar="LENGTH",
        help=f"how long after its end an hour waits for late records, 24h at most (default: {SETTLE_DEFAULT})",
    )


def _run(arguments: argparse.Namespace) -> int:
    from sla.jobs.report import FORMATS as FILES
    from sla.jobs.report import ReportRequest, run_report
    from sla.report.terminal import show
    from sla.sources.sealing import seal_left_rows

    period, targets = a.period_of(arguments), load_targets(arguments.targets)
    if arguments.out is not None and arguments.out.exists() and not arguments.out.is_dir():
        raise UsageError(f"--out must be a directory, but {arguments.out} is a file")
    rollups, traces = a.rollups_of(arguments), a.traces_of(arguments)  # behind what needs no traces to be wrong
    request = ReportRequest(
        traces=traces,
        rollups=rollups,
        period=period,
        targets=targets,
        out=arguments.out if arguments.out is not None else a.beside_traces(traces, "report"),
        formats=arguments.format,
        settle_s=arguments.settle,
        master=arguments.master,
        conf=dict(arguments.conf),
    )
    for line in seal_left_rows(request.traces):
        sys.stderr.write(f"georelay-sla: {line}\n")
    with a.progress() as on_step:
        report = run_report(request, on_step)
    console = a.output_console()
    for name in request.formats:
        console.print(Text(f"wrote {request.out / FILES[name].file_name}", style="dim"), soft_wrap=True)
    show(report, console)
    return FAIL_ON[arguments.fail_on].get(report.verdict, 0)


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in FORMATS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown format {unknown[0]!r}; known: {', '.join(FORMATS)}")
    return names
