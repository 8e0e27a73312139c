"""The durable log of one Raft group.

Rule 1: the write side (`append`, `truncate_suffix`, `sync`, `close`) belongs to one thread, the flusher.
Rule 2: the read side may be used from any thread at any time. It sees only what `sync` has made durable, holds no lock
and never waits for a write: it works on an immutable view that the write side replaces.
Rule 3: a truncation publishes the shorter view, then counts itself, then touches files. A reader that finds another
count after its reads than before them throws away what it read.
Rule 4: after an OSError from the write side the object is not used again; what is on disk decides at the next start.

Nothing is created and no file is open before the first append, so a thousand idle groups cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from georelay.errors import StorageFailed
from georelay.ids import Offset, RaftIndex, Term
from georelay.limits import INDEX_INTERVAL_BYTES, SEGMENT_BYTES_MAX
from mesh.replication.stream_header import EntryType
from region.log.entry import FIRST_CHAIN, Entry
from region.log.errors import LogCorrupt, ReadInterrupted
from region.log.filesystem import Buffer, FileSystem, write_fully
from region.log.log_view import LogView, read_segment
from region.log.recovery import EpochStart, RecoveredLog, TermRun, recover_log, write_index_file
from region.log.segment import SCAN_WINDOW_BYTES, Segment, index_path, max_timestamp_ms, segment_path

_FIRST_INDEX: Final = 1
_UNBOUNDED: Final = 2**63 - 1
_T = TypeVar("_T")


class GroupLog:
    """Segments, their indexes, term runs and epoch starts of one group. Made by `open`."""

    def __init__(
        self,
        directory: Path,
        fs: FileSystem,
        recovered: RecoveredLog,
        *,
        first_chain: int,
        segment_bytes_max: int,
        index_interval_bytes: int,
    ) -> None:
        self.directory = directory
        self._fs = fs
        self._state = recovered
        self._first_chain = first_chain
        self._segment_bytes_max = segment_bytes_max
        self._interval_bytes = index_interval_bytes
        self._handle: int | None = None  # of the last segment, once something was appended
        self._handle_dirty = False
        self._directories_dirty: list[Path] = []
        self._syncs = 0  # since `sync` last returned
        self._truncations = 0
        self._view = self._make_view()

    @classmethod
    def open(
        cls,
        directory: Path,
        fs: FileSystem,
        *,
        first_chain: int = FIRST_CHAIN,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    ) -> GroupLog:
        """Recover the log in `directory` (which need not exist): check all of it, cut a torn tail.

        Args:
            first_chain: chain before index 1.
            segment_bytes_max: size at which a segment is sealed; a single larger entry still fits, alone.
            index_interval_bytes: distance of the points of the sparse index.

        Raises:
            LogCorrupt: damage that no crash explains; the text names file and position.
            OSError: from the file system.
        """
        recovered = recover_log(directory, fs, first_chain=first_chain, interval_bytes=index_interval_bytes)
        return cls(
            directory,
            fs,
            recovered,
            first_chain=first_chain,
            segment_bytes_max=segment_bytes_max,
            index_interval_bytes=index_interval_bytes,
        )

    @property
    def first_index(self) -> RaftIndex:
        """Return the index of the first entry held (the one to come while the log is empty)."""
        segments = self._state.segments
        return RaftIndex(segments[0].first_index if segments else _FIRST_INDEX)

    @property
    def last_index(self) -> RaftIndex:
        """Return the index of the last entry, durable or not; `first_index - 1` while the log is empty."""
        segments = self._state.segments
        return RaftIndex(segments[-1].last_index if segments else _FIRST_INDEX - 1)

    @property
    def last_term(self) -> Term:
        """Return the term of the last entry; 0 while the log is empty."""
        runs = self._state.term_runs
        return runs[-1][1] if runs else Term(0)

    @property
    def last_chain(self) -> int:
        """Return the chain of the last entry."""
        return self._state.last_chain

    @property
    def next_offset(self) -> Offset:
        """Return the offset that the next record gets unless an EPOCH entry sets another."""
        return Offset(self._state.next_offset)

    @property
    def durable_index(self) -> RaftIndex:
        """Return the index up to which `sync` has returned."""
        return RaftIndex(self._view.last_index)

    @property
    def term_runs(self) -> tuple[TermRun, ...]:
        """Return (first index, term) of each run of entries with one term."""
        return tuple(self._state.term_runs)

    @property
    def epoch_starts(self) -> tuple[EpochStart, ...]:
        """Return (index, epoch, start) of each EPOCH entry held."""
        return tuple(self._state.epoch_starts)

    # -- write side ---------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> int:
        """Write entries behind the last one; they count only after `sync`. Returns the bytes written.

        Raises:
            OSError: also for a short write; the log must not be used again.
        """
        written, frames = 0, list[Buffer]()
        for entry in entries:
            segment = self._state.segments[-1] if self._state.segments else None
            assert entry.index == self.last_index + 1, (entry, self.last_index)
            assert entry.term >= self.last_term, (entry, self.last_term)
            if segment is None or self._must_roll(segment, entry):
                written += self._write(frames)
                frames = []
                segment = self._roll(entry.index)
            frames.append(entry.frame)
            segment.note(entry)
            self._state.note(entry)
        return written + self._write(frames)

    def truncate_suffix(self, from_index: RaftIndex) -> None:
        """Forget the entries at and after `from_index`; durable when it returns.

        Segments are removed from the last to the first, each removal durable before the next, so that a crash leaves
        a log without a gap.
        """
        if from_index > self.last_index:
            return
        assert from_index >= self.first_index, (from_index, self.first_index)
        state = self._state
        doomed = [segment for segment in state.segments if segment.first_index >= from_index]
        kept = state.segments[: len(state.segments) - len(doomed)]
        cut = self._cut_copy(kept[-1], from_index) if kept else None
        self._forget(from_index, [*kept[:-1], cut] if cut else [])
        self._close_handle()
        for segment in reversed(doomed):
            self._remove_file(index_path(segment.path))
            self._remove_file(segment.path)
            self._fs.fsync_directory(self.directory)
        if cut is not None:
            self._cut_file(cut)

    def sync(self) -> int:
        """Make everything appended durable, then show it to readers. Returns the syncs done since it last returned.

        Raises:
            OSError: the log must not be used again (the kernel may have dropped the pages).
        """
        self._sync_files()
        syncs, self._syncs = self._syncs, 0
        self._view = self._make_view()
        return syncs

    def close(self) -> None:
        """Close the open file. What was not synced stays what it is: not promised."""
        self._close_handle()

    def _must_roll(self, segment: Segment, entry: Entry) -> bool:
        if segment.size_bytes == 0:
            return False
        return entry.type is EntryType.EPOCH or segment.size_bytes + len(entry.frame) > self._segment_bytes_max

    def _write(self, frames: list[Buffer]) -> int:
        if not frames:
            return 0
        segment = self._state.segments[-1]
        if self._handle is None:
            self._handle = self._fs.open(segment.path)
        self._handle_dirty = True
        size = sum(map(len, frames))
        return write_fully(self._fs, self._handle, frames, segment.size_bytes - size)

    def _roll(self, first_index: int) -> Segment:
        """Seal the last segment, if any, and create the next."""
        if self._state.segments:
            self._sync_files()  # content and name, before the next one exists: recovery relies on it
            write_index_file(self._fs, self._state.segments[-1])
            self._close_handle()
        elif not self._fs.exists(self.directory):
            self._fs.make_directory(self.directory)
            self._directories_dirty.append(self.directory.parent)
        path = segment_path(self.directory, first_index)
        self._handle = self._fs.open(path, create=True)
        if self.directory not in self._directories_dirty:
            self._directories_dirty.insert(0, self.directory)
        return self._state.add_segment(path, first_index, interval_bytes=self._interval_bytes)

    def _sync_files(self) -> None:
        if self._handle_dirty and self._handle is not None:
            self._fs.fdatasync(self._handle)
            self._syncs += 1
        self._handle_dirty = False
        for directory in self._directories_dirty:
            self._fs.fsync_directory(directory)
            self._syncs += 1
        self._directories_dirty.clear()

    def _close_handle(self) -> None:
        if self._handle is not None:
            self._fs.close(self._handle)
        self._handle, self._handle_dirty = None, False

    def _cut_copy(self, segment: Segment, from_index: int) -> Segment:
        """Return the segment as it is without the entries from `from_index` on (it keeps at least one)."""
        start, position = segment.index.position_for_index(from_index - 1)
        at = len(segment.index.cut(start + 1)) - 1
        copy = Segment(
            path=segment.path,
            first_index=segment.first_index,
            last_index=start - 1,
            base_offset=segment.base_offset,
            next_offset=segment.base_offset,
            last_chain=0,
            last_term=0,
            size_bytes=position,
            max_timestamp_ms=segment.index.max_timestamps_ms[at],
            index=segment.index.cut(start),
        )
        for entry in read_segment(self._fs, segment, start, from_index - 1, window_bytes=SCAN_WINDOW_BYTES):
            copy.note(entry)
        return copy

    def _forget(self, from_index: int, segments: list[Segment]) -> None:
        state = self._state
        self._state = RecoveredLog(
            last_chain=segments[-1].last_chain if segments else self._first_chain,
            next_offset=segments[-1].next_offset if segments else 0,
            segments=segments,
            term_runs=[run for run in state.term_runs if run[0] < from_index],
            epoch_starts=[epoch for epoch in state.epoch_starts if epoch[0] < from_index],
        )
        self._view = self._make_view(min(self._view.last_index, from_index - 1))
        self._truncations += 1

    def _cut_file(self, segment: Segment) -> None:
        self._remove_file(index_path(segment.path))  # the segment is open again
        self._handle = self._fs.open(segment.path)
        self._fs.truncate(self._handle, segment.size_bytes)
        self._handle_dirty = True
        self._sync_files()

    def _remove_file(self, path: Path) -> None:
        if self._fs.exists(path):
            self._fs.remove(path)

    def _make_view(self, last_index: int | None = None) -> LogView:
        return LogView(
            fs=self._fs,
            segments=tuple(self._state.segments),
            epoch_starts=tuple(self._state.epoch_starts),
            first_index=self.first_index,
            last_index=self.last_index if last_index is None else last_index,
        )

    # -- read side ----------------------------------------------------------------------------------------------

    def last_entry(self) -> Entry | None:
        """Return the last durable entry, None while there is none."""
        return next(iter(self.recovered_tail(0)), None)

    def recovered_tail(self, max_bytes: int) -> list[Entry]:
        """Return the newest entries, about `max_bytes` of them and never more, but always the last one."""

        def read(view: LogView) -> list[Entry]:
            entries = view.read_entries(_tail_start(view, max_bytes), view.last_index + 1, _UNBOUNDED)
            size, start = 0, len(entries)
            while start > 0 and ((size := size + len(entries[start - 1].frame)) <= max_bytes or start == len(entries)):
                start -= 1
            return entries[start:]

        return self._read(read)

    def read_entries(self, lo: RaftIndex, hi: RaftIndex, max_bytes: int) -> list[Entry]:
        """Return durable entries with lo <= index < hi.

        Args:
            max_bytes: of frames in the answer; the first entry is returned whatever its size.

        Raises:
            ReadInterrupted: truncated meanwhile; read again.
            LogCorrupt: an entry is damaged.
            StorageFailed: the disk refused the read.
        """
        assert lo >= self._view.first_index, (lo, self._view.first_index)
        return self._read(lambda view: view.read_entries(lo, hi, max_bytes))

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
        truncations = self._truncations  # before the view: see rule 3
        view = self._view
        try:
            found = read(view)
        except FileNotFoundError as error:
            raise ReadInterrupted(f"a segment of {self.directory} was removed under the read; read again") from error
        except LogCorrupt as error:
            if self._truncations == truncations:
                raise
            raise ReadInterrupted(f"{self.directory} was truncated under the read; read again") from error
        except OSError as error:
            raise StorageFailed(f"reading {self.directory}: {error}") from error
        if self._truncations != truncations:
            raise ReadInterrupted(f"{self.directory} was truncated under the read; read again")
        return found


def _tail_start(view: LogView, max_bytes: int) -> int:
    """Return an index from which the entries to the end are at least `max_bytes`, and little more."""
    room = max_bytes
    for segment in reversed(view.segments):
        if room < segment.size_bytes:
            return segment.index.index_for_position(segment.size_bytes - room)
        room -= segment.size_bytes
    return view.first_index
