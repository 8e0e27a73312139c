"""`georelay report ...`: hands everything to `georelay-sla report` of the same environment.

The report belongs to another program, which needs Java and Spark; nothing of it is imported here.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
    command = [str(find_program()), "report", *context.args]
    with _interrupts_left_to_child():
        answer = subprocess.run(command, check=False)  # noqa: S603 (our own program)
    raise typer.Exit(answer.returncode)


@contextmanager
def _interrupts_left_to_child() -> Iterator[None]:
    """Let Ctrl-C, which the terminal sends to both, end the child alone: it has Java to stop and a line to say.

    A handler and not SIG_IGN: what is ignored stays so in the child, a handler does not.
    """
    before = signal.signal(signal.SIGINT, lambda _signal, _frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
