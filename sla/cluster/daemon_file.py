"""Files that say which process is a daemon of ours: `master.pid`, `worker-1.pid`, ...

Rule 1: a process is ours only when its number AND the moment it began are those of the file: numbers are used again.
Rule 2: the daemon itself writes its file, before it becomes Java: whoever started it may die at any moment, and no
        daemon is left that nobody knows of.

Source: proc(5), field 22 of /proc/PID/stat; it outlives exec.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sla.errors import JobFailed

SUFFIX: Final = ".pid"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_GONE_STATES: Final = frozenset("ZXx")


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonFile:
    """What a daemon's file says.

    Args:
        name: `master` or `worker-N`.
        began: clock ticks since the machine was booted. boot_id: which boot that was.
        url: of the master: its own, or the one a worker is of.
        host, port: where the daemon listens, 0 unknown. web_port: of its page on loopback.
    """

    name: str
    pid: int
    began: int
    boot_id: str
    url: str
    host: str
    port: int
    web_port: int

    @classmethod
    def of_this_process(cls, *, name: str, url: str, host: str, port: int, web_port: int) -> DaemonFile:
        """Return the file of the process that asks."""
        pid = os.getpid()
        began = began_ticks(pid)
        assert began is not None, pid
        return cls(
            name=name, pid=pid, began=began, boot_id=_boot_id(), url=url, host=host, port=port, web_port=web_port
        )

    def is_running(self) -> bool:
        """Return whether that very process still runs."""
        return self.boot_id == _boot_id() and began_ticks(self.pid) == self.began

    def write(self, directory: Path) -> None:
        """Put the file in its place, whole."""
        path = directory / f"{self.name}{SUFFIX}"
        in_progress = path.with_name(f".{path.name}.{self.pid}")
        in_progress.write_text(json.dumps(dataclasses.asdict(self)) + "\n")
        os.replace(in_progress, path)

    def remove(self, directory: Path) -> None:
        """Take the file away unless another process has written its own over it."""
        if read_daemon(directory, self.name) == self:
            (directory / f"{self.name}{SUFFIX}").unlink(missing_ok=True)


def began_ticks(pid: int) -> int | None:
    """Return when a process began, in clock ticks since boot; None when it is gone or only its exit code is left."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in _GONE_STATES else int(fields[18])


def _boot_id() -> str:
    return _BOOT_ID.read_text().strip()


def read_daemon(directory: Path, name: str) -> DaemonFile | None:
    """Return the file of a daemon, None when there is none.

    Raises:
        JobFailed: it cannot be understood: what it stood for may still run.
    """
    path = directory / f"{name}{SUFFIX}"
    try:
        values: dict[str, Any] = json.loads(path.read_text())
        return DaemonFile(**values)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise JobFailed(f"{path} cannot be understood; end its process by hand and delete the file") from error


def all_daemons(directory: Path) -> list[DaemonFile]:
    """Return every daemon that has a file, the master first, then workers by their number."""
    names = [path.name.removesuffix(SUFFIX) for path in directory.glob(f"*{SUFFIX}") if path.name[0] != "."]
    found = [read_daemon(directory, name) for name in sorted(names, key=lambda name: (len(name), name))]
    return [daemon for daemon in found if daemon is not None]
