"""What one broker knows about a stream from its group's log alone: the state machine above the Raft group.

Rule 1: the end follows every entry at once; readers see committed entries only.
Rule 2: fencing and contiguity are checked again when an entry is applied; a violation there is our bug and stops the
        group.
Rule 3: everything here is a function of the log: `restore` of a snapshot and the entries above it give the same as
        all entries from the first. A snapshot is of the APPLIED index, whatever is appended above it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from georelay.errors import CorruptRecordBatch
from georelay.ids import NO_PRODUCER, Epoch, GroupId, Offset, RaftIndex, RegionNumber, StreamKey
from georelay.wire.control_batch import parse_marker
from georelay.wire.header import TRANSACTIONAL
from mesh.replication.receiver_core import ApplyViolation, recheck_at_apply
from mesh.replication.stream_header import OWNS_OFFSETS, EntryType, StreamHeader
from region.controller.topic import INTERNAL_PREFIX
from region.geo.stream_geo import StreamGeo
from region.log.entry import ENTRY_HEADER_BYTES, Entry, control_header
from region.multiraft.machine import InvariantBroken, Proposer
from region.topics.commit_waiters import CommitWaiters
from region.topics.committed_tail import CommittedTail, TailBudget
from region.topics.epoch_entry_core import EpochBegun, decode_epoch
from region.topics.fence_core import Fence, FenceBook, decode_promise, decode_seal
from region.topics.log_bounds_core import LogBounds
from region.topics.log_end_core import EpochTable, LogEnd
from region.topics.log_start_core import LogStart, decode_dropped, decode_start
from region.topics.orphan_core import OrphanBook, OrphanBranch, branch_epochs
from region.topics.producer_table_core import NO_CHECKSUM, ProducerTable, Row
from region.topics.skip_core import decode_skip
from region.topics.stream_state import FIRST_LEVEL, StreamState
from region.topics.transaction_table_core import AbortedTransaction, Change, Kind, TransactionTable
from region.topics.unnamed_core import UnnamedRanges

log = structlog.get_logger()

_ATTRIBUTES_AT: Final = ENTRY_HEADER_BYTES + 22  # low byte of a batch's attributes in the frame of its entry
_CHECKSUM: Final = struct.Struct(">I")
_CHECKSUM_AT: Final = ENTRY_HEADER_BYTES + 17


class StateAt(Protocol):
    """The state of a stream at one index (region.log.manifest.Manifest)."""

    @property
    def index(self) -> RaftIndex:
        """Index of the last entry that the state includes."""

    @property
    def state(self) -> bytes:
        """What `snapshot` returned at that index."""


class FollowedLog:
    """Log end, producers, transactions, epochs, bounds, committed tail and waiters of one stream."""

    def __init__(
        self,
        *,
        key: StreamKey,
        topic: str,
        group_id: GroupId,
        home: RegionNumber,
        region: RegionNumber,
        budget: TailBudget,
        feature_level: Callable[[], int] = lambda: FIRST_LEVEL,
    ) -> None:
        """`feature_level` is this region's now: what is written in its terms is read by all of its brokers."""
        self._feature_level = feature_level
        self.key = key
        self.topic = topic
        self.partition = key.partition
        self.group_id = group_id
        self.home = home
        self.is_home = home == region
        self.region = region
        self.is_leader = False
        self.leader_id = -1
        self.high_watermark = Offset(0)
        self.commit_index = RaftIndex(0)
        self.end = LogEnd.empty(key)
        self.applied_end = self.end
        self.epochs = EpochTable()
        self.producers = ProducerTable()
        self.transactions = TransactionTable()
        self.bounds = LogBounds(key)
        self.fences = FenceBook()
        self.orphan_book = OrphanBook()
        self.tail = CommittedTail(budget)
        self.unnamed = UnnamedRanges(budget.ranges)
        self.proposer: Proposer | None = None
        self.geo: StreamGeo | None = None
        self._commits = CommitWaiters()
        self._waiters: dict[int, Callable[[], None]] = {}
        self._waiter_id = 0
        self._base = (RaftIndex(0), b"")  # (index, state) from which a rebuild begins

    # --- what the services read -------------------------------------------------------------------

    @property
    def next_offset(self) -> Offset:
        """Return the log end."""
        return self.end.next_offset

    @property
    def start(self) -> LogStart:
        """Return where the log begins."""
        return self.bounds.start

    @property
    def log_start(self) -> Offset:
        """Return the first offset that readers may ask for."""
        return self.bounds.start.offset

    @property
    def visible_end(self) -> Offset:
        """Return the first offset that consumers are not shown: the high watermark, or what enough regions have."""
        return self.high_watermark if self.geo is None else self.geo.visible_end

    @property
    def is_visible_end_known(self) -> bool:
        """Return whether this replica knows what enough regions have; else the leader of the region does."""
        return self.geo is None or self.geo.is_visible_end_known

    @property
    def has_open_transactions(self) -> bool:
        """Return whether records below the log end belong to transactions whose marker is not in the log."""
        return bool(self.transactions.end.ongoing)

    @property
    def last_stable_offset(self) -> Offset:
        """Return the end for readers of committed records: everything below it is decided. log start..visible end.

        A transaction is undecided while its marker is not below the VISIBLE end: what fewer regions have than the topic
        asks for may be decided otherwise by another home. One whose first records retention has deleted holds readers
        at the log start, as in Kafka.
        """
        return max(self.transactions.stable_before(self.visible_end), self.log_start)

    @property
    def is_last_stable_known(self) -> bool:
        """Return whether the last stable offset is where the decided records end.

        After a restart it is not while the visible end lies below what was committed then, and transactions ended below
        that: nobody knows which of them were open there. Readers wait, and who asks where the end is asks again.
        """
        end = self.visible_end
        return end <= self.log_start or self.transactions.knows_stable_before(end)

    def aborted_between(self, first: Offset, following: Offset) -> list[AbortedTransaction]:
        """Return the aborted transactions that have records in first..following - 1, in the order of their markers.

        Below the last stable offset all of them are aborted for every region that is counted; above it nobody asks.
        """
        return self.transactions.aborted_between(first, following)

    @property
    def skipped_records(self) -> int:
        """Return how many records this mirror had to give up because its home no longer stored them."""
        return self.bounds.skipped_records

    @property
    def epoch(self) -> Epoch:
        """Return the newest committed home epoch, 0 before the first."""
        return self.epochs.current(self.commit_index)

    @property
    def keeps_whole_log(self) -> bool:
        """Return False: record batches are read back from disk."""
        return False

    @property
    def serves_at_followers(self) -> bool:
        """Return False: who publishes, fetches or mirrors asks the leader."""
        return False

    def add_waiter(self, callback: Callable[[], None]) -> int:
        """Call `callback` when high watermark or log start move and when leadership is lost."""
        self._waiter_id += 1
        self._waiters[self._waiter_id] = callback
        return self._waiter_id

    def remove_waiter(self, handle: int) -> None:
        """Forget a waiter."""
        self._waiters.pop(handle, None)

    def wake_readers(self) -> None:
        """Let everybody who waits for records look again: more of them may be shown."""
        self._wake()

    def _wake(self) -> None:
        for callback in list(self._waiters.values()):
            callback()

    def _wake_at_the_end(self) -> None:
        """Wake everybody for the last time: one that fails then, and may be why this ends, keeps nobody from it."""
        for callback in list(self._waiters.values()):
            try:
                callback()
            except Exception:
                log.exception("stream.reader_failed", stream=str(self.key))

    # --- state as bytes ---------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Return the state at the applied index: equal bytes on every replica at equal index."""
        state = StreamState(
            end=self.applied_end,
            start=self.bounds.start,
            skipped_records=self.bounds.skipped_records,
            newest=self.bounds.newest,
            epochs=tuple(self.epochs.indexed(self.commit_index)),
            producers=tuple(self.committed_producers()),
            transactions=self.transactions.rows(log_start=self.log_start, append_us=self.applied_end.append_us),
            fences=self.fences.committed,
            orphans=self.orphan_book.committed,
        ).encode(feature_level=self._feature_level())
        self._base = (self.commit_index, state)
        return state

    def committed_producers(self) -> list[Row]:
        """Return the producer states at the applied index, in the order of their last append, without the expired."""
        table = self.producers
        if not table.tells(self.commit_index):  # more was appended above it than can be taken back
            table = self._producers_below(RaftIndex(self.commit_index + 1))
        return table.rows_at(self.commit_index, self.applied_end.append_us)

    def restore(self, manifest: StateAt) -> None:
        """Replace everything with the state at `manifest.index`: nothing is known above it.

        Raises:
            InvariantBroken: not a state of a stream, or of a newer version.
        """
        try:
            state = StreamState.decode(manifest.state)
        except ValueError as error:
            raise InvariantBroken(f"{self.key}: the state at index {manifest.index}: {error}") from error
        self._commits.fail(RaftIndex(0))
        self.end = self.applied_end = state.end
        self.high_watermark = state.end.next_offset
        self.commit_index = manifest.index
        self.epochs.restore(state.epochs)
        self.producers.restore(manifest.index, state.producers)
        self.transactions.restore(state.transactions, end=state.end.next_offset)
        self.fences.restore(state.fences)
        self.orphan_book.restore(state.orphans)
        self._base = (manifest.index, manifest.state)
        self.bounds.restore(start=state.start, newest=state.newest, skipped_records=state.skipped_records)
        self.tail.clear()
        self.unnamed.clear()
        self._wake()

    # --- following the group's log ----------------------------------------------------------------

    def noop_header(self) -> StreamHeader:
        """Return the stream part of a leader's first entry."""
        return self.control_header(EntryType.NOOP)

    def control_header(self, kind: EntryType, payload: bytes = b"") -> StreamHeader:
        """Return the stream part of a control entry that leaves the log end where it is."""
        end = self.end
        return control_header(
            kind,
            next_offset=end.next_offset,
            epoch=end.epoch,
            append_us=end.append_us,
            digest=end.digest,
            payload=payload,
        )

    def recovered(self, entry: Entry) -> None:
        """Follow one entry found on disk."""
        self.appended(entry)
        if not self.topic.startswith(INTERNAL_PREFIX):  # what brokers write for themselves is never named
            self.unnamed.recovered(entry)

    def appended(self, entry: Entry) -> None:
        """Follow one appended entry. Raises InvariantBroken: a control entry that makes no sense."""
        header = entry.header()
        previous_next = self.end.next_offset
        self.end = LogEnd.after(header)
        if header.type in OWNS_OFFSETS:
            self.bounds.batch_appended(entry.index, header)
            self.producers.appended(entry.index, header, checksum_of(entry))
            if header.type is EntryType.TXN_MARKER or (
                header.producer_id != NO_PRODUCER and entry.frame[_ATTRIBUTES_AT] & TRANSACTIONAL
            ):
                self._follow_transaction(entry, header)
            return
        try:
            self._follow_control(entry, header, previous_next)
        except ValueError as error:
            raise InvariantBroken(f"{self.key}: entry {entry.index}: {error}") from error

    def _follow_control(self, entry: Entry, header: StreamHeader, previous_next: Offset) -> None:
        """Follow an entry that owns no offsets. Raises ValueError: it makes no sense."""
        index = entry.index
        keeps_entries = bool(self.orphan_book.end)
        self.bounds.control_appended(
            index, header, entry.payload, previous_next=previous_next, keeps_entries=keeps_entries
        )
        match header.type:
            case EntryType.EPOCH:
                self._follow_epoch(index, header, decode_epoch(entry.payload), previous_next)
            case EntryType.SKIP:
                skipped = decode_skip(entry.payload, index=index)
                self.epochs.skipped(index, skipped.epochs)
                self.producers.skipped(index, skipped.producers)
                self.transactions.appended(Change(index, Kind.FORGET, header.base_offset, header.append_us))
                self.fences.begun(index, self.epochs.newest())
            case EntryType.START:
                start = decode_start(entry.payload)
                is_kept = start.offset <= header.base_offset  # else the log was cut below it: the bounds stay, too
                self.orphan_book.start_moved(
                    index,
                    stored_from=start.first_index if is_kept else RaftIndex(0),
                    dropped_below=decode_dropped(entry.payload),
                )
            case EntryType.PROMISE:
                epoch = decode_promise(entry.payload)
                self.fences.promised(Fence(new_epoch=epoch, index=index, end=header.base_offset, digest=header.digest))
            case EntryType.SEAL:
                epoch, move_id = decode_seal(entry.payload)
                self.fences.sealed(
                    Fence(new_epoch=epoch, index=index, end=header.base_offset, digest=header.digest, move_id=move_id)
                )
            case _:
                pass  # NOOP and CONF say nothing about the stream

    def _follow_epoch(self, index: RaftIndex, header: StreamHeader, begun: EpochBegun, previous_next: Offset) -> None:
        """Begin an epoch: what lies at or beyond its start becomes an orphan branch, and so does what it taught."""
        start, states = header.base_offset, None if begun.cut is None else begun.cut.states
        if start < previous_next:
            self.orphan_book.cut(
                OrphanBranch(
                    epoch=header.epoch,
                    first=start,
                    following=previous_next,
                    first_index=index if begun.cut is None else begun.cut.first_index,
                    cut_index=index,
                    cut_us=header.append_us,
                    epochs=branch_epochs(self.epochs.rows(), first=start),
                )
            )
            follow_cut(self.producers, index, start, begun)
        self.epochs.appended(index, header)
        self.fences.begun(index, header.epoch)
        below = None if states is None else states.transactions
        self.transactions.appended(Change(index, Kind.CUT, start, header.append_us, below=below))

    def _follow_transaction(self, entry: Entry, header: StreamHeader) -> None:
        kind, producer_id, epoch, number = Kind.OPEN, header.producer_id, header.producer_epoch, -1
        if header.type is EntryType.TXN_MARKER:
            try:
                marker = parse_marker(entry.payload)
            except CorruptRecordBatch as error:
                raise InvariantBroken(f"{self.key}: entry {entry.index} is no marker: {error}") from error
            kind = Kind.COMMIT if marker.is_commit else Kind.ABORT
            producer_id, epoch, number = marker.producer_id, marker.producer_epoch, marker.coordinator_epoch
        self.transactions.appended(
            Change(entry.index, kind, header.base_offset, header.append_us, producer_id, epoch, number)
        )

    def truncated(self, from_index: RaftIndex, newest: Entry | None) -> None:
        """Forget the entries from `from_index` on; publishes that waited for them have an unknown outcome."""
        # Without an entry before it, everything before it is applied: nothing committed is ever truncated.
        self.end = self.applied_end if newest is None else LogEnd.after(newest.header())
        self.epochs.truncated(from_index)
        self.bounds.truncated(from_index)
        self.transactions.truncated(from_index)
        self.fences.truncated(from_index)
        self.orphan_book.truncated(from_index)
        self.unnamed.truncated(from_index, newest)
        if not self.producers.truncated(from_index):
            self.producers = self._producers_below(from_index)
        self._commits.fail(from_index)

    def _producers_below(self, index: RaftIndex) -> ProducerTable:
        """Return the producer states before entry `index`, made anew from the log."""
        assert self.proposer is not None
        base, state = self._base
        table = ProducerTable()
        known = StreamState.decode(state) if state else None
        table.restore(base, () if known is None else known.producers)
        end = Offset(0) if known is None else known.end.next_offset
        for entry in self.proposer.entries_below(index):
            if entry.index > base:
                if entry.type is EntryType.SKIP:
                    table.skipped(entry.index, decode_skip(entry.payload, index=entry.index).producers)
                elif entry.type is EntryType.EPOCH and entry.base_offset < end:
                    follow_cut(table, entry.index, entry.base_offset, decode_epoch(entry.payload))
                table.appended(entry.index, entry.header(), checksum_of(entry))
                end = entry.next_offset
        table.committed(self.commit_index, self.applied_end.append_us)
        return table

    def applied(self, entries: Sequence[Entry]) -> None:
        """Move the high watermark over committed entries."""
        moved = False
        for entry in entries:
            moved = self._apply(entry) or moved
            self.commit_index = entry.index
        self._settle(entries[-1])
        if moved:
            self._end_moved(entries)
            self._wake()

    def _end_moved(self, entries: Sequence[Entry]) -> None:
        """Committed entries moved the high watermark."""

    def _apply(self, entry: Entry) -> bool:
        """Apply one entry; return whether readers see another end."""
        if entry.record_count:
            self._recheck(entry)
            self.high_watermark = entry.next_offset
            self.tail.append(entry)
            return True
        if entry.type is EntryType.EPOCH:
            self._recheck(entry)
            # Records at or beyond the start of a new epoch become the orphan branch.
            self.high_watermark = entry.base_offset
            self.tail.cut(entry.base_offset)
            return True
        if entry.type is EntryType.SKIP:
            self._recheck(entry)
            self._note_skip(self.high_watermark, entry.base_offset)
            self.high_watermark = entry.base_offset
            self.tail.clear()
            return True
        return False

    def _note_skip(self, first: Offset, following: Offset) -> None:
        log.error(
            "mirror.records_skipped",
            stream=str(self.key),
            topic=self.topic,
            first=first,
            last=following - 1,
            records=following - first,
        )

    def applied_until(self, newest: Entry) -> None:
        """Move the high watermark over entries that are on disk only."""
        self.high_watermark = newest.next_offset
        self.commit_index = newest.index
        self._settle(newest)
        self._wake()

    def _settle(self, newest: Entry) -> None:
        """Let everything up to `newest`, now committed, take effect."""
        self.applied_end = LogEnd.after(newest.header())
        self.producers.committed(newest.index, self.applied_end.append_us)
        self.transactions.commit(newest.index, self.applied_end.append_us)
        start_moved = self.bounds.commit(newest.index)
        fenced = self.fences.commit(newest.index)
        self.orphan_book.commit(newest.index)
        self._acknowledge(newest.index)
        if start_moved:
            self.transactions.drop_below(self.log_start)
            self.tail.drop_below(self.start.boundary)
            if self.proposer is not None:  # else it is told at the next look of retention
                self.proposer.advance_start(self.start.first_index)
        if start_moved or fenced:
            self._wake()

    def _acknowledge(self, index: RaftIndex) -> None:
        """Answer who waited for the commit of what is at or below `index`."""
        self._commits.committed(index)

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
                seal=self._sealed_at(entry.index),
            )
        except ApplyViolation as error:
            raise InvariantBroken(f"{self.key}: {error}") from error

    def _sealed_at(self, index: RaftIndex) -> Epoch:
        """Return the epoch that a SEAL before entry `index` waits for, 0 without one."""
        seal = self.fences.at(index).seal
        return Epoch(0) if seal is None else seal.new_epoch


def checksum_of(entry: Entry) -> int:
    """Return the checksum in the header of an entry's record batch, NO_CHECKSUM where it holds none."""
    if not entry.record_count or len(entry.frame) < _CHECKSUM_AT + _CHECKSUM.size:
        return NO_CHECKSUM
    return int(_CHECKSUM.unpack_from(entry.frame, _CHECKSUM_AT)[0])


def follow_cut(table: ProducerTable, index: RaftIndex, start: Offset, begun: EpochBegun) -> None:
    """Let a producer table forget what the records from `start` on taught."""
    if begun.cut is None or begun.cut.states is None:
        table.cut(index, start)
    else:
        table.skipped(index, begun.cut.states.producers)
