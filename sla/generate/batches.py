"""Record batches on their way, as columns: what all steps of the generator hand on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from sla.generate.world import Int64


@dataclass(slots=True)
class Batches:
    """Batches of one stream, one per element; all times are true.

    Args:
        first, end: offsets [first, end).
        received: when the first broker had it, in region `entry`.
        appended: when the home appended it.
        ready: when it could be read in the region of the lane (of the home's commit: `appended`).
        at: when it happened in the lane: committed, replicated or delivered.
        attempt: 1 for the first time.
        session: number of the lane's session.
        is_live: whether the consumer waited for it, so that its latency counts.
    """

    first: Int64
    end: Int64
    entry: Int64
    received: Int64
    appended: Int64
    ready: Int64
    at: Int64
    attempt: Int64
    session: Int64
    is_live: npt.NDArray[np.bool_]

    @classmethod
    def none(cls) -> Batches:
        """Return no batches."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, none, none, none, none, none, none, none, none, none.astype(np.bool_))

    @classmethod
    def concat(cls, parts: Sequence[Batches]) -> Batches:
        """Return all batches of some parts, in order."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.first)

    @property
    def count(self) -> Int64:
        """Return the records of each."""
        return self.end - self.first

    def take(self, index: npt.NDArray[np.integer] | npt.NDArray[np.bool_] | slice) -> Batches:
        """Return some of them (a copy unless `index` is a slice)."""
        return Batches(*(getattr(self, name)[index] for name in _NAMES))


_NAMES = tuple(field.name for field in fields(Batches))
