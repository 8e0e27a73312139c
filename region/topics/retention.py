"""Deletes what is too old or too much, on every broker, a stream at a time.

Rule 1: the home's leader decides, by a START entry; a mirror's leader follows the log start that its home says, by a
        START entry of its own group; every replica deletes its own files once that is committed.
Rule 2: every replica seals its own active segment when it is old enough, or nothing of a quiet stream would ever go.
Rule 3: everything may be repeated: what a crash interrupted is done at the next look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import structlog

from georelay.clock import Clock
from georelay.errors import GeorelayError
from georelay.ids import GroupId, Offset, RaftIndex
from georelay.limits import KIB
from region.log.entry import Entry
from region.log.group_log import GroupLog
from region.log.index import SegmentInfo
from region.topics.hosted_stream import HostedStream
from region.topics.retention_core import (
    HeldBranch,
    RetainedSegment,
    RetentionLimits,
    decide,
    follow,
    hold_orphans,
    must_seal,
)

log = structlog.get_logger()
RETENTION_INTERVAL_MS: Final = 10_000
_HEAD_ENTRIES: Final = 64  # of a segment, looked through for its first record
_HEAD_BYTES: Final = 64 * KIB


class StreamRetention:
    """What retention remembers of one stream between its looks."""

    def __init__(self, stream: HostedStream) -> None:
        self.stream = stream
        self._append_ms: dict[RaftIndex, int] = {}  # newest append time by last index of a sealed segment
        self._active_since: tuple[RaftIndex, int] | None = None  # (its first index, append time of its first record)

    async def look(self, limits: RetentionLimits, *, now_ms: int, mirrors: Sequence[Offset]) -> None:
        """Seal, delete and propose what is due.

        Raises:
            GeorelayError: nothing is wrong for good; look again.
        """
        stream = self.stream
        now_ms = max(now_ms, stream.applied_end.append_us // 1000)
        infos = stream.disk.sealed_segments()
        self._finish_deletion(infos)
        await self._seal_by_age(limits, infos, now_ms)
        if not stream.is_leader or not stream.may_move_start:
            return
        if stream.is_home:
            await self._decide(limits, infos, now_ms=now_ms, mirrors=mirrors)
        else:
            await self._follow_home(limits, infos, now_ms=now_ms)

    def _finish_deletion(self, infos: Sequence[SegmentInfo]) -> None:
        """Delete what is below the log start and still there: a crash came between, or it was not sealed yet."""
        first_index = self.stream.start.first_index
        if infos and infos[0].last_index < first_index and self.stream.proposer is not None:
            self.stream.proposer.advance_start(first_index)

    async def _decide(
        self, limits: RetentionLimits, infos: Sequence[SegmentInfo], *, now_ms: int, mirrors: Sequence[Offset]
    ) -> None:
        stream = self.stream
        if not infos or (limits.retention_ms < 0 and limits.retention_bytes < 0 and not stream.log_start):
            return
        segments = await self._segments(infos)
        cut = decide(
            segments,
            limits=limits,
            now_ms=now_ms,
            log_start=stream.log_start,
            applied_index=stream.commit_index,
            mirrors=mirrors,
        )
        if cut is not None:
            await self._move(cut.log_start, self._hold(segments, cut.first_index, limits, now_ms))

    def _hold(
        self, segments: Sequence[RetainedSegment], first_index: RaftIndex, limits: RetentionLimits, now_ms: int
    ) -> RaftIndex:
        branches = [
            HeldBranch(first_index=branch.first_index, cut_ms=branch.cut_us // 1000) for branch in self.stream.orphans()
        ]
        return hold_orphans(segments, first_index, branches=branches, limits=limits, now_ms=now_ms)

    async def _follow_home(self, limits: RetentionLimits, infos: Sequence[SegmentInfo], *, now_ms: int) -> None:
        stream = self.stream
        wanted = max(min(stream.home_log_start, stream.high_watermark), stream.log_start)
        if not wanted:
            return
        segments = await self._segments(infos)
        own = follow(segments, log_start=wanted, applied_index=stream.commit_index)
        held = stream.start.first_index if own is None else self._hold(segments, own, limits, now_ms)
        await self._move(wanted, held)

    async def _move(self, log_start: Offset, first_index: RaftIndex) -> None:
        stream, before = self.stream, self.stream.start
        first_index = max(first_index, before.first_index)
        if log_start <= before.offset and first_index <= before.first_index:
            return
        await stream.move_start(log_start, first_index=first_index)
        log.info(
            "log_start.moved", stream=str(stream.key), log_start=stream.log_start, records=log_start - before.offset
        )

    # --- what is asked of the disk ----------------------------------------------------------------

    async def _segments(self, infos: Sequence[SegmentInfo]) -> list[RetainedSegment]:
        lasts = [RaftIndex(info.last_index) for info in infos]
        unknown = [last for last in lasts if last not in self._append_ms]
        if unknown:
            found = await self.stream.off_loop(partial(_append_times_ms, self.stream.disk, unknown))
            self._append_ms.update(zip(unknown, found, strict=True))
        known = self._append_ms
        self._append_ms = {last: known[last] for last in lasts}
        epochs = self.stream.epochs.indexed(self.stream.commit_index)
        return [
            RetainedSegment(
                first_index=RaftIndex(info.first_index),
                last_index=RaftIndex(info.last_index),
                size_bytes=info.size_bytes,
                end_offset=Offset(
                    min([info.next_offset, *(start for index, _, start in epochs if index > info.last_index)])
                ),
                newest_append_ms=self._append_ms[RaftIndex(info.last_index)],
            )
            for info in infos
        ]

    async def _seal_by_age(self, limits: RetentionLimits, infos: Sequence[SegmentInfo], now_ms: int) -> None:
        stream = self.stream
        if limits.segment_age_ms is None or stream.proposer is None:
            return
        first = RaftIndex(infos[-1].last_index + 1) if infos else stream.disk.first_index
        sealed_next = infos[-1].next_offset if infos else stream.start.boundary
        if stream.applied_end.next_offset <= sealed_next:
            return  # no record in it
        if self._active_since is None or self._active_since[0] != first:
            found = await stream.off_loop(partial(_first_append_ms, stream.disk, first))
            self._active_since = None if found is None else (first, found)
        since = None if self._active_since is None else self._active_since[1]
        if must_seal(limits, oldest_append_ms=since, now_ms=now_ms):
            stream.proposer.seal()


def _append_times_ms(disk: GroupLog, indexes: Sequence[RaftIndex]) -> list[int]:
    """Return the append time of each of these entries (in a thread)."""
    return [_append_ms(disk.read_entries(index, RaftIndex(index + 1), 1)[0]) for index in indexes]


def _first_append_ms(disk: GroupLog, first: RaftIndex) -> int | None:
    """Return the append time of the first record at or after `first`, None while none is durable (in a thread)."""
    head = disk.read_entries(first, RaftIndex(first + _HEAD_ENTRIES), _HEAD_BYTES)
    return next((_append_ms(entry) for entry in head if entry.record_count), None)


def _append_ms(entry: Entry) -> int:
    return entry.header().append_us // 1000


class Retention:
    """Looks at every stream of this broker, again and again.

    Args:
        streams: those hosted now.
        limits_of: of a stream's topic. positions_of: how far each mirror region has committed, 0 where not known.
        interval_ms: from the end of one look at all of them to the next.
    """

    def __init__(
        self,
        *,
        streams: Callable[[], Iterable[HostedStream]],
        limits_of: Callable[[HostedStream], RetentionLimits],
        positions_of: Callable[[HostedStream], Sequence[Offset]],
        clock: Clock,
        interval_ms: int = RETENTION_INTERVAL_MS,
    ) -> None:
        self._streams = streams
        self._limits_of = limits_of
        self._positions_of = positions_of
        self._clock = clock
        self._interval_ms = interval_ms
        self._known: dict[GroupId, StreamRetention] = {}

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            await self.tick()

    async def tick(self) -> None:
        """Look at every stream once; one that fails is looked at again the next time."""
        streams = list(self._streams())
        known, self._known = self._known, {}
        for stream in streams:
            before = known.get(stream.group_id)
            memory = before if before is not None and before.stream is stream else StreamRetention(stream)
            self._known[stream.group_id] = memory
            try:
                await memory.look(
                    self._limits_of(stream),
                    now_ms=self._clock.wall_ns() // 1_000_000,
                    mirrors=self._positions_of(stream) if stream.is_home else (),
                )
            except GeorelayError as error:
                log.warning("retention.failed", stream=str(stream.key), reason=str(error))
            await asyncio.sleep(0)  # thousands of streams are looked at without holding the loop up
