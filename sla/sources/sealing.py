"""Has the newest rows of killed brokers made into trace files, where the mesh is on this machine.

A broker that was killed with -9 and did not come back left rows that are no trace file yet. Its next start would make
one; `region.devmesh.sealing` does the same, as a process of its own: reports know nothing of a broker's files.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from georelay.trace.files import SPOOL_FOLDER
from sla.report.wording import things
from sla.sources.location import Location

MESH_FILE: Final = "mesh.json"  # of `georelay up`, beside its traces
SECONDS_MAX: Final = 120
PROGRAM: Final = (sys.executable, "-P", "-m", "region.devmesh.sealing")


def seal_left_rows(traces: str | Path, program: Sequence[str] = PROGRAM) -> list[str]:
    """Seal what brokers of a mesh of this machine left that do not run; return lines for the user.

    Nothing is done, and nothing said, when `traces` is not the trace directory of `georelay up`, or nothing is left.

    Args:
        traces: directory or URI.
        program: is given the directory, and prints what it did.
    """
    location = Location.open(traces)
    directory = Path(location.root)
    if not location.is_local or not (directory.parent / MESH_FILE).is_file() or not _is_anything_left(directory):
        return []
    if program is PROGRAM and importlib.util.find_spec("region") is None:
        return ["what killed brokers left is not sealed: the server's package is not installed here"]
    try:
        done = subprocess.run(  # noqa: S603 (our own program)
            [*program, str(directory)], capture_output=True, check=False, timeout=SECONDS_MAX
        )
        found = json.loads(done.stdout)
        lines = [_line(found["sealed"])] if found["sealed"] else []
        return [*lines, *map(str, found["notes"])]
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"what killed brokers left is not sealed: {' '.join(str(error).split())}"]
    except (ValueError, LookupError, TypeError):
        last = (done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}").splitlines()[-1]
        return [f"what killed brokers left is not sealed: {last}"]


def _is_anything_left(directory: Path) -> bool:
    try:
        return any((directory / SPOOL_FOLDER).iterdir())
    except OSError:
        return False


def _line(sealed: list[dict[str, int]]) -> str:
    named = ", ".join(
        f"{broker['broker']} ({things(broker['rows'], 'row', 'rows')} in {things(broker['files'], 'file', 'files')}, "
        f"{broker['open_rows']:,} of them from memory)"
        for broker in sealed
    )
    return f"sealed what brokers left that do not run: {named}"
