"""Who says in the ledger what became readable: the leader of each stream's group, for every record that commits.

Rule 1: while this broker leads, what commits is named at once, with the time of its commit.
Rule 2: what is applied between the election of this broker and the end of its first entry was in flight when another
        leader, or the run before, ended. It is named late, with its append time, when the leadership is settled.
Rule 3: so is what a run before had stored and perhaps not applied (region.topics.unnamed_core), unless that run is
        known to have gone on for long after; and the newest that this broker applied as a follower: a leader tells its
        followers of a commit before it names it itself.
Rule 4: what is named late was perhaps named before; a report takes the union. What brokers write for themselves is
        nobody's delivery, and never named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from georelay.clock import Clock
from georelay.ids import BrokerId, RegionNumber
from georelay.trace.schema import LedgerKind
from mesh.tracing.offset_run_core import LateRange
from region.broker.commit_recorder import CommitRecorder
from region.controller.topic import INTERNAL_PREFIX
from region.log.entry import Entry
from region.topics.stream import Stream
from region.topics.unnamed_core import UnnamedRanges

TOLD_FIRST_US: Final = 2_000_000  # what a leader has told and not named yet; a turn of its loop takes milliseconds
TOLD_WITHIN_US: Final = 60_000_000  # a leader that died longer ago than this had named what it told


class CommitNames:
    """Tells a recorder what commits in the streams of the broker `me`."""

    def __init__(self, *, me: BrokerId, recorder: CommitRecorder, clock: Clock) -> None:
        self._me = me
        self._recorder = recorder
        self._clock = clock

    def committed(self, stream: Stream, entries: Sequence[Entry]) -> None:
        """Name entries that were applied just now, or note them to be named late."""
        if not stream.is_leader:
            self._committed_unled(stream, entries)
            return
        if stream.topic.startswith(INTERNAL_PREFIX):
            return
        owning = [entry for entry in entries if entry.record_count]
        if not owning:
            return
        note = self._recorder.committed if stream.is_home else self._recorder.replicated
        note(
            topic=stream.topic,
            origin=stream.key.origin,
            partition=stream.partition,
            epoch=stream.epoch,
            from_offset=owning[0].base_offset,
            to_offset=owning[-1].next_offset,
            now_ns=self._clock.wall_ns(),
            home=stream.home,
            entries=owning,
        )

    def _committed_unled(self, stream: Stream, entries: Sequence[Entry]) -> None:
        if stream.leader_id != self._me:  # else it is elected, and its first entry is not applied
            stream.unnamed.applied(entries[-1])
            return
        if stream.topic.startswith(INTERNAL_PREFIX):
            return
        is_recovered = entries[-1].index <= stream.unnamed.recovered_end
        oldest_us = max(stream.unnamed.oldest_us, self._recorder.named_before_us) if is_recovered else 0
        self._recorder.aborted_late(
            [entry for entry in entries if entry.record_count],
            topic=stream.topic,
            origin=stream.key.origin,
            partition=stream.partition,
            epoch=stream.epoch,
            oldest_us=oldest_us,
        )
        stream.unnamed.committed(entries)

    def leadership(self, stream: Stream) -> None:
        """Follow whether this broker leads a stream; to be told of the same again changes nothing."""
        if not stream.is_leader:
            self.left(stream)
            return
        if not stream.topic.startswith(INTERNAL_PREFIX):
            self._name(stream, told_to_follower(stream, now_us=self._clock.wall_ns() // 1_000))
            self._name(stream, self._perhaps_unnamed(stream))
        stream.unnamed.clear()

    def left(self, stream: Stream) -> None:
        """Follow that this broker does not lead a stream any more, or never did."""
        self._recorder.left(topic=stream.topic, origin=stream.key.origin, partition=stream.partition)

    def _perhaps_unnamed(self, stream: Stream) -> list[LateRange]:
        """Take what was noted, without what was recovered and named long before the run before ended."""
        recovered_end, before_us = stream.unnamed.recovered_end, self._recorder.named_before_us
        return [late for late in stream.unnamed.take() if late.last_index > recovered_end or late.first_us >= before_us]

    def _name(self, stream: Stream, ranges: Iterable[LateRange]) -> None:
        by_kind: dict[LedgerKind, list[LateRange]] = {}
        for late in ranges:
            by_kind.setdefault(_kind_of(stream, late.epoch), []).append(late)
        for kind, named in by_kind.items():
            self._recorder.named_late(
                kind, named, topic=stream.topic, origin=stream.key.origin, partition=stream.partition
            )


def told_to_follower(stream: Stream, *, now_us: int) -> list[LateRange]:
    """Return the newest that this broker applied just now while another one led, as far as it is in memory."""
    followed = stream.unnamed.followed
    found: list[Entry] = []
    oldest_us = now_us - TOLD_WITHIN_US
    for entry in stream.tail.newest_first() if followed else ():
        if entry.index > followed:
            continue
        append_us = entry.header().append_us
        if not found:
            oldest_us = max(oldest_us, append_us - TOLD_FIRST_US)
        if append_us < oldest_us:
            break
        found.append(entry)
    ranges = UnnamedRanges()
    ranges.committed(found[::-1])
    return ranges.take()


def _kind_of(stream: Stream, epoch: int) -> LedgerKind:
    """Return what the records of an epoch are in this region: its own, or those of another home."""
    row = stream.home_row
    homes: dict[int, RegionNumber] = {} if row is None else dict(row.homes)
    is_home = homes[epoch] == stream.region if epoch in homes else stream.is_home
    return LedgerKind.COMMIT if is_home else LedgerKind.REPLICATED
