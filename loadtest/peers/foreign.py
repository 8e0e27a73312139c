"""Foreign brokers as processes: started, waited for, stopped."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from loadtest.child_process import end, guarded

NODES: Final = 3
STOP_SECONDS_MAX: Final = 20
READY_SECONDS_MAX: Final = 90


class Foreign:
    """Foreign processes: started with a log each, stopped together by their pids. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Foreign:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all of them, the newest first."""
        self._stack.close()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Start a process and return its pid. To be called by the main thread, with whose end it ends."""
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                guarded(*command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, **(environment or {})},
            )
        self._stack.callback(end, process, within_s=STOP_SECONDS_MAX)
        return process.pid

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something is so. Raises RuntimeError with the ends of the logs when it does not become so."""
        end = time.monotonic() + READY_SECONDS_MAX
        while not condition():
            if time.monotonic() > end:
                logs = [f"{log.name}: {log.read_text(errors='replace')[-500:]}" for log in self._folder.glob("*.log")]
                raise RuntimeError(f"{what} did not become so in {READY_SECONDS_MAX} s\n" + "\n".join(logs))
            time.sleep(0.2)


def listens(address: str) -> bool:
    """Return whether somebody takes connections there."""
    host, _, port = address.partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return True
    except OSError:
        return False
