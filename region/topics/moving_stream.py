"""A stream whose home moves: what control's word makes of this replica, and what its leader writes because of it.

follow_home   control's newest word: this region becomes the home, or a mirror of another one, or stays what it is
seal          the home closes its epoch and says where it ends
promise       any region closes all lower epochs and says how far its log agrees with the mesh

Rule 1: who is home is control's word; what the log may take is the log's. Both must agree before anything is published:
        the log has exactly the records below the epoch's start, and its EPOCH entry is committed.
Rule 2: the leader begins a decided epoch as soon as its log reaches the start. Records that it has beyond the start
        become an orphan branch: kept and listed, never shown to a reader, never merged.
Rule 3: an epoch begins only where the digest chain before its start is the one that control decided. Another one means
        that two regions hold different records: nothing is cut, an alarm is raised, somebody has to look.
Rule 4: a publish whose records would lie at or beyond the start of a decided epoch is answered "not stored" at once:
        whatever becomes of its entry, it is not in the stream.
"""

from __future__ import annotations

import asyncio
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from georelay.errors import BadRequest, Busy, Diverged, Fenced, GeorelayError, NotHome, OffsetOutOfRange, Unavailable
from georelay.ids import Epoch, Offset, RaftIndex, RegionNumber
from mesh.home.home_row import HomeRow
from mesh.home.promise_core import agreeing_length
from mesh.replication.ports import EpochRow
from mesh.replication.receiver_core import following_row, table_fault
from mesh.replication.stream_header import EntryType
from region.log.entry import Entry
from region.topics.fence_core import Fence, encode_promise, encode_seal
from region.topics.meshed_stream import MeshedStream
from region.topics.orphan_core import OrphanBranch

log = structlog.get_logger()

BEGIN_AGAIN_S: Final = 0.25  # after a passing failure to begin an epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd:
    """An agreed end of a stream: first offset after it, and the digest chain before that (16 bytes)."""

    offset: Offset
    digest: bytes


class MovingStream(MeshedStream, ABC):
    """Adds what control and other regions ask when a home moves. Arguments: see SequencedStream."""

    _beginning: asyncio.Task[None] | None = None
    _diverged_in = Epoch(0)  # the decided epoch that this log does not fit

    # --- what control says ------------------------------------------------------------------------

    def follow_home(self, row: HomeRow) -> None:
        """Follow control's newest word about the home, on any replica, at any time; older words change nothing."""
        known = self.home_row
        if known is not None and row.index <= known.index:
            return
        before = (self.home, Epoch(0) if known is None else known.epoch)
        self.home_row = row
        self.home = row.home
        self.is_home = row.home == self.region
        if (self.home, row.epoch) == before:
            return  # an attempt to move it began or ended
        if row.epoch > self.epoch:
            # Of several epochs at once an older one may begin below the newest: what is behind that is gone as well.
            start = min([row.start, *(start for epoch, start in row.table if epoch > self.epoch)])
            self._commits.refuse_from(start, self._gone(row))
            self.lanes.fail(self.not_home())
        log.info("home.followed", stream=str(self.key), epoch=row.epoch, home=row.home, start=row.start)
        self._wake()
        self.on_epoch(self)
        self.on_leadership(self)
        self.begin_epoch_if_due()

    def _gone(self, row: HomeRow) -> NotHome:
        text = f"epoch {row.epoch} of {self.topic} begins at {row.start} in region {row.home}: this is not stored"
        return NotHome(text, epoch=row.epoch, home=row.home)

    @property
    def is_mirroring(self) -> bool:
        """Return whether records are to come from another region: a mirror, or a home whose epoch has not begun."""
        row = self.home_row
        return not self.is_home or (row is not None and self.epoch < row.epoch)

    @property
    def source(self) -> RegionNumber:
        """Return the region to ask for what comes next: the home, or for a new home the one before."""
        row = self.home_row
        if row is None or not self.is_home:
            return self.home
        return next((home for _, home in reversed(row.homes) if home != self.region), self.home)

    @property
    def decided(self) -> Epoch:
        """Return the newest epoch that control decided, as far as it is known here; 0 while the home never moved."""
        return Epoch(0) if self.home_row is None else self.home_row.epoch

    @property
    def decided_table(self) -> Sequence[EpochRow]:
        """Return control's newest epoch table, which may be ahead of the log's; empty while the home never moved."""
        return () if self.home_row is None else self.home_row.table

    @property
    def was_home(self) -> bool:
        """Return whether this region sequenced a part of the stream: others may still need its end from here."""
        row = self.home_row
        return row is not None and any(home == self.region for _, home in row.homes)

    @property
    def is_serving(self) -> bool:
        """Return whether mirrors may be served from here.

        Not by a home whose epoch has not begun: beyond the start of an older one its log may hold a branch of its own.
        """
        is_asked = not self.is_mirroring if self.is_home else self.was_home
        return is_asked and self.is_leader and self.epoch >= 1

    @property
    def control_index(self) -> int:
        """Return the index that proves the epoch table; 0 while the home never moved."""
        return 0 if self.home_row is None else self.home_row.index

    # --- beginning an epoch -----------------------------------------------------------------------

    def led(self, *, leader: int, is_leader: bool) -> None:
        """Follow the leader of the group inside this region."""
        super().led(leader=leader, is_leader=is_leader)
        self.begin_epoch_if_due()

    def applied(self, entries: Sequence[Entry]) -> None:
        """Move the high watermark over committed entries; tell who follows when an epoch began."""
        before = self.epoch
        super().applied(entries)
        if self.epoch != before:
            log.info("epoch.began", stream=str(self.key), epoch=self.epoch, next_offset=self.high_watermark)
            self.home_log_start = Offset(0)  # that home may have deleted more than this one ever had; WELCOME says it
            self._wake()
            self.on_epoch(self)
            if self.home_row is not None:
                self.on_leadership(self)
        self.begin_epoch_if_due()

    def begin_epoch_if_due(self) -> None:
        """Append the EPOCH entry of the decided epoch when the log has reached its start."""
        if self._beginning is None and self._due_row() is not None:
            self._beginning = asyncio.get_running_loop().create_task(self._begin_epochs(), name=f"epoch {self.key}")

    def _due_row(self) -> EpochRow | None:
        """Return the epoch that is to begin here now: the next in the decided table."""
        row = self.home_row
        if row is None or not self.is_leader or row.epoch in (self._diverged_in, self.epochs.newest()):
            return None
        due = following_row(row.table, self.epochs.newest())
        if due is None or due[1] != row.start or row.epoch < self.fences.end.epoch:
            return None  # only the digest at row.start is known; for one below it the home's answer to HELLO says it
        return due if due[1] <= self.high_watermark or due[1] == self.end.next_offset else None

    async def _begin_epochs(self) -> None:
        try:
            while (due := self._due_row()) is not None and self.home_row is not None:
                await self._begin_epoch(due, self.home_row)
        finally:
            self._beginning = None

    async def _begin_epoch(self, due: EpochRow, row: HomeRow) -> None:
        try:
            await self.append_epoch(due[0], start=due[1], digest=row.digest, control_index=row.index, proven=row.epoch)
        except Diverged as error:
            self._diverged_in = row.epoch
            log.critical("epoch.diverged", stream=str(self.key), epoch=row.epoch, reason=str(error))
        except GeorelayError as error:
            log.warning("epoch.delayed", stream=str(self.key), epoch=due[0], reason=str(error))
            await asyncio.sleep(BEGIN_AGAIN_S)

    # --- fences -----------------------------------------------------------------------------------

    @property
    def promised(self) -> Epoch:
        """Return the epoch of the newest PROMISE in the log, uncommitted included; 0 without one that holds."""
        return self.fences.end.promised

    @property
    def sealed(self) -> bool:
        """Return whether the epoch of this log is over: sealed, or given up by a promise."""
        return self.fences.end.epoch > self.end.epoch

    async def seal(self, *, epoch: Epoch, new_epoch: Epoch, move_id: str) -> StreamEnd:
        """Close `epoch` at its home, for `new_epoch` that is to follow; return its end once that is committed.

        From the append on every publish is refused. Safe to repeat.

        Raises:
            NotLeader; NotHome: this region is not the home; Busy, Unavailable: not sealed. Fenced: a higher epoch is
            known here. BadRequest: the epochs make no sense. OutcomeUnknown: the leader changed; ask again.
        """
        self._leading()
        self._check_mesh_level()
        if not self.is_home:
            raise self.not_home()
        known = self.fences.end.seal
        if known is None or known.new_epoch != new_epoch:
            self._check_fence_epoch(new_epoch)
            if epoch > self.epoch:
                raise Busy(f"epoch {epoch} of {self.key} has not begun here yet")
            if epoch < self.end.epoch or new_epoch <= epoch:
                raise BadRequest(f"{self.key} is in epoch {self.end.epoch}: epoch {epoch} cannot end for {new_epoch}")
            try:
                payload = encode_seal(new_epoch, move_id)
            except ValueError as error:
                raise BadRequest(f"seal of {self.key}: {error}") from error
            self._propose_control(EntryType.SEAL, payload)
            self.lanes.fail(self.not_home())
            known = self.fences.end.seal
            log.info("home.sealed", stream=str(self.key), epoch=epoch, new_epoch=new_epoch, move_id=move_id)
        assert known is not None
        await self._fence_committed(known)
        return StreamEnd(offset=known.end, digest=known.digest)

    async def promise(self, *, new_epoch: Epoch, table: Sequence[EpochRow]) -> StreamEnd:
        """Promise to hear no home of an epoch below `new_epoch`, and say how far this log agrees with `table`.

        The length is that of the log at the PROMISE entry, given once that is committed: whatever this region ever
        acknowledged in a lower epoch is in it. Safe to repeat.

        Args:
            table: the agreed history, [(epoch, start)].

        Raises:
            NotLeader, Busy, Unavailable: not promised. Fenced: a higher epoch is promised or has begun here.
            BadRequest: the table makes no sense. OutcomeUnknown: the leader changed; ask again.
            OffsetOutOfRange: it is promised, and all up to where this log agrees was deleted here.
        """
        self._leading()
        self._check_mesh_level()
        fault = table_fault(table)
        if fault:
            raise BadRequest(f"promise of {self.key}: {fault}")
        known = self.fences.end.promise
        if known is None or known.new_epoch != new_epoch:
            self._check_fence_epoch(new_epoch)
            self._propose_control(EntryType.PROMISE, encode_promise(new_epoch))
            self._wake()  # a session with an older home ends
            if self.is_home:
                self.lanes.fail(self.not_home())
            known = self.fences.end.promise
            log.info("epoch.promised", stream=str(self.key), epoch=new_epoch)
        assert known is not None
        await self._fence_committed(known)
        return await self._agreeing_end(known, table)

    async def _agreeing_end(self, fence: Fence, table: Sequence[EpochRow]) -> StreamEnd:
        rows = [(epoch, start) for index, epoch, start in self.epochs.indexed(fence.index)]
        length = agreeing_length(rows, end=fence.end, table=table)
        digest = fence.digest if length == fence.end else await self.digest_before(length)
        if digest is None and length < self.start.boundary and length <= table[-1][1]:
            raise OffsetOutOfRange(f"{self.key} agrees up to offset {length}, and begins at {self.start.boundary} here")
        if digest is None:
            raise Unavailable(f"{self.key} agrees up to offset {length}, and what lies before it cannot be read here")
        return StreamEnd(offset=length, digest=digest)

    def _check_fence_epoch(self, new_epoch: Epoch) -> None:
        newest = max(self.epochs.newest(), self.fences.end.epoch)
        if new_epoch <= newest:
            raise Fenced(f"epoch {new_epoch} of {self.key} is not above epoch {newest}, which this log knows")

    async def _fence_committed(self, fence: Fence) -> None:
        await self._at_commit(fence.index, epoch=self.epoch, base_offset=fence.end, append_us=self.end.append_us)

    # --- orphan branches --------------------------------------------------------------------------

    def orphans(self) -> Sequence[OrphanBranch]:
        """Return the orphan branches that are kept here, oldest first."""
        return self.orphan_book.committed

    async def drop_orphans(self, epoch: Epoch) -> int:
        """Let the branch that `epoch` cut off, and older ones, be deleted; return how many branches went.

        Raises:
            NotLeader, Busy, Unavailable: not dropped. OutcomeUnknown.
        """
        self._leading()
        self._check_mesh_level()
        gone = [branch for branch in self.orphans() if branch.epoch <= epoch]
        if gone:
            below = RaftIndex(max(branch.cut_index for branch in gone) + 1)
            await self.propose_start(self.start, dropped_below=below)
        return len(gone)

    def close(self) -> None:
        """Stop serving."""
        super().close()
        if self._beginning is not None:
            self._beginning.cancel()
