"""What consumers of a queue write down, a JSON line per event: {"e": kind, "n": record, "d": delivery, "at": ms, ...}.

got       a record was received: "until" is the end of its lease
acking    an acknowledge is about to be asked; acked: it was answered with OK
rejecting a reject with "delay" ms is about to be asked; rejected: it was answered with OK
over      an acknowledge or a reject was answered with LEASE_EXPIRED
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEvent:
    """One line. `at_ms` on this machine's wall clock, `until_ms` on the broker's (the same machine)."""

    kind: str
    record: str
    delivery: int
    at_ms: float
    until_ms: float = 0.0
    delay_ms: float = 0.0


def is_poison(name: str) -> bool:
    """Return whether every consumer rejects a record, by its name NAME:NUMBER: one in a hundred."""
    return name.endswith("99")


class EventFile:
    """Lines that are there also when the process is killed right after."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, kind: str, rows: Iterable[dict[str, Any]]) -> None:
        """Write events of one kind."""
        lines = b"".join(json.dumps({"e": kind, **row}).encode() + b"\n" for row in rows)
        if lines:
            os.write(self._file, lines)


def read_events(paths: Iterable[Path]) -> Iterator[QueueEvent]:
    """Return the events of several files; a line that a kill cut off is left out."""
    for path in paths:
        for line in path.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            yield QueueEvent(
                kind=row["e"],
                record=row["n"],
                delivery=row["d"],
                at_ms=row["at"],
                until_ms=row.get("until", 0.0),
                delay_ms=row.get("delay", 0.0),
            )
