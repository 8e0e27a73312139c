"""The audit log: refused sign-ins, denials, changes by administrators; one JSON object per line.

What an administrator asked for is written by the broker that was asked; what became of users, lists and quotas also by
the one that ordered it, so that a broker that asks for itself leaves a trace too.

Rule 1: every event goes to the broker's log and, where `security.audit_file` is set, to that file.
Rule 2: a denial says what an operator has to run to allow it; the client was told none of it.
Rule 3: refusals and denials that repeat are counted, see audit_core; changes are written each and every one.
Rule 4: no password, key, token or proof is ever in an event. The name in a refused sign-in only if it is a user's:
        people type passwords where a name is asked for.
Rule 5: a file that cannot be written never stops the broker: the broker's log says so and has the events.
Rule 6: the newest events are remembered for the API, those of the file from before a restart among them.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

import structlog

from georelay.errors import OutcomeUnknown
from georelay.ids import BrokerId
from georelay.limits import MIB
from region.controller.definition_orders import Ordered
from region.security.access import Principal
from region.security.acl import Operation, Resource
from region.security.audit_core import RepeatFilter
from region.security.audit_events_core import (
    ADMINISTERED,
    CHANGED,
    DENIED,
    ORDERED,
    SIGN_IN_REFUSED,
    KeptEvents,
    stamp_of,
)
from region.security.definition import Grave, kind_of

log = structlog.get_logger("audit")

DETAIL_CHARS_MAX: Final = 300
ENTRIES_CHARS_MAX: Final = 4_000  # of one line; more entries are on further lines
ENTRIES_SHOWN_MAX: Final = 5  # of a change that was not made
RECALLED_BYTES: Final = 4 * MIB  # of the end of the file


class AuditLog:
    """Writes events down, and remembers them in `kept`.

    Args:
        file: appended to; made anew when somebody moved it away (log rotation). What it ends with is remembered.
    """

    def __init__(
        self,
        file: Path | None = None,
        *,
        kept: KeptEvents | None = None,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = file
        self._file: TextIO | None = None
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._repeats = RepeatFilter()
        self._is_broken = False
        self._kept = KeptEvents(BrokerId(0)) if kept is None else kept
        if file is not None:
            self._kept.recall(_last_lines(file))
        self.sign_ins_refused = 0
        self.denials = 0
        self.changes = 0

    def sign_in_refused(self, *, host: str, user: str, how: str) -> None:
        """Note wrong credentials."""
        self.sign_ins_refused += 1
        count = self._repeats.count(("sign_in", host, user, how), self._monotonic_s())
        if count:
            self._write(SIGN_IN_REFUSED, host=host, user=user or "(unknown)", how=how, count=count)

    def denied(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        """Note that somebody was not allowed something, and what would allow it."""
        self.denials += 1
        key = ("denied", principal.name, principal.host, operation, resource, name)
        count = self._repeats.count(key, self._monotonic_s())
        if count:
            self._write(
                DENIED,
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
                CHANGED,
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
            ORDERED,
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
        self._write(ADMINISTERED, principal=principal.name, host=principal.host, what=what, outcome=outcome, **shown)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, event: str, **fields: str | int) -> None:
        log.info(event, **fields)
        at_us = self._kept.time_us(self._wall_s())
        line = json.dumps({"timestamp": stamp_of(at_us), "event": event, **fields}, ensure_ascii=False)
        self._kept.add(at_us, event, line)
        if self._path is None:
            return
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
            # "replace": a value may have half of a surrogate pair, which UTF-8 has no bytes for.
            self._file = open(os.open(path, flags, 0o600), "a", encoding="utf-8", errors="replace")  # noqa: SIM115
        return self._file


def _last_lines(path: Path) -> Iterator[str]:
    """Yield the lines at the end of a file, none of one that is not there."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - RECALLED_BYTES))
            raw = file.read(RECALLED_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        log.error("audit.file_not_read", file=str(path), error=error.strerror)  # noqa: TRY400 - one line
        return
    whole = raw if size <= RECALLED_BYTES else raw.partition(b"\n")[2]
    yield from whole.decode("utf-8", "replace").splitlines()


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
