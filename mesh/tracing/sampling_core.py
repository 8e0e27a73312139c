"""Which batches get a trace row: pure, and the same in every region.

Rule 1: the decision is a threshold on a hash of what names the batch everywhere (origin, topic, partition, epoch, base
        offset), never on chance: a batch that is sampled in one region is sampled in all that sample as much, and in
        all that sample more (the consistent sampling of OpenTelemetry's tracestate `th`).
Rule 2: the probability is 1 up to the cap, then halves until the last second would have fitted: 1, 1/2, 1/4, ...
Rule 3: a row says what it stands for: weight = 1 / probability. What is always kept (late, duplicate, retried) has
        weight 1, whatever the others have.
Rule 4: nothing gets more than HARD_FACTOR times the cap per second: what is beyond is dropped and counted.
"""

from __future__ import annotations

import enum
from hashlib import blake2b
from typing import Final

_MASK: Final = (1 << 64) - 1
VALUE_BITS: Final = 56
SHIFT_MAX: Final = 30
HARD_FACTOR: Final = 4
LATE_US: Final = 40_000  # of the 50 ms that a record may take


class SampleReason(enum.Enum):
    """Why a batch has a row."""

    SAMPLED = "sampled"
    LATE = "late"
    DUPLICATE = "duplicate"
    RETRIED = "retried"


def stream_seed(*, origin: int, topic: str, partition: int) -> int:
    """Return the 64-bit seed of a stream; `origin` is a region number, 0 for homes=one."""
    digest = blake2b(f"{origin}\0{topic}\0{partition}".encode(), digest_size=8, person=b"georelay-trace").digest()
    return int.from_bytes(digest, "big")


def sample_value(seed: int, epoch: int, base_offset: int) -> int:
    """Return the batch's place in [0, 2**56): SplitMix64's finaliser (Steele, Lea, Flood 2014) over its name."""
    value = (seed + epoch * 0x9E3779B97F4A7C15 + base_offset * 0xD1B54A32D192ED03) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return (value ^ (value >> 31)) >> (64 - VALUE_BITS)


class Sampler:
    """The probability in force.

    Args:
        rows_per_s_max: rows of ordinary batches per second, >= 0; 0 keeps none, the late ones neither.
    """

    __slots__ = ("_kept", "_rows_per_s_max", "_seen", "dropped", "shift", "threshold", "weight")

    def __init__(self, rows_per_s_max: int) -> None:
        self._rows_per_s_max = rows_per_s_max
        self._seen = 0
        self._kept = 0
        self.dropped = 0  # rows over the hard limit since the last `take_dropped`
        self.shift = 0
        self.threshold = 1 << VALUE_BITS
        self.weight = 1.0

    @property
    def is_on(self) -> bool:
        """Return whether rows are kept at all."""
        return self._rows_per_s_max > 0

    def keeps(self, seed: int, epoch: int, base_offset: int) -> bool:
        """Count an ordinary batch; return whether it has a row."""
        self._seen += 1
        return (self.shift == 0 or sample_value(seed, epoch, base_offset) < self.threshold) and self.has_room()

    def has_room(self) -> bool:
        """Take one row of this second's hard limit; False: it is dropped, and counted."""
        if self._kept >= self._rows_per_s_max * HARD_FACTOR:
            self.dropped += 1
            return False
        self._kept += 1
        return True

    def turn(self) -> None:
        """A second is over: choose the probability of the next one. Down at once, up by one step per second."""
        needed = 0
        while needed < SHIFT_MAX and self._seen >> needed > self._rows_per_s_max:
            needed += 1
        self.shift = max(needed, self.shift - 1)
        self.threshold = 1 << (VALUE_BITS - self.shift)
        self.weight = float(1 << self.shift)
        self._seen = self._kept = 0

    def take_dropped(self) -> int:
        """Return the rows dropped since the last call."""
        dropped, self.dropped = self.dropped, 0
        return dropped
