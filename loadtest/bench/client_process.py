"""Clients of a benchmark as processes: what they print last is one line of JSON, their result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from loadtest.child_process import guarded
from loadtest.login import PLAIN, Settings, environment

SECONDS_MAX: Final = 180
EXTRA_SECONDS: Final = 30  # beyond the time at which a client gives up by itself


class ClientProcess:
    """`python -m MODULE WORDS`.

    Args:
        order: a line of JSON on its standard input.
        settings: how it connects.
        packages: folder of Python packages that only it needs.
    """

    def __init__(
        self,
        module: str,
        *words: object,
        order: Mapping[str, Any] | None = None,
        settings: Settings = PLAIN,
        packages: Path | None = None,
    ) -> None:
        """Start it."""
        self._what = " ".join([module.rpartition(".")[2], *map(str, words[:2])])
        path = {} if packages is None else {"PYTHONPATH": os.pathsep.join([str(packages), *sys.path])}
        self._process = subprocess.Popen(
            guarded(sys.executable, "-m", module, *words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(settings) | path,
        )
        self.pid = self._process.pid
        if order is not None:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def said(self) -> str:
        """Return the line that it prints next. Raises RuntimeError: it has ended, or said nothing for SECONDS_MAX."""
        assert self._process.stdout is not None
        late = threading.Timer(SECONDS_MAX, self._process.kill)
        late.start()
        try:
            line = self._process.stdout.readline().strip()
        finally:
            late.cancel()  # else whoever interrupts this waits for it
        if not line:
            why = self._process.communicate()[1][-2000:] or f"it said nothing for {SECONDS_MAX} s"
            raise RuntimeError(f"{self._what}: {why}")
        return line

    def result(self, seconds: float = SECONDS_MAX) -> Any:
        """Wait for its end and return its result. Raises RuntimeError: it failed, or did not end."""
        try:
            said, errors = self._process.communicate(timeout=seconds + EXTRA_SECONDS)
        except subprocess.TimeoutExpired:
            self.stop()
            raise RuntimeError(f"{self._what} did not end in {seconds + EXTRA_SECONDS:.0f} s") from None
        if self._process.returncode:
            raise RuntimeError(f"{self._what}: {errors[-2000:]}")
        return json.loads(said.splitlines()[-1])

    def stop(self) -> None:
        """End it when it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def ask(module: str, *words: object) -> Any:
    """Run one to its end and return its result. Raises RuntimeError."""
    return ClientProcess(module, *words).result()
