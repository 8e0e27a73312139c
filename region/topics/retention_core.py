"""What retention deletes: a pure decision about whole sealed segments of one stream's log at its home.

Rule 1: only the oldest segments go, only whole ones, only what is applied.
Rule 2: age is counted from the append time of a segment's newest entry, on the home's clock; a client's timestamps
        decide nothing.
Rule 3: by size as in Kafka: a segment goes when what is newer alone reaches retention_bytes.
Rule 4: what is orphaned is held back until an operator drops it, at most orphan_hold_ms after the cut and
        orphan_hold_bytes of segments. Readers do not see that: their log start moves all the same.
Rule 5: a segment that a mirror still needs is held back, at most mirror_hold_ms longer than without mirrors and at
        most mirror_hold_bytes of them. What an operator deleted is not held back.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from georelay.ids import Offset, RaftIndex
from georelay.limits import MIB

UNLIMITED: Final = -1
_HOUR_MS: Final = 60 * 60 * 1000
MIRROR_HOLD_MS: Final = 24 * _HOUR_MS
MIRROR_HOLD_BYTES: Final = 10 * 1024 * MIB
ORPHAN_HOLD_MS: Final = 30 * 24 * _HOUR_MS
ORPHAN_HOLD_BYTES: Final = 10 * 1024 * MIB
SEGMENT_AGE_MS_MAX: Final = 7 * 24 * _HOUR_MS
SEGMENT_AGE_MS_MIN: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """How long records are kept.

    Args:
        retention_ms, retention_bytes: of the topic, per partition; -1 keeps everything.
        mirror_hold_ms, mirror_hold_bytes: how far mirrors that are behind may hold it back.
        orphan_hold_ms, orphan_hold_bytes: how far orphan branches may.
    """

    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED
    mirror_hold_ms: int = MIRROR_HOLD_MS
    mirror_hold_bytes: int = MIRROR_HOLD_BYTES
    orphan_hold_ms: int = ORPHAN_HOLD_MS
    orphan_hold_bytes: int = ORPHAN_HOLD_BYTES

    @property
    def segment_age_ms(self) -> int | None:
        """Return the age at which a segment is sealed although it has room, None: never."""
        if self.retention_ms < 0:
            return None
        return max(min(self.retention_ms // 2, SEGMENT_AGE_MS_MAX), SEGMENT_AGE_MS_MIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedSegment:
    """One sealed segment.

    Args:
        end_offset: first valid offset after it: records beyond the start of a later epoch are orphans and do not count.
        newest_append_ms: append time of its newest entry, ms since 1970.
    """

    first_index: RaftIndex
    last_index: RaftIndex
    size_bytes: int
    end_offset: Offset
    newest_append_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Entries below `first_index` and records below `log_start` are to go."""

    first_index: RaftIndex
    log_start: Offset


def decide(
    segments: Sequence[RetainedSegment],
    *,
    limits: RetentionLimits,
    now_ms: int,
    log_start: Offset,
    applied_index: RaftIndex,
    mirrors: Sequence[Offset],
    active_bytes: int = 0,
) -> Cut | None:
    """Return what goes, None: nothing.

    Args:
        segments: all sealed ones, oldest first.
        now_ms: the home's clock, never behind the newest append time.
        mirrors: how far each mirror has committed; 0 where that is not known.
        active_bytes: size of the segment that is still written.
    """
    newer = _bytes_after(segments, active_bytes)
    due: list[RetainedSegment] = []
    for segment, newer_bytes in zip(segments, newer, strict=True):
        is_deleted = segment.end_offset <= log_start
        is_old = _is_old(segment, limits, now_ms)
        is_over = limits.retention_bytes >= 0 and newer_bytes >= limits.retention_bytes
        if segment.last_index > applied_index or not (is_deleted or is_old or is_over):
            break
        due.append(segment)
    going = _not_held(due, limits=limits, now_ms=now_ms, log_start=log_start, mirrors=mirrors)
    if not going:
        return None
    last = due[going - 1]
    return Cut(first_index=RaftIndex(last.last_index + 1), log_start=max(last.end_offset, log_start))


def follow(segments: Sequence[RetainedSegment], *, log_start: Offset, applied_index: RaftIndex) -> RaftIndex | None:
    """Return the first index that a log keeps whose start is `log_start`, None: every segment has records above it."""
    going = list(
        itertools.takewhile(lambda row: row.end_offset <= log_start and row.last_index <= applied_index, segments)
    )
    return RaftIndex(going[-1].last_index + 1) if going else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBranch:
    """An orphan branch: no entry of it is below `first_index`; `cut_ms` is when it was cut off, ms since 1970."""

    first_index: RaftIndex
    cut_ms: int


def hold_orphans(
    segments: Sequence[RetainedSegment],
    first_index: RaftIndex,
    *,
    branches: Sequence[HeldBranch],
    limits: RetentionLimits,
    now_ms: int,
) -> RaftIndex:
    """Return the first index that a log keeps which would keep `first_index`, so that no held branch loses an entry.

    Args:
        segments: all sealed ones, oldest first. branches: those that are listed.
    """
    for branch in sorted(branches, key=lambda row: row.first_index):
        if branch.first_index >= first_index:
            break
        held = [row for row in segments if row.last_index >= branch.first_index and row.last_index < first_index]
        in_time = now_ms - branch.cut_ms <= limits.orphan_hold_ms
        if in_time and sum(row.size_bytes for row in held) <= limits.orphan_hold_bytes:
            return branch.first_index
    return first_index


def must_seal(limits: RetentionLimits, *, oldest_append_ms: int | None, now_ms: int) -> bool:
    """Return whether the active segment, whose first record has this append time, is to be sealed by age."""
    age_ms = limits.segment_age_ms
    return age_ms is not None and oldest_append_ms is not None and now_ms - oldest_append_ms >= age_ms


def _is_old(segment: RetainedSegment, limits: RetentionLimits, now_ms: int) -> bool:
    return limits.retention_ms >= 0 and now_ms - segment.newest_append_ms > limits.retention_ms


def _bytes_after(segments: Sequence[RetainedSegment], active_bytes: int) -> list[int]:
    """Return for each segment the bytes of everything newer."""
    newer = list(itertools.accumulate((row.size_bytes for row in reversed(segments)), initial=active_bytes))
    return newer[-2::-1]


def _not_held(
    due: Sequence[RetainedSegment],
    *,
    limits: RetentionLimits,
    now_ms: int,
    log_start: Offset,
    mirrors: Sequence[Offset],
) -> int:
    """Return how many of the segments that are due go although a mirror may need them."""
    slowest = min(mirrors, default=None)
    held_bytes = sum(row.size_bytes for row in due)
    for going, segment in enumerate(due):
        is_needed = slowest is not None and log_start < segment.end_offset and slowest < segment.end_offset
        allowed_ms = limits.mirror_hold_ms + (limits.retention_ms if _is_old(segment, limits, now_ms) else 0)
        in_time = now_ms - segment.newest_append_ms <= allowed_ms
        if is_needed and in_time and held_bytes <= limits.mirror_hold_bytes:
            return going
        held_bytes -= segment.size_bytes
    return len(due)
