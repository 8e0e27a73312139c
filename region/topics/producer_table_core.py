"""Deduplication by (producer id, producer epoch, sequence) against the END of one stream's log.

Rule 1: the table follows the log end, not the high watermark: a retry that overtakes the commit of its
        original is a duplicate all the same.
Rule 2: what is truncated is forgotten: every change above the commit can be undone, newest first.
Rule 3: it is a function of the log alone, so that all replicas agree at equal index.
Rule 4: bounded: the producer that published least recently is evicted at PRODUCERS_PER_STREAM_MAX.

A producer that is unknown must begin with sequence 0: accepting any first sequence would let the second
of two pipelined batches in when the first was refused. (Kafka: KIP-98, KIP-360.)
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

from georelay.errors import OutOfOrderSequence, ProducerFenced, UnknownProducer
from georelay.ids import NO_PRODUCER, Epoch, Offset, RaftIndex
from georelay.limits import PRODUCER_BATCHES_REMEMBERED, PRODUCERS_PER_STREAM_MAX
from mesh.replication.stream_header import StreamHeader

SEQUENCE_MODULUS: Final = 2**31  # sequences are non-negative int32 and wrap to 0
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


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The newest batches of one producer id, oldest first."""

    epoch: int
    batches: tuple[AppendedBatch, ...]


def last_sequence(base_sequence: int, record_count: int) -> int:
    """Return the sequence of the last record of a batch."""
    return (base_sequence + record_count - 1) % SEQUENCE_MODULUS


class ProducerTable:
    """Producer states of one stream at its log end."""

    def __init__(self, *, producers_max: int = PRODUCERS_PER_STREAM_MAX) -> None:
        self._states: OrderedDict[int, ProducerState] = OrderedDict()  # least recent first
        self._undo: deque[tuple[RaftIndex, int, ProducerState | None, tuple[int, ProducerState] | None]] = deque()
        self._producers_max = producers_max
        self._undo_floor = RaftIndex(0)  # changes at or below it can no longer be undone
        self._order_is_stale = False  # an undo puts a producer back at the wrong end

    def __len__(self) -> int:
        return len(self._states)

    def check(self, *, producer_id: int, epoch: int, base_sequence: int, record_count: int) -> AppendedBatch | None:
        """Decide whether a batch continues its producer's sequence.

        Returns:
            None to append it; the original batch when it is a duplicate.

        Raises:
            ProducerFenced: a newer epoch of the producer has published.
            OutOfOrderSequence: a gap, or a duplicate older than the batches remembered.
            UnknownProducer: the producer is not in the table and does not begin with 0.
        """
        if producer_id == NO_PRODUCER:
            return None
        state = self._states.get(producer_id)
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
        for batch in state.batches:
            if batch.base_sequence == base_sequence and batch.last_sequence == last:
                return batch
        expected = (state.batches[-1].last_sequence + 1) % SEQUENCE_MODULUS
        if base_sequence != expected:
            raise OutOfOrderSequence(
                f"producer {producer_id} epoch {epoch} sent sequence {base_sequence}, {expected} was expected"
            )
        return None

    def appended(self, index: RaftIndex, header: StreamHeader) -> None:
        """Follow one entry that was appended at `index` (entries without a producer change nothing)."""
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER:
            return
        before = self._states.pop(producer_id, None)
        batch = AppendedBatch(
            header.base_sequence,
            last_sequence(header.base_sequence, header.record_count),
            header.base_offset,
            index,
            header.append_us,
            header.epoch,
        )
        kept = before.batches if before is not None and before.epoch == header.producer_epoch else ()
        self._states[producer_id] = ProducerState(
            header.producer_epoch, (*kept[-(PRODUCER_BATCHES_REMEMBERED - 1) :], batch)
        )
        evicted = self._evict() if len(self._states) > self._producers_max else None
        self._undo.append((index, producer_id, before, evicted))
        if len(self._undo) > UNDO_MAX:
            self._undo_floor = self._undo.popleft()[0]

    def truncated(self, from_index: RaftIndex) -> bool:
        """Undo every change at or above `from_index`.

        Returns:
            False when changes that deep were already forgotten: the caller must rebuild from the log.
        """
        if from_index <= self._undo_floor:
            return False
        while self._undo and self._undo[-1][0] >= from_index:
            _, producer_id, before, evicted = self._undo.pop()
            self._states.pop(producer_id, None)
            if before is not None:
                self._states[producer_id] = before
            if evicted is not None:
                self._states[evicted[0]] = evicted[1]
            self._order_is_stale = True
        return True

    def _evict(self) -> tuple[int, ProducerState]:
        if self._order_is_stale:
            rows = sorted(self._states.items(), key=lambda row: row[1].batches[-1].index)
            self._states = OrderedDict(rows)
            self._order_is_stale = False
        return self._states.popitem(last=False)

    def committed(self, index: RaftIndex) -> None:
        """Forget how to undo what is committed up to `index`: it is never truncated."""
        while self._undo and self._undo[0][0] <= index:
            self._undo.popleft()
        self._undo_floor = max(self._undo_floor, index)

    def clear(self) -> None:
        """Forget everything, before a rebuild from the log."""
        self._states.clear()
        self._undo.clear()
        self._undo_floor = RaftIndex(0)
        self._order_is_stale = False

    def snapshot(self) -> dict[int, ProducerState]:
        """Return a copy, for comparison between replicas."""
        return dict(self._states)
