"""A standalone Spark cluster for one measurement, and a worker of it that is killed on the way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WORKERS = 2
WORKER_MEMORY = "1536m"


@dataclass(frozen=True, slots=True)
class Standalone:
    """A cluster that runs: its directory and the master's address."""

    directory: Path
    url: str

    def kill_worker(self) -> None:
        """Kill the first worker and its executors, as a power cut would."""
        pids = [int(json.loads((self.directory / "worker-1.pid").read_text())["pid"])]
        work = self.directory.resolve() / "work" / "worker-1"
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and (entry / "cwd").readlink().is_relative_to(work):
                    pids.append(int(entry.name))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def standalone(directory: Path) -> Iterator[Standalone]:
    """Start a master and workers of one core each; end them behind the block.

    Raises:
        RuntimeError: they do not start.
    """
    _cluster("up", directory, "--workers", str(WORKERS), "--memory", WORKER_MEMORY, "--port", "0")
    try:
        yield Standalone(directory, json.loads((directory / "master.pid").read_text())["url"])
    finally:
        _cluster("down", directory)


def _cluster(action: str, directory: Path, *options: str) -> None:
    command = [sys.executable, "-m", "sla", "cluster", action, "--dir", str(directory), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        tail = done.stderr.splitlines()[-1:] or ["nothing said"]
        raise RuntimeError(f"cluster {action} failed with {done.returncode}: {tail[0]}")
