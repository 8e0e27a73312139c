"""Ledger rows that no spool has yet, in memory that the kernel keeps when this process is killed.

A ledger row grows for a second before it is complete, and is spooled a moment later. Every range is also noted here: a
few bytes into a shared mapping of a file, no system call. Whoever starts after a kill -9 reads what was not spooled.
A power cut takes it with it, like the newest part of a spool.

    file   = header (4096 bytes) | arenas                                   (integers in the order of this machine)
    header = magic | i64 the last second whose rows are all spooled
    arena  = i64 second | i64 rows | rows of ROW_BYTES; the arena of a second is second modulo ARENAS
    row    = to_offset, last_ns, from_offset, first_ns, epoch, deliver_seq, session_epoch, partition, attempt (i64 each)
             | u16 length | JSON [kind, origin, topic, group]

Rule 1: the file's blocks are allocated before it is mapped: writing into it cannot fail later.
Rule 2: what finds no room (too many rows in a second, names that are too long) is not noted, and counted in `unnoted`.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import structlog

from georelay.trace.spool import SPOOL_FOLDER
from mesh.tracing.latency_cells_core import Row
from mesh.tracing.offset_run_core import OffsetRun

MAGIC: Final = b"georelay open rows 1\n"
HEADER_BYTES: Final = 4_096
ARENAS: Final = 8  # seconds that may wait for the writer
ROWS_MAX: Final = 1_024  # of one second
ROW_BYTES: Final = 512
ARENA_BYTES: Final = 4_096 + ROWS_MAX * ROW_BYTES
FILE_BYTES: Final = HEADER_BYTES + ARENAS * ARENA_BYTES
_SAVED_AT: Final = 64
_SECOND: Final = struct.Struct("@q")
_ARENA: Final = struct.Struct("@qq")
_GROWS: Final = struct.Struct("@qq")
_ROW: Final = struct.Struct("@qqqqqqqqqH")
_NAMES_MAX: Final = ROW_BYTES - _ROW.size
NOWHERE: Final = 0  # no row is in the header

log = structlog.get_logger()


class OpenRows:
    """The rows of one run of a broker.

    Args:
        directory: the trace directory.
        region, broker, boot_id: see Identity. region_name: region number -> name.
    """

    def __init__(
        self, directory: Path, *, region: str, broker: int, boot_id: str, region_name: Callable[[int], str]
    ) -> None:
        self._path = directory / SPOOL_FOLDER / f"open-{broker}-{boot_id}.rows"
        self._region_name = region_name
        self._map: mmap.mmap | None = None
        self._counts = [0] * ARENAS
        self._seconds = [-1] * ARENAS
        self.unnoted = 0

    def open(self) -> None:
        """Make and map the file; when the disk refuses, nothing is noted."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
            try:
                os.posix_fallocate(file, 0, FILE_BYTES)
                self._map = mmap.mmap(file, FILE_BYTES)
            finally:
                os.close(file)
        except OSError as error:
            log.warning("trace.rows_not_kept", path=str(self._path), error=str(error))
            self._path.unlink(missing_ok=True)
            return
        self._map[: len(MAGIC)] = MAGIC
        _SECOND.pack_into(self._map, _SAVED_AT, -1)

    def close(self) -> None:
        """Remove the file: everything is spooled."""
        if self._map is not None:
            self._map.close()
            self._map = None
            self._path.unlink(missing_ok=True)

    def begun(self, run: OffsetRun) -> int:
        """Note a new row and return its place, NOWHERE when it has none."""
        memory = self._map
        if memory is None:
            return NOWHERE
        arena = run.second % ARENAS
        begin = HEADER_BYTES + arena * ARENA_BYTES
        if self._seconds[arena] != run.second:
            self._seconds[arena], self._counts[arena] = run.second, 0
            _ARENA.pack_into(memory, begin, run.second, 0)
        count = self._counts[arena]
        names = run.names
        if not names:
            origin = self._region_name(run.origin) if run.origin else ""
            names = run.names = json.dumps([run.kind.value, origin, run.topic, run.group]).encode()
        if count >= ROWS_MAX or len(names) > _NAMES_MAX:
            self.unnoted += 1
            return NOWHERE
        place = begin + 4_096 + count * ROW_BYTES
        _ROW.pack_into(
            memory,
            place,
            run.to_offset,
            run.last_ns,
            run.from_offset,
            run.first_ns,
            run.epoch,
            run.sequence,
            run.session_epoch,
            run.partition,
            run.attempt,
            len(names),
        )
        memory[place + _ROW.size : place + _ROW.size + len(names)] = names
        self._counts[arena] = count + 1
        _ARENA.pack_into(memory, begin, run.second, count + 1)  # last: a row that is counted is whole
        return place

    def grown(self, place: int, to_offset: int, last_ns: int) -> None:
        """Note that a row has grown."""
        if self._map is not None:
            _GROWS.pack_into(self._map, place, to_offset, last_ns)

    def saved(self, second: int) -> None:
        """Note that the rows of all seconds up to this one are spooled."""
        if self._map is not None:
            _SECOND.pack_into(self._map, _SAVED_AT, second)


def left_open(directory: Path, broker: int, boot_id: str) -> list[Path]:
    """Return the files of the earlier runs of a broker."""
    paths = (directory / SPOOL_FOLDER).glob(f"open-{broker}-*.rows")
    return sorted(path for path in paths if path.name != f"open-{broker}-{boot_id}.rows")


def read_open_rows(raw: bytes, *, region: str, broker: int) -> list[Row]:
    """Return the rows of a file that were not spooled, in the order of the ledger's recorded columns.

    What is no such file has none: a broker was killed while it made it.
    """
    if len(raw) != FILE_BYTES or not raw.startswith(MAGIC):
        return []
    (saved,) = _SECOND.unpack_from(raw, _SAVED_AT)
    rows = []
    for arena in range(ARENAS):
        begin = HEADER_BYTES + arena * ARENA_BYTES
        second, count = _ARENA.unpack_from(raw, begin)
        if second <= saved or not 0 < count <= ROWS_MAX:
            continue
        rows += [_row(raw, begin + 4_096 + number * ROW_BYTES, region, broker) for number in range(count)]
    return rows


def _row(raw: bytes, place: int, region: str, broker: int) -> Row:
    to, last_ns, first, first_ns, epoch, sequence, session, partition, attempt, size = _ROW.unpack_from(raw, place)
    names: Any = json.loads(raw[place + _ROW.size : place + _ROW.size + size])
    kind, origin, topic, group = names
    head = (kind, region, str(broker), origin, topic, partition, epoch, group or None)
    return (*head, first, to, first_ns, last_ns, attempt, session, sequence, None)


def without_spooled(rows: Iterable[Row], spooled: Iterable[Row]) -> list[Row]:
    """Return the rows that are not among the spooled ones: a kill may come between the spool and its mark."""
    known = {_key(row) for row in spooled}
    return [row for row in rows if _key(row) not in known]


def _key(row: Row) -> tuple[object, ...]:
    kind, origin, topic, partition = row[0], row[3], row[4], row[5]
    return (kind, origin, topic, partition, row[7], row[8], row[10], row[13], row[14])
