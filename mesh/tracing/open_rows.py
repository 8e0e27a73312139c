"""Ledger rows that no spool has yet, in memory that the kernel keeps when this process is killed.

A ledger row grows for a second before it is complete, and is spooled a moment later. Every range is also noted here: a
few bytes into a shared mapping of a file, no system call. Whoever starts after a kill -9 reads what was not spooled.

    file   = header (4096 bytes) | arenas                                   (integers in the order of this machine)
    header = magic | at 64: the machine's boot, 36 characters, zeros unknown | at 128: see memory_file
    arena  = i64 second | i64 rows | rows of ROW_BYTES; the arena of a second is second modulo ARENAS. Late rows, of
             which first_ns is the time of an append, are in the arena of the second in which they were made
    row    = to_offset, last_ns, spooled_ns, from_offset, first_ns, epoch, deliver_seq, session_epoch, partition,
             attempt (i64 each) | u16 length | JSON [kind, origin, topic, group]

Rule 1: the file is in memory (memory_file): no disk can hold up or end who writes into it. Where there is no such
        memory it is on the traces' disk, with its blocks allocated before it is mapped: there is room for whatever is
        written, but a disk that fails or is frozen can do both.
Rule 2: what finds no room (too many rows in a second, names that are too long, no file) is not noted, and counted in
        `unnoted`. So is a row whose room is taken ARENAS seconds later although no spool has it. Late rows take half
        of a second's room at most: what happens in it needs the rest.
Rule 3: each row is marked by itself when it is spooled, before its spool can become a file: `spooled_ns` is its
        `first_ns` then. A mark that comes when another row has the place says nothing about that one.
Rule 4: the kernel writes pages of a mapping back in any order: after a crash of the machine the file may say anything.
        So it counts only while the machine has not booted since; a machine that does not name its boots is believed.
"""

from __future__ import annotations

import json
import mmap
import operator
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog

from georelay.trace.files import SPOOL_FOLDER
from georelay.trace.kinds import LedgerKind
from mesh.tracing import memory_file
from mesh.tracing.delivery_core import ATTEMPT_MAX
from mesh.tracing.latency_cells_core import Row
from mesh.tracing.offset_run_core import NS_PER_S, NotedRow, OffsetRun

MAGIC: Final = b"georelay open rows 2\n"
HEADER_BYTES: Final = 4_096
ARENAS: Final = 8  # seconds that may wait for the writer
ROWS_MAX: Final = 1_024  # of one second
LATE_ROWS_MAX: Final = 512  # of them
NOTED_ROWS_MAX: Final = ARENAS * ROWS_MAX  # that may wait for their mark
ROW_BYTES: Final = 512
ARENA_BYTES: Final = 4_096 + ROWS_MAX * ROW_BYTES
FILE_BYTES: Final = HEADER_BYTES + ARENAS * ARENA_BYTES
PARTITION_MAX: Final = (1 << 31) - 1  # the column has 32 bits
MACHINE_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")  # proc_sys_kernel(5)
_BOOT_AT: Final = 64
_BOOT_BYTES: Final = 36
_ARENA: Final = struct.Struct("@qq")
_GROWS: Final = struct.Struct("@qq")
_ROW: Final = struct.Struct("@qqqqqqqqqqH")
_SPOOLED: Final = struct.Struct("@q")
_SPOOLED_AT: Final = 16
_NAMES_MAX: Final = ROW_BYTES - _ROW.size
_KINDS: Final = frozenset(kind.value for kind in LedgerKind)
_LATE_KINDS: Final = frozenset(kind.value for kind in (LedgerKind.COMMIT, LedgerKind.REPLICATED, LedgerKind.ABORTED))
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
        self._broker = broker
        self._path = directory / SPOOL_FOLDER / f"open-{broker}-{boot_id}.rows"
        self._region_name = region_name
        self._map: mmap.mmap | None = None
        self._file: Path | None = None  # in memory; None on disk
        self._counts = [0] * ARENAS
        self._seconds = [-1] * ARENAS
        self.unnoted = 0

    def open(self) -> None:
        """Make and map the file; when the disk refuses, whatever its reason, nothing is noted."""
        memory_file.give_back(self._path.parent)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            for path in self._path.parent.glob(f"open-{self._broker}-*.rows"):
                if memory_file.is_dangling(path):
                    path.unlink(missing_ok=True)
            file = self._made()
            try:
                memory = mmap.mmap(file, FILE_BYTES)
            finally:
                os.close(file)
        except (OSError, ValueError) as error:
            log.warning("trace.rows_not_kept", path=str(self._path), error=str(error))
            self._remove()
            return
        memory[_BOOT_AT : _BOOT_AT + _BOOT_BYTES] = _boot_field()
        memory[: len(MAGIC)] = MAGIC
        self._file = memory_file.in_memory(self._path)
        self._map = memory

    def close(self) -> None:
        """End noting, and remove the file unless it holds rows that are not spooled."""
        memory, self._map = self._map, None
        if memory is None:
            return
        is_spooled = not any(_unspooled(memory))
        memory.close()
        if is_spooled:
            self._remove()

    def _made(self) -> int:
        try:
            return memory_file.make(self._path, FILE_BYTES)
        except OSError as error:
            log.info("trace.rows_kept_on_disk", path=str(self._path), reason=str(error))
        self._path.unlink(missing_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            os.posix_fallocate(file, 0, FILE_BYTES)
        except OSError:
            os.close(file)
            raise
        return file

    def _remove(self) -> None:
        """Remove the file, which has no rows for whoever would find it."""
        with suppress(OSError):
            memory_file.remove(self._path)

    def begun(self, run: OffsetRun) -> int:
        """Note a new row and return its place, NOWHERE when it has none."""
        memory = self._map
        if memory is None:
            self.unnoted += 1
            return NOWHERE
        arena = run.second % ARENAS
        begin = HEADER_BYTES + arena * ARENA_BYTES
        if self._seconds[arena] != run.second:
            self.unnoted += _count_unspooled(memory, begin + 4_096, self._counts[arena])
            self._seconds[arena], self._counts[arena] = run.second, 0
            _ARENA.pack_into(memory, begin, run.second, 0)
        count = self._counts[arena]
        if count >= ROWS_MAX or (count >= LATE_ROWS_MAX and run.first_ns // NS_PER_S != run.second):
            self.unnoted += 1
            return NOWHERE
        names = run.names
        if not names:
            origin = self._region_name(run.origin) if run.origin else ""
            names = json.dumps([run.kind.value, origin, run.topic, run.group]).encode()
            if origin or not run.origin:  # else the region is not known here yet
                run.names = names
        if len(names) > _NAMES_MAX:
            self.unnoted += 1
            return NOWHERE
        place = begin + 4_096 + count * ROW_BYTES
        _ROW.pack_into(
            memory,
            place,
            run.to_offset,
            run.last_ns,
            0,
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

    def spooled(self, rows: Iterable[NotedRow]) -> None:
        """Mark rows that are spooled, or given up; called from any thread."""
        memory = self._map
        if memory is not None:
            if self._file is not None:
                memory_file.touch(self._file)
            for place, first_ns in rows:
                _SPOOLED.pack_into(memory, place + _SPOOLED_AT, first_ns)


def left_open(directory: Path, broker: int, boot_id: str) -> list[Path]:
    """Return the files of the earlier runs of a broker."""
    paths = (directory / SPOOL_FOLDER).glob(f"open-{broker}-*.rows")
    own = f"open-{broker}-{boot_id}.rows"
    return sorted(path for path in paths if path.name != own and not memory_file.is_dangling(path))


class DamagedRowsError(ValueError):
    """Some rows of a file make no sense.

    Attributes:
        rows: the others. damaged: how many make none.
    """

    def __init__(self, rows: list[Row], damaged: int) -> None:
        super().__init__(f"{damaged} of {damaged + len(rows)} open rows make no sense")
        self.rows = rows
        self.damaged = damaged


def read_open_rows(raw: bytes, *, region: str, broker: int) -> list[Row]:
    """Return the rows of a file that were not spooled, in the order of the ledger's recorded columns.

    What is no such file has none: a broker was killed while it made it. Nor has a file of an earlier boot of the
    machine, see Rule 4.

    Raises:
        DamagedRowsError: rows make no sense.
    """
    if len(raw) != FILE_BYTES or not raw.startswith(MAGIC):
        return []
    if not _is_of_this_boot(raw):
        log.info("trace.open_rows_outdated", broker=broker, reason="the machine has booted since")
        return []
    rows, damaged = [], 0
    for second, place in _unspooled(raw):
        row = _row(raw, place, region, broker)
        if row is None or (row[10] // NS_PER_S != second and row[0] not in _LATE_KINDS):
            damaged += 1
        else:
            rows.append(row)
    if damaged:
        raise DamagedRowsError(rows, damaged)
    return rows


def machine_boot() -> str:
    """Return what the kernel calls this boot of the machine, a UUID; empty when it does not say."""
    try:
        return MACHINE_BOOT.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _is_of_this_boot(raw: bytes) -> bool:
    noted, now = raw[_BOOT_AT : _BOOT_AT + _BOOT_BYTES], _boot_field()
    return noted == now or not any(noted) or not any(now)


def _boot_field() -> bytes:
    return machine_boot().encode()[:_BOOT_BYTES].ljust(_BOOT_BYTES, b"\0")


def _count_unspooled(memory: mmap.mmap, begin: int, rows: int) -> int:
    """Return how many of so many rows from a place on are not marked; 0.1 ms for ROWS_MAX."""
    with memoryview(memory) as whole, whole[begin : begin + rows * ROW_BYTES].cast("q") as fields:
        step = ROW_BYTES // fields.itemsize
        return sum(map(operator.ne, fields[2::step], fields[4::step]))


def _unspooled(raw: bytes | mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield (second, place) of the rows that are not marked."""
    for arena in range(ARENAS):
        begin = HEADER_BYTES + arena * ARENA_BYTES
        second, count = _ARENA.unpack_from(raw, begin)
        for number in range(min(count, ROWS_MAX)):
            place = begin + 4_096 + number * ROW_BYTES
            row = _ROW.unpack_from(raw, place)
            if row[2] != row[4]:
                yield second, place


def _row(raw: bytes, place: int, region: str, broker: int) -> Row | None:
    to, last_ns, _, first, first_ns, epoch, sequence, session, partition, attempt, size = _ROW.unpack_from(raw, place)
    try:
        names: Any = json.loads(raw[place + _ROW.size : place + _ROW.size + size])
    except ValueError:
        return None
    if not isinstance(names, list) or len(names) != 4 or not all(map(_is_text, names)) or names[0] not in _KINDS:
        return None
    if not 0 <= partition <= PARTITION_MAX or not 0 <= attempt <= ATTEMPT_MAX:
        return None
    kind, origin, topic, group = names
    head = (kind, region, str(broker), origin, topic, partition, epoch, group or None)
    return (*head, first, to, first_ns, last_ns, attempt, session, sequence, None)


def _is_text(name: object) -> bool:
    """Return whether a column can hold a name: half of a surrogate pair is valid JSON, and no text."""
    if not isinstance(name, str):
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def without_spooled(rows: Iterable[Row], spooled: Iterable[Row]) -> list[Row]:
    """Return the rows that are not among the spooled ones: a kill may come between the spool and its mark."""
    known = {_key(row) for row in spooled}
    return [row for row in rows if _key(row) not in known]


def _key(row: Row) -> tuple[object, ...]:
    """Return what tells rows apart; not the origin, whose name may have come between the note and the spool."""
    kind, topic, partition = row[0], row[4], row[5]
    return (kind, topic, partition, row[7], row[8], row[10], row[13], row[14])
