"""What traces cost per record. The recorder measures itself, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SECONDS_MAX = 300
CASES = (
    ("batches of 10, each with a row", 10, 2_000),
    ("batches of 10, sampled", 10, 500),
    ("single records, sampled", 1, 500),
    ("single records, no rows", 1, 0),
)


def run(directory: Path) -> list[str]:
    """Return report lines, one per case."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, records, rows_per_s in CASES:
        command = [sys.executable, "-m", "mesh.tracing.cost_timer", str(directory)]
        command += ["--records", str(records), "--rows-per-s", str(rows_per_s)]
        cost = json.loads(subprocess.check_output(command, timeout=SECONDS_MAX))
        lines.append(
            f"{name}, 1000/s: CPU of the loop {cost['delivered_us']:.2f} us per delivered and "
            f"{cost['committed_us']:.2f} us per committed batch, longest drain {cost['drain_ms_max']:.2f} ms; of the "
            f"writer's thread {cost['spool_ms']:.1f} + {cost['roll_ms']:.1f} ms per second for {cost['rows']:.0f} "
            f"rows, {cost['file_bytes']:.0f} bytes"
        )
    return lines
