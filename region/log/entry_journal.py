"""One file in which the small writes of all groups are durable before their segments are: one sync a flush cycle.

A cycle that touches many logs would sync each of them. Instead their frames, with the place where each lies in its
segment, are one frame of this journal, and that is synced. The segments are written as before, not synced. There are
two files, used in turn: when one is full, the segments it speaks of are synced, which may take as long as the other one
lasts; then it is written over. Each keeps its length and its blocks, so a sync has no names and no sizes to wait for.

Rule 1: what a frame says is durable when `write` has returned; a token waits for that or for a sync of its segment.
Rule 2: a file is written over only when every segment that it speaks of was synced. Nothing waits for that: meanwhile
`has_room` says no, and only rows without bytes make the file in use longer.
Rule 3: rows count while nothing else than appends happened to their group: before a log is cut, replaced or closed, its
segment is synced and a row without bytes takes its older rows back (`settle`).
Rule 4: at a start the rows that count are written into their segments once more, in order, and synced; then the files
are removed, the older one first. What follows, up to the judgement by the flushed marks, sees segments alone.
Rule 5: the last frame may be torn: nobody was promised it. One with others behind it is damaged: the others count, and
logs that lack what it said end below their marks, and are repaired as if their segments had been. A row behind which
another one begins is of before a cut, and so is what is in a row from where another whole entry lies on: what took it
back was damaged.
Rule 6: a use of a file begins with a frame without rows, which is durable before anything else of that use is written:
else a power cut could leave the former use with a hole in it, where something was taken back. It is there twice, in two
sectors: without it nobody knows what else is of this use.

Layout of `entry-journal-0` and `-1`, format 1 (big-endian; frames begin at multiples of 32 bytes):

A use begins at 0, with a frame of 0 rows, and the same once more at 4096; its other frames begin at 8192. In files of
older brokers the first frame with rows is at 0.

      0     4  magic           "GREJ"
      4     4  format          1
      8     8  sequence        +1 from frame to frame, through both files, from one that nobody can guess: what a client
                               has sent must not pass for a frame; another one is of a former use of the file
     16     4  rows
     20     4  bytes of the rows
     24     4  CRC-32C of the rows
     28     4  CRC-32C of bytes 0-27
     32        rows: group u32, bytes u32, first index of the segment u64, position in it u64, so many bytes;
               0 bytes say that the rows of the group in earlier frames do not count any more
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from georelay.ids import GroupId
from georelay.limits import KIB, MIB
from georelay.wire.crc import crc32c
from region.log.entry import ENTRY_HEADER_BYTES, Entry, EntryError, decode_entry, frame_bytes
from region.log.filesystem import Buffer, FileSystem, Unreadable, open_to_read, read_at, write_fully
from region.log.segment import segment_path

if TYPE_CHECKING:
    from region.log.group_log import GroupLog

log = structlog.get_logger()

JOURNAL_NAMES: Final = ("entry-journal-0", "entry-journal-1")
JOURNAL_BYTES: Final = 8 * MIB  # each file; a start writes at most both of them into segments
ROW_BYTES_MAX: Final = 64 * KIB  # of one log in one cycle: more is not worth being written twice
FRAME_BYTES_MAX: Final = MIB
_ROOM_STEP_BYTES: Final = 256 * KIB  # a file grows by so many zeros at a time, with a frame's own sync
_ALIGNMENT: Final = 32
_HEADER: Final = struct.Struct(">4sIQIII")
_CRC: Final = struct.Struct(">I")
_ROW: Final = struct.Struct(">IIQQ")
_MAGIC: Final = b"GREJ"
_FORMAT: Final = 1
_UUID_BITS_UNUSED: Final = 66  # room for all frames of a life above the rest
_READ_BYTES: Final = 4 * KIB  # what is given up of a file where the disk does not give it back
_START_COPY: Final = 4 * KIB  # a sector, of whatever disk
START_BYTES: Final = 2 * _START_COPY
HEADER_BYTES: Final = _HEADER.size + _CRC.size
_FRAME_BYTES_MIN: Final = 2 * _ALIGNMENT
assert HEADER_BYTES == _ALIGNMENT


class JournalRow(NamedTuple):
    """Bytes of one log and where they lie: in the segment that begins with `first_index`, from `position` on."""

    first_index: int
    position: int
    frames: Sequence[Buffer]
    size_bytes: int


class FoundRow(NamedTuple):
    """A row as it is read back."""

    group: GroupId
    first_index: int
    position: int
    content: bytes


class EntryJournal:
    """The journal of one data directory whose former content was replayed. Used by one flush cycle at a time.

    Nothing is created before the first write.

    Args:
        size_bytes: of each of the two files, without its beginning.
        used: told before the files are made (True), and after they are gone (False).
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        *,
        size_bytes: int = JOURNAL_BYTES,
        used: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._fs = fs
        self._used = used
        self._paths = [directory / name for name in JOURNAL_NAMES]
        self._size_bytes = size_bytes
        self._handles: list[int] = []
        self._lengths = [0, 0]
        self._half = 0
        self._position = 0
        self._sequence = uuid.uuid4().int >> _UUID_BITS_UNUSED
        self._logs: list[dict[GroupId, GroupLog]] = [{}, {}]  # with rows that would be replayed, by file
        self._syncing: Future[None] | None = None  # the segments that the file not in use speaks of
        self.is_wanted: Callable[[], bool] = lambda: True  # False: nothing more is written into it
        self.run_aside: Callable[[Callable[[], None]], Future[None]] = _run_here

    @property
    def row_bytes_max(self) -> int:
        """Return how much of one log a frame may hold."""
        return min(ROW_BYTES_MAX, self._size_bytes // 4)

    @property
    def frame_bytes_max(self) -> int:
        """Return how much all rows of a frame may hold."""
        return min(FRAME_BYTES_MAX, self._size_bytes // 2)

    def log_of(self, group: GroupId) -> GroupLog | None:
        """Return the log of a group of which rows would be replayed; None when there are none."""
        return self._logs[self._half].get(group) or self._logs[1 - self._half].get(group)

    def has_room(self, rows: int, size_bytes: int) -> bool:
        """Return whether so many rows with so many bytes may be written now; else their segments are to be synced."""
        size = HEADER_BYTES + rows * _ROW.size + size_bytes + _ALIGNMENT
        return self._position + size <= self._end_max or not self._lags

    def write(self, rows: Sequence[tuple[GroupId, GroupLog, JournalRow]]) -> int:
        """Make these rows durable. Returns the bytes written.

        Raises:
            OSError: also of segments that were synced aside; the journal must not be used again.
        """
        body: list[Buffer] = []
        for group, _, row in rows:
            body.append(_ROW.pack(group, row.size_bytes, row.first_index, row.position))
            body.extend(row.frames)
        written = self._write(body, len(rows))
        self._logs[self._half].update((group, group_log) for group, group_log, _ in rows)
        return written

    def settle(self, groups: Collection[GroupId]) -> None:
        """Sync the segments of these groups, then take their rows back. Raises OSError."""
        for group in groups:
            group_log = self.log_of(group)
            if group_log is not None:
                group_log.settle()
        if groups:
            self._write([_ROW.pack(group, 0, 0, 0) for group in groups], len(groups))
            for group in groups:
                for logs in self._logs:
                    logs.pop(group, None)

    @property
    def _end_max(self) -> int:
        return START_BYTES + self._size_bytes

    @property
    def _lags(self) -> bool:
        """Return whether segments of which the file not in use speaks are being synced."""
        return self._syncing is not None and not self._syncing.done()

    def check(self) -> None:
        """Raise the OSError with which segments could not be synced aside."""
        if not self._lags:
            self._await_segments()

    def finish(self) -> None:
        """Sync all segments and remove the files: there is nothing left to replay. Raises OSError."""
        self._await_segments()
        if not self._handles:
            return
        for logs in self._logs:
            for group_log in logs.values():
                group_log.settle()
        self.close()
        remove_journal(self._fs, [self._paths[1 - self._half], self._paths[self._half]])
        self._used(False)

    def close(self) -> None:
        """Close the files as they are."""
        for handle in self._handles:
            self._fs.close(handle)
        self._handles = []

    def _write(self, body: Sequence[Buffer], rows: int) -> int:
        size = HEADER_BYTES + sum(map(len, body))
        if not self._handles:
            self._create()
        if self._position + size + _ALIGNMENT > self._end_max and not self._lags:
            self._turn()
        return self._put(encode_frame(body, rows, self._sequence))

    def _begin_use(self) -> None:
        """Say in the file where what follows begins (rule 6)."""
        self._position = 0
        start = b"".join(encode_frame((), 0, self._sequence)).ljust(_START_COPY, b"\0")
        self._put([start, start])

    def _put(self, frame: list[Buffer]) -> int:
        """Write and sync a frame behind what is there of this use. Returns its bytes."""
        size = sum(map(len, frame))
        end = self._position + size
        if end > self._lengths[self._half]:
            self._lengths[self._half] = min(end + _ROOM_STEP_BYTES, max(end, self._end_max))
            frame.append(bytes(self._lengths[self._half] - end))
        handle = self._handles[self._half]
        write_fully(self._fs, handle, frame, self._position)
        self._fs.fdatasync(handle)
        self._position = end
        self._sequence += 1
        return size

    def _create(self) -> None:
        self._used(True)
        self._handles = [self._fs.open(path, create=True) for path in self._paths]
        self._fs.fsync_directory(self._paths[0].parent)
        self._begin_use()

    def _turn(self) -> None:
        """Go on in the other file, and have the segments that this one speaks of synced meanwhile."""
        self._await_segments()
        logs = list(self._logs[self._half].values())
        self._half = 1 - self._half
        self._begin_use()
        self._logs[self._half].clear()  # its rows are written over
        self._syncing = self.run_aside(lambda: _sync_segments(logs))

    def _await_segments(self) -> None:
        if self._syncing is not None:
            syncing, self._syncing = self._syncing, None
            syncing.result()


def _sync_segments(logs: Sequence[GroupLog]) -> None:
    for group_log in logs:
        group_log.sync_aside()


def _run_here(work: Callable[[], None]) -> Future[None]:
    done: Future[None] = Future()
    work()
    done.set_result(None)
    return done


def encode_frame(body: Sequence[Buffer], rows: int, sequence: int) -> list[Buffer]:
    """Return the pieces of one frame around the pieces of its rows."""
    checksum = size = 0
    for piece in body:
        checksum = crc32c(piece, checksum)
        size += len(piece)
    header = _HEADER.pack(_MAGIC, _FORMAT, sequence, rows, size, checksum)
    return [header + _CRC.pack(crc32c(header)), *body, bytes(-size % _ALIGNMENT)]


def decode_frames(raw: bytes, expected: int | None = None) -> Iterator[tuple[int, list[FoundRow]]]:
    """Yield sequence and rows of the frames of one use of a file, without those that are damaged.

    Args:
        expected: sequence of the first frame; None: it says so itself, and must be whole, or its copy.
    """
    position = 0
    if expected is None:
        first = _frame_at(raw, 0, None) or _start_copy(raw)
        if first is None:
            return
        sequence, rows, position = first
        yield sequence, rows
        expected = sequence + 1
        position = position if rows else START_BYTES
    while (found := _next_frame(raw, position, expected)) is not None:
        sequence, rows, position = found
        yield sequence, rows
        expected = sequence + 1


def _start_copy(raw: bytes) -> tuple[int, list[FoundRow], int] | None:
    found = _frame_at(raw, _START_COPY, None)
    return found if found is not None and not found[1] else None


def _next_frame(raw: bytes, start: int, expected: int) -> tuple[int, list[FoundRow], int] | None:
    """Return sequence, rows and end of the frame at `start`, or of the next one of this use of the file behind it."""
    position = start
    while position >= 0:
        if position % _ALIGNMENT == 0:
            missing_max = (position - start) // _FRAME_BYTES_MIN
            found = _frame_at(raw, position, range(expected, expected + missing_max + 1))
            if found is not None:
                return found
        position = raw.find(_MAGIC, position + 1)
    return None


def _frame_at(raw: bytes, position: int, sequences: range | None) -> tuple[int, list[FoundRow], int] | None:
    header = raw[position : position + HEADER_BYTES]
    if len(header) < HEADER_BYTES or _CRC.unpack_from(header, _HEADER.size)[0] != crc32c(header[: _HEADER.size]):
        return None
    magic, version, sequence, count, size, checksum = _HEADER.unpack_from(header)
    if (magic, version) != (_MAGIC, _FORMAT) or (sequences is not None and sequence not in sequences):
        return None
    body = raw[position + HEADER_BYTES : position + HEADER_BYTES + size]
    if len(body) != size or crc32c(body) != checksum:
        return None
    rows, at = [], 0
    for _ in range(count):
        group, length, first_index, place = _ROW.unpack_from(body, at)
        at += _ROW.size + length
        rows.append(FoundRow(GroupId(group), first_index, place, body[at - length : at]))
    return sequence, rows, position + HEADER_BYTES + size + -size % _ALIGNMENT


def replay_journal(fs: FileSystem, directory: Path, group_path: Callable[[GroupId], Path]) -> None:
    """Write what the journal of `directory` holds into the segments, durably, and remove it (rule 4).

    Raises:
        OSError: a segment did not take it; the next start begins anew.
    """
    paths = [directory / name for name in JOURNAL_NAMES if fs.exists(directory / name)]
    if not paths:
        return
    uses = _read_uses(fs, paths)
    rows: dict[GroupId, list[FoundRow]] = {}
    for row in (row for use in uses for _, found in use.frames for row in found):
        if row.content:
            rows.setdefault(row.group, []).append(row)
        else:
            rows.pop(row.group, None)
    for group, found in rows.items():
        for first_index in dict.fromkeys(row.first_index for row in found):
            path = segment_path(group_path(group), first_index)
            if fs.exists(path):  # else retention has removed it
                _write_again(fs, path, [row for row in found if row.first_index == first_index])
    log.info("journal.replayed", groups=len(rows), rows=sum(map(len, rows.values())))
    remove_journal(fs, [use.path for use in uses])


class _Use(NamedTuple):
    """What was found in a file, and the sequence with which it begins; -1: nothing."""

    sequence: int
    path: Path
    frames: list[tuple[int, list[FoundRow]]]


def _read_uses(fs: FileSystem, paths: Sequence[Path]) -> list[_Use]:
    """Return what is in the files, the older one first."""
    contents = {path: _readable(fs, path) for path in paths}
    found = {path: list(decode_frames(raw)) for path, raw in contents.items()}
    known = max((frames[-1][0] for frames in found.values() if frames), default=None)
    for path, frames in found.items():
        if not frames and known is not None:  # its first frame is damaged, or it was about to be used
            frames.extend(decode_frames(contents[path], known + 1))
    sequences = sorted(sequence for frames in found.values() for sequence, _ in frames)
    missing = sequences[-1] - sequences[0] + 1 - len(sequences) if sequences else 0
    if missing:
        log.critical("journal.damaged", directory=str(paths[0].parent), frames_lost=missing)
    for path, frames in found.items():
        if not frames and contents[path].strip(b"\0"):
            log.critical("journal.beginning_damaged", path=str(path), bytes_given_up=len(contents[path]))
    return sorted(_Use(frames[0][0] if frames else -1, path, frames) for path, frames in found.items())


def _readable(fs: FileSystem, path: Path) -> bytes:
    """Return the content of a file, zeros where the disk does not give it back: as if it was damaged there."""
    pieces: list[bytes] = []
    handle = open_to_read(fs, path)
    try:
        size = fs.size(handle)
        for position in range(0, size, _READ_BYTES):
            try:
                pieces.append(read_at(fs, handle, _READ_BYTES, position))
            except Unreadable as error:
                log.critical("journal.unreadable", path=str(path), position_bytes=position, reason=str(error))
                pieces.append(bytes(min(_READ_BYTES, size - position)))
    finally:
        fs.close(handle)
    return b"".join(pieces)


def _write_again(fs: FileSystem, path: Path, rows: Sequence[FoundRow]) -> None:
    standing: list[FoundRow] = []
    for row in rows:
        while standing and standing[-1].position >= row.position:
            standing.pop()  # the log was cut there
        standing.append(row)
    cut_off: Entry | None = None  # the last one that has no place in this log any more
    handle = fs.open(path)
    try:
        for row in standing:
            kept = 0 if _follows(row, cut_off) else _bytes_before_cut(fs, handle, row)
            if kept < len(row.content):
                cut_off = list(_entries_of(row))[-1]
                log.critical("journal.row_refused", segment=str(path), position_bytes=row.position, last=cut_off.index)
            if kept:
                write_fully(fs, handle, [row.content[:kept]], row.position)
        fs.fdatasync(handle)
    finally:
        fs.close(handle)


def _entries_of(row: FoundRow) -> Iterator[Entry]:
    at = 0
    while at < len(row.content):
        entry = decode_entry(row.content, at)
        at += len(entry.frame)
        yield entry


def _follows(row: FoundRow, last: Entry | None) -> bool:
    if last is None:
        return False
    try:
        decode_entry(row.content, previous_chain=last.chain)
    except EntryError:
        return False
    return True


def _bytes_before_cut(fs: FileSystem, handle: int, row: FoundRow) -> int:
    """Return how many bytes of a row lie before another whole entry: no log is written to before its cut is durable."""
    at = 0
    for entry in _entries_of(row):
        if _is_another(fs, handle, entry, row.position + at):
            break
        at += len(entry.frame)
    return at


def _is_another(fs: FileSystem, handle: int, entry: Entry, position: int) -> bool:
    try:
        header = read_at(fs, handle, ENTRY_HEADER_BYTES, position)
        if header == entry.frame[:ENTRY_HEADER_BYTES]:
            return False
        decode_entry(read_at(fs, handle, frame_bytes(header), position))
    except (EntryError, Unreadable):  # torn, not there yet, or damaged
        return False
    return True


def remove_journal(fs: FileSystem, paths: Sequence[Path]) -> None:
    """Remove the files, each durably before the next: without the newer one the older one must not be found."""
    for path in paths:
        if fs.exists(path):
            fs.remove(path)
            fs.fsync_directory(path.parent)
