"""One stream hosted by this broker: what its leader decides, on top of what the log says.

At its home the leader sequences what is published (region.topics.sequenced_stream). At a mirror the leader appends what
the home sent, verbatim. Both append the control entries of their own group.

Rule: START and SKIP entries are proposed only in a region whose brokers all understand them (RETENTION_LEVEL), SEAL and
PROMISE entries likewise (MESH_LEVEL).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from georelay.clock import Clock
from georelay.errors import Busy, Fenced, NotLeader, Unavailable
from georelay.ids import Epoch, GroupId, Offset, RaftIndex, RegionNumber, StreamKey
from mesh.replication.stream_header import EntryType, StreamHeader, first_digest
from region.kafka.ports import Published
from region.log.entry import Entry, EntryDraft, control_header
from region.topics.committed_tail import TailBudget
from region.topics.epoch_entry_core import EpochBegun, EpochCut, encode_epoch
from region.topics.log_start_core import NOTHING_DROPPED, LogStart, encode_start
from region.topics.producer_rows import CHECKSUM_LEVEL
from region.topics.sequenced_stream import FIRST_EPOCH, TRANSACTION_LEVEL, SequencedStream
from region.topics.stream_state import FIRST_LEVEL

__all__ = ["FIRST_EPOCH", "FIRST_LEVEL", "MESH_LEVEL", "RETENTION_LEVEL", "TRANSACTION_LEVEL", "Stream"]

RETENTION_LEVEL: Final = 2  # feature level from which START and SKIP entries are understood
MESH_LEVEL: Final = 4  # feature level from which SEAL and PROMISE entries are understood


class Stream(SequencedStream):
    """Publishing, and the control entries that a leader adds. Arguments: see SequencedStream."""

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
        self.on_committed: Callable[[Stream, Sequence[Entry]], None] = lambda _stream, _entries: None
        self.on_leadership: Callable[[Stream], None] = lambda _stream: None
        self.on_epoch: Callable[[Stream], None] = lambda _stream: None  # an epoch has begun, or the home moved

    def _end_moved(self, entries: Sequence[Entry]) -> None:
        self.on_committed(self, entries)

    def epoch_end(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        """Answer OffsetForLeaderEpoch; a mirror never gives its own end for an epoch without successor."""
        known, end = self.epochs.end_of(epoch, commit_index=self.commit_index, hwm=self.high_watermark)
        if known >= FIRST_EPOCH and known == self.epoch and not self.knows_end:
            return known, Offset(2**63 - 1)
        return known, end

    @property
    def knows_end(self) -> bool:
        """Return whether this region decides where the stream ends: the home, in an epoch that is open or sealed.

        Not a mirror; not a new home whose epoch has not begun; not a home that promised a new epoch to others, which
        may begin below its end; not a broker that has not heard who is home in the epoch of its log.
        """
        is_begun = self.epoch == self.known_epoch or self.home_row is None
        is_known = self.epoch <= self.known_epoch
        return self.is_home and is_begun and is_known and self.fences.end.promised <= self.epoch

    # --- what a mirror's leader appends -----------------------------------------------------------

    def append_mirrored(self, header: StreamHeader, payload: bytes) -> None:
        """Append one entry of the home verbatim at the mirror's leader (the receiver rule has accepted it).

        Raises:
            NotLeader, Busy: nothing was appended.
        """
        proposer = self._leading()
        if not self._disk_writable():
            raise Busy("the disk is nearly full: the mirror waits until there is room")
        proposer.propose([EntryDraft(header=header, payload=payload)])

    def propose_skip(
        self, following: Offset, *, digest: bytes, epoch: Epoch, payload: bytes
    ) -> asyncio.Future[Published]:
        """Append the SKIP entry after which the log begins at `following`; resolves at its commit.

        Raises:
            NotLeader, Busy, Unavailable: nothing was appended.
        """
        proposer = self._leading()
        self._check_level()
        header = control_header(
            EntryType.SKIP,
            next_offset=following,
            epoch=epoch,
            append_us=self.end.append_us,
            digest=digest,
            payload=payload,
        )
        entry = proposer.propose([EntryDraft(header=header, payload=payload)])[0]
        return self._at_commit(entry.index, epoch=epoch, base_offset=following, append_us=header.append_us)

    # --- control entries --------------------------------------------------------------------------

    @property
    def may_move_start(self) -> bool:
        """Return whether every broker of this region understands START and SKIP entries."""
        return self._feature_level() >= RETENTION_LEVEL

    def _check_level(self) -> None:
        if not self.may_move_start:
            raise Unavailable("records can be deleted once every broker of this region runs this version")

    def propose_start(
        self, start: LogStart, *, dropped_below: RaftIndex = NOTHING_DROPPED
    ) -> asyncio.Future[Published]:
        """Append the START entry that moves the log start; resolves at its commit.

        Args:
            dropped_below: orphan branches that were cut off by an entry below this index are dropped; 0: none.

        Raises:
            NotLeader, Busy, Unavailable: nothing was appended.
        """
        self._check_level()
        return self._propose_control(EntryType.START, encode_start(start, dropped_below=dropped_below))[1]

    def _propose_control(self, kind: EntryType, payload: bytes) -> tuple[Entry, asyncio.Future[Published]]:
        """Append a control entry that leaves the log end where it is; return it and a future of its commit."""
        proposer = self._leading()
        header = self.control_header(kind, payload)
        entry = proposer.propose([EntryDraft(header=header, payload=payload)])[0]
        return entry, self._at_commit(
            entry.index, epoch=header.epoch, base_offset=header.base_offset, append_us=header.append_us
        )

    def open_epoch(
        self, epoch: Epoch, *, start: Offset, digest: bytes, control_index: int, cut: EpochCut | None = None
    ) -> asyncio.Future[Published]:
        """Append the EPOCH entry that begins a home epoch in this region's group; resolves at its commit.

        An epoch that is in the log already is not appended again: the future resolves when that entry commits.

        Args:
            digest: digest chain at `start`; entries beyond `start` become the orphan branch.
            cut: what the log says without those entries.

        Raises:
            NotLeader, Busy: nothing was appended. Fenced: the log knows a newer epoch.
        """
        proposer = self._leading()
        newest = self.epochs.newest()
        append_us = self.end.append_us
        if epoch < newest:
            raise Fenced(f"epoch {epoch} of {self.key} is older than epoch {newest} of this log")
        if epoch == newest:
            index = RaftIndex(self.epochs.index_of(epoch))
            return self._at_commit(index, epoch=epoch, base_offset=start, append_us=append_us)
        checksums = self._feature_level() >= CHECKSUM_LEVEL
        payload = encode_epoch(EpochBegun(control_index=control_index, cut=cut), checksums=checksums)
        header = control_header(
            EntryType.EPOCH, next_offset=start, epoch=epoch, append_us=append_us, digest=digest, payload=payload
        )
        entry = proposer.propose([EntryDraft(header=header, payload=payload)])[0]
        return self._at_commit(entry.index, epoch=epoch, base_offset=start, append_us=append_us)

    # --- leadership -------------------------------------------------------------------------------

    def led(self, *, leader: int, is_leader: bool) -> None:
        """Follow the leader of the group inside this region."""
        was_leader = self.is_leader
        self.leader_id = leader
        self.is_leader = is_leader
        if was_leader and not is_leader:
            self._commits.fail(RaftIndex(0))
            self.lanes.fail(NotLeader(leader=leader))
            self.held.look()
            self._wake()
        if is_leader and self.epochs.newest() < FIRST_EPOCH:
            with suppress(Busy):  # being handed over: the next leader opens it, or the first publish here
                self._open_first_epoch()
        self.on_leadership(self)

    def _open_first_epoch(self) -> None:
        self.open_epoch(FIRST_EPOCH, start=Offset(0), digest=first_digest(self.key), control_index=0)

    def close(self) -> None:
        """Stop serving: waiting publishes have an unknown outcome, waiters are woken."""
        self.is_leader = False
        self.leader_id = -1
        self._commits.fail(RaftIndex(0))
        self.lanes.fail(NotLeader())
        self.held.look()
        self._wake_at_the_end()
        self.tail.clear()
        self.unnamed.close()
