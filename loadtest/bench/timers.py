"""Parts of `make bench` whose code measures itself, in a process of its own: opening a log, recording traces."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS_MAX = 600
GIB = 5
GROUPS = 16
RUNS = 3
TRACED = (  # what, records of a batch, rows per second
    ("batches of 10, each with a row", 10, 2_000),
    ("batches of 10, sampled", 10, 500),
    ("single records, sampled", 1, 500),
    ("single records, no rows", 1, 0),
)


def timed(module: str, *words: object) -> Any:
    """Run a module that measures; return what it prints as JSON, None where it prints nothing."""
    said = subprocess.check_output([sys.executable, "-m", module, *map(str, words)], timeout=SECONDS_MAX)
    return json.loads(said) if said.strip() else None


def run_opening(directory: Path) -> list[str]:
    """Return how long a broker needs to open a large data directory: the median of several openings."""
    free = shutil.disk_usage(directory.parent).free
    if free < GIB * 2**30 * 1.5:
        return [f"open: {GIB} GiB are not written, the disk has {free / 2**30:.0f} GiB left"]
    timed("region.log.open_timer", directory, "--write", GIB, "--groups", GROUPS)
    try:
        times = [float(timed("region.log.open_timer", directory)) for _ in range(RUNS)]
    finally:
        shutil.rmtree(directory)
    return [
        f"open a data directory of {GIB} GiB in {GROUPS} groups, left by a killed process, not in the page cache where "
        f"the kernel can be told: {statistics.median(times):.2f} s (runs {', '.join(f'{time:.2f}' for time in times)})"
    ]


def run_tracing(directory: Path) -> list[str]:
    """Return what traces cost per record, a line for each case."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, records, rows_per_s in TRACED:
        words = (directory, "--records", records, "--rows-per-s", rows_per_s)
        cost = timed("mesh.tracing.cost_timer", *words)
        lines.append(
            f"{name}, 1000/s: CPU of the loop {cost['delivered_us']:.2f} us per delivered and "
            f"{cost['committed_us']:.2f} us per committed batch, longest drain {cost['drain_ms_max']:.2f} ms; of the "
            f"writer's thread {cost['spool_ms']:.1f} + {cost['roll_ms']:.1f} ms per second for {cost['rows']:.0f} "
            f"rows, {cost['file_bytes']:.0f} bytes"
        )
    return lines
