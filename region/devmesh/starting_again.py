"""`georelay up --start NAME`: asks the `georelay up` that runs on a directory to start a broker again that ended.

The request is a file, run/NAME.start; the supervisor takes it away when it starts the child. The broker is its child
again, and ends with it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from georelay.errors import ConfigError, Unavailable
from region.devmesh.directory import is_locked
from region.devmesh.supervisor import pid_path, start_path

WAIT_S: Final = 10.0
LOOK_S: Final = 0.05


def start_again(directory: Path, name: str) -> int:
    """Return the process id of the broker that was started.

    Raises:
        ConfigError: no such process in that mesh, no `georelay up` runs there, or it runs. Unavailable: not in time.
    """
    names = sorted(path.stem for path in (directory / "config").glob("*.toml"))
    if name not in names:
        what = f"it has {', '.join(names)}" if names else f"--data {directory} holds no mesh"
        raise ConfigError(f"--start: there is no process {name}; {what}")
    if not is_locked(directory):
        raise ConfigError(f"--start: no 'georelay up' runs on {directory}: start it, and {name} with it")
    before = _pid_of(directory, name)
    if before is not None:
        raise ConfigError(f"--start: {name} runs, as process {before}")
    request = start_path(directory, name)
    request.touch()
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        pid = _pid_of(directory, name)
        if pid is not None and not request.exists():
            return pid
        time.sleep(LOOK_S)
    request.unlink(missing_ok=True)
    raise Unavailable(f"--start: {name} was not started within {WAIT_S:g} s (log: {directory}/logs/{name}.log)")


def _pid_of(directory: Path, name: str) -> int | None:
    """Return the process id of a child that runs."""
    try:
        pid = int(pid_path(directory, name).read_text(encoding="ascii"))
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid
