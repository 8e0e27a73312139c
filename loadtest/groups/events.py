"""What a member process writes down: one JSON object per line, flushed before anything is committed.

{"e":"assigned","t":MS,"member":ID,"partitions":[...]}   what the member holds from now on, all of it
{"e":"read","t":MS,"member":ID,"partition":P,"offsets":[...]}   records that it has processed
Times are ms since 1970 on the host that all processes share.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from loadtest.groups.verdict_core import Assigned, Event, Read

_KCAT_ASSIGNED: Final = re.compile(r"rebalanced \(memberid ([^)]*)\): assigned: ?(.*)")
_KCAT_PARTITION: Final = re.compile(r"\[(\d+)\]")


class EventWriter:
    """Appends events to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def assigned(self, member: str, partitions: Iterable[int]) -> None:
        """Note what the member holds now."""
        self._write({"e": "assigned", "t": _now_ms(), "member": member, "partitions": sorted(partitions)})

    def read(self, member: str, partition: int, offsets: Sequence[int]) -> None:
        """Note records that were processed."""
        self._write({"e": "read", "t": _now_ms(), "member": member, "partition": partition, "offsets": list(offsets)})

    def _write(self, row: dict[str, object]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")


def read_events(path: Path) -> Iterator[Event]:
    """Yield what a member wrote; a line that it died over is left out."""
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row["e"] == "assigned":
            yield Assigned(at_ms=row["t"], member=row["member"], partitions=frozenset(row["partitions"]))
        else:
            yield Read(at_ms=row["t"], member=row["member"], partition=row["partition"], offsets=tuple(row["offsets"]))


def read_kcat(path: Path) -> Iterator[Event]:
    """Yield what kcat printed, records ("partition offset") and its words about assignments in one file.

    It does not say when: its events have no time (0).
    """
    member = ""
    for line in path.read_text(errors="replace").splitlines():
        found = _KCAT_ASSIGNED.search(line)
        fields = line.split(" ")
        if found:
            member = found[1]
            partitions = frozenset(int(number) for number in _KCAT_PARTITION.findall(found[2]))
            yield Assigned(at_ms=0, member=member, partitions=partitions)
        elif len(fields) == 2 and all(field.isdigit() for field in fields):
            yield Read(at_ms=0, member=member, partition=int(fields[0]), offsets=(int(fields[1]),))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
