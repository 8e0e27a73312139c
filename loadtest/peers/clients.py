"""Starts client processes of a run and reads what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

EXTRA_SECONDS: Final = 30  # beyond the time at which a client gives up by itself


class ClientProcess:
    """`loadtest.peers.client`, started with an order."""

    def __init__(self, protocol: str, role: str, order: dict[str, Any], packages: Path) -> None:
        """Start it. `packages` is the folder of the Python packages that only it needs."""
        self._what = f"{protocol} {role}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadtest.peers.client", protocol, role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), *sys.path])},
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def wait_ready(self) -> None:
        """Wait for the line `ready`. Raises RuntimeError when something else comes."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{self._what}: {self._process.communicate()[1][-2000:]}")

    def result(self, seconds: float) -> dict[str, Any]:
        """Return its result. Raises RuntimeError: it failed, or did not end."""
        try:
            said, errors = self._process.communicate(timeout=seconds + EXTRA_SECONDS)
        except subprocess.TimeoutExpired:
            self.stop()
            raise RuntimeError(f"{self._what} did not end in {seconds + EXTRA_SECONDS:.0f} s") from None
        if self._process.returncode:
            raise RuntimeError(f"{self._what}: {errors[-2000:]}")
        result: dict[str, Any] = json.loads(said.splitlines()[-1])
        return result

    def stop(self) -> None:
        """End it when it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
