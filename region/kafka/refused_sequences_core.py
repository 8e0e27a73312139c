"""Gaps in a producer's sequence that this broker made itself, by refusing a batch for a moment.

A batch of an idempotent producer is refused because nobody leads yet. Before its client sends it again (a back-off of
up to a second), or hears of it (KIP-98: five may be under way), this broker leads, and the next batch leaves out the
sequences of the first. OUT_OF_ORDER_SEQUENCE_NUMBER is what librdkafka and Java's producer answer with a new epoch, in
which they send as new whatever has no answer yet: what a leader stored that died before it could say so is then stored
twice.

Rule 1: a gap behind a batch that was refused on the same connection is refused as one that comes again: its client
        sends both, in order.
Rule 2: for COMES_WITHIN_S after the refusal: who goes on without the refused batch learns of its gap.
Rule 3: bounded: the oldest of REFUSALS_MAX producers is forgotten.
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
REFUSALS_MAX: Final = 64  # of one connection; each a partition and a producer
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


@dataclass(slots=True)
class _Refusal:
    first: int  # sequence of the lowest batch that has to come again
    last: int  # and of the highest: until it is stored a gap may be ours
    until_ns: int  # monotonic


class RefusedSequences:
    """What one connection was refused lately, by partition and producer. `monotonic_ns` is the clock."""

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self._monotonic_ns = monotonic_ns
        self._refusals: OrderedDict[tuple[str, int, int, int], _Refusal] = OrderedDict()

    def told(self, name: str, partition: int, header: BatchHeader | None, error: BaseException) -> BaseException:
        """Return what a client is told of a batch that was refused with `error`, and remember it.

        Args:
            name: of the topic, as the client wrote it.
            header: of the batch; None: it could not be read.
        """
        if header is None or header.producer_id == NO_PRODUCER:
            return error
        key = (name, partition, header.producer_id, header.producer_epoch)
        refusal = self._refusals.get(key)
        if isinstance(error, OutOfOrderSequence):  # an unknown producer's gap is one, too
            if refusal is None or not _is_behind(header.base_sequence, refusal.first):
                return error
            if refusal.until_ns < self._monotonic_ns():
                return error
            refusal.last = _later(refusal.last, header.base_sequence)
            return NotLeader(f"sequence {refusal.first} of this producer was refused: send it, and this one, again")
        if kafka_code(error) in COMES_AGAIN:
            sequence, until_ns = header.base_sequence, self._monotonic_ns() + COMES_WITHIN_S * 1_000_000_000
            if refusal is None:
                self._refusals[key] = _Refusal(sequence, sequence, until_ns)
            else:
                refusal.until_ns, refusal.last = until_ns, _later(refusal.last, sequence)
                if _is_behind(refusal.first, sequence):
                    refusal.first = sequence
            if len(self._refusals) > REFUSALS_MAX:
                self._refusals.popitem(last=False)
        return error

    def stored(self, name: str, partition: int, header: BatchHeader) -> None:
        """Note that a batch is stored: behind the last one that was refused no gap is ours any more."""
        if not self._refusals:
            return
        key = (name, partition, header.producer_id, header.producer_epoch)
        refusal = self._refusals.get(key)
        if refusal is None or _is_behind(refusal.first, header.base_sequence):
            return
        if _is_behind(refusal.last, header.base_sequence):
            refusal.first = (header.base_sequence + header.record_count) % SEQUENCE_MODULUS
        else:
            del self._refusals[key]


def _later(sequence: int, other: int) -> int:
    return other if _is_behind(other, sequence) else sequence


def _is_behind(sequence: int, other: int) -> bool:
    return 0 < (sequence - other) % SEQUENCE_MODULUS < SEQUENCE_MODULUS // 2
