"""A stream together with the log it is stored in: what the services of this broker read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial

from georelay.clock import Clock
from georelay.errors import Busy, Diverged
from georelay.ids import Epoch, GroupId, Offset, RaftIndex, RegionNumber, StreamKey
from georelay.limits import MIB
from georelay.wire.batch import iterate_records
from mesh.replication.stream_header import OWNS_OFFSETS, EntryType, StreamHeader, first_digest
from region.log.entry import Entry
from region.log.errors import ReadInterrupted
from region.log.group_log import GroupLog
from region.log.segment import max_timestamp_ms
from region.multiraft.machine import Proposer
from region.topics.committed_tail import TailBudget
from region.topics.stream import Stream

SCAN_BYTES = 4 * MIB
COLD_READ_TRIES = 3  # a read is interrupted only by a truncation, which is rare


class HostedStream(Stream):
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
    ) -> None:
        super().__init__(key=key, topic=topic, group_id=group_id, home=home, region=region, clock=clock, budget=budget)
        self._joined_disk: GroupLog | None = None
        self._executor = executor
        self._newest_stamp: tuple[Entry, int] | None = None  # the entry with the newest timestamp, and that timestamp
        self._stamp_is_lost = False  # that entry went away: the disk has to be asked

    def attach(self, proposer: Proposer, disk: GroupLog) -> None:
        """Join the group that was recovered for this stream."""
        self.proposer = proposer
        self._joined_disk = disk

    @property
    def _disk(self) -> GroupLog:
        assert self._joined_disk is not None
        return self._joined_disk

    # --- following the log ------------------------------------------------------------------------

    def recovered(self, entry: Entry) -> None:
        """Follow one entry found on disk."""
        super().recovered(entry)
        self._note_stamp(entry)

    def applied(self, entries: Sequence[Entry]) -> None:
        """Move the high watermark over committed entries."""
        super().applied(entries)
        for entry in entries:
            self._note_stamp(entry)

    def truncated(self, from_index: RaftIndex, newest: Entry | None) -> None:
        """Forget the entries from `from_index` on."""
        super().truncated(from_index, newest)
        if self._newest_stamp is not None and self._newest_stamp[0].index >= from_index:
            self._lose_stamp()

    def _note_stamp(self, entry: Entry) -> None:
        newest = self._newest_stamp
        if entry.type in OWNS_OFFSETS:
            stamp = max_timestamp_ms(entry)
            if newest is None or stamp > newest[1]:
                self._newest_stamp = (entry, stamp)
        elif entry.type is EntryType.EPOCH and newest is not None:
            is_older = newest[0].index < entry.index
            if is_older and newest[0].next_offset > entry.base_offset:
                self._lose_stamp()  # it is of the orphan branch now

    def _lose_stamp(self) -> None:
        self._newest_stamp = None
        self._stamp_is_lost = True

    # --- reading ----------------------------------------------------------------------------------

    def read(self, offset: Offset, max_bytes: int) -> Sequence[Entry] | None:
        """Return committed entries from memory; [] at the high watermark, None when only the disk has them."""
        if offset >= self.high_watermark:
            return []
        return self.tail.read(offset, max_bytes)

    async def read_cold(self, offset: Offset, max_bytes: int) -> Sequence[Entry]:
        """Return committed entries from disk, read in a thread."""
        loop = asyncio.get_running_loop()
        for attempt in range(COLD_READ_TRIES):
            read = partial(self._disk.read_from_offset, offset, max_bytes, up_to_index=self.commit_index)
            try:
                return await loop.run_in_executor(self._executor, read)
            except ReadInterrupted:
                if attempt + 1 == COLD_READ_TRIES:
                    raise
        raise AssertionError("unreachable")

    # --- what the mesh reads and appends (mesh.replication.ports) -----------------------------------

    @property
    def is_serving(self) -> bool:
        """Return whether mirrors may be served from here."""
        return self.is_home and self.is_leader and self.epoch >= 1

    @property
    def control_index(self) -> int:
        """Return the index that proves the epoch table; 0 until homes can move."""
        return 0

    @property
    def end_digest(self) -> bytes:
        """Return the digest chain at the log end."""
        return self.end.digest

    def epoch_table(self) -> Sequence[tuple[Epoch, Offset]]:
        """Return the committed (epoch, start) rows."""
        return self.epochs.committed(self.commit_index)

    async def digest_before(self, offset: Offset) -> bytes | None:
        """Return the digest chain of the entry that ends at `offset`, None when no committed entry ends there."""
        if offset == 0:
            return first_digest(self.key) if self.log_start == 0 else None
        if not self.log_start < offset <= self.high_watermark:
            return None
        before = Offset(offset - 1)
        found = self.read(before, 1)
        entries = await self.read_cold(before, 1) if found is None else found
        if not entries or entries[0].next_offset != offset:
            return None
        return entries[0].header().digest

    def append_batch(self, header: StreamHeader, payload: bytes) -> None:
        """Append one entry of the home verbatim; the high watermark tells when it is committed."""
        self.append_mirrored(header, payload)

    async def append_epoch(self, epoch: Epoch, *, start: Offset, digest: bytes, control_index: int) -> None:
        """Append and commit the EPOCH entry that the home's table names.

        Raises:
            Diverged: the digest at `start` differs from this log's.
            Busy: `start` is not committed here yet. NotLeader, Fenced, OutcomeUnknown.
        """
        if start > self.high_watermark and start != self.end.next_offset:
            raise Busy(
                f"epoch {epoch} of {self.key} starts at {start}, {self.high_watermark} records are committed here"
            )
        own = self.end.digest if start == self.end.next_offset else await self.digest_before(start)
        if own != digest:
            raise Diverged(
                f"{self.key}: digest before offset {start} differs from the home's: epoch {epoch} is refused"
            )
        await self.open_epoch(epoch, start=start, digest=digest, control_index=control_index)

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[Offset, int] | None:
        """Return (offset, timestamp) of the first committed record with at least that timestamp."""
        loop = asyncio.get_running_loop()
        find = partial(self._disk.entry_for_timestamp, timestamp_ms, up_to_index=self.commit_index)
        entry = await loop.run_in_executor(self._executor, find)
        if entry is None:
            return None
        for record in iterate_records(entry.payload, validated=True):
            if record.timestamp_ms >= timestamp_ms:
                return Offset(record.offset), record.timestamp_ms
        return entry.base_offset, entry.header().max_timestamp_ms

    async def max_timestamp(self) -> tuple[Offset, int] | None:
        """Return (offset, timestamp) of the batch with the newest timestamp, None for an empty stream."""
        if self._stamp_is_lost:
            loop = asyncio.get_running_loop()
            scan = partial(self._newest_on_disk, self.high_watermark, self.commit_index)
            self._stamp_is_lost = False
            try:
                found = await loop.run_in_executor(self._executor, scan)
            except BaseException:
                self._stamp_is_lost = True
                raise
            for entry in found:
                self._note_stamp(entry)
        newest = self._newest_stamp
        if newest is None or newest[0].base_offset >= self.high_watermark:
            return None
        return newest[0].base_offset, newest[1]

    def _newest_on_disk(self, high_watermark: Offset, commit_index: RaftIndex) -> Sequence[Entry]:
        """Return the committed entry with the newest timestamp, if any (in a thread)."""
        newest: list[Entry] = []
        offset = self.log_start
        while offset < high_watermark:
            found = self._disk.read_from_offset(offset, SCAN_BYTES, up_to_index=commit_index)
            if not found:
                break
            newest = [max([*newest, *found], key=max_timestamp_ms)]
            offset = found[-1].next_offset
        return newest
