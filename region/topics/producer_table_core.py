"""Deduplication by (producer id, producer epoch, sequence) against the END of one stream's log.

Rule 1: the table follows the log end, not the high watermark: a retry that overtakes the commit of its
        original is a duplicate all the same.
Rule 2: what is truncated is forgotten: every change above the commit can be undone, newest first.
Rule 3: it is a function of the log alone, so that all replicas agree at equal index.
Rule 4: bounded: the producer that published least recently is evicted at PRODUCERS_PER_STREAM_MAX.
Rule 5: a state whose newest batch is older than PRODUCER_EXPIRY_MS does not exist. The clock is the append time in
        the log, never a broker's own, so that replicas and regions agree; it is only dropped from memory once the
        append that makes it too old is committed.

A producer that is unknown must begin with sequence 0: accepting any first sequence would let the second
of two pipelined batches in when the first was refused. (Kafka: KIP-98, KIP-360.)
"""

from __future__ import annotations

import itertools
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from georelay.errors import OutOfOrderSequence, ProducerFenced, UnknownProducer
from georelay.ids import NO_PRODUCER, Epoch, Offset, RaftIndex
from georelay.limits import PRODUCER_BATCHES_REMEMBERED, PRODUCERS_PER_STREAM_MAX
from mesh.replication.stream_header import StreamHeader

NO_EPOCH: Final = Epoch(0)
SEQUENCE_MODULUS: Final = 2**31  # sequences are non-negative int32 and wrap to 0
PRODUCER_EXPIRY_MS: Final = 24 * 60 * 60 * 1000
NO_CHECKSUM: Final = -1  # of a batch from a state that was written before checksums were kept: any is taken for its own
DISPUTED_MAX: Final = 1_000  # producers whose sequences others used; the oldest is forgotten
UNDO_MAX: Final = 65_536  # changes above the commit that can be undone; a deeper truncation rebuilds the table


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """One batch of a producer as it stands in the log."""

    base_sequence: int
    last_sequence: int
    base_offset: Offset
    index: RaftIndex
    append_us: int
    home_epoch: Epoch  # in which it was sequenced: a later duplicate is answered with it
    checksum: int = NO_CHECKSUM  # CRC-32C in the batch's header, over all that its producer made


BATCH_LAYOUT: Final = struct.Struct(">iiqQqIq")  # the fields of an AppendedBatch, in order
_LAST_SEQUENCE: Final = struct.Struct(">i")
_NEWEST: Final = struct.Struct(">qQqIq")  # from the base offset to the end of a batch
_APPEND_US: Final = struct.Struct(">qIq")  # from the append time to the end of a batch
_HOME_EPOCH: Final = struct.Struct(">Iq")


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The newest batches of one producer id, oldest first, packed as they stand in a stream's state.

    Thousands of producers publish to a stream: packed they take a tenth of the memory, and taking the state of the
    stream is a copy.
    """

    epoch: int
    packed: bytes

    @classmethod
    def of(cls, epoch: int, batches: Iterable[AppendedBatch]) -> ProducerState:
        """Return the state with these batches."""
        return cls(epoch, b"".join(map(pack_batch, batches)))

    @property
    def batches(self) -> tuple[AppendedBatch, ...]:
        """Return the batches, oldest first."""
        return tuple(
            AppendedBatch(base, last, Offset(offset), RaftIndex(index), append_us, Epoch(epoch), checksum)
            for base, last, offset, index, append_us, epoch, checksum in BATCH_LAYOUT.iter_unpack(self.packed)
        )

    @property
    def last_sequence(self) -> int:
        """Return the sequence of the last record of the newest batch."""
        position = len(self.packed) - BATCH_LAYOUT.size + _LAST_SEQUENCE.size
        return int(_LAST_SEQUENCE.unpack_from(self.packed, position)[0])

    @property
    def newest_home_epoch(self) -> Epoch:
        """Return the home epoch in which the newest batch was sequenced."""
        return Epoch(_HOME_EPOCH.unpack_from(self.packed, len(self.packed) - _HOME_EPOCH.size)[0])

    @property
    def newest_append_us(self) -> int:
        """Return the append time of the newest batch."""
        return int(_APPEND_US.unpack_from(self.packed, len(self.packed) - _APPEND_US.size)[0])


def pack_batch(batch: AppendedBatch) -> bytes:
    """Return the fields of a batch as bytes."""
    return BATCH_LAYOUT.pack(
        batch.base_sequence,
        batch.last_sequence,
        batch.base_offset,
        batch.index,
        batch.append_us,
        batch.home_epoch,
        batch.checksum,
    )


Row = tuple[int, ProducerState]
_KEPT_BYTES: Final = (PRODUCER_BATCHES_REMEMBERED - 1) * BATCH_LAYOUT.size


@dataclass(frozen=True, slots=True)
class _Change:
    """How to take back one append: the producer's state before it, and whom it evicted."""

    index: RaftIndex
    producer_id: int
    before: ProducerState | None
    evicted: Row | None


@dataclass(frozen=True, slots=True)
class _Replacement:
    """How to take back a SKIP entry: everything before it."""

    index: RaftIndex
    before: OrderedDict[int, ProducerState]


def last_sequence(base_sequence: int, record_count: int) -> int:
    """Return the sequence of the last record of a batch."""
    return (base_sequence + record_count - 1) % SEQUENCE_MODULUS


def _may_jump(state: ProducerState, base_sequence: int, expected: int, jumps_in: Epoch) -> bool:
    """Return whether a producer that lived before epoch `jumps_in` may leave sequences out: forward only."""
    is_forward = 0 < (base_sequence - expected) % SEQUENCE_MODULUS < SEQUENCE_MODULUS // 2
    return is_forward and state.newest_home_epoch < jumps_in


class ProducerTable:
    """Producer states of one stream at its log end."""

    def __init__(self, *, producers_max: int = PRODUCERS_PER_STREAM_MAX, expiry_ms: int = PRODUCER_EXPIRY_MS) -> None:
        self._states: OrderedDict[int, ProducerState] = OrderedDict()  # least recent first
        self._undo: deque[_Change | _Replacement] = deque()
        self._producers_max = producers_max
        self._expiry_us = expiry_ms * 1000
        self._undo_floor = RaftIndex(0)  # changes at or below it can no longer be undone
        self._order_is_stale = False  # an undo puts a producer back at the wrong end
        self._disputed: OrderedDict[int, int] = OrderedDict()  # producer id -> newest epoch of it that was refused

    def __len__(self) -> int:
        return len(self._states)

    def check(
        self,
        *,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        record_count: int,
        checksum: int,
        append_us: int,
        jumps_in: Epoch = NO_EPOCH,
        restamped: Callable[[int], Collection[int]] = lambda _append_us: (),
    ) -> AppendedBatch | None:
        """Decide whether a batch continues its producer's sequence.

        Args:
            checksum: CRC-32C in the header of the batch.
            append_us: append time the batch would get.
            jumps_in: the home epoch, when it began with a loss of records: a producer whose batches are all older may
                jump forward once, because what it published in between may be gone.
            restamped: checksums that the batch has in a log where it was appended at such a time, in us, if the home
                writes anything of it anew.

        Returns:
            None to append it; the original batch when it is a duplicate.

        Raises:
            ProducerFenced: a newer epoch of the producer has published.
            OutOfOrderSequence: a gap, or a duplicate older than the batches remembered.
            UnknownProducer: the producer is not in the table, or expired, and does not begin with 0; or another batch
                stands in the log under the sequence of this one, or of one before it.
        """
        if producer_id == NO_PRODUCER:
            return None
        state = self._alive(self._states.get(producer_id), append_us)
        if state is not None and epoch < state.epoch:
            raise ProducerFenced(
                f"producer {producer_id} epoch {epoch} is older than {state.epoch}: start a new producer"
            )
        if state is None and base_sequence != 0:
            raise UnknownProducer(
                f"producer {producer_id} is unknown here and sent sequence {base_sequence}: start a new producer"
            )
        if state is None or epoch > state.epoch:
            if base_sequence != 0:
                raise OutOfOrderSequence(
                    f"producer {producer_id} epoch {epoch} starts with sequence {base_sequence}, 0 was expected"
                )
            return None
        last = last_sequence(base_sequence, record_count)
        expected = (state.last_sequence + 1) % SEQUENCE_MODULUS
        for batch in state.batches if base_sequence != expected else ():
            if batch.base_sequence == base_sequence and batch.last_sequence == last:
                if batch.checksum not in (checksum, NO_CHECKSUM, *restamped(batch.append_us)):
                    raise self._dispute(producer_id, epoch, base_sequence)
                return batch
        if epoch <= self._disputed.get(producer_id, -1):
            raise UnknownProducer(
                f"producer {producer_id} epoch {epoch} was refused: others use its sequences; start a new producer"
            )
        if base_sequence != expected and not _may_jump(state, base_sequence, expected, jumps_in):
            raise OutOfOrderSequence(
                f"producer {producer_id} epoch {epoch} sent sequence {base_sequence}, {expected} was expected"
            )
        return None

    def _dispute(self, producer_id: int, epoch: int, base_sequence: int) -> UnknownProducer:
        """Note that somebody else published as this producer, and return what it is told."""
        self._disputed[producer_id] = epoch
        if len(self._disputed) > DISPUTED_MAX:
            self._disputed.popitem(last=False)
        return UnknownProducer(
            f"another batch is stored under sequence {base_sequence} of producer {producer_id} epoch {epoch}, "
            "this one is not: start a new producer"
        )

    def is_jump(self, *, producer_id: int, epoch: int, base_sequence: int) -> bool:
        """Return whether a batch that may be appended leaves out sequences of its producer."""
        state = self._states.get(producer_id)
        known = state is not None and state.epoch == epoch
        return state is not None and known and base_sequence != (state.last_sequence + 1) % SEQUENCE_MODULUS

    def _alive(self, state: ProducerState | None, append_us: int) -> ProducerState | None:
        if state is None or append_us - state.newest_append_us > self._expiry_us:
            return None
        return state

    # --- following the log ------------------------------------------------------------------------

    def appended(self, index: RaftIndex, header: StreamHeader, checksum: int) -> None:
        """Follow one entry that was appended at `index` (entries without a producer change nothing).

        Args:
            checksum: CRC-32C in the header of its batch.
        """
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER:
            return
        before = self._states.pop(producer_id, None)
        batch = BATCH_LAYOUT.pack(
            header.base_sequence,
            last_sequence(header.base_sequence, header.record_count),
            header.base_offset,
            index,
            header.append_us,
            header.epoch,
            checksum,
        )
        known = self._alive(before, header.append_us)
        kept = known.packed[-_KEPT_BYTES:] if known is not None and known.epoch == header.producer_epoch else b""
        self._states[producer_id] = ProducerState(header.producer_epoch, kept + batch)
        evicted = self._evict() if len(self._states) > self._producers_max else None
        self._note(_Change(index, producer_id, before, evicted))

    def skipped(self, index: RaftIndex, rows: Iterable[Row]) -> None:
        """Follow one appended SKIP entry: the states are those that it brings."""
        self._sort()
        before, self._states = self._states, OrderedDict(rows)
        self._note(_Replacement(index, before))

    def cut(self, index: RaftIndex, start: Offset) -> None:
        """Follow an appended entry that cuts off everything from `start` on, and does not say what was before.

        A producer keeps the batches below `start` that are still known; one without any is forgotten.
        """
        kept: list[Row] = []
        is_changed = False
        self._sort()
        for producer_id, state in self._states.items():
            batches = tuple(batch for batch in state.batches if batch.base_offset < start)
            is_changed = is_changed or len(batches) * BATCH_LAYOUT.size != len(state.packed)
            if batches:
                kept.append((producer_id, ProducerState.of(state.epoch, batches)))
        if is_changed:
            self.skipped(index, sorted(kept, key=_last_append))

    def _note(self, change: _Change | _Replacement) -> None:
        self._undo.append(change)
        if len(self._undo) > UNDO_MAX:
            self._undo_floor = self._undo.popleft().index

    def truncated(self, from_index: RaftIndex) -> bool:
        """Undo every change at or above `from_index`.

        Returns:
            False when changes that deep were already forgotten: the caller must rebuild from the log.
        """
        if from_index <= self._undo_floor:
            return False
        while self._undo and self._undo[-1].index >= from_index:
            self._take_back(self._undo.pop())
        return True

    def _take_back(self, change: _Change | _Replacement) -> None:
        if isinstance(change, _Replacement):
            self._states = OrderedDict(change.before)
            return
        self._states.pop(change.producer_id, None)
        if change.before is not None:
            self._states[change.producer_id] = change.before
        if change.evicted is not None:
            self._states[change.evicted[0]] = change.evicted[1]
        self._order_is_stale = True

    def _evict(self) -> Row:
        self._sort()
        return self._states.popitem(last=False)

    def _sort(self) -> None:
        """Order the producers by their last append again, after an undo."""
        if self._order_is_stale:
            self._states = OrderedDict(sorted(self._states.items(), key=_last_append))
            self._order_is_stale = False

    def committed(self, index: RaftIndex, append_us: int) -> None:
        """Forget how to undo what is committed up to `index`, and who expired by then: it is never truncated.

        Args:
            append_us: append time of the entry at `index`.
        """
        while self._undo and self._undo[0].index <= index:
            self._undo.popleft()
        self._undo_floor = max(self._undo_floor, index)
        oldest_us = append_us - self._expiry_us
        if not self._states or next(iter(self._states.values())).newest_append_us >= oldest_us:
            return
        self._sort()
        for producer_id, state in list(self._states.items()):
            if state.newest_append_us >= oldest_us:
                break
            del self._states[producer_id]

    # --- the whole table --------------------------------------------------------------------------

    def restore(self, index: RaftIndex, rows: Iterable[Row]) -> None:
        """Replace everything with the states at `index`, which is committed."""
        self._states = OrderedDict(rows)
        self._undo.clear()
        self._undo_floor = index
        self._order_is_stale = False

    def tells(self, index: RaftIndex) -> bool:
        """Return whether every change above `index` can be taken back: only then `rows_at` knows the states there."""
        return index >= self._undo_floor

    def rows_at(self, index: RaftIndex, append_us: int) -> list[Row]:
        """Return the states as they were at `index`, in the order of their last append, without the expired.

        Args:
            index: not below what is committed, and one that the table `tells`.
            append_us: append time of the entry at `index`.
        """
        assert self.tells(index), (index, self._undo_floor)
        copy = ProducerTable(producers_max=self._producers_max)
        copy._states = OrderedDict(self._states)
        copy._order_is_stale = self._order_is_stale
        for change in reversed(self._undo):
            if change.index <= index:
                break
            copy._take_back(change)
        copy._sort()
        rows = iter(copy._states.items())
        # The expired stand at the front: append times never go back.
        return [*itertools.dropwhile(lambda row: self._alive(row[1], append_us) is None, rows)]

    def snapshot(self) -> dict[int, ProducerState]:
        """Return a copy, for comparison between replicas."""
        return dict(self._states)


def _last_append(row: Row) -> tuple[int, int]:
    packed = row[1].packed
    base_offset, index, _, _, _ = _NEWEST.unpack_from(packed, len(packed) - _NEWEST.size)
    return index, base_offset  # states that one SKIP entry brought share its index
