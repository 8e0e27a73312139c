"""Gaps in a producer's sequence that this broker made itself, by refusing a batch for a moment.

A batch of an idempotent producer is refused because nobody leads yet. Before its client hears of it (KIP-98: five may
be under way) this broker leads, and the next batch leaves out the sequences of the first.

OUT_OF_ORDER_SEQUENCE_NUMBER for that gap would be answered with a new epoch, in which the client sends as new whatever
has no answer yet, librdkafka that of every other partition, too (its issue 4953; Java's producer: of this one): what a
leader stored that died before it could say so is then stored twice. And where the gap were let through, because a home
epoch began with a loss (producer_table_core: a producer may jump), librdkafka would take the batch before it for
stored, because it hears of a later one, and that is lost.

Rule 1: what comes behind a batch that was refused on the same connection is refused as a batch that comes again, and
        handed to nobody, until that one has come: its client sends all of them, in order.
Rule 2: for COMES_WITHIN_S after the refusal: who goes on without the refused batch learns of its gap.
Rule 3: refused is what the client was told to send again, and also what was late to be answered (it may be stored).
Rule 4: bounded: the oldest of REFUSALS_MAX producers is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from georelay.errors import NotLeader, OutOfOrderSequence
from georelay.ids import NO_PRODUCER
from georelay.lane_core import SEQUENCE_MODULUS
from georelay.wire.api import ErrorCode
from georelay.wire.header import BatchHeader
from region.kafka.error_map import kafka_code

COMES_WITHIN_S: Final = 10  # ten times the longest pause of clients between two attempts (retry.backoff.max.ms)
REFUSALS_MAX: Final = 1_000  # of one connection; each a partition and a producer: as many as a broker loses at once
COMES_AGAIN: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)  # what a client answers by sending the same batch once more

Key = tuple[str, int, int, int]  # topic as the client wrote it, partition, producer id, producer epoch


@dataclass(slots=True)
class _Refusal:
    first: int  # sequence of the lowest batch that has to come again
    last: int  # and of the highest: until it is stored a gap may be ours
    until_ns: int  # monotonic


class RefusedSequences:
    """What one connection was refused lately, by partition and producer. `monotonic_ns` is the clock."""

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self._monotonic_ns = monotonic_ns
        self._refusals: OrderedDict[Key, _Refusal] = OrderedDict()

    def comes(self, name: str, partition: int, header: BatchHeader) -> None:
        """Note that a batch comes, before it is handed on; `name` is that of the topic, as the client wrote it.

        Raises:
            NotLeader: one before it was refused, and has to come first.
        """
        if not self._refusals:
            return
        key = _key(name, partition, header)
        refusal = self._alive(key)
        if refusal is None:
            return
        if _is_behind(header.base_sequence, refusal.first):
            refusal.last = _later(refusal.last, header.base_sequence)
            raise _comes_again(refusal)
        if header.base_sequence == refusal.first:
            self._goes_on_behind(key, refusal, header)

    def told(self, name: str, partition: int, header: BatchHeader | None, error: BaseException) -> BaseException:
        """Return what a client is told of a batch that was refused with `error`, and remember it.

        Args:
            name: of the topic, as the client wrote it.
            header: of the batch; None: it could not be read.
        """
        if header is None or header.producer_id == NO_PRODUCER:
            return error
        key, sequence = _key(name, partition, header), header.base_sequence
        refusal = self._alive(key)
        if isinstance(error, OutOfOrderSequence):  # an unknown producer's gap is one, too
            if refusal is None or not _is_behind(sequence, refusal.first):
                return error
            refusal.last = _later(refusal.last, sequence)
            return _comes_again(refusal)
        if kafka_code(error) in COMES_AGAIN:
            until_ns = self._monotonic_ns() + COMES_WITHIN_S * 1_000_000_000
            if refusal is None:
                self._refusals[key] = _Refusal(sequence, sequence, until_ns)
            elif not _is_behind(sequence, refusal.first):
                refusal.first, refusal.until_ns = sequence, until_ns
            else:
                refusal.last = _later(refusal.last, sequence)
            if len(self._refusals) > REFUSALS_MAX:
                self._refusals.popitem(last=False)
        return error

    def stored(self, name: str, partition: int, header: BatchHeader) -> None:
        """Note that a batch is stored: what was before it is, too, and need not come again."""
        if not self._refusals:
            return
        key = _key(name, partition, header)
        refusal = self._refusals.get(key)
        if refusal is not None and not _is_behind(refusal.first, header.base_sequence):
            self._goes_on_behind(key, refusal, header)

    def _goes_on_behind(self, key: Key, refusal: _Refusal, header: BatchHeader) -> None:
        if _is_behind(refusal.last, header.base_sequence):
            refusal.first = (header.base_sequence + header.record_count) % SEQUENCE_MODULUS
        else:
            del self._refusals[key]

    def _alive(self, key: Key) -> _Refusal | None:
        refusal = self._refusals.get(key)
        if refusal is not None and refusal.until_ns < self._monotonic_ns():
            del self._refusals[key]
            return None
        return refusal


def _key(name: str, partition: int, header: BatchHeader) -> Key:
    return name, partition, header.producer_id, header.producer_epoch


def _comes_again(refusal: _Refusal) -> NotLeader:
    return NotLeader(f"sequence {refusal.first} of this producer was refused: send it, and this one, again")


def _later(sequence: int, other: int) -> int:
    return other if _is_behind(other, sequence) else sequence


def _is_behind(sequence: int, other: int) -> bool:
    return 0 < (sequence - other) % SEQUENCE_MODULUS < SEQUENCE_MODULUS // 2
