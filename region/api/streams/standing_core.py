"""Does this region hold what a consumer says it has read? The answer to a position (epoch, offset). Pure.

Rule 1: a position is never moved: a consumer is told OK, BEHIND (wait), DIVERGED or OUT_OF_RANGE and decides.
Rule 2: the epoch is that of the last record that was read, so it must not have ended below the offset.
Rule 3: only the home's leader knows where a stream ends; elsewhere what is not there yet may still come.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

NO_EPOCH: Final = -1


class Standing(enum.Enum):
    """How a position stands to the stream of a region."""

    OK = "ok"
    BEHIND = "behind"
    DIVERGED = "diverged"
    OUT_OF_RANGE = "out_of_range"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBounds:
    """A stream at the moment of the question.

    Args:
        log_start, high_watermark: first offset kept, first one not committed.
        end: end of the log where it is known (at the home's leader), else None.
        known_epoch, known_end: the largest epoch <= the position's that the stream knows and where it ends, as
            OffsetForLeaderEpoch answers; -1 and -1 when nothing is known.
        epoch: the newest epoch that has begun here, -1 when it is not known.
    """

    log_start: int
    high_watermark: int
    end: int | None = None
    known_epoch: int = NO_EPOCH
    known_end: int = -1
    epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """`behind`: records that the region lacks; `epoch`, `offset`: with DIVERGED the epoch that ends, and where."""

    standing: Standing
    offset: int
    behind: int = 0
    epoch: int = NO_EPOCH


def judge(epoch: int, offset: int, bounds: StreamBounds) -> Judgement:
    """Return how the position (`epoch`, next `offset`) stands; `epoch` -1 is not checked."""
    if offset < bounds.log_start:
        return Judgement(standing=Standing.OUT_OF_RANGE, offset=offset)
    if epoch >= 0 and bounds.known_epoch >= 0 and _ended_before(epoch, offset, bounds):
        return Judgement(standing=Standing.DIVERGED, offset=bounds.known_end, epoch=bounds.known_epoch)
    if bounds.end is not None and offset > bounds.end:
        return Judgement(standing=Standing.OUT_OF_RANGE, offset=offset)
    if offset > bounds.high_watermark:
        return Judgement(standing=Standing.BEHIND, offset=offset, behind=offset - bounds.high_watermark)
    return Judgement(standing=Standing.OK, offset=offset)


def _ended_before(epoch: int, offset: int, bounds: StreamBounds) -> bool:
    """Return whether a record that the consumer has read is not in this stream."""
    if bounds.known_end >= offset:
        return False
    if bounds.epoch > epoch:
        return True  # a later epoch has begun: this one ended there, or is one of which the mesh kept nothing
    # An epoch that has not ended here ends at what is committed: beyond it nothing is known yet, and nothing differs.
    is_over = bounds.known_end < bounds.high_watermark
    return is_over if bounds.known_epoch == epoch else offset <= bounds.high_watermark
