"""Running the jobs in processes of their own, and reading what they made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sla.cluster.lifecycle import ClusterStatus
from sla.cluster.secret import FILE_NAME
from sla.tables import RollupTable

ROOT = Path(__file__).parents[2]
RUN_S_MAX = 900


def sla(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `georelay-sla` to its end and print how long it took."""
    began = time.monotonic()
    command = [sys.executable, "-m", "sla", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, env=os.environ | environment)
    print(f"\n  {' '.join(str(argument) for argument in arguments[:1])}: {time.monotonic() - began:.1f} s", flush=True)
    return done


def tables(rollups: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of every roll-up table, sorted."""
    found = {}
    for table in RollupTable:
        files = sorted((rollups / table.value).rglob("part-*.parquet"))
        rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
        found[table.value] = sorted(rows, key=repr)
    return found


def judged(report: Path) -> dict[str, Any]:
    """Return a report.json without what differs from run to run."""
    document: dict[str, Any] = json.loads((report / "report.json").read_text())
    assert document.pop("made")["generated_at"]
    return document


@dataclass(frozen=True, slots=True)
class Expected:
    """What one process makes of the traces."""

    traces: Path
    tables: dict[str, list[dict[str, Any]]]
    report: dict[str, Any]


def on(found: ClusterStatus) -> tuple[str, ...]:
    """Return the options of a job on a cluster."""
    assert found.url is not None
    return ("--master", found.url, "--properties-file", str(found.directory / FILE_NAME))
