"""`georelay-sla doctor`: what a report needs on this machine."""

from __future__ import annotations

import argparse
import sys

from sla.commands import arguments as a
from sla.errors import JobFailed
from sla.jobs.doctor import run_checks


def register(commands: a.Subparsers) -> None:
    """Add the command."""
    parser = commands.add_parser("doctor", help="check Java and the Python packages a report needs")
    parser.add_argument(
        "--archive",
        action="store_true",
        help="then write down what Spark's JVM loads at its start (150 MB): reports start in half the CPU from then on",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    checks = run_checks()
    for check in checks:
        sys.stdout.write(f"{'ok  ' if check.is_ok else 'FAIL'}  {check.name:10} {check.text}\n")
    if not all(check.is_ok for check in checks):
        return JobFailed.exit_status
    from sla.java_archive import archive_path  # the first import of Spark

    path = archive_path()
    if arguments.archive:
        from sla.jobs.java_archive import make_archive

        with a.progress() as on_step:
            make_archive(path, on_step)
    none = "none: reports start in half the CPU with one, made by georelay-sla doctor --archive"
    sys.stdout.write(f"ok    {'archive':10} {path if path.is_file() else none}\n")
    return 0
