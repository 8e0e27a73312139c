"""History files, version 1: JSON lines, written while the workload runs, complete up to the moment of a kill.

    {"format": "georelay-history", "version": 1, "wall_ahead_ns": 1790000000000000000, "boot": "0b1c..."}
    {"e": "invoke", "p": "producer-1", "n": 0, "t": 1200, "op": "produce", "key": "orders/0", "value": "a:0"}
    {"e": "ok", "p": "producer-1", "n": 0, "t": 1900, "offset": 0}
    {"e": "invoke", "p": "reader", "n": 0, "t": 2000, "op": "fetch", "key": "orders/0", "site": "us", "position": 0}
    {"e": "ok", "p": "reader", "n": 0, "t": 2100, "records": [[0, "a:0"]]}

p: process, n: number of the operation in that process, from 0 without a gap, t: monotonic nanoseconds. op is produce
(value, loose), fetch (position, final), end (linear) or start; site and note may be with any. An operation ends with
one of ok (offset, or records), fail and unknown; without an end it is unknown. The offset of a produce may be null or
left out: stored, and the client was not told where. wall_ahead_ns: by how much the writer's wall clock was ahead of its
monotonic clock when the file was made; boot: /proc/sys/kernel/random/boot_id of its host. Both may be left out.

Rule 1: a line is one write, so a killed writer leaves at most its last line torn; the reader leaves that line out.
Rule 2: the processes of one workload may write one file each; the files are read together.
Rule 3: every boot of a host has a monotonic clock of its own. Files of two boots, without `boot` those whose
        wall_ahead_ns is not the same within HOST_NS: all times are then told by the clock of the first file that has
        wall_ahead_ns.
        For that the wall clocks of the hosts must be synchronised, and what the checker says across hosts is as exact
        as they are. Times of a file without wall_ahead_ns stay as they are.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from loadtest.history.operation import HistoryError, Kind, Operation, Outcome, Placement

FORMAT: Final = "georelay-history"
VERSION: Final = 1
HOST_NS: Final = 1_000_000_000  # one host's clocks drift by less in a run; two hosts seldom boot so close together
_ENDS: Final = {outcome.value: outcome for outcome in Outcome}
_KINDS: Final = {kind.value: kind for kind in Kind}
_OPTIONAL: Final[dict[str, type]] = {
    "site": str,
    "value": str,
    "note": str,
    "position": int,
    "linear": bool,
    "loose": bool,
    "final": bool,
}


class HistoryWriter:
    """Appends one process's operations to a file of its own, which is made anew. Not thread-safe."""

    def __init__(self, path: Path, process: str) -> None:
        """Make the file. Raises OSError."""
        self.process = process
        self._next = 0
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        ahead_ns = time.time_ns() - time.monotonic_ns()
        self._write({"format": FORMAT, "version": VERSION, "wall_ahead_ns": ahead_ns, "boot": _boot()})

    def invoke(
        self,
        kind: Kind,
        key: str,
        *,
        site: str = "",
        value: str | None = None,
        position: int | None = None,
        linear: bool = False,
        loose: bool = False,
        final: bool = False,
        at_ns: int | None = None,
    ) -> int:
        """Record that an operation begins; return its number.

        Args:
            at_ns: when it began, for those who know only afterwards what it was; None: now.
        """
        number, self._next = self._next, self._next + 1
        event = self._event("invoke", number) | {"op": kind.value, "key": key}
        if at_ns is not None:
            event["t"] = at_ns
        if site:
            event["site"] = site
        if value is not None:
            event["value"] = value
        if position is not None:
            event["position"] = position
        flags = {"linear": linear, "loose": loose, "final": final}
        self._write(event | {name: True for name, is_set in flags.items() if is_set})
        return number

    def produced(self, number: int, offset: int | None, note: str = "") -> None:
        """Record an acknowledgement, or the answer of an END or START, now; None: the offset was not told."""
        told = ({} if offset is None else {"offset": offset}) | ({"note": note} if note else {})
        self._write(self._event("ok", number) | told)

    def fetched(self, number: int, records: Sequence[Placement]) -> None:
        """Record what a fetch returned, now."""
        self._write(self._event("ok", number) | {"records": [list(record) for record in records]})

    def failed(self, number: int, note: str = "") -> None:
        """Record that the operation did not happen and never will."""
        self._write(self._event("fail", number) | {"note": note})

    def unknown(self, number: int, note: str = "") -> None:
        """Record that nobody knows."""
        self._write(self._event("unknown", number) | {"note": note})

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def _event(self, name: str, number: int) -> dict[str, Any]:
        return {"e": name, "p": self.process, "n": number, "t": time.monotonic_ns()}

    def _write(self, event: dict[str, Any]) -> None:
        os.write(self._handle, json.dumps(event, separators=(",", ":")).encode() + b"\n")


@cache
def _boot() -> str:
    """Return what tells this boot of this host from all others, "" where Linux does not say."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def read_history(paths: Sequence[Path]) -> list[Operation]:
    """Return the operations of all files, by time of invocation, on one clock (rule 3).

    Raises:
        HistoryError: names file, line and what is wrong.
        OSError: a file cannot be read.
    """
    operations: list[Operation] = []
    hosts: list[_FileReader] = []  # the first file of each boot: all files of one are shifted alike
    for path in paths:
        file = _FileReader(path)
        found = file.read()
        if file.wall_ahead_ns is not None:
            host = next((each for each in hosts if file.has_clock_of(each)), file)
            if host is file:
                hosts.append(file)
            found = _shifted(found, host.ahead_of(hosts[0]))
        operations += found
    return sorted(operations, key=lambda operation: operation.invoked_ns)


def _shifted(operations: list[Operation], by_ns: int) -> list[Operation]:
    """Return operations so much later."""
    if not by_ns:
        return operations
    return [
        replace(
            each,
            invoked_ns=each.invoked_ns + by_ns,
            completed_ns=None if each.completed_ns is None else each.completed_ns + by_ns,
        )
        for each in operations
    ]


class _FileReader:
    def __init__(self, path: Path) -> None:
        self.wall_ahead_ns: int | None = None
        self._boot = ""
        self._path = path
        self._line = 0
        self._open: dict[tuple[str, int], dict[str, Any]] = {}
        self._next: dict[str, int] = {}
        self._done: list[Operation] = []

    def read(self) -> list[Operation]:
        lines = self._path.read_bytes().split(b"\n")[:-1]  # what follows the last newline is torn, or empty
        if not lines:
            raise HistoryError(f"{self._path}: not a history: it has no first line")
        for self._line, line in enumerate(lines, start=1):
            try:
                event = json.loads(line)
            except ValueError as error:
                raise self._error(f"not JSON: {error}") from error
            if not isinstance(event, dict):
                raise self._error("not an object")
            if self._line == 1:
                self._check_head(event)
            else:
                self._take(event)
        unanswered = [Operation(**begun) for begun in self._open.values()]
        return [*self._done, *unanswered]

    def _check_head(self, head: dict[str, Any]) -> None:
        if head.get("format") != FORMAT:
            raise self._error(f'not a history: "format" is {head.get("format")!r}, not {FORMAT!r}')
        if head.get("version") != VERSION:
            raise self._error(f"version {head.get('version')!r}; this reader knows {VERSION}")
        if "wall_ahead_ns" in head:
            self.wall_ahead_ns = self._field(head, "wall_ahead_ns", int)
        if "boot" in head:
            self._boot = self._field(head, "boot", str)

    def ahead_of(self, other: _FileReader) -> int:
        """Return by how much this file's wall_ahead_ns is more than that of another one; both have one."""
        return (self.wall_ahead_ns or 0) - (other.wall_ahead_ns or 0)

    def has_clock_of(self, other: _FileReader) -> bool:
        """Return whether both were written in one boot of one host (rule 3)."""
        if self._boot and other._boot:
            return self._boot == other._boot
        return abs(self.ahead_of(other)) <= HOST_NS

    def _take(self, event: dict[str, Any]) -> None:
        name = self._field(event, "e", str)
        process, number = self._field(event, "p", str), self._field(event, "n", int)
        if name == "invoke":
            self._begin(event, process, number)
        elif name in _ENDS:
            self._end(event, process, number, _ENDS[name])
        else:
            raise self._error(f"unknown event {name!r}")

    def _begin(self, event: dict[str, Any], process: str, number: int) -> None:
        if number != self._next.get(process, 0):
            raise self._error(f"{process} begins operation {number} where {self._next.get(process, 0)} must follow")
        self._next[process] = number + 1
        kind = self._field(event, "op", str)
        if kind not in _KINDS:
            raise self._error(f"unknown operation {kind!r}")
        begun = {
            "process": process,
            "number": number,
            "kind": _KINDS[kind],
            "key": self._field(event, "key", str),
            "invoked_ns": self._field(event, "t", int),
        }
        optional = {key: self._field(event, key, type_) for key, type_ in _OPTIONAL.items() if key in event}
        self._made(begun | optional)
        self._open[process, number] = begun | optional

    def _end(self, event: dict[str, Any], process: str, number: int, outcome: Outcome) -> None:
        begun = self._open.pop((process, number), None)
        if begun is None:
            raise self._error(f"{process} ends operation {number}, which it has not begun or has ended before")
        ended = begun | {"outcome": outcome, "completed_ns": self._field(event, "t", int)}
        if "note" in event:
            ended["note"] = self._field(event, "note", str)
        if outcome is Outcome.OK and begun["kind"] is Kind.FETCH:
            ended["records"] = tuple(self._record(row) for row in self._field(event, "records", list))
        elif outcome is Outcome.OK and not (begun["kind"] is Kind.PRODUCE and event.get("offset") is None):
            ended["offset"] = self._field(event, "offset", int)
        self._done.append(self._made(ended))

    def _made(self, fields: dict[str, Any]) -> Operation:
        try:
            return Operation(**fields)
        except HistoryError as error:
            raise self._error(str(error)) from error

    def _record(self, row: Any) -> Placement:
        match row:
            case [int(offset), str(value)] if not isinstance(offset, bool):
                return offset, value
        raise self._error(f"{row!r} is not [offset, value]")

    def _field(self, event: dict[str, Any], name: str, type_: type) -> Any:
        field = event.get(name)
        if type(field) is not type_:
            raise self._error(f"{name!r} is {field!r}, not {type_.__name__}")
        return field

    def _error(self, text: str) -> HistoryError:
        return HistoryError(f"{self._path}:{self._line}: {text}")
