"""The durable log of one Raft group.

Rule 1: the write side (everything in this file) belongs to one thread, the flusher. Only `do_chores` may run beside it.
Rule 2: the read side (region.log.log_reader) may be used from any thread at any time.
Rule 3: every operation on several files is decided by one name (region.log.group_folder), so that a crash leaves what
was before it or what is after it.
Rule 4: after an OSError from the write side the object is not used again; what is on disk decides at the next start.

Nothing is created and no file is open before the first append, so a thousand idle groups cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from georelay.ids import Offset, RaftIndex, Term
from georelay.limits import INDEX_INTERVAL_BYTES, SEGMENT_BYTES_MAX
from mesh.replication.stream_header import EntryType
from region.log.active_file import ActiveFile
from region.log.entry import FIRST_CHAIN, Entry
from region.log.entry_journal import JournalRow
from region.log.filesystem import Buffer, FileSystem
from region.log.flushed_marks import FlushedMark, LostTail
from region.log.group_folder import (
    DAMAGED_SUFFIX,
    begin_install,
    begin_start,
    finish_install,
    finish_start,
    remove_leftovers,
)
from region.log.index import EpochStart, TermRun
from region.log.log_reader import LogReader
from region.log.log_state import LogBase, LogState, base_of
from region.log.log_view import LogView, read_segment
from region.log.manifest import Manifest
from region.log.recovery import RecoveredLog, recover_log, write_index_file
from region.log.segment import SCAN_WINDOW_BYTES, Segment, index_path, segment_path
from region.log.staging import StagedSegment

log = structlog.get_logger()

BeforeCut = Callable[[FlushedMark], None]


class GroupLog(LogReader):
    """Segments, their indexes, manifests, term runs and epoch starts of one group. Made by `open`."""

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
        self._state = recovered.state
        self._manifests = recovered.manifests
        self._corrupt = recovered.state.corrupt
        self._first_base = LogBase(chain=first_chain)
        self._segment_bytes_max = segment_bytes_max
        self._interval_bytes = index_interval_bytes
        self._file = ActiveFile(fs, size_bytes_max=segment_bytes_max)
        self._directories_dirty: list[Path] = []
        self._put_away = False  # there are files to remove
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
        mark: FlushedMark | None = None,
        is_mark_damaged: bool = False,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    ) -> GroupLog:
        """Recover the log in `directory` (which need not exist): see region.log.recovery.

        Args:
            first_chain: chain before index 1.
            mark: up to where the log is known to have been durable; None: nobody knows, and any damage is refused.
            is_mark_damaged: there was perhaps a mark, and it cannot be read: a torn end is refused as well.
            segment_bytes_max: size at which a segment is sealed; a single larger entry still fits, alone.
            index_interval_bytes: distance of the points of the sparse index.

        Raises:
            LogCorrupt: damage that no crash explains, without a mark; the text names file and position.
            OSError: from the file system.
        """
        recovered = recover_log(
            directory,
            fs,
            first_chain=first_chain,
            interval_bytes=index_interval_bytes,
            mark=mark,
            is_mark_damaged=is_mark_damaged,
        )
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
        return RaftIndex(self._state.first_index)

    @property
    def last_index(self) -> RaftIndex:
        """Return the index of the last entry, durable or not; `first_index - 1` while the log is empty."""
        return RaftIndex(self._state.last_index)

    @property
    def last_term(self) -> Term:
        """Return the term of the last entry, of the base while the log is empty; 0 without either."""
        return Term(self._state.last_term)

    @property
    def last_chain(self) -> int:
        """Return the chain of the last entry, of the base while the log is empty."""
        return self._state.last_chain

    @property
    def next_offset(self) -> Offset:
        """Return the offset that the next record gets unless an EPOCH entry sets another."""
        return Offset(self._state.next_offset)

    @property
    def base_index(self) -> RaftIndex:
        """Return `first_index - 1`."""
        return RaftIndex(self._state.base.index)

    @property
    def base_term(self) -> Term:
        """Return the term of the entry before the first one; 0 when there is none, or nothing tells it."""
        return Term(self._state.base.term)

    @property
    def base_chain(self) -> int:
        """Return the chain of the entry before the first one."""
        return self._state.base.chain

    @property
    def term_runs(self) -> tuple[TermRun, ...]:
        """Return (first index, term) of each run of entries held with one term."""
        return tuple(self._state.term_runs)

    @property
    def epoch_starts(self) -> tuple[EpochStart, ...]:
        """Return (index, epoch, start) of each EPOCH entry held."""
        return tuple(self._state.epoch_starts)

    @property
    def lost(self) -> LostTail | None:
        """Return the end that this log once had and does not have any more; None when it has all of it (again)."""
        return self._state.lost

    @property
    def end_mark(self) -> FlushedMark:
        """Return the last entry as a mark; true once `sync` has returned."""
        state = self._state
        return FlushedMark(RaftIndex(state.last_index), Term(state.last_term), state.last_chain)

    # -- appending ----------------------------------------------------------------------------------------------

    def limit_segments(self, size_bytes: int) -> None:
        """Seal segments at another size from the next entry on; any thread."""
        self._segment_bytes_max = size_bytes
        self._file.size_bytes_max = size_bytes

    def append(self, entries: Sequence[Entry]) -> int:
        """Write entries behind the last one; they count only after `sync`. Returns the bytes written.

        Raises:
            OSError: also for a short write; the log must not be used again.
        """
        state = self._state
        written, frames = 0, list[Buffer]()
        for entry in entries:
            segment = state.segments[-1] if state.segments else None
            assert entry.index == state.last_index + 1, (entry, state.last_index)
            assert entry.term >= state.last_term, (entry, state.last_term)
            if segment is None or self._must_roll(segment, entry):
                written += self._write(frames)
                frames = []
                segment = self._roll(entry.index)
            frames.append(entry.frame)
            segment.note(entry)
            state.note(entry)
        return written + self._write(frames)

    def sync(self, *, all_synced: bool = False) -> int:
        """Make everything appended durable, then show it to readers. Returns the syncs done since it last returned.

        Args:
            all_synced: the whole file system was synced after the last write; only take note of it.

        Raises:
            OSError: the log must not be used again (the kernel may have dropped the pages).
        """
        if all_synced:
            self._file.synced()
            self._directories_dirty.clear()
        if self.is_dirty:
            self._sync_files()
        syncs, self._syncs = self._syncs, 0
        self._view = self._make_view()
        lost = self._state.lost
        if lost is not None and lost.is_reached_by(self._state.last_term, self._state.last_index):
            self._state.lost = None
            remove_leftovers(self._fs, self.directory, DAMAGED_SUFFIX)
            log.info("log.repaired", directory=str(self.directory), last_index=self.last_index)
        return syncs

    @property
    def is_dirty(self) -> bool:
        """Return whether `sync` has anything to wait for."""
        return self._file.is_dirty or bool(self._directories_dirty)

    def journal_row(self) -> JournalRow | None:
        """Return what the entry journal must hold in the place of a sync; None when only a sync does."""
        fresh = None if self._directories_dirty else self._file.fresh
        if fresh is None:
            return None
        position, frames = fresh
        return JournalRow(self._state.segments[-1].first_index, position, frames, sum(map(len, frames)))

    def journaled(self) -> None:
        """Take note that the entry journal holds what `journal_row` said; `sync` shows it to readers."""
        self._file.journaled()

    def settle(self) -> None:
        """Make durable in its segment what only the entry journal holds. Raises OSError."""
        self._syncs += self._file.sync()

    def sync_aside(self) -> None:
        """Do so beside the flusher, for what it wrote before. Raises OSError."""
        self._file.sync_aside()

    def seal(self) -> None:
        """End the last segment here, so that it can be shipped, verified and removed as a whole. Raises OSError."""
        segments = self._state.segments
        if segments and segments[-1].size_bytes > 0:
            self._roll(self._state.last_index + 1)

    def close(self) -> None:
        """Give unused room back and close the open file. What was not synced stays what it is: not promised."""
        try:
            if self._file.is_open and not self._file.is_dirty:
                self._file.give_room_back()
        except OSError as error:  # the next start cuts it as well
            log.info("segment.room_kept", directory=str(self.directory), reason=str(error))
        self._file.close()

    def _must_roll(self, segment: Segment, entry: Entry) -> bool:
        if segment.size_bytes == 0:
            return False
        if entry.type is EntryType.EPOCH and not segment.may_begin_epoch(entry):
            return True
        return segment.size_bytes + len(entry.frame) > self._segment_bytes_max

    def _write(self, frames: list[Buffer]) -> int:
        if not frames:
            return 0
        segment = self._state.segments[-1]
        size = sum(map(len, frames))
        if not self._file.is_open:
            self._file.open(segment.path, size_bytes=segment.size_bytes - size)
        return self._file.write(frames, segment.size_bytes - size)

    def _roll(self, first_index: int) -> Segment:
        """Seal the last segment, if any, and create the next."""
        if self._state.segments:
            self._finish_last()
        else:
            self._make_directory()
        path = segment_path(self.directory, first_index)
        self._file.open(path, size_bytes=0, create=True)
        if self.directory not in self._directories_dirty:
            self._directories_dirty.insert(0, self.directory)
        return self._state.add_segment(path, first_index, interval_bytes=self._interval_bytes)

    def _finish_last(self) -> None:
        """Make the last segment whole and durable, content, name and index: recovery relies on it."""
        segment = self._state.segments[-1]
        self._file.give_room_back()
        self._sync_files()
        self._file.close()
        if segment.size_bytes > 0:
            write_index_file(self._fs, segment.path, self._state.index_file(segment))
            self._syncs += 1

    def _make_directory(self) -> None:
        """Have a folder, whose name is durable after the next sync: whoever made it may not have come to that."""
        if not self._fs.exists(self.directory):
            self._fs.make_directory(self.directory)
        self._directories_dirty.append(self.directory.parent)

    def _sync_files(self) -> None:
        self._syncs += self._file.sync()
        for directory in self._directories_dirty:
            self._fs.fsync_directory(directory)
            self._syncs += 1
        self._directories_dirty.clear()

    # -- truncating ---------------------------------------------------------------------------------------------

    def truncate_suffix(self, from_index: RaftIndex, *, before_cut: BeforeCut | None = None) -> None:
        """Forget the entries at and after `from_index`; durable when it returns.

        Segments are removed from the last to the first, each removal durable before the next, so that a crash leaves
        a log without a gap.

        Args:
            before_cut: told the new end before anything is changed on disk.

        Raises:
            LogCorrupt: what comes right before the cut is damaged; nothing was changed.
            OSError: the log must not be used again.
        """
        state = self._state
        if from_index > state.last_index:
            return
        assert from_index >= state.first_index, (from_index, state.first_index)
        assert from_index > self.manifest_index, (from_index, self.manifest_index)
        doomed = [segment for segment in state.segments if segment.first_index >= from_index]
        kept = state.segments[: len(state.segments) - len(doomed)]
        cut = self._cut_copy(kept[-1], from_index) if kept else None
        state = state.cut(from_index, [*kept[:-1], cut] if cut else [])
        if before_cut is not None:
            before_cut(_end_of(state))
        self._replace_state(state)
        self._file.close()
        reopened = cut is not None and self._remove_file(index_path(cut.path))
        for segment in reversed(doomed):
            self._remove_file(index_path(segment.path))
            self._remove_file(segment.path)
            self._fs.fsync_directory(self.directory)
        if cut is not None:
            if reopened and not doomed:
                self._fs.fsync_directory(self.directory)  # an index of more than there is must not come back
            self._file.open(cut.path, size_bytes=cut.size_bytes)
            self._file.cut(cut.size_bytes)
            self._sync_files()

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
            previous_chain=segment.previous_chain,
            last_chain=0,
            last_term=0,
            size_bytes=position,
            max_timestamp_ms=segment.index.max_timestamps_ms[at],
            index=segment.index.cut(start),
        )
        for entry in read_segment(self._fs, segment, start, from_index - 1, window_bytes=SCAN_WINDOW_BYTES):
            copy.note(entry)
        return copy

    def _replace_state(self, state: LogState) -> None:
        """Take a state that lacks entries of the old one; see rule 2 of the read side."""
        self._state = state
        self._corrupt = state.corrupt
        self._view = self._make_view(min(self._view.last_index, state.last_index))
        self._truncations += 1

    def _remove_file(self, path: Path) -> bool:
        if not self._fs.exists(path):
            return False
        self._fs.remove(path)
        return True

    # -- manifests and the log's start ---------------------------------------------------------------------------

    def write_manifest(self, manifest: Manifest) -> None:
        """Make a manifest of an applied entry durable, and a checkpoint of the open segment with it. Raises OSError."""
        state = self._state
        if manifest.index < state.base.index:
            return  # retention went past it, or an install: a newer one is here
        if manifest.index == state.base.index and not state.base.term:
            state.base = base_of(manifest)  # it could not be read when the log was opened
        assert manifest.index <= state.last_index, (manifest.index, state.last_index)
        assert manifest.term == state.term_at(manifest.index), (manifest.index, manifest.term)
        self._sync_files()
        if state.segments and state.segments[-1].size_bytes > 0:
            write_index_file(self._fs, state.segments[-1].path, state.index_file(state.segments[-1]))
            self._syncs += 1
        self._manifests.write(manifest)
        self._syncs += 2
        self._manifests.prune({state.base.index, *(segment.last_index for segment in state.segments[:-1])})

    def install(self, manifest: Manifest, *, before_cut: BeforeCut | None = None) -> None:
        """Replace the whole log by what follows a manifest from another replica. Raises OSError."""
        state = LogState(base=base_of(manifest), lost=self._state.lost)
        if before_cut is not None:
            # Both the old log and the new one must reach the mark, so it has the term that the old one has there.
            before_cut(FlushedMark(manifest.index, Term(self._state.term_at(manifest.index)), FIRST_CHAIN))
        self._make_directory()
        self._sync_files()
        begin_install(self._fs, self.directory, manifest)
        self._manifests.indexes = ()
        self._replace_state(state)
        self._file.close()
        finish_install(self._fs, self.directory, manifest.index)
        self._manifests.indexes = (manifest.index,)
        self._put_away = True
        self._syncs += 3
        self._view = self._make_view()

    def advance_start(self, first_index: RaftIndex) -> None:
        """Remove whole segments that end below `first_index`, as many as a readable manifest allows. Raises OSError."""
        found = self._new_base(first_index)
        if found is None:
            return
        self._sync_files()
        begin_start(self._fs, self.directory, found.index + 1)
        self._state = self._state.advance(found)
        self._corrupt = self._state.corrupt
        self._view = self._make_view(self._view.last_index)
        finish_start(self._fs, self.directory, found.index + 1)
        self._manifests.indexes = tuple(index for index in self._manifests.indexes if index >= found.index)
        self._put_away = True
        self._syncs += 3

    def _new_base(self, first_index: int) -> LogBase | None:
        for segment in reversed(self._state.segments[1:]):
            if segment.first_index > first_index:
                continue
            manifest = self._manifests.read(segment.first_index - 1)
            if manifest is not None and manifest.chain == segment.previous_chain:
                return base_of(manifest)
        return None

    # -- segments from other replicas ----------------------------------------------------------------------------

    def stage_segment(self, first_index: int) -> StagedSegment:
        """Return an empty staged segment; any thread. Raises OSError."""
        return StagedSegment(self._fs, self.directory, first_index, interval_bytes=self._interval_bytes)

    def adopt(self, staged: StagedSegment) -> None:
        """Link a verified segment in behind the last entry; the next append opens another. Raises OSError."""
        state, file = self._state, staged.content
        assert file is not None and staged.first_index == state.last_index + 1, staged.path
        assert file.info.previous_chain == state.last_chain, staged.path
        if state.segments:
            self._finish_last()
            if state.segments[-1].size_bytes == 0:
                state.segments.pop()  # opened for the same entry: the staged one takes its name
        staged.close()
        write_index_file(self._fs, staged.target, file)
        self._fs.rename(staged.path, staged.target)
        self._fs.fsync_directory(self.directory)
        self._fs.fsync_directory(self.directory.parent)
        self._syncs += 3
        state.add_indexed(staged.target, file)
        self._roll(state.last_index + 1)

    def replace_segment(self, staged: StagedSegment) -> None:
        """Put a verified segment in the place of a damaged one that ended with the same entry. Raises OSError."""
        file = staged.content
        own = next((each for each in self._state.segments[:-1] if each.first_index == staged.first_index), None)
        ends = None if file is None else (file.info.last_index, file.info.last_chain)
        if own is None or ends != (
            own.last_index,
            own.last_chain,
        ):  # removed by retention meanwhile, or another history
            log.warning("segment.replacement_refused", segment=str(staged.target), ends=ends)
            staged.discard()
            return
        staged.close()
        self._fs.rename(staged.path, own.path)
        self._fs.fsync_directory(self.directory)
        self._syncs += 1
        self._corrupt.pop(own.first_index, None)
        log.info("segment.repaired", segment=str(own.path))

    # -- beside the flusher --------------------------------------------------------------------------------------

    def has_chores(self) -> bool:
        """Return whether `do_chores` should be called."""
        return self._file.ask_for_room() or self._put_away

    def do_chores(self) -> None:
        """Take room for the writes to come and remove large files that were put away; any one thread.

        Raises:
            OSError: a file could not be removed.
        """
        self._file.make_room()
        if self._put_away:
            self._put_away = False
            remove_leftovers(self._fs, self.directory, ".removed")

    def _make_view(self, last_index: int | None = None) -> LogView:
        state = self._state
        return LogView(
            fs=self._fs,
            segments=tuple(state.segments),
            epoch_starts=tuple(state.epoch_starts),
            first_index=state.first_index,
            last_index=state.last_index if last_index is None else last_index,
            corrupt=self._corrupt,
        )


def _end_of(state: LogState) -> FlushedMark:
    return FlushedMark(RaftIndex(state.last_index), Term(state.last_term), state.last_chain)
