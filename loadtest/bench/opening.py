"""How long a broker needs to open a large data directory. The log measures itself, in a process of its own."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from pathlib import Path

GIB = 5
GROUPS = 16
RUNS = 3
SECONDS_MAX = 600


def run(directory: Path, *, gib: float = GIB, groups: int = GROUPS, runs: int = RUNS) -> list[str]:
    """Return report lines: the median time of `runs` openings of `gib` GiB in `groups` groups."""
    command = [sys.executable, "-m", "region.log.open_timer", str(directory)]
    free = shutil.disk_usage(directory.parent).free
    if free < gib * 2**30 * 1.5:
        return [f"open: {gib} GiB are not written, the disk has {free / 2**30:.0f} GiB left"]
    subprocess.run([*command, "--write", str(gib), "--groups", str(groups)], check=True, timeout=SECONDS_MAX)
    try:
        times = [float(subprocess.check_output(command, timeout=SECONDS_MAX)) for _ in range(runs)]
    finally:
        shutil.rmtree(directory)
    return [
        f"open a data directory of {gib} GiB in {groups} groups, left by a killed process, not in the page cache where "
        f"the kernel can be told: {statistics.median(times):.2f} s (runs {', '.join(f'{time:.2f}' for time in times)})"
    ]
