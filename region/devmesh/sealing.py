"""`python -m region.devmesh.sealing DIR/traces`: what brokers of a development mesh left becomes trace files.

`georelay report` runs it first. It prints one JSON object:

    {"sealed": [{"broker": "us-1", "rows": 28, "open_rows": 3, "files": 2}, ...], "notes": ["a line for people", ...]}

Rule 1: a broker that runs is left alone: who holds the lock of its data directory runs.
Rule 2: what cannot be sealed is a note: a report of what there is beats none. That is also so for a broker whose data
        directory is gone: nothing says whether it runs.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import structlog

from georelay.errors import ConfigError, DataDirectoryError
from georelay.fields import JsonObject
from georelay.ids import BrokerId, broker_id
from mesh.tracing.sealing import Sealed, is_left, seal
from mesh.tracing.written import Identity
from region.devmesh.directory import read_record
from region.log.data_directory import held_while_idle

BOOT_ID_CHARS: Final = 12


def main(arguments: Sequence[str] | None = None) -> int:
    """Seal, print what was done, return 0."""
    (traces,) = sys.argv[1:] if arguments is None else arguments
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    sys.stdout.write(json.dumps(seal_mesh(Path(traces))) + "\n")
    return 0


def seal_mesh(traces: Path, clock_ns: Callable[[], int] = time.time_ns) -> JsonObject:
    """Seal what brokers that do not run left, broker by broker; return what the module's text says.

    Args:
        traces: the trace directory, inside the mesh's own.
        clock_ns: wall clock, ns since 1970.
    """
    directory = traces.absolute().parent
    sealed: list[JsonObject] = []
    notes: list[str] = []
    try:
        record = read_record(directory)
    except ConfigError as error:
        return {"sealed": [], "notes": [f"what killed brokers left is not sealed: {error}"]}
    regions = () if record is None else record.regions
    indexes = range(1, 1 if record is None else record.brokers_per_region + 1)
    for name, region, broker in ((f"{n}-{i}", n, broker_id(number, i)) for n, number in regions for i in indexes):
        try:
            found = _seal(traces, directory / "brokers" / name, region, broker, clock_ns)
        except (DataDirectoryError, OSError, ValueError) as error:  # Arrow's, too
            reason = " ".join(str(error).split())
            notes.append(f"what {name} left is not sealed, its newest rows are not in the report: {reason}")
            continue
        if found is not None:
            if found.files:
                sealed.append({"broker": name, "rows": found.rows, "open_rows": found.open_rows, "files": found.files})
            notes += _missing(name, found)
    return {"sealed": list(sealed), "notes": list(notes)}


def _missing(name: str, found: Sealed) -> Iterator[str]:
    """Yield a line for everything of a broker that is in no trace file now."""
    if found.left_spools:
        yield f"spools of {name} that this version cannot read: {found.left_spools:,}; their rows are not in the report"
    if found.damaged_rows:
        yield f"{found.damaged_rows:,} open rows of {name} made no sense: they are not in the report"
    if found.lost_bytes:
        yield f"{found.lost_bytes:,} bytes of what {name} left are damaged; their rows count as missing"


def _seal(traces: Path, data_dir: Path, region: str, broker: BrokerId, clock_ns: Callable[[], int]) -> Sealed | None:
    """Seal what one broker left; None when nothing is left, or the broker runs."""
    if not is_left(traces, broker):
        return None
    with held_while_idle(data_dir) as is_idle:
        if not is_idle:
            return None
        identity = Identity(region=region, broker=broker, boot_id=uuid.uuid4().hex[:BOOT_ID_CHARS])
        return seal(traces, identity, clock_ns())


if __name__ == "__main__":
    sys.exit(main())
