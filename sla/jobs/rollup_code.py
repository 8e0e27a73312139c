"""What stands for the code that makes roll-ups: an hour that other code made is made again.

A test walks the imports of the modules that make tables: each is listed here, or is said not to matter.
"""

from __future__ import annotations

import hashlib
import importlib.resources
from typing import Final

MODULES: Final = (
    "georelay.trace.histogram",
    "georelay.trace.kinds",
    "sla.hist_spark",
    "sla.jobs.rollup_inputs",
    "sla.jobs.rollup_known",
    "sla.jobs.rollup_plan",
    "sla.jobs.rollup_tables",
    "sla.local_rows",
    "sla.sources.manifest",
    "sla.tables",
    "sla.transforms.accounts",
    "sla.transforms.availability",
    "sla.transforms.clock",
    "sla.transforms.integrity",
    "sla.transforms.latency",
    "sla.transforms.moments",
    "sla.transforms.positions",
    "sla.transforms.ranges",
    "sla.transforms.repeats",
    "sla.transforms.streams",
    "sla.transforms.throughput",
)


def code_version() -> str:
    """Return what stands for the code that makes roll-ups, 12 hex digits."""
    digest = hashlib.sha256()
    for module in MODULES:
        package, _, name = module.rpartition(".")
        digest.update(importlib.resources.files(package).joinpath(f"{name}.py").read_bytes())
    return digest.hexdigest()[:12]
