"""Choice of the partition for records that arrive by gRPC or REST: the same partition a Kafka client would choose.

Rule 1: a record with a key goes to murmur2(key) modulo partitions, exactly as Kafka's default partitioner.
Rule 2: records without a key stay at one partition for STAY_NS or STAY_BYTES, then go to the next one of their topic
        (KIP-480, KIP-794): records of one moment share a batch, and slow ones go round the partitions one by one.
An empty key is a key; only an absent one is not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from georelay.limits import KIB
from georelay.wire.murmur2 import partition_for_key

TOPICS_MAX: Final = 10_000  # least recently used beyond it starts again at partition 0
STAY_NS: Final = 20_000_000
STAY_BYTES: Final = 16 * KIB  # as batch.size of Kafka's clients


class _Stay(NamedTuple):
    """Where records without a key go for the moment."""

    turn: int
    until_ns: int
    room_bytes: int


class Partitioner:
    """Chooses partitions; the only state is one stay per topic."""

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self._monotonic_ns = monotonic_ns
        self._stays: OrderedDict[str, _Stay] = OrderedDict()

    def choose(self, topic: str, key: bytes | None, partitions: int, size_bytes: int) -> int:
        """Return the partition for one record of `size_bytes`; `partitions` is >= 1."""
        if key is not None:
            return partition_for_key(key, partitions)
        now_ns = self._monotonic_ns()
        stay = self._stays.get(topic)
        if stay is None or now_ns >= stay.until_ns or stay.room_bytes <= 0:
            stay = _Stay(0 if stay is None else stay.turn + 1, now_ns + STAY_NS, STAY_BYTES)
        self._stays[topic] = stay._replace(room_bytes=stay.room_bytes - size_bytes)
        self._stays.move_to_end(topic)
        if len(self._stays) > TOPICS_MAX:
            self._stays.popitem(last=False)
        return stay.turn % partitions
