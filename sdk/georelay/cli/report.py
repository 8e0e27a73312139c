"""`georelay report ...`: hands everything to `georelay-sla report` of the same environment.

The report belongs to another program, which needs Java and Spark; nothing of it is imported here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import typer

from georelay.cli.failure import CommandFailed

PROGRAM: Final = "georelay-sla"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        name="report",
        help=f"Judge traces against the targets: {PROGRAM} report, with its options.",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        add_help_option=False,
    )(_report)


def _report(context: typer.Context) -> None:
    answer = subprocess.run([str(find_program()), "report", *context.args], check=False)  # noqa: S603 (our own program)
    raise typer.Exit(answer.returncode)


def find_program(interpreter: str = sys.executable) -> Path:
    """Return the program beside the interpreter.

    Raises:
        CommandFailed: it is not installed there.
    """
    found = Path(interpreter).with_name(PROGRAM)
    if not found.is_file():
        text = f"{found} is not there: reports need the server's package, pip install 'georelay-server[sla]'"
        raise CommandFailed(text)
    return found
