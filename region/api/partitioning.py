"""Choice of the partition for records that arrive by gRPC or REST: the same partition a Kafka client would choose.

Rule 1: a record with a key goes to murmur2(key) modulo partitions, exactly as Kafka's default partitioner.
Rule 2: records without a key go round the partitions, one counter per topic.
An empty key is a key; only an absent one is not.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from georelay.wire.murmur2 import partition_for_key

TOPIC_COUNTERS_MAX: Final = 10_000  # least recently used beyond it starts again at partition 0


class Partitioner:
    """Chooses partitions; the only state is one counter per topic."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, int] = OrderedDict()

    def choose(self, topic: str, key: bytes | None, partitions: int) -> int:
        """Return the partition for one record; `partitions` is >= 1."""
        if key is not None:
            return partition_for_key(key, partitions)
        turn = self._turns.get(topic, 0)
        self._turns[topic] = turn + 1
        self._turns.move_to_end(topic)
        if len(self._turns) > TOPIC_COUNTERS_MAX:
            self._turns.popitem(last=False)
        return turn % partitions
