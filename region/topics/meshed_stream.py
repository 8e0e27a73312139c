"""A stream as other regions see it: the home that mirrors are served from, and the mirror that follows its home.

Implements CommittedLog and MirrorLog of mesh.replication.ports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import structlog

from georelay.errors import BadRequest, Busy, Diverged, Fenced, NotHome, OffsetOutOfRange, Unavailable
from georelay.ids import Epoch, Offset, RaftIndex
from mesh.replication.ports import EpochRow, SkipPoint
from mesh.replication.receiver_core import NO_EPOCH, epoch_at, following_row
from mesh.replication.stream_header import StreamHeader
from region.log.entry import Entry
from region.topics.epoch_entry_core import EpochCut
from region.topics.log_start_core import LogStart
from region.topics.producer_rows import SKIP_CHECKSUM_LEVEL
from region.topics.skip_core import decode_skip, encode_shipped_producers, encode_skip, producers_before
from region.topics.stream import MESH_LEVEL, Stream

log = structlog.get_logger()

BEFORE_HIGH_WATERMARK = Offset(-1)  # delete-records up to whatever is committed


class MeshedStream(Stream, ABC):
    """Adds what the mesh reads and appends; reading itself is the subclass's."""

    home_log_start = Offset(0)  # a mirror's: the newest that its home said

    @abstractmethod
    def read(self, offset: Offset, max_bytes: int) -> Sequence[Entry] | None:
        """Return committed entries from memory; [] at the high watermark, None when only the disk has them."""

    @abstractmethod
    async def read_cold(self, offset: Offset, max_bytes: int) -> Sequence[Entry]:
        """Return committed entries from disk."""

    async def _read_somewhere(self, offset: Offset) -> Entry | None:
        """Return the committed entry that holds `offset`."""
        found = self.read(offset, 1)
        entries = await self.read_cold(offset, 1) if found is None else found
        return entries[0] if entries else None

    # --- home -------------------------------------------------------------------------------------

    @property
    def served_from(self) -> Offset:
        """Return the first offset from which whole batches are stored: at or below the log start."""
        return self.start.boundary

    def epoch_table(self) -> Sequence[tuple[Epoch, Offset]]:
        """Return the committed (epoch, start) rows."""
        return self.epochs.committed(self.commit_index)

    async def digest_before(self, offset: Offset) -> bytes | None:
        """Return the digest chain of the entry that ends at `offset`, None when no committed entry ends there."""
        if offset == self.start.boundary:
            return self.start.digest
        if not self.start.boundary < offset <= self.high_watermark:
            return None
        if offset == self.high_watermark:
            return self.applied_end.digest
        entry = await self._read_somewhere(Offset(offset - 1))
        if entry is None or entry.next_offset != offset:
            return None
        return entry.header().digest

    def skip_point(self, *, checksums: bool = False) -> SkipPoint:
        """Return what a mirror that is behind this log needs to continue at `served_from`."""
        start = self.start
        rows = self.committed_producers()
        return SkipPoint(
            last=Offset(start.boundary - 1),
            digest=start.digest,
            table=tuple(row for row in self.epoch_table() if row[1] <= start.boundary),
            producers=encode_shipped_producers(producers_before(rows, start.boundary), checksums=checksums),
        )

    # --- mirror -----------------------------------------------------------------------------------

    @property
    def end_digest(self) -> bytes:
        """Return the digest chain at the log end."""
        return self.end.digest

    def append_batch(self, header: StreamHeader, payload: bytes) -> None:
        """Append one entry of the home verbatim; the high watermark tells when it is committed.

        Raises:
            NotLeader: nothing was appended. Busy: neither; an epoch begins here first, or who sent it has not begun the
            epoch that control decided and sent of a branch of its own.
        """
        if self.epochs.newest() > self.epoch:
            raise Busy(f"epoch {self.epochs.newest()} of {self.key} begins: what an older session sends is not taken")
        row = self.home_row
        if row is not None and header.epoch <= row.epoch and epoch_at(row.table, header.base_offset) != header.epoch:
            raise Busy(f"control says that offset {header.base_offset} of {self.key} is not of epoch {header.epoch}")
        self.append_mirrored(header, payload)

    @abstractmethod
    async def cut_at(self, start: Offset) -> EpochCut:
        """Return what this log says without the records from `start` on, which is below its end."""

    async def append_epoch(
        self, epoch: Epoch, *, start: Offset, digest: bytes, control_index: int, proven: Epoch = NO_EPOCH
    ) -> None:
        """Append and commit the EPOCH entry that the home's table, or control, names.

        Args:
            proven: newest epoch of the table that says so.

        Raises:
            Diverged: the digest at `start` differs from this log's.
            Busy: `start` is not committed here yet. NotLeader, OutcomeUnknown.
            Fenced: this log knows a newer epoch, or has promised one that the table does not have.
            Unavailable: records are to be cut off, and a broker of this region is too old for that.
        """
        promised = self.fences.end.epoch
        if promised > max(epoch, proven):
            raise Fenced(f"epoch {epoch} of {self.key} is below epoch {promised}, which was promised")
        if start > self.high_watermark and start != self.end.next_offset:
            raise Busy(
                f"epoch {epoch} of {self.key} starts at {start}, {self.high_watermark} records are committed here"
            )
        # Below the first stored batch nothing is left that could differ: all of it is cut off.
        is_known = start >= self.start.boundary
        own = self.end.digest if start == self.end.next_offset else await self.digest_before(start)
        if is_known and own != digest:
            raise Diverged(
                f"{self.key}: digest before offset {start} differs from the home's: epoch {epoch} is refused"
            )
        cut = None
        if start < self.end.next_offset and self.epochs.newest() < epoch:
            self._check_mesh_level()  # brokers of before cannot read an entry that cuts
            cut = await self.cut_at(start)
            log.warning("epoch.cuts", stream=str(self.key), epoch=epoch, first=start, following=self.end.next_offset)
        await self.open_epoch(epoch, start=start, digest=digest, control_index=control_index, cut=cut)

    def _check_mesh_level(self) -> None:
        if self._feature_level() < MESH_LEVEL:
            raise Unavailable("homes can move once every broker of this region runs this version")

    async def append_skip(self, point: SkipPoint) -> None:
        """Append and commit the SKIP entry after which this log begins at `point.last` + 1.

        Raises:
            BadRequest: the home sent what is no producer table. Unavailable: this region cannot skip yet.
            Busy: the log ends beyond `point.last` by now. NotLeader, OutcomeUnknown.
        """
        checksums = self._feature_level() >= SKIP_CHECKSUM_LEVEL
        try:
            payload = encode_skip(epochs=point.table, producers=point.producers, checksums=checksums)
            decode_skip(payload, index=RaftIndex(0))
        except ValueError as error:
            raise BadRequest(f"SKIP of {self.key}: {error}") from error
        branch = following_row(point.table, self.epochs.newest())
        if branch is not None and branch[1] < self.end.next_offset:
            await self._cut_branch(branch, point)
        if point.last < self.end.next_offset:
            raise Busy(f"{self.key} ends at {self.end.next_offset} by now: nothing up to {point.last} is to be skipped")
        await self.propose_skip(Offset(point.last + 1), digest=point.digest, epoch=point.table[-1][0], payload=payload)

    async def _cut_branch(self, row: EpochRow, point: SkipPoint) -> None:
        """Begin the epoch that cuts this log's own branch off, so that the branch is listed, and SKIP begins above.

        The home has deleted what is below `point.last`, so it cannot say which digest stands at the epoch's start: it
        is this log's own, or where that was deleted too, the one at its beginning. Nothing is built on that: the SKIP
        that follows makes everything below unreadable.
        """
        is_deleted = row[1] < self.start.boundary
        digest = self.start.digest if is_deleted else await self.digest_before(row[1])
        if digest is None:
            raise Unavailable(f"no committed batch of {self.key} ends at offset {row[1]}")
        await self.append_epoch(
            row[0],
            start=row[1],
            digest=digest,
            control_index=0 if self.home_row is None else self.home_row.index,
            proven=max(point.table[-1][0], self.fences.end.epoch),
        )

    def home_start_moved(self, log_start: Offset) -> None:
        """Remember the home's log start; retention follows it at its next look."""
        self.home_log_start = max(self.home_log_start, log_start)

    # --- deleting ---------------------------------------------------------------------------------

    async def delete_records(self, before: Offset) -> Offset:
        """Delete the records below `before` for ever, in every region; return the log start when that is committed.

        Args:
            before: 0..high watermark, or BEFORE_HIGH_WATERMARK. At or below the log start nothing happens.

        Raises:
            NotHome, NotLeader, Busy, Unavailable, OffsetOutOfRange: nothing was deleted. OutcomeUnknown.
        """
        if not self.is_home:
            raise NotHome(f"the home of {self.topic} is region {self.home}", epoch=self.epoch, home=self.home)
        self._leading()
        self._check_level()
        self._check_word()
        wanted = self.high_watermark if before == BEFORE_HIGH_WATERMARK else before
        if not 0 <= wanted <= self.high_watermark:
            raise OffsetOutOfRange(f"offset {wanted} is not in 0..{self.high_watermark} of {self.key}")
        if wanted > self.log_start:
            await self.move_start(wanted, first_index=self.start.first_index)
        return self.log_start

    async def move_start(self, offset: Offset, *, first_index: RaftIndex) -> None:
        """Propose the log start `offset`, at or below the high watermark, and wait for its commit.

        Args:
            first_index: entries below it may go: all of them end at or below `offset`.

        Raises:
            NotLeader, Busy, Unavailable: not moved. OutcomeUnknown.
        """
        await self.propose_start(await self._start_at(offset, first_index))

    async def _start_at(self, offset: Offset, first_index: RaftIndex) -> LogStart:
        known = self.start
        if offset <= known.offset:
            return replace(known, first_index=max(first_index, known.first_index))
        boundary = offset
        if offset != self.high_watermark:
            entry = await self._read_somewhere(offset)
            if entry is None:
                raise Unavailable(f"the batch of {self.key} at offset {offset} cannot be read here")
            boundary = entry.base_offset
        digest = await self.digest_before(boundary)
        if digest is None:
            raise Unavailable(f"no batch of {self.key} ends at offset {boundary}")
        return LogStart(first_index=first_index, offset=offset, boundary=boundary, digest=digest)
