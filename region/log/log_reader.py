"""The read side of a group's log: any thread, no lock, never waiting for a write.

Rule 1: it sees only what `sync` has made durable, through an immutable view that the write side replaces.
Rule 2: a truncation publishes the shorter view, then counts itself, then touches files. A reader that finds another
count after its reads than before them throws away what it read.
Rule 3: every entry that is handed out was checked. A segment found damaged is not read again until it is replaced.
Rule 4: a segment that the disk does not give back (LogUnreadable) is damaged; what else the operating system refuses
(StorageFailed: no file handles, no memory) says nothing about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog

from georelay.errors import StorageFailed
from georelay.ids import Offset, RaftIndex
from region.log.entry import Entry
from region.log.errors import LogCorrupt, LogUnreadable, ReadInterrupted, StartMoved
from region.log.filesystem import FileSystem, Unreadable, open_to_read, read_at
from region.log.index import SegmentInfo
from region.log.log_view import LogView
from region.log.manifest import Manifest
from region.log.manifest_files import ManifestFiles
from region.log.segment import Segment, max_timestamp_ms, verify_frames

log = structlog.get_logger()

_UNBOUNDED: Final = 2**63 - 1
_T = TypeVar("_T")


class LogReader:
    """Base of GroupLog: everything that only looks. The write side sets `_view`, `_truncations` and `_manifests`."""

    directory: Path
    _fs: FileSystem
    _view: LogView
    _truncations: int
    _manifests: ManifestFiles
    _corrupt: dict[int, tuple[int, str]]

    @property
    def durable_index(self) -> RaftIndex:
        """Return the index up to which `sync` has returned."""
        return RaftIndex(self._view.last_index)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all segments."""
        return sum(segment.size_bytes for segment in self._view.segments)

    # -- manifests ----------------------------------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest | None:
        """Return the newest readable manifest of an entry that is durable here; read from disk each time."""
        view = self._view
        return self._manifests.newest(view.first_index - 1, view.last_index)

    @property
    def manifest_index(self) -> int:
        """Return the index of the newest manifest, 0 for none. Costs nothing."""
        indexes = self._manifests.indexes
        return indexes[-1] if indexes else 0

    def base_manifest(self) -> Manifest | None:
        """Return the manifest at `first_index - 1`, the group's Raft snapshot; None if it cannot be read."""
        return self._manifests.read(self._view.first_index - 1)

    def read_manifest(self, index: int) -> Manifest | None:
        """Return the manifest taken after entry `index`; None if there is none that can be read."""
        return self._manifests.read(index)

    def manifest_up_to(self, index: int) -> Manifest | None:
        """Return the newest readable manifest of an entry at or below `index`, None without one."""
        return self._manifests.newest(self._view.first_index - 1, index)

    def verify_manifests(self) -> list[int]:
        """Read every manifest; return what `damaged_manifests` does then."""
        for index in self._manifests.indexes:
            self._manifests.read(index)
        return self.damaged_manifests()

    def damaged_manifests(self) -> list[int]:
        """Return the indexes at which the log may begin, or does, and whose manifest cannot be read.

        The newest manifests are not among them unless a segment ends there: newer ones replace them anyway.
        """
        view, manifests = self._view, self._manifests
        found = {segment.last_index for segment in view.sealed()} & manifests.damaged & {*manifests.indexes}
        base = view.first_index - 1
        if base > 0 and (base in manifests.damaged or base not in manifests.indexes):
            found.add(base)
        return sorted(found)

    def fits(self, manifest: Manifest) -> bool:
        """Return whether a manifest of another replica is of an entry at which a segment of this log ends or begins."""
        for segment in self._view.segments:
            if segment.first_index - 1 == manifest.index:
                return segment.previous_chain == manifest.chain
        return False

    # -- whole segments -----------------------------------------------------------------------------------------

    @property
    def sealed_index(self) -> int:
        """Return the index at which the newest sealed segment ends, 0 while there is none."""
        sealed = self._view.sealed()
        return sealed[-1].last_index if sealed else 0

    def sealed_segments(self) -> list[SegmentInfo]:
        """Return the segments that do not change any more, in order."""
        return [segment.info() for segment in self._view.sealed()]

    @property
    def is_damaged(self) -> bool:
        """Return whether a segment is known to be damaged."""
        return bool(self._corrupt)

    def corrupt_segments(self) -> list[int]:
        """Return the first indexes of the segments that are known to be damaged; the last may be among them."""
        return sorted(self._corrupt)

    def read_segment_bytes(self, first_index: int, position: int, size: int) -> bytes:
        """Return bytes of a sealed segment as they are on disk; the receiver checks them.

        Raises:
            StartMoved: no sealed segment begins there (any more).
            ReadInterrupted, LogCorrupt, StorageFailed: as `read_entries`.
        """

        def read(view: LogView) -> bytes:
            segment = _sealed_at(view, first_index)
            view.refuse_corrupt(segment)
            try:
                handle = open_to_read(self._fs, segment.path)
                try:
                    return read_at(self._fs, handle, max(0, min(size, segment.size_bytes - position)), position)
                finally:
                    self._fs.close(handle)
            except Unreadable as error:
                raise LogUnreadable(segment.path, position, str(error)) from error

        return self._read(read)

    def verify_segment(self, first_index: int) -> None:
        """Read a sealed segment whole and check it; damage marks it.

        Raises:
            LogCorrupt: damaged. StartMoved, ReadInterrupted, StorageFailed: as `read_segment_bytes`.
        """
        for _ in self.verify_steps(first_index, _UNBOUNDED):
            pass

    def verify_steps(self, first_index: int, piece_bytes: int) -> Iterator[int]:
        """Do `verify_segment` in pieces: yields the bytes read after each. Raises as it does."""
        truncations, view = self._truncations, self._view
        segment = _sealed_at(view, first_index)
        try:
            handle = open_to_read(self._fs, segment.path)
            try:
                yield from verify_frames(self._fs, handle, segment.path, segment.info(), piece_bytes=piece_bytes)
            finally:
                self._fs.close(handle)
        except Unreadable as error:
            unreadable = LogUnreadable(segment.path, 0, str(error))
            raise self._explained(unreadable, view, truncations) from error
        except (LogCorrupt, OSError) as error:
            raise self._explained(error, view, truncations) from error

    def mark_corrupt(self, first_index: int, reason: str = "reported as damaged") -> None:
        """Let no one read a sealed segment until it is replaced; of any other nothing is noted."""
        for segment in self._view.sealed():
            if segment.first_index == first_index:
                self._note_damage(segment, 0, reason)

    # -- entries ------------------------------------------------------------------------------------------------

    def last_entry(self) -> Entry | None:
        """Return the last durable entry, None while there is none."""
        return next(iter(self.recovered_tail(0)), None)

    def recovered_tail(self, max_bytes: int) -> list[Entry]:
        """Return the newest entries, about `max_bytes` of them and never more, but always the last one.

        Fewer when a damaged segment is in the way: then those behind it.
        """

        def read(view: LogView, start: int) -> list[Entry]:
            entries = view.read_entries(start, view.last_index + 1, _UNBOUNDED)
            size, first = 0, len(entries)
            while first > 0 and ((size := size + len(entries[first - 1].frame)) <= max_bytes or first == len(entries)):
                first -= 1
            return entries[first:]

        view = self._view
        start = _tail_start(view, max_bytes)
        behind = [each.first_index for each in view.segments if start < each.first_index <= view.last_index]
        for at in (start, *behind):
            with suppress(LogCorrupt):
                return self._read(partial(read, start=at))
        return self._read(partial(read, start=(start, *behind)[-1]))

    def read_entries(self, lo: RaftIndex, hi: RaftIndex, max_bytes: int) -> list[Entry]:
        """Return durable entries with lo <= index < hi.

        Args:
            max_bytes: of frames in the answer; the first entry is returned whatever its size.

        Raises:
            StartMoved: `lo` is below the log's start.
            ReadInterrupted: truncated meanwhile; read again.
            LogCorrupt: an entry is damaged, or the disk does not give it back.
            StorageFailed: the operating system refused the read.
        """

        def read(view: LogView) -> list[Entry]:
            if lo < view.first_index:
                raise StartMoved(f"{self.directory} begins at index {view.first_index}, not at {lo}")
            return view.read_entries(lo, hi, max_bytes)

        return self._read(read)

    def read_from_offset(self, offset: Offset, max_bytes: int, *, up_to_index: RaftIndex | None = None) -> list[Entry]:
        """Return entries that own offsets (DATA, TXN_MARKER) of the valid branch; the first one owns `offset`.

        Args:
            up_to_index: the commit index; entries above it are not returned, and EPOCH entries above it do not yet
                make orphans. None: everything durable.

        Returns:
            [] at the end of the log and below its start.

        Raises:
            ReadInterrupted, LogCorrupt, StorageFailed: as `read_entries`.
        """
        last = _UNBOUNDED if up_to_index is None else up_to_index
        return self._read(lambda view: view.read_from_offset(offset, max_bytes, last))

    def entry_for_timestamp(self, timestamp_ms: int, *, up_to_index: RaftIndex | None = None) -> Entry | None:
        """Return the first entry of the valid branch whose batch has a record at or after `timestamp_ms`.

        Raises:
            ReadInterrupted, LogCorrupt, StorageFailed: as `read_entries`.
        """
        last = _UNBOUNDED if up_to_index is None else up_to_index
        return self._read(lambda view: view.entry_for_timestamp(timestamp_ms, last))

    def offset_for_timestamp(
        self, timestamp_ms: int, *, up_to_index: RaftIndex | None = None
    ) -> tuple[Offset, int] | None:
        """Return (base offset, largest timestamp) of the batch that `entry_for_timestamp` finds."""
        entry = self.entry_for_timestamp(timestamp_ms, up_to_index=up_to_index)
        return None if entry is None else (entry.base_offset, max_timestamp_ms(entry))

    def _read(self, read: Callable[[LogView], _T]) -> _T:
        truncations = self._truncations  # before the view: see rule 2
        view = self._view
        try:
            found = read(view)
        except (LogCorrupt, OSError) as error:
            raise self._explained(error, view, truncations) from error
        if self._truncations != truncations:
            raise ReadInterrupted(f"{self.directory} was truncated under the read; read again")
        return found

    def _explained(self, error: LogCorrupt | OSError, view: LogView, truncations: int) -> Exception:
        """Return what a failed read means to the reader; damage is remembered."""
        if isinstance(error, FileNotFoundError):
            return ReadInterrupted(f"a segment of {self.directory} was removed under the read; read again")
        if isinstance(error, OSError):
            return StorageFailed(f"reading {self.directory}: {error}")
        if self._truncations != truncations:
            return ReadInterrupted(f"{self.directory} was truncated under the read; read again")
        for segment in view.segments:
            if segment.path == error.path:
                self._note_damage(segment, error.position, error.reason)
        return error

    def _note_damage(self, segment: Segment, position: int, reason: str) -> None:
        if segment.first_index not in self._corrupt:
            self._corrupt[segment.first_index] = (position, reason)
            log.critical("segment.damaged", segment=str(segment.path), position_bytes=position, reason=reason)


def _sealed_at(view: LogView, first_index: int) -> Segment:
    for segment in view.sealed():
        if segment.first_index == first_index:
            return segment
    raise StartMoved(f"no sealed segment begins at index {first_index}")


def _tail_start(view: LogView, max_bytes: int) -> int:
    """Return an index from which the entries to the end are at least `max_bytes`, and little more."""
    room = max_bytes
    for segment in reversed(view.segments):
        if room < segment.size_bytes:
            return segment.index.index_for_position(segment.size_bytes - room)
        room -= segment.size_bytes
    return view.first_index
