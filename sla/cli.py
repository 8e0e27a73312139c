"""The command line `georelay-sla`. Spark is imported only when a report is really made.

Exit codes: 0 pass, 1 breach, 2 usage, 3 inconclusive or no data, 4 Spark, Java or file system failed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from georelay.errors import GeorelayError
from sla.errors import JobFailed, NoTraces, UsageError
from sla.jobs.doctor import run_checks
from sla.report.verdict import Verdict
from sla.sources.files import Period, find
from sla.targets import Targets

EXIT_OK: Final = 0
EXIT_BY_VERDICT: Final = {Verdict.PASS: 0, Verdict.BREACH: 1, Verdict.INCONCLUSIVE: 3, Verdict.NO_DATA: 3}
FORMATS: Final = ("md", "json")
PLAIN_WIDTH_CHARS: Final = 160  # of output that is not a terminal


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. An error is one line on standard error."""
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except (NoTraces, UsageError, JobFailed) as error:
        return _fail(error, error.exit_status)
    except OSError as error:
        return _fail(error, JobFailed.exit_status)
    except KeyboardInterrupt:
        return 130
    return status


def _fail(error: GeorelayError | OSError, status: int) -> int:
    sys.stderr.write(f"georelay-sla: {error}\n")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="georelay-sla",
        description="Judge what the brokers of a mesh measured against its targets.",
        epilog="exit codes: 0 pass, 1 breach, 2 usage, 3 inconclusive or no data, 4 Spark, Java or file system failed",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    report = commands.add_parser("report", help="make the report of a trace directory")
    report.add_argument(
        "period", nargs="?", choices=["all"], default="all", help="all traces (the default without --from and --to)"
    )
    report.add_argument(
        "--traces",
        type=Path,
        default=Path(os.environ.get("GEORELAY_TRACES", "traces")),
        metavar="DIR",
        help="directory the brokers write to (default: $GEORELAY_TRACES or ./traces)",
    )
    report.add_argument("--from", dest="start", type=_time, metavar="TIME", help="ISO 8601, UTC when without a zone")
    report.add_argument("--to", dest="end", type=_time, metavar="TIME", help="first moment that is not counted")
    report.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: report beside the traces)")
    report.add_argument(
        "--format",
        type=_formats,
        default=FORMATS,
        metavar="LIST",
        help=f"files to write (default: {','.join(FORMATS)})",
    )
    report.add_argument("--master", default="local[2]", help="Spark master (default: local[2])")
    report.add_argument(
        "--conf", type=_setting, action="append", default=[], metavar="K=V", help="Spark setting, repeatable"
    )
    report.set_defaults(run=_report)
    doctor = commands.add_parser("doctor", help="check Java and the Python packages a report needs")
    doctor.set_defaults(run=_doctor)
    return parser


def _report(arguments: argparse.Namespace) -> int:
    traces: Path = arguments.traces
    period = Period(start=arguments.start, end=arguments.end)
    if period.start is not None and period.end is not None and period.start >= period.end:
        raise UsageError("--from must be before --to")
    paths = _find_traces(traces, period)
    missing = [check for check in run_checks() if not check.is_ok]
    if missing:
        raise JobFailed(f"{missing[0].name}: {missing[0].text}")
    from sla.jobs.report import ReportRequest, run_report  # the first import of Spark
    from sla.report.terminal import show

    request = ReportRequest(
        traces=traces,
        paths=tuple(paths),
        period=period,
        out=arguments.out if arguments.out is not None else traces.resolve().parent / "report",
        formats=arguments.format,
        master=arguments.master,
        conf=dict(arguments.conf),
        targets=Targets(),
    )
    with Console(stderr=True).status("") as status:
        report = run_report(request, lambda step: status.update(f"{step} ..."))
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH_CHARS)
    show(report, console)
    for name in request.formats:
        console.print(f"wrote {request.out / f'report.{name}'}", style="dim", soft_wrap=True, highlight=False)
    return EXIT_BY_VERDICT[report.verdict]


def _find_traces(traces: Path, period: Period) -> list[Path]:
    if not traces.exists():
        raise NoTraces(f"no traces: the directory {traces} does not exist")
    if not traces.is_dir():
        raise UsageError(f"--traces must be a directory, but {traces} is a file")
    paths = find(traces, period)
    if not paths:
        some = find(traces, Period())
        where = "in that period" if some else "no file date=*/hour=*/region=*/*.parquet"
        raise NoTraces(f"no traces in {traces} ({where}); brokers write them a few seconds after the first record")
    return paths


def _doctor(_: argparse.Namespace) -> int:
    checks = run_checks()
    for check in checks:
        sys.stdout.write(f"{'ok  ' if check.is_ok else 'FAIL'}  {check.name:8} {check.text}\n")
    return EXIT_OK if all(check.is_ok for check in checks) else JobFailed.exit_status


def _time(text: str) -> datetime.datetime:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no ISO 8601 time, such as 2025-01-31T12:00") from None
    return moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in FORMATS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown format {unknown[0]!r}; known: {', '.join(FORMATS)}")
    return names


def _setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key, value
