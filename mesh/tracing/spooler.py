"""Rows of one kind on their way to the disk: numbered, spooled, and bounded. Used by the writer's thread only.

Rule 1: rows are numbered before anything can lose them: whatever is missing can be counted by the reader.
Rule 2: a row is in the spool as soon as the writer has it: a killed process loses what its loop had not handed over.
Rule 3: while the disk fails, complete kinds (histograms, ledger) wait in memory up to ROWS_HELD_MAX, then the oldest
        are given up; rows of the others are given up at once. Both are counted.
Rule 4: a row that no file can hold (a number beyond its column, a name that is no text) is given up by itself.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import structlog

from georelay.trace.files import SPOOL_FOLDER, spool_name
from georelay.trace.kinds import COMPLETE_KINDS, SCHEMA_VERSION, TraceKind
from georelay.trace.schema import SCHEMAS
from georelay.trace.spool import ROWS_PER_FRAME_MAX, SpoolHeader, SpoolRows
from mesh.tracing.latency_cells_core import Row
from mesh.tracing.pace import no_rest
from mesh.tracing.written import Identity

ROWS_HELD_MAX: Final = 500_000  # waiting for a disk that fails: about 150 MB of Python objects at the very worst
NESTED_ROWS_PER_CALL: Final = 25  # a call holds the interpreter to its end: 0.3 ms for so many histograms
_REFUSALS: Final = (ValueError, TypeError, OverflowError)  # of Arrow, which has subclasses of the first two

log = structlog.get_logger()


def batch_of(
    kind: TraceKind, rows: list[Row], *, first_row_seq: int, boot_id: str, rest: Callable[[], None] = no_rest
) -> Any:
    """Return an Arrow record batch of rows whose values stand in the order of the kind's recorded columns.

    Args:
        rest: called between two pieces of work.
    """
    columns = iter(zip(*rows, strict=True))
    count = len(rows)
    schema = SCHEMAS[kind]
    stamps: dict[str, Sequence[object]] = {
        "row_seq": range(first_row_seq, first_row_seq + count),
        "boot_id": [boot_id] * count,
        "schema_version": [SCHEMA_VERSION] * count,
    }
    arrays = [_array(stamps.get(field.name) or next(columns), field.type, rest) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: Sequence[object], type_: Any, rest: Callable[[], None]) -> Any:
    """Return one column; a nested one is made in parts, with a rest after each."""
    step = NESTED_ROWS_PER_CALL if pa.types.is_nested(type_) else len(values)
    parts = []
    for start in range(0, len(values), step):
        parts.append(pa.array(values[start : start + step], type=type_))
        rest()
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


class Spooler:
    """The rows of one kind.

    Args:
        rest: called between two pieces of work.

    Attributes:
        rows_spooled: rows of the open spool; spool_bytes: its size.
        opened_ns: when the open spool was begun.
    """

    def __init__(
        self, kind: TraceKind, directory: Path, identity: Identity, *, rest: Callable[[], None] = no_rest
    ) -> None:
        self.kind = kind
        self._rest = rest
        self._folder = directory / SPOOL_FOLDER
        self._identity = identity
        self._next_row = 0
        self._next_spool = 0
        self._dropped = 0
        self._waiting: deque[tuple[int, list[Row]]] = deque()  # (number of the first row, rows)
        self._rows_waiting = 0
        self._file: int | None = None
        self._path = self._folder
        self.rows_spooled = 0
        self.spool_bytes = 0
        self.opened_ns = 0

    def take(self, rows: list[Row], dropped: int, now_ns: int) -> None:
        """Number and spool rows; `dropped` were given up before they came here.

        Raises:
            OSError: the disk failed; rows of complete kinds wait for the next call.
        """
        self._next_row += dropped  # they were rows: the jump in the numbers shows it
        self._dropped += dropped
        for start in range(0, len(rows), ROWS_PER_FRAME_MAX):
            part = rows[start : start + ROWS_PER_FRAME_MAX]
            self._waiting.append((self._next_row, part))
            self._next_row += len(part)
            self._rows_waiting += len(part)
        try:
            while self._waiting:
                first, part = self._waiting[0]
                try:
                    frame = self._frame(first, part)
                except _REFUSALS as error:
                    self._waiting.popleft()
                    self._refused(first, part, error)
                    continue
                self._append(frame, len(part), now_ns)
                self._waiting.popleft()
                self._rows_waiting -= len(part)
        except OSError:
            self._shed()
            raise

    def _refused(self, first: int, part: list[Row], error: Exception) -> None:
        """Give up a row that no frame can hold; of several, look which ones it is."""
        if len(part) == 1:
            self._rows_waiting -= 1
            self._dropped += 1
            log.warning("trace.row_refused", kind=self.kind.value, row=first, reason=str(error))
            return
        half = len(part) // 2
        self._waiting.extendleft([(first + half, part[half:]), (first, part[:half])])

    def _shed(self) -> None:
        limit = ROWS_HELD_MAX if self.kind in COMPLETE_KINDS else 0
        while self._rows_waiting > limit:
            _, part = self._waiting.popleft()
            self._rows_waiting -= len(part)
            self._dropped += len(part)

    @property
    def dropped(self) -> int:
        """Return the rows given up since the start."""
        return self._dropped

    @property
    def rows_waiting(self) -> int:
        """Return the rows that the disk would not take yet."""
        return self._rows_waiting

    @property
    def waiting(self) -> list[Row]:
        """Return those rows, oldest first."""
        return [row for _, part in self._waiting for row in part]

    def _frame(self, first_row_seq: int, rows: list[Row]) -> bytes:
        batch = batch_of(self.kind, rows, first_row_seq=first_row_seq, boot_id=self._identity.boot_id, rest=self._rest)
        return SpoolRows.of(self.kind, batch, first_row_seq=first_row_seq, dropped=self._dropped).encode()

    def _append(self, frame: bytes, rows: int, now_ns: int) -> None:
        if self._file is None:
            self._open(now_ns)
        assert self._file is not None
        try:
            _write_whole(self._file, frame)
        except OSError:
            self._cut()
            raise
        self.spool_bytes += len(frame)
        self.rows_spooled += rows
        self._rest()

    def _open(self, now_ns: int) -> None:
        identity = self._identity
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / spool_name(self.kind, identity.broker, identity.boot_id, self._next_spool)
        header = SpoolHeader(
            kind=self.kind,
            region=identity.region,
            broker=identity.broker,
            boot_id=identity.boot_id,
            opened_ns=now_ns,
        ).encode()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            _write_whole(file, header)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        self._next_spool += 1
        self._file, self._path = file, path
        self.spool_bytes, self.rows_spooled, self.opened_ns = len(header), 0, now_ns

    def _cut(self) -> None:
        """Take a frame that was written in part off the end; a spool where that fails ends there, readable."""
        assert self._file is not None
        try:
            os.ftruncate(self._file, self.spool_bytes)
        except OSError:
            self.rotate()

    def rotate(self) -> Path | None:
        """Close the open spool and return it, None without one."""
        if self._file is None:
            return None
        os.close(self._file)
        self._file = None
        self.rows_spooled = self.spool_bytes = 0
        return self._path


def _write_whole(file: int, raw: bytes) -> None:
    """Write all of `raw`; a short write is a full disk."""
    view = memoryview(raw)
    while view:
        view = view[os.write(file, view) :]
