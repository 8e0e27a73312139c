"""The machine a figure was measured on, and what it was doing meanwhile."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
IDLE_SHARE_MIN = 0.1  # with less, clients and brokers shared the cores
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


def revision(checkout: Path) -> str:
    """Return what a checkout holds, with a word when it has changes that are no commit."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=7"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return said.stdout.strip() or f"no repository ({checkout})"


def file_system(directory: Path) -> str:
    """Return the type of the file system that holds `directory`."""
    found, length = "unknown", -1
    path = str(directory.resolve())
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split(" ")
        if (path + "/").startswith(mount.rstrip("/") + "/") and len(mount) > length:
            found, length = kind, len(mount)
    return found


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Let a benchmark be told the disk to measure."""
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")


def disk_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Path:
    """Return the directory of `add_directory`; end the program with 2 when a sync costs nothing there."""
    directory: Path = options.directory
    if file_system(directory) in MEMORY_FILE_SYSTEMS:
        parser.error(f"{directory} is in memory: a sync costs nothing there; give --directory on a disk")
    return directory


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


class Meter:
    """What processes, and the machine, use from now on.

    Args:
        pids: by name; one that ends makes what is asked raise OSError.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self.pids = dict(pids)
        self._ticks, self._began = _ticks(), time.monotonic()
        self._cpu_s = {name: cpu_seconds(pid) for name, pid in pids.items()}
        self._switches = {name: context_switches(pid) for name, pid in pids.items()}

    @property
    def seconds(self) -> float:
        """Return how long it has been."""
        return time.monotonic() - self._began

    def cpu_s(self, *names: str) -> float:
        """Return the CPU seconds of these processes, of all without any."""
        return sum(cpu_seconds(self.pids[name]) - self._cpu_s[name] for name in names or self.pids)

    def share(self, *names: str) -> float:
        """Return the same in cores."""
        return self.cpu_s(*names) / self.seconds

    def switches(self, *names: str) -> int:
        """Return how often their threads gave up a core, or were made to."""
        return sum(context_switches(self.pids[name]) - self._switches[name] for name in names or self.pids)

    def resident_mib(self, *names: str) -> float:
        """Return the resident memory that they have now."""
        return sum(resident_mib(self.pids[name]) for name in names or self.pids)

    def idle(self) -> float:
        """Return the share of the machine's CPU that nobody used, 0..1."""
        (idle, total), (idle_before, total_before) = _ticks(), self._ticks
        return (idle - idle_before) / max(1, total - total_before)


def _ticks() -> tuple[int, int]:
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)
