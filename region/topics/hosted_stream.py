"""A stream together with the log it is stored in: what the services of this broker and other regions read.

Rule 1: reads come from memory at once or from disk in a thread; what is read from disk is not kept.
Rule 2: nothing below the log start is ever shown, also where the disk still has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeVar

from georelay.clock import Clock
from georelay.errors import CorruptRecordBatch, NotLeader, OffsetOutOfRange, TooLarge, Unavailable
from georelay.ids import GroupId, Offset, RaftIndex, RegionNumber, StreamKey
from georelay.limits import MIB
from georelay.wire.batch import iterate_records
from region.log.entry import Entry
from region.log.errors import LogCorrupt, ReadInterrupted
from region.log.group_log import GroupLog
from region.log.segment import max_timestamp_ms
from region.multiraft.machine import Proposer
from region.topics.branch_states import branch_entries, cut_from
from region.topics.committed_tail import TailBudget
from region.topics.epoch_entry_core import EpochCut
from region.topics.moving_stream import MovingStream
from region.topics.newest_timestamp_core import NO_OFFSET
from region.topics.orphan_core import OrphanBranch
from region.topics.stream import FIRST_LEVEL

SCAN_BYTES: Final = 4 * MIB
COLD_READ_TRIES: Final = 3  # a read is interrupted only by a truncation or a new log start, which are rare
_T = TypeVar("_T")


class HostedStream(MovingStream):
    """Adds reading: from memory at once, from disk in a thread."""

    def __init__(
        self,
        *,
        key: StreamKey,
        topic: str,
        group_id: GroupId,
        home: RegionNumber,
        region: RegionNumber,
        clock: Clock,
        budget: TailBudget,
        executor: Executor,
        feature_level: Callable[[], int] = lambda: FIRST_LEVEL,
        disk_writable: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(
            key=key,
            topic=topic,
            group_id=group_id,
            home=home,
            region=region,
            clock=clock,
            budget=budget,
            feature_level=feature_level,
            disk_writable=disk_writable,
        )
        self._joined_disk: GroupLog | None = None
        self._executor = executor
        self._scanned: tuple[Offset, Offset, int] | None = None  # (below, offset, timestamp) of the last scan
        self._newest_record: tuple[tuple[Offset, int], Offset] | None = None  # of the batch (offset, timestamp)

    def attach(self, proposer: Proposer, disk: GroupLog) -> None:
        """Join the group that was recovered for this stream."""
        self.proposer = proposer
        self._joined_disk = disk

    @property
    def disk(self) -> GroupLog:
        """Return the log on disk."""
        assert self._joined_disk is not None
        return self._joined_disk

    async def off_loop(self, work: Callable[[], _T]) -> _T:
        """Run `work`, which reads the disk, in a thread; again when it was interrupted.

        Raises:
            Unavailable: interrupted again and again, or damaged (the repair has begun).
        """
        loop = asyncio.get_running_loop()
        for _ in range(COLD_READ_TRIES):
            try:
                return await loop.run_in_executor(self._executor, work)
            except ReadInterrupted as error:
                interruption = error
            except LogCorrupt as error:
                if self.proposer is not None:
                    self.proposer.corrupt_found(error)
                raise Unavailable(
                    f"records of {self.key} are damaged on this broker and being fetched again"
                ) from error
        raise interruption

    async def cut_at(self, start: Offset) -> EpochCut:
        """Return what this log says without the records from `start` on; errors as `off_loop`."""
        cut = partial(
            cut_from,
            self.disk,
            start,
            key=self.key,
            topic=self.topic,
            boundary=self.start.boundary,
            first_index=self.start.first_index,
            commit_index=self.commit_index,
        )
        return await self.off_loop(cut)

    async def read_orphans(self, branch: OrphanBranch, offset: Offset, max_bytes: int) -> Sequence[Entry]:
        """Return entries of an orphan branch from the one that holds `offset` on; errors as `off_loop`."""
        return await self.off_loop(partial(branch_entries, self.disk, branch, offset, max_bytes))

    # --- reading ----------------------------------------------------------------------------------

    async def confirmed_end(self) -> Offset:
        """Return a visible end that is not behind anything acknowledged, or shown, before the call.

        Raises:
            NotLeader, Unavailable: ask again, or elsewhere.
        """
        await self.confirm_leader()
        if self.geo is not None:
            await self.geo.until_known()
        return self.visible_end

    async def confirm_leader(self) -> None:
        """Return once a quorum said that this broker leads still, and all that was acknowledged before is applied here.

        Raises:
            NotLeader, Unavailable: ask again, or elsewhere.
        """
        if not self.is_leader or self.proposer is None:
            raise NotLeader(leader=self.leader_id)
        await self.proposer.read_index()

    def read(self, offset: Offset, max_bytes: int) -> Sequence[Entry] | None:
        """Return committed entries from memory; [] at the high watermark, None when only the disk has them.

        Raises:
            OffsetOutOfRange: below the batch that holds the log start.
        """
        self._check_start(offset)
        if offset >= self.high_watermark:
            return []
        return self.tail.read(offset, max_bytes)

    async def read_cold(self, offset: Offset, max_bytes: int) -> Sequence[Entry]:
        """Return committed entries from disk, read in a thread; errors as `read` and `off_loop`."""
        self._check_start(offset)
        read = partial(self.disk.read_from_offset, offset, max_bytes, up_to_index=self.commit_index)
        entries = await self.off_loop(read)
        self._check_start(offset)  # deleted meanwhile
        return entries

    def _check_start(self, offset: Offset) -> None:
        if offset < self.start.boundary:
            raise OffsetOutOfRange(f"offset {offset} is below the log start {self.log_start}")

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[Offset, int] | None:
        """Return (offset, timestamp) of the first committed record with at least that timestamp."""
        return await self.off_loop(
            partial(self._first_since, timestamp_ms, self.start.boundary, self.log_start, self.commit_index)
        )

    def _first_since(
        self, timestamp_ms: int, first: Offset, log_start: Offset, commit_index: RaftIndex
    ) -> tuple[Offset, int] | None:
        """Return the same of what is at or above the log start (in a thread: one batch is unfolded)."""
        while entry := self._find_timestamp(timestamp_ms, first, commit_index):
            found = first_record(entry, timestamp_ms, log_start)
            if found is not None:
                return found
            if entry.base_offset >= log_start:  # its header says what its records do not
                return entry.base_offset, max_timestamp_ms(entry)
            first = entry.next_offset  # only records behind the log start were so new: the next batch decides
        return None

    def _find_timestamp(self, timestamp_ms: int, first: Offset, commit_index: RaftIndex) -> Entry | None:
        """Return the first entry at or above `first` with that timestamp (in a thread)."""
        entry = self.disk.entry_for_timestamp(timestamp_ms, up_to_index=commit_index)
        if entry is None or entry.base_offset >= first:
            return entry
        # The index knows what is deleted and still on disk: look on from the log start.
        while found := self.disk.read_from_offset(first, SCAN_BYTES, up_to_index=commit_index):
            for entry in found:
                if max_timestamp_ms(entry) >= timestamp_ms:
                    return entry
            first = found[-1].next_offset
        return None

    async def max_timestamp(self) -> tuple[Offset, int] | None:
        """Return (offset, timestamp) of the first record with the newest timestamp, None for an empty stream."""
        known = self.bounds.newest
        newest = (known.offset, known.timestamp_ms)
        if known.unseen_below > self.start.boundary:
            newest = max(newest, await self._scan(known.unseen_below), key=lambda row: row[1])
        if newest[0] == NO_OFFSET or self.log_start >= self.high_watermark:
            return None
        if self._newest_record is None or self._newest_record[0] != newest:
            find = partial(self._record_of, *newest, self.commit_index)
            self._newest_record = (newest, await self.off_loop(find))
        return max(self._newest_record[1], self.log_start), newest[1]

    def _record_of(self, base_offset: Offset, timestamp_ms: int, commit_index: RaftIndex) -> Offset:
        """Return the first record of a batch with a timestamp (in a thread: the batch is unfolded)."""
        found = self.disk.read_from_offset(base_offset, 1, up_to_index=commit_index)
        row = first_record(found[0], timestamp_ms, base_offset) if found else None
        return base_offset if row is None else row[0]

    async def _scan(self, below: Offset) -> tuple[Offset, int]:
        """Return (offset, timestamp) of the newest timestamp below an offset, from disk; remembered."""
        scanned = self._scanned
        if scanned is None or scanned[0] != below or scanned[1] < self.start.boundary:
            find = partial(self._newest_on_disk, self.start.boundary, below, self.commit_index)
            scanned = self._scanned = (below, *await self.off_loop(find))
        return scanned[1], scanned[2]

    def _newest_on_disk(self, offset: Offset, below: Offset, commit_index: RaftIndex) -> tuple[Offset, int]:
        """Return (offset, timestamp) of the committed batch with the newest timestamp (in a thread)."""
        newest = (NO_OFFSET, -1)
        while offset < below:
            found = self.disk.read_from_offset(offset, SCAN_BYTES, up_to_index=commit_index)
            if not found:
                break
            for entry in found:
                if entry.base_offset < below and max_timestamp_ms(entry) > newest[1]:
                    newest = (entry.base_offset, max_timestamp_ms(entry))
            offset = found[-1].next_offset
        return newest


def first_record(entry: Entry, timestamp_ms: int, low: Offset) -> tuple[Offset, int] | None:
    """Return (offset, timestamp) of the first record at or above `low` that is not older; None: there is none.

    Of a batch that cannot be read to its end, what its header says is believed.
    """
    try:
        for record in iterate_records(entry.payload, validated=True):
            if record.timestamp_ms >= timestamp_ms and record.offset >= low:
                return Offset(record.offset), record.timestamp_ms
    except (CorruptRecordBatch, TooLarge):
        return max(entry.base_offset, low), max_timestamp_ms(entry)
    return None
