"""What a group's folder holds after a stop or a crash, found by reading all of it.

Every header, every payload and the chain from the first entry to the last are checked at each start. A torn tail of
the last segment was never durable, so it is cut; everything else that is wrong refuses the start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import structlog

from georelay.ids import Epoch, Offset, RaftIndex, Term
from mesh.replication.stream_header import EntryType
from region.log.entry import FIRST_CHAIN, Entry
from region.log.errors import LogCorrupt
from region.log.filesystem import FileSystem, read_file, write_fully
from region.log.index import SparseIndex
from region.log.segment import Segment, TornTail, entry_epoch, index_path, scan_segment

log = structlog.get_logger()

EpochStart = tuple[RaftIndex, Epoch, Offset]  # of an EPOCH entry: where it stands and which offset it sets
TermRun = tuple[RaftIndex, Term]  # first index of a run of entries with one term


@dataclass(slots=True, kw_only=True)
class RecoveredLog:
    """Everything a GroupLog keeps in memory. Fields describe the end of the log; segments are in index order."""

    last_chain: int = FIRST_CHAIN
    next_offset: int = 0
    segments: list[Segment] = field(default_factory=list)
    term_runs: list[TermRun] = field(default_factory=list)
    epoch_starts: list[EpochStart] = field(default_factory=list)

    def note(self, entry: Entry) -> None:
        """Account for the entry that follows the last one."""
        if not self.term_runs or self.term_runs[-1][1] != entry.term:
            self.term_runs.append((entry.index, entry.term))
        if entry.type is EntryType.EPOCH:
            self.epoch_starts.append((entry.index, Epoch(entry_epoch(entry)), entry.base_offset))
        self.last_chain = entry.chain
        self.next_offset = entry.next_offset

    def add_segment(self, path: Path, first_index: int, *, interval_bytes: int) -> Segment:
        """Append an empty segment that begins at `first_index`."""
        segment = Segment(
            path=path,
            first_index=first_index,
            last_index=first_index - 1,
            base_offset=self.next_offset,
            next_offset=self.next_offset,
            last_chain=self.last_chain,
            last_term=self.term_runs[-1][1] if self.term_runs else 0,
            index=SparseIndex(interval_bytes),
        )
        self.segments.append(segment)
        return segment


def recover_log(directory: Path, fs: FileSystem, *, first_chain: int, interval_bytes: int) -> RecoveredLog:
    """Read, check and if need be cut the log in `directory`; a missing directory is an empty log.

    Raises:
        LogCorrupt: damage; the text names file and position.
        OSError: from the file system.
    """
    recovered = RecoveredLog(last_chain=first_chain)
    names = fs.list_directory(directory) if fs.exists(directory) else []
    files = sorted(_first_index(directory, name) for name in names if name.endswith(".log"))
    for at, first_index in enumerate(files):
        path = directory / f"{first_index:020d}.log"
        expected = recovered.segments[-1].last_index + 1 if recovered.segments else first_index
        if first_index != expected:
            raise LogCorrupt(
                path, 0, f"the segment begins at index {first_index}, the one before it ends at {expected - 1}"
            )
        # Before a log that begins above index 1 the chain is not known: its first entry stands for itself.
        chain = recovered.last_chain if recovered.segments or first_index == 1 else None
        _recover_segment(recovered, fs, path, first_index, chain, interval_bytes, sealed=at + 1 < len(files))
    if files:
        # The same holds for names: a killed process may have created the last segment without syncing its folder.
        fs.fsync_directory(directory)
        fs.fsync_directory(directory.parent)
    return recovered


def _first_index(directory: Path, name: str) -> int:
    stem = name.removesuffix(".log")
    if len(stem) != 20 or not (stem.isascii() and stem.isdigit()) or int(stem) < 1:
        raise LogCorrupt(directory / name, 0, "a segment is named by its first index in 20 digits")
    return int(stem)


def _recover_segment(
    recovered: RecoveredLog,
    fs: FileSystem,
    path: Path,
    first_index: int,
    previous_chain: int | None,
    interval_bytes: int,
    *,
    sealed: bool,
) -> None:
    segment = recovered.add_segment(path, first_index, interval_bytes=interval_bytes)
    handle = fs.open(path)
    try:
        for found in scan_segment(
            fs, handle, path, first_index=first_index, previous_chain=previous_chain, sealed=sealed
        ):
            if isinstance(found, TornTail):
                _cut_torn_tail(fs, handle, path, found)
                break
            segment.note(found)
            recovered.note(found)
        if not sealed:
            # What is read here may still be only in the page cache of a killed process; from now on it counts as
            # durable, so it must be.
            fs.fdatasync(handle)
    finally:
        fs.close(handle)
    if sealed:
        _renew_index_file(fs, segment)


def _cut_torn_tail(fs: FileSystem, handle: int, path: Path, torn: TornTail) -> None:
    log.warning(
        "log.tail_cut",
        segment=str(path),
        position_bytes=torn.position,
        cut_bytes=fs.size(handle) - torn.position,
        reason=torn.reason,
    )
    fs.truncate(handle, torn.position)


def _renew_index_file(fs: FileSystem, segment: Segment) -> None:
    path, wanted = index_path(segment.path), segment.encode_index()
    if fs.exists(path) and read_file(fs, path) == wanted:
        return
    log.info("log.index_rebuilt", segment=str(segment.path))
    write_index_file(fs, segment)


def write_index_file(fs: FileSystem, segment: Segment) -> None:
    """Write the index file of a sealed segment. Not synced: it is checked and made again at the next start."""
    handle = fs.open(index_path(segment.path), create=True)
    try:
        content = segment.encode_index()
        fs.truncate(handle, 0)
        write_fully(fs, handle, [content], 0)
    finally:
        fs.close(handle)
