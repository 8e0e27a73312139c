"""The machine a figure was measured on, and what it was doing meanwhile."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
SYNC_SAMPLES = 200


def describe(directory: Path) -> list[str]:
    """Return lines that name machine, versions and disk."""
    model = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("uvloop", "confluent-kafka"))
    return [
        f"machine: {model}, {os.cpu_count()} cores, Linux {platform.release()}",
        f"versions: Python {platform.python_version()}, {versions}",
        f"file system: {file_system(directory)}; raw fdatasync after 4 KiB: median {sync_median_us(directory):.0f} us",
    ]


def file_system(directory: Path) -> str:
    """Return the type of the file system that holds `directory`."""
    found, length = "unknown", -1
    path = str(directory.resolve())
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split(" ")
        if (path + "/").startswith(mount.rstrip("/") + "/") and len(mount) > length:
            found, length = kind, len(mount)
    return found


def sync_median_us(directory: Path) -> float:
    """Return the median of fdatasync after appending 4 KiB to a growing file."""
    path = directory / "sync-probe"
    times = []
    with path.open("wb", buffering=0) as file:
        for _ in range(SYNC_SAMPLES):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - began) * 1e6)
    path.unlink()
    return statistics.median(times)


def cpu_seconds(pid: int, *, thread: int | None = None) -> float:
    """Return user plus system CPU seconds of a process and its threads, or of one thread; the first has the pid."""
    fields = (
        Path(f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat")
        .read_text()
        .rpartition(")")[2]
        .split()
    )
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def context_switches(pid: int) -> int:
    """Return how often the threads that a process has now gave up a core, or were made to."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            lines = status.read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # that thread has just ended
        count += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return count


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES / 2**20


@dataclass(slots=True)
class IdleWatch:
    """Share of CPU time nobody used between two moments."""

    idle_ticks: int = 0
    all_ticks: int = 0

    def start(self) -> None:
        """Begin."""
        self.idle_ticks, self.all_ticks = _ticks()

    def share(self) -> float:
        """Return 0..1 since `start`."""
        idle, total = _ticks()
        return (idle - self.idle_ticks) / max(1, total - self.all_ticks)


def _ticks() -> tuple[int, int]:
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)
