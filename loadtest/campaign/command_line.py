"""How a campaign that is a program is started: what all command lines share, its console, and how it ends."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import uvloop
from rich.console import Console

from loadtest.campaign.mesh import CampaignFailed
from loadtest.history.operation import HistoryError

TABLE_WIDTH_CHARS: Final = 140
EXIT_COULD_NOT_RUN: Final = 2
EXIT_INTERRUPTED: Final = 130
# TimeoutExpired is no OSError. Anything else is a mistake in the campaign, and shows as one.
FAILURES: Final = (CampaignFailed, HistoryError, RuntimeError, OSError, subprocess.TimeoutExpired)


def new_parser(program: str, text: str | None, *, epilog: str | None = None) -> argparse.ArgumentParser:
    """Return a parser that shows `text` as it stands and knows --scratch."""
    parser = argparse.ArgumentParser(
        prog=f"python -m loadtest.{program}",
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scratch", type=Path, default=None, help="directory for the data (default: the system's)")
    return parser


def carry_out(
    campaign: Callable[[argparse.Namespace, Console], Coroutine[Any, Any, int]],
    options: argparse.Namespace,
    *,
    width_chars: int = TABLE_WIDTH_CHARS,
    soft_wrap: bool = False,
    run: Callable[[Coroutine[Any, Any, int]], int] = uvloop.run,
) -> int:
    """Run a campaign and return its exit code; 2 with a line that says why when it could not run.

    Args:
        width_chars: of its tables where the output is no terminal.
        soft_wrap: lines are as long as they are.
        run: makes the event loop.
    """
    console = Console(soft_wrap=soft_wrap)
    if not console.is_terminal:
        console = Console(width=width_chars, soft_wrap=soft_wrap)
    try:
        return run(campaign(options, console))
    except FAILURES as error:
        console.print(f"the campaign could not run: {str(error) or repr(error)}", markup=False)
        return EXIT_COULD_NOT_RUN
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
