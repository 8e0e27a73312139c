"""One stream hosted by this broker: the state machine above its Raft group.

At its home the leader sequences: it stamps base offset and home epoch into the batch, continues the digest
chain and proposes ONE entry per batch. At a mirror the leader appends what the home sent, verbatim.

Rule 1: every decision is made against the log END; every answer waits for the commit.
Rule 2: readers see committed entries only.
Rule 3: fencing and contiguity are checked again when an entry is applied; a violation there is our bug and
        stops the group.
Rule 4: only a leader whose own first entry of the term is committed publishes: then its high watermark is
        not behind anything that was ever acknowledged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from georelay.clock import Clock
from georelay.errors import Busy, Fenced, NotHome, NotLeader, OutcomeUnknown
from georelay.ids import Epoch, GroupId, Offset, RaftIndex, RegionNumber, StreamKey
from georelay.wire.batch import BatchHeader, stamp
from georelay.wire.crc import crc32c
from mesh.replication.receiver_core import ApplyViolation, recheck_at_apply
from mesh.replication.stream_header import EntryType, StreamHeader, first_digest, next_digest
from region.kafka.ports import Published
from region.log.entry import Entry, EntryDraft, control_header
from region.multiraft.machine import InvariantBroken, Proposer
from region.topics.committed_tail import CommittedTail, TailBudget
from region.topics.log_end_core import EpochTable, LogEnd
from region.topics.producer_table_core import ProducerTable

log = structlog.get_logger()

FIRST_EPOCH: Final = Epoch(1)


class Stream:
    """The stream's log end, producers, epochs, committed tail and waiters on this broker."""

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
    ) -> None:
        self.key = key
        self.topic = topic
        self.partition = key.partition
        self.group_id = group_id
        self.home = home
        self.is_home = home == region
        self.region = region
        self.is_leader = False
        self.leader_id = -1
        self.log_start = Offset(0)
        self.high_watermark = Offset(0)
        self.commit_index = RaftIndex(0)
        self.end = LogEnd.empty(key)
        self.epochs = EpochTable()
        self.producers = ProducerTable()
        self.tail = CommittedTail(budget)
        self.proposer: Proposer | None = None
        self.on_committed: Callable[[Stream, Sequence[Entry]], None] = lambda _stream, _entries: None
        self.on_leadership: Callable[[Stream], None] = lambda _stream: None
        self._clock = clock
        self._pending: deque[tuple[RaftIndex, asyncio.Future[Published], Published]] = deque()
        self._waiters: dict[int, Callable[[], None]] = {}
        self._waiter_id = 0

    # --- what the services read -------------------------------------------------------------------

    @property
    def next_offset(self) -> Offset:
        """Return the log end."""
        return self.end.next_offset

    @property
    def epoch(self) -> Epoch:
        """Return the newest committed home epoch, 0 before the first."""
        return self.epochs.current(self.commit_index)

    @property
    def keeps_whole_log(self) -> bool:
        """Return False: record batches are read back from disk."""
        return False

    def add_waiter(self, callback: Callable[[], None]) -> int:
        """Call `callback` at every move of the high watermark and when leadership is lost."""
        self._waiter_id += 1
        self._waiters[self._waiter_id] = callback
        return self._waiter_id

    def remove_waiter(self, handle: int) -> None:
        """Forget a waiter."""
        self._waiters.pop(handle, None)

    def _wake(self) -> None:
        for callback in list(self._waiters.values()):
            callback()

    def epoch_end(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        """Answer OffsetForLeaderEpoch; a mirror never gives its own end for an epoch without successor."""
        known, end = self.epochs.end_of(epoch, commit_index=self.commit_index, hwm=self.high_watermark)
        if known >= FIRST_EPOCH and known == self.epoch and not self.is_home:
            return known, Offset(2**63 - 1)
        return known, end

    # --- publishing at the home -------------------------------------------------------------------

    def publish(
        self, header: BatchHeader, raw: bytes | bytearray, *, received_ns: int, entry_region: int
    ) -> asyncio.Future[Published]:
        """Append one validated batch at the home leader; the future resolves at its commit.

        Raises:
            NotLeader, NotHome, Busy, OutOfOrderSequence, ProducerFenced: not stored.
        """
        if not self.is_home:
            raise NotHome(f"the home of {self.topic} is region {self.home}", epoch=self.epoch, home=self.home)
        if not self.is_leader or self.proposer is None:
            raise NotLeader(leader=self.leader_id)
        if self.end.epoch < FIRST_EPOCH:
            self._open_first_epoch()
        count = header.record_count
        original = self.producers.check(
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            record_count=count,
        )
        if original is not None:
            return self._answer_at_commit(
                original.index,
                Published(epoch=original.home_epoch, base_offset=original.base_offset, append_us=original.append_us),
            )
        end = self.end
        batch = raw if isinstance(raw, bytearray) else bytearray(raw)
        stamp(batch, base_offset=end.next_offset, epoch=end.epoch)
        stream_header = StreamHeader(
            type=EntryType.DATA,
            entry_region=entry_region,
            record_count=count,
            epoch=end.epoch,
            base_offset=end.next_offset,
            append_us=max(self._clock.wall_ns() // 1000, end.append_us),
            received_ns=received_ns,
            max_timestamp_ms=header.max_timestamp_ms,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            payload_crc=crc32c(batch),
            digest=next_digest(
                end.digest,
                epoch=end.epoch,
                first=end.next_offset,
                last=Offset(end.next_offset + count - 1),
                batch=batch,
            ),
        )
        entry = self.proposer.propose([EntryDraft(header=stream_header, payload=batch)])[0]
        return self._answer_at_commit(
            entry.index,
            Published(epoch=end.epoch, base_offset=end.next_offset, append_us=stream_header.append_us),
        )

    def append_mirrored(self, header: StreamHeader, payload: bytes) -> None:
        """Append one entry of the home verbatim at the mirror's leader (the receiver rule has accepted it).

        Raises:
            NotLeader, Busy: nothing was appended.
        """
        if not self.is_leader or self.proposer is None:
            raise NotLeader(leader=self.leader_id)
        self.proposer.propose([EntryDraft(header=header, payload=payload)])

    def _answer_at_commit(self, index: RaftIndex, answer: Published) -> asyncio.Future[Published]:
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        if index <= self.commit_index:
            future.set_result(answer)
        elif self._pending and self._pending[-1][0] > index:
            row = next(row for row, waiting in enumerate(self._pending) if waiting[0] >= index)
            self._pending.insert(row, (index, future, answer))
        else:
            self._pending.append((index, future, answer))
        return future

    def open_epoch(
        self, epoch: Epoch, *, start: Offset, digest: bytes, control_index: int
    ) -> asyncio.Future[Published]:
        """Append the EPOCH entry that begins a home epoch in this region's group; resolves at its commit.

        An epoch that is in the log already is not appended again: the future resolves when that entry commits.

        Args:
            digest: digest chain at `start`; entries beyond `start` become the orphan branch.

        Raises:
            NotLeader, Busy: nothing was appended. Fenced: the log knows a newer epoch.
        """
        if self.proposer is None or not self.is_leader:
            raise NotLeader(leader=self.leader_id)
        newest = self.epochs.newest()
        if epoch < newest:
            raise Fenced(f"epoch {epoch} of {self.key} is older than epoch {newest} of this log")
        if epoch == newest:
            return self._answer_at_commit(
                RaftIndex(self.epochs.index_of(epoch)),
                Published(epoch=epoch, base_offset=start, append_us=self.end.append_us),
            )
        payload = control_index.to_bytes(8, "big")
        header = control_header(
            EntryType.EPOCH,
            next_offset=start,
            epoch=epoch,
            append_us=self.end.append_us,
            digest=digest,
            payload=payload,
        )
        entry = self.proposer.propose([EntryDraft(header=header, payload=payload)])[0]
        return self._answer_at_commit(
            entry.index, Published(epoch=epoch, base_offset=start, append_us=header.append_us)
        )

    # --- following the group's log ----------------------------------------------------------------

    def noop_header(self) -> StreamHeader:
        """Return the stream part of a leader's first entry."""
        end = self.end
        return control_header(
            EntryType.NOOP, next_offset=end.next_offset, epoch=end.epoch, append_us=end.append_us, digest=end.digest
        )

    def recovered(self, entry: Entry) -> None:
        """Follow one entry found on disk."""
        self.appended(entry)

    def appended(self, entry: Entry) -> None:
        """Follow one appended entry."""
        header = entry.header()
        self.end = LogEnd.after(header)
        self.epochs.appended(entry.index, header)
        self.producers.appended(entry.index, header)

    def truncated(self, from_index: RaftIndex, newest: Entry | None) -> None:
        """Forget the entries from `from_index` on; publishes that waited for them have an unknown outcome."""
        self.end = LogEnd.empty(self.key) if newest is None else LogEnd.after(newest.header())
        self.epochs.truncated(from_index)
        if not self.producers.truncated(from_index):
            assert self.proposer is not None
            self.producers.clear()
            for entry in self.proposer.entries_below(from_index):
                self.producers.appended(entry.index, entry.header())
        self._fail_pending(from_index)

    def applied(self, entries: Sequence[Entry]) -> None:
        """Move the high watermark over committed entries."""
        moved = False
        for entry in entries:
            if entry.type is EntryType.EPOCH:
                self._recheck(entry)
                # Records at or beyond the start of a new epoch become the orphan branch.
                self.high_watermark = entry.base_offset
                self.tail.cut(entry.base_offset)
                moved = True
            elif entry.record_count:
                self._recheck(entry)
                self.high_watermark = entry.next_offset
                self.tail.append(entry)
                moved = True
            self.commit_index = entry.index
        self.producers.committed(self.commit_index)
        self._answer_pending()
        if moved:
            self.on_committed(self, entries)
            self._wake()

    def applied_until(self, newest: Entry) -> None:
        """Move the high watermark over entries that are on disk only."""
        self.high_watermark = newest.next_offset
        self.commit_index = newest.index
        self.producers.committed(newest.index)
        self._answer_pending()
        self._wake()

    def _recheck(self, entry: Entry) -> None:
        """Check fencing and contiguity once more. Raises InvariantBroken."""
        header = entry.header()
        try:
            recheck_at_apply(
                kind=header.type,
                epoch=header.epoch,
                base_offset=header.base_offset,
                committed_epoch=self.epochs.current(self.commit_index),
                committed_next=self.high_watermark,
                epoch_table=self.epochs.committed(entry.index),
            )
        except ApplyViolation as error:
            raise InvariantBroken(f"{self.key}: {error}") from error

    def _answer_pending(self) -> None:
        pending = self._pending
        while pending and pending[0][0] <= self.commit_index:
            _, future, answer = pending.popleft()
            if not future.done():
                future.set_result(answer)

    def _fail_pending(self, from_index: RaftIndex) -> None:
        while self._pending and self._pending[-1][0] >= from_index:
            _, future, _ = self._pending.pop()
            if not future.done():
                future.set_exception(OutcomeUnknown("the leader changed before the batch was committed"))
                future.exception()  # that nobody waits for it any more is no error

    def led(self, *, leader: int, is_leader: bool) -> None:
        """Follow the leader of the group inside this region."""
        was_leader = self.is_leader
        self.leader_id = leader
        self.is_leader = is_leader
        if was_leader and not is_leader:
            self._fail_pending(RaftIndex(0))
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
        self._fail_pending(RaftIndex(0))
        self._wake()
        self.tail.clear()
