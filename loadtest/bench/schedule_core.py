"""What is sent when, and what a record says of itself: the same for every broker that is measured.

1. The model is open: record n is due at a time that nothing which happens can move. Latency counts from then.
2. Records go round the topics in turn, so each topic has an n-th part of the rate; and round their partitions.
3. A value carries its due time and its number in front, and is filled up to its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NS_PER_S: Final = 1_000_000_000
RETRY_NS: Final = 30 * NS_PER_S  # as Kafka's clients have it
FAULT_RETRY_NS: Final = 3 * NS_PER_S  # where a node is going to fail
DUE_CHARS: Final = 20
NUMBER_CHARS: Final = 12
VALUE_BYTES_MIN: Final = DUE_CHARS + NUMBER_CHARS


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a producer sends.

    Args:
        rate_per_s: of all records together; 0: as many as are acknowledged.
        value_bytes: from 32.
        window: from 1: records go in batches, so many of them on their way, and answers are only counted.
        partitions: of each topic; where a batch goes is the client's choice.
        linger_ms: how long a client waits for more to put into a batch.
        exactly_once: the client asks for what its protocol has against records that are sent again.
        retry_ns: how long the client waits for an answer before it sends a record again.
    """

    topics: Sequence[str]
    rate_per_s: int
    seconds: float
    value_bytes: int = 100
    window: int = 0
    partitions: int = 1
    linger_ms: int = 5
    exactly_once: bool = False
    retry_ns: int = RETRY_NS

    def __post_init__(self) -> None:
        """Refuse what cannot be sent. Raises ValueError."""
        if not self.topics or self.rate_per_s < 0 or self.seconds <= 0 or self.value_bytes < VALUE_BYTES_MIN:
            raise ValueError(f"a load needs topics, a rate, seconds and values from {VALUE_BYTES_MIN} bytes: {self}")
        if not self.rate_per_s and self.window < 1:
            raise ValueError("a load without a rate needs a window")

    @property
    def count(self) -> int:
        """Return how many records a load with a rate has."""
        return round(self.rate_per_s * self.seconds)

    def due_ns(self, began_ns: int, number: int) -> int:
        """Return when a record is due."""
        return began_ns + number * NS_PER_S // self.rate_per_s

    def topic(self, number: int) -> str:
        """Return where a record goes."""
        return self.topics[number % len(self.topics)]

    def partition(self, number: int) -> int:
        """Return where in its topic a record goes."""
        return number // len(self.topics) % self.partitions

    def value(self, due_ns: int, number: int) -> bytes:
        """Return what a record says: its due time, its number, filling."""
        head = b"%0*d%0*d" % (DUE_CHARS, due_ns, NUMBER_CHARS, number)
        return head.ljust(self.value_bytes, b"x")


def read_value(value: bytes) -> tuple[int, int]:
    """Return due time and number of a record. Raises ValueError for one that is not ours."""
    return int(value[:DUE_CHARS]), int(value[DUE_CHARS:VALUE_BYTES_MIN])
