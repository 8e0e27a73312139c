"""`georelay-sla doctor`: what a report needs on this machine."""

from __future__ import annotations

import argparse
import sys

from sla.commands.arguments import Subparsers
from sla.errors import JobFailed
from sla.jobs.doctor import run_checks


def register(commands: Subparsers) -> None:
    """Add the command."""
    parser = commands.add_parser("doctor", help="check Java and the Python packages a report needs")
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> int:
    checks = run_checks()
    for check in checks:
        sys.stdout.write(f"{'ok  ' if check.is_ok else 'FAIL'}  {check.name:10} {check.text}\n")
    return 0 if all(check.is_ok for check in checks) else JobFailed.exit_status
