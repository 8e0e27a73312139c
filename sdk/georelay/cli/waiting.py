"""Waits for work that goes on in the mesh, and shows how far it is on standard error.

Rule 1: only the waiting ends with a timeout or Ctrl-C; the work goes on, and the text says so.
Rule 2: a look that fails for a reason that passes (a leader is elected, a broker restarts) is tried again.
Rule 3: on a terminal there is a bar; elsewhere one line for each change, so that a log stays readable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import typer

from georelay.cli.failure import CommandFailed
from georelay.client.gateway_http import GatewayError
from georelay.errors import Retry

POLL_S: Final = 1.0

WaitOption = Annotated[
    bool, typer.Option("--wait", help="Wait until it is done and show how far it is; Ctrl-C ends the waiting only.")
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0, help="With --wait: give up waiting; 0: never.")
]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How far the work is: `left` of the most that was ever left, and one line about it."""

    left: int
    text: str

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left."""
        return self.left == 0


async def wait_until_done(look: Callable[[], Awaitable[Look]], *, what: str, timeout_s: float) -> None:
    """Look every POLL_S until nothing is left.

    Raises:
        CommandFailed: `timeout_s` (0: never) is over.
        GatewayError: a look failed for a reason that does not pass.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    until = time.monotonic() + timeout_s if timeout_s else float("inf")
    console = Console(stderr=True, highlight=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        most, shown = 0, ""
        while True:
            seen = await _tried(look)
            if seen is not None:
                most = max(most, seen.left)
                bar.update(task, description=f"{what}: {seen.text}", total=most or 1, completed=most - seen.left)
                if seen.text != shown and not console.is_terminal:
                    console.print(f"{what}: {seen.text}", markup=False, soft_wrap=True)
                shown = seen.text
                if seen.is_done:
                    return
            if time.monotonic() + POLL_S > until:
                state = shown or "not known yet"
                raise CommandFailed(f"{what} is not done after {timeout_s:.0f} s ({state}); it goes on")
            await asyncio.sleep(POLL_S)


async def _tried(look: Callable[[], Awaitable[T]]) -> T | None:
    """Return what `look` sees, None while it cannot for a reason that passes."""
    try:
        return await look()
    except GatewayError as error:
        if error.retry not in (Retry.LATER, Retry.REFRESH) or error.code == "UNKNOWN_TOPIC":
            raise
        return None
