"""What a group's folder holds after a stop or a crash.

Sealed segments are not read below the newest manifest: their index files say what is in them, after a check that they
fit each other and that the segment ends with the entry they name; the content is checked by every read and by the
scrubber. What lies above the newest manifest is read, because the group's machine is about to follow it, and the last
segment from a little before its checkpoint ends: what Raft begins with is checked for certain.

    found                                                      done
    zeros, or a bad frame above the mark, at the end           cut: nobody was promised it
    a log that ends, or a bad frame, at or below the mark      cut, the tail set aside, `lost` = the mark
    an index file missing or wrong                             made again from the segment
    a sealed segment that its index file does not fit          the segment is `corrupt`: fetched again from a replica
    a missing or damaged segment whose index is no help,       cut there, `lost` = the end of the log as it was
      or damage above the newest manifest
    no readable manifest although the log begins above 1       all set aside, `lost` = the end of the log as it was
    any damage, and no mark at all; no mark, and a part that   the start is refused: nobody knows what was promised
      was set aside before; a mark that was damaged itself,
      and a bad frame at the end
    bytes that the disk does not give back (Unreadable)        as above for a segment that its index file describes, an
                                                               index, and a manifest while another stands in; else
                                                               nothing is changed and the open fails: the bytes may be
                                                               whole, and nobody can tell what they promise
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from georelay.ids import RaftIndex, Term
from region.log.entry import ENTRY_HEADER_BYTES, Entry, EntryError, frame_bytes
from region.log.errors import LogCorrupt
from region.log.filesystem import (
    FileSystem,
    Unreadable,
    open_to_read,
    read_at,
    read_file,
    reading,
    replace_file,
    write_fully,
)
from region.log.flushed_marks import FlushedMark, LostTail
from region.log.group_folder import DAMAGED_SUFFIX, remove_leftovers, set_aside, set_aside_whole, settle_folder
from region.log.index import IndexFile, IndexFileError
from region.log.log_state import LogBase, LogState, base_of
from region.log.manifest import Manifest
from region.log.manifest_files import ManifestFiles
from region.log.segment import ScanStop, Segment, index_path, scan_segment, segment_path

log = structlog.get_logger()

_NO_INDEX: Final = 1 << 63
RECHECK_BYTES: Final = 8 * 1024 * 1024  # of the open segment before its checkpoint's end
WRITTEN_AGAIN_BYTES: Final = 1024 * 1024  # at once


@dataclass(slots=True, kw_only=True)
class RecoveredLog:
    """A settled folder: the log as it goes on, and the manifests that fit it."""

    state: LogState
    manifests: ManifestFiles


def recover_log(
    directory: Path,
    fs: FileSystem,
    *,
    first_chain: int,
    interval_bytes: int,
    mark: FlushedMark | None,
    is_mark_damaged: bool = False,
) -> RecoveredLog:
    """Read, check and if need be cut the log in `directory`; a missing directory is an empty log.

    Args:
        mark: up to where the log is known to have been durable; None: nobody knows.
        is_mark_damaged: there was perhaps a mark, and it cannot be read.

    Raises:
        LogCorrupt: damage, and no mark; the text names file and position.
        OSError: from the file system; Unreadable: the disk does not give back what is needed.
    """
    content = settle_folder(fs, directory)
    if mark is None:
        _refuse_known_loss(fs, directory)
    manifests = ManifestFiles(fs, directory, content.manifests)
    recovery = _Recovery(
        directory=directory,
        fs=fs,
        interval_bytes=interval_bytes,
        mark=mark,
        is_mark_damaged=is_mark_damaged,
        manifests=manifests,
        first_chain=first_chain,
    )
    recovery.run(content.segments)
    if content.segments:
        # What was found counts as durable from now on, names as well: a killed process may not have synced them.
        fs.fsync_directory(directory)
        fs.fsync_directory(directory.parent)
    return RecoveredLog(state=recovery.state, manifests=manifests)


@dataclass(slots=True, kw_only=True)
class _Recovery:
    directory: Path
    fs: FileSystem
    interval_bytes: int
    mark: FlushedMark | None
    is_mark_damaged: bool
    manifests: ManifestFiles
    first_chain: int
    base_known: bool = True
    covered: int | None = None  # see _covered_index
    state: LogState = field(default_factory=LogState)

    def run(self, files: list[int]) -> None:
        self._find_base(files)
        for at, first_index in enumerate(files):
            try:
                self._recover_segment(first_index, files[at + 1] if at + 1 < len(files) else None)
            except LogCorrupt as damage:
                self._cut_at_damage(files[at:], damage)
                break
        self.manifests.remove_above(self.state.last_index)
        self._check_manifests(files)
        self._check_end()

    def _find_base(self, files: list[int]) -> None:
        if files and files[0] == 1:
            self.state.base = LogBase(chain=self.first_chain)
            return
        newest = None if files else self.manifests.newest(1, _NO_INDEX)
        base = self.manifests.read(files[0] - 1) if files else newest
        if not files:
            self._refuse_unreadable()
        if not files and (base is None or (self.mark is not None and self.mark.index > base.index)):
            # No segment at all, and there should be one: the manifest alone does not make up for what is gone.
            self.manifests.remove_above(0)
            base = None
        if base is not None:
            self.state.base = base_of(base)
        elif files:
            self.base_known = False
            self.state.base = LogBase(index=files[0] - 1)
        else:
            self.state.base = LogBase(chain=self.first_chain)

    # -- one segment --------------------------------------------------------------------------------------------

    def _recover_segment(self, first_index: int, next_index: int | None) -> None:
        path = segment_path(self.directory, first_index)
        if first_index != self.state.last_index + 1:
            raise LogCorrupt(
                path, 0, f"the segment begins at index {first_index}, the one before it ends at {self.state.last_index}"
            )
        handle = reading(self.fs.open, path)
        try:
            file = self._load_index(path, first_index)
            if next_index is not None:
                self._recover_sealed(path, handle, first_index, next_index, file)
            else:
                self._recover_active(path, handle, first_index, file)
        finally:
            self.fs.close(handle)

    @property
    def _chain(self) -> int | None:
        return self.state.last_chain if self.base_known or self.state.segments else None

    def _load_index(self, path: Path, first_index: int) -> IndexFile | None:
        """Return the index file if it is intact and continues what is before the segment."""
        try:
            file = IndexFile.decode(read_file(self.fs, index_path(path)), interval_bytes=self.interval_bytes)
        except FileNotFoundError:
            return None
        except (IndexFileError, Unreadable) as error:
            log.info("log.index_refused", segment=str(path), reason=str(error))
            return None
        fits = file.info.first_index == first_index and self._chain in (None, file.info.previous_chain)
        return file if fits else None

    def _recover_sealed(
        self, path: Path, handle: int, first_index: int, next_index: int, file: IndexFile | None
    ) -> None:
        if file is not None and file.info.last_index + 1 == next_index:
            reason = _contradiction(self.fs, handle, file, whole=True)
            stays = self.mark is None or file.info.last_index <= self._covered_index()
            if stays or (reason is None and self._reads_back(handle, file)):
                if reason is not None:
                    log.critical("segment.damaged", segment=str(path), reason=reason)
                    self.state.corrupt[first_index] = (file.info.last_position, reason)
                self.state.add_indexed(path, file)
                return
        segment, stop = self._scan(path, handle, first_index, None)
        if stop is not None:
            raise LogCorrupt(path, stop.position, stop.reason)
        log.info("log.index_rebuilt", segment=str(path))
        write_index_file(self.fs, path, self.state.index_file(segment))

    def _covered_index(self) -> int:
        """Return the index up to which a manifest stands for the entries, 0 without one."""
        if self.covered is None:
            newest = self.manifests.newest(self.state.base.index, _NO_INDEX)
            self.covered = 0 if newest is None else newest.index
        return self.covered

    def _reads_back(self, handle: int, file: IndexFile) -> bool:
        """Return whether the entries of a sealed segment above the newest manifest are whole."""
        info = file.info
        start, position = file.index.position_for_index(max(info.first_index, self._covered_index()))
        chain = info.previous_chain if start == info.first_index else None
        found: Entry | ScanStop | None = None
        for item in scan_segment(self.fs, handle, first_index=start, previous_chain=chain, position=position):
            found = item  # what cannot be read could not be followed either: Unreadable goes on
        return isinstance(found, Entry) and (found.index, found.chain) == (info.last_index, info.last_chain)

    def _recover_active(self, path: Path, handle: int, first_index: int, file: IndexFile | None) -> None:
        if file is not None and not self._checkpoint_holds(handle, file):
            file = None
        segment, stop = self._scan(path, handle, first_index, file)
        if stop is not None:
            self._judge_tail(path, stop)
        if file is None and self.fs.exists(index_path(path)):
            self.fs.remove(index_path(path))  # of no use; the next checkpoint writes another
        if self.fs.size(handle) > segment.size_bytes:
            self.fs.truncate(handle, segment.size_bytes)
        self._write_again(handle, segment)
        self.fs.fdatasync(handle)

    def _write_again(self, handle: int, segment: Segment) -> None:
        """Write what is above the mark once more, so that the sync that follows does mean something.

        After a failed sync, which ended the last process, Linux keeps the pages in memory as clean: they read well, the
        next sync says that all is well, and the disk never gets them (Rebello et al., "Can Applications Recover from
        fsync Failures?", 2020).
        """
        durable = 0 if self.mark is None else self.mark.index
        if segment.size_bytes == 0 or segment.last_index <= durable:
            return
        _, position = segment.index.position_for_index(max(segment.first_index, durable + 1))
        while position < segment.size_bytes:
            piece = read_at(self.fs, handle, min(WRITTEN_AGAIN_BYTES, segment.size_bytes - position), position)
            position += write_fully(self.fs, handle, [piece], position)
            if not piece:
                raise LogCorrupt(segment.path, position, "the file became shorter while it was read")

    def _checkpoint_holds(self, handle: int, file: IndexFile) -> bool:
        """Return whether the segment has what its checkpoint says; the last entries of it are read."""
        if _contradiction(self.fs, handle, file, whole=False) is not None:
            return False
        start, position = file.index.position_for_index(
            file.index.index_for_position(max(0, file.info.size_bytes - RECHECK_BYTES))
        )
        found: Entry | None = None
        for item in scan_segment(self.fs, handle, first_index=start, previous_chain=None, position=position):
            if isinstance(item, ScanStop):
                break
            found = item
            if item.index == file.info.last_index:
                break
        return found is not None and (found.index, found.chain) == (file.info.last_index, file.info.last_chain)

    def _scan(
        self, path: Path, handle: int, first_index: int, checkpoint: IndexFile | None
    ) -> tuple[Segment, ScanStop | None]:
        """Read a segment behind its checkpoint; return where its last whole entry ends, and why there."""
        chain = self._chain
        if checkpoint is not None:
            segment = self.state.add_indexed(path, checkpoint)
            chain = segment.last_chain
        else:
            segment = self.state.add_segment(path, first_index, interval_bytes=self.interval_bytes)
        for found in scan_segment(
            self.fs, handle, first_index=segment.last_index + 1, previous_chain=chain, position=segment.size_bytes
        ):
            if isinstance(found, ScanStop):
                return segment, found
            segment.note(found)
            self.state.note(found)
        return segment, None

    def _judge_tail(self, path: Path, stop: ScanStop) -> None:
        """Decide whether what follows the last whole entry is damage.

        Raises:
            LogCorrupt: it is, and there is no mark.
        """
        if self.mark is None:
            # With its mark gone, a tear and damage to what was promised look the same.
            if not stop.tear_explains or (self.is_mark_damaged and not stop.is_room):
                raise LogCorrupt(path, stop.position, stop.reason)
        elif stop.index <= self.mark.index:
            log.critical("log.tail_lost", segment=str(path), position_bytes=stop.position, reason=stop.reason)
            set_aside(self.fs, path, stop.position)
            return
        if not stop.is_room:
            log.warning("log.tail_cut", segment=str(path), position_bytes=stop.position, reason=stop.reason)

    # -- damage -------------------------------------------------------------------------------------------------

    def _cut_at_damage(self, files: list[int], damage: LogCorrupt) -> None:
        """Cut the log where damage begins in the first of `files`; remember how far it had reached.

        Raises:
            LogCorrupt: without a mark.
        """
        if self.mark is None:
            raise damage
        log.critical("log.cut_at_damage", reason=str(damage))
        self._lose(self._newest_in(files[-1]))
        segments = self.state.segments
        kept = bool(segments) and segments[-1].first_index == files[0] and segments[-1].size_bytes > 0
        if segments and segments[-1].first_index == files[0] and not kept:
            segments.pop()
        for first_index in reversed(files[1:] if kept else files):
            set_aside_whole(self.fs, segment_path(self.directory, first_index))
        if kept:
            self._cut_segment(segments[-1])

    def _cut_segment(self, segment: Segment) -> None:
        if self.fs.exists(index_path(segment.path)):
            self.fs.remove(index_path(segment.path))
            self.fs.fsync_directory(self.directory)
        set_aside(self.fs, segment.path, segment.size_bytes)
        handle = self.fs.open(segment.path)
        try:
            self.fs.truncate(handle, segment.size_bytes)
            self.fs.fdatasync(handle)
        finally:
            self.fs.close(handle)

    def _newest_in(self, first_index: int) -> Entry | None:
        """Return the newest entry that can be read in the log's last segment."""
        newest: Entry | None = None
        handle = open_to_read(self.fs, segment_path(self.directory, first_index))
        try:
            for found in scan_segment(self.fs, handle, first_index=first_index, previous_chain=None):
                newest = found if isinstance(found, Entry) else newest
        finally:
            self.fs.close(handle)
        return newest

    def _lose(self, newest: Entry | None) -> None:
        """Remember as lost the highest of the mark, `newest` and what was lost already."""
        ends = [end for end in (self.mark, self.state.lost) if end is not None]
        if newest is not None:
            ends.append(LostTail(newest.index, newest.term, newest.chain))
        self.state.lost = max(ends, key=lambda end: (end.term, end.index), default=None)

    def _check_manifests(self, files: list[int]) -> None:
        """A log that begins above index 1 is of no use without any manifest: put it all aside and begin anew."""
        state = self.state
        if state.first_index == 1 or self._newest_that_fits() is not None:
            return
        self._refuse_unreadable()
        path = segment_path(self.directory, state.first_index)
        if self.mark is None:
            raise LogCorrupt(path, 0, f"it begins above index 1, and no manifest in {self.directory} can be read")
        log.critical("log.without_manifest", directory=str(self.directory), first_index=state.first_index)
        end = LostTail(RaftIndex(state.last_index), Term(state.last_term), state.last_chain)
        self._lose(None)
        for segment in reversed(state.segments):
            set_aside_whole(self.fs, segment.path)
        lost = max(filter(None, (end, state.lost)), key=lambda each: (each.term, each.index))
        self.manifests.remove_above(0)
        self.state = LogState(base=LogBase(chain=self.first_chain), lost=lost)

    def _refuse_unreadable(self) -> None:
        """Change nothing for want of a manifest that the disk did not give back. Raises Unreadable."""
        if self.manifests.unreadable is not None:
            raise self.manifests.unreadable

    def _newest_that_fits(self) -> Manifest | None:
        return self.manifests.newest(self.state.base.index, self.state.last_index)

    def _check_end(self) -> None:
        state, mark = self.state, self.mark
        if mark is not None and not mark.is_reached_by(state.last_term, state.last_index):
            self._lose(None)
        if state.lost is not None:
            log.critical("log.lost", directory=str(self.directory), held=state.last_index, lost=state.lost.index)
        elif self.fs.exists(self.directory):
            remove_leftovers(self.fs, self.directory, DAMAGED_SUFFIX)


def _refuse_known_loss(fs: FileSystem, directory: Path) -> None:
    """Refuse a log of which a part was set aside when it had a mark: how far it had reached, nobody knows any more."""
    if not fs.exists(directory):
        return
    for name in fs.list_directory(directory):
        if name.endswith(DAMAGED_SUFFIX):
            raise LogCorrupt(
                directory / name, 0, "the log was cut there, and how far it had reached is not known any more"
            )


def _contradiction(fs: FileSystem, handle: int, file: IndexFile, *, whole: bool) -> str | None:
    """Return why a segment is not what its index file says, judged by its length and its last entry."""
    info, size = file.info, fs.size(handle)
    if size < info.size_bytes or (whole and size > info.size_bytes):
        return f"it has {size} bytes, its index says {info.size_bytes}"
    try:
        header = read_at(fs, handle, ENTRY_HEADER_BYTES, info.last_position)
        end = info.last_position + frame_bytes(header)
    except (EntryError, Unreadable) as error:
        return str(error)
    index, chain = int.from_bytes(header[20:28], "big"), int.from_bytes(header[28:32], "big")
    if (end, index, chain) != (info.size_bytes, info.last_index, info.last_chain):
        return f"its last entry is {index} and ends at {end}, its index says {info.last_index} and {info.size_bytes}"
    return None


def write_index_file(fs: FileSystem, segment: Path, file: IndexFile) -> None:
    """Write the index file of a segment, whole or not at all. Its name is durable with the next sync of the folder."""
    replace_file(fs, index_path(segment), file.encode(), sync_name=False)
