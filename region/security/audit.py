"""The audit log: refused sign-ins, denials, changes by administrators; one JSON object per line.

What an administrator asked for is written by the broker that was asked; what became of users, lists and quotas also by
the one that ordered it, so that a broker that asks for itself leaves a trace too.

Rule 1: every event goes to the broker's log and, where `security.audit_file` is set, to that file.
Rule 2: a denial says what an operator has to run to allow it; the client was told none of it.
Rule 3: refusals and denials that repeat are counted, see audit_core; changes are written each and every one.
Rule 4: no password, key, token or proof is ever in an event. The name in a refused sign-in only if it is a user's:
        people type passwords where a name is asked for.
Rule 5: a file that cannot be written never stops the broker: the broker's log says so and has the events.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

import structlog

from georelay.errors import OutcomeUnknown
from region.controller.definition_orders import Ordered
from region.security.access import Principal
from region.security.acl import Operation, Resource
from region.security.audit_core import RepeatFilter
from region.security.definition import Grave, kind_of

log = structlog.get_logger("audit")

DETAIL_CHARS_MAX: Final = 300
ENTRIES_CHARS_MAX: Final = 4_000  # of one line; more entries are on further lines
ENTRIES_SHOWN_MAX: Final = 5  # of a change that was not made


class AuditLog:
    """Writes events down. `file`: appended to; made anew when somebody moved it away (log rotation)."""

    def __init__(
        self,
        file: Path | None = None,
        *,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = file
        self._file: TextIO | None = None
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._repeats = RepeatFilter()
        self._is_broken = False
        self.sign_ins_refused = 0
        self.denials = 0
        self.changes = 0

    def sign_in_refused(self, *, host: str, user: str, how: str) -> None:
        """Note wrong credentials."""
        self.sign_ins_refused += 1
        count = self._repeats.count(("sign_in", host, user, how), self._monotonic_s())
        if count:
            self._write("sign_in.refused", host=host, user=user or "(unknown)", how=how, count=count)

    def denied(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        """Note that somebody was not allowed something, and what would allow it."""
        self.denials += 1
        key = ("denied", principal.name, principal.host, operation, resource, name)
        count = self._repeats.count(key, self._monotonic_s())
        if count:
            self._write(
                "access.denied",
                principal=principal.name,
                host=principal.host,
                operation=operation.name.lower(),
                resource=resource.value,
                name=cut(name),
                count=count,
                grant=grant_command(principal, operation, resource, name),
            )

    def changed(
        self, principal: Principal, what: str, *, outcome: str, entries: Sequence[str] = (), **detail: str
    ) -> None:
        """Note what an administrator changed or tried to: `what` is "user.added", `outcome` "done" or a code.

        Args:
            entries: each of the things that it is about; all are written once they may have been changed.
        """
        self.changes += 1
        shown = {name: cut(value) for name, value in detail.items()}
        for part in _parts(entries, is_whole=outcome in ("done", OutcomeUnknown.code)):
            self._write(
                "security.changed",
                principal=principal.name,
                host=principal.host,
                what=what,
                outcome=outcome,
                **shown,
                **part,
            )

    def ordered(self, ordered: Ordered) -> None:
        """Note what this broker ordered for the whole mesh; `by` is what the asking broker said of who wishes it."""
        definition = ordered.definition
        self._write(
            "security.ordered",
            kind=kind_of(definition).value,
            name=cut(definition.key),
            change="deleted" if isinstance(definition, Grave) else "defined",
            index=ordered.index,
            broker=ordered.asker,
            by=cut(ordered.by),
        )

    def administered(self, principal: Principal, what: str, /, *, outcome: str, **detail: str) -> None:
        """Note what somebody changed of the cluster or tried to: see Access.noted, through which all doors come."""
        shown = {name: cut(value) for name, value in detail.items()}
        self._write(
            "cluster.changed", principal=principal.name, host=principal.host, what=what, outcome=outcome, **shown
        )

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, event: str, **fields: str | int) -> None:
        log.info(event, **fields)
        if self._path is None:
            return
        stamp = datetime.fromtimestamp(self._wall_s(), UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"timestamp": stamp, "event": event, **fields}, ensure_ascii=False)
        try:
            file = self._open(self._path)
            file.write(line + "\n")
            file.flush()
        except OSError as error:
            if not self._is_broken:
                log.error("audit.file_failed", file=str(self._path), error=error.strerror)  # noqa: TRY400 - one line
            self._is_broken = True
            self.close()
            return
        self._is_broken = False

    def _open(self, path: Path) -> TextIO:
        if self._file is not None and not _is_same(self._file, path):
            self.close()
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file = open(os.open(path, flags, 0o600), "a", encoding="utf-8")  # noqa: SIM115
        return self._file


def cut(value: str) -> str:
    """Return a value as a line shows it: one that is too long says how long it is."""
    if len(value) <= DETAIL_CHARS_MAX:
        return value
    return f"{value[:DETAIL_CHARS_MAX]}... ({len(value)} characters)"


def _parts(entries: Sequence[str], *, is_whole: bool) -> Iterator[dict[str, str]]:
    """Yield what the lines of one change have of its entries; one line without any."""
    shown = list(entries) if is_whole else list(entries[:ENTRIES_SHOWN_MAX])
    if len(shown) < len(entries):
        shown.append(f"and {len(entries) - len(shown)} more")
    lines: list[list[str]] = [[]]
    size = 0
    for entry in shown:
        if lines[-1] and size + len(entry) > ENTRIES_CHARS_MAX:
            lines.append([])
            size = 0
        lines[-1].append(entry)
        size += len(entry)
    for number, line in enumerate(lines, start=1):
        part = {"part": f"{number} of {len(lines)}"} if len(lines) > 1 else {}
        yield part | ({"entries": "; ".join(line)} if line else {})


def grant_command(principal: Principal, operation: Operation, resource: Resource, name: str) -> str:
    """Return the command that allows what was denied; `name` "": for at least one name."""
    words = ["georelay", "acls", "add", "--principal", principal.name, "--operation", operation.name.lower()]
    words += ["--resource", resource.value]
    if resource is not Resource.CLUSTER:
        words += ["--name", name or "*"]
    return " ".join(shlex.quote(word) for word in words)


def _is_same(file: TextIO, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(file.fileno())
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
