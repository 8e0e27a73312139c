"""Who says in the ledger what became readable: the leader of each stream's group, for every record that commits.

Rule 1: while this broker leads, what commits is named at once, with the time of its commit.
Rule 2: what is applied between the election of this broker and the end of its first entry was in flight when another
        leader, or the run before, ended. It is named late, with its append time, when the leadership is settled.
Rule 3: so is what a run before had stored and perhaps not applied, and the newest that this broker applied as a
        follower: a leader tells its followers of a commit before it names it itself (region.topics.unnamed_core).
Rule 4: what is named late was perhaps named before; a report takes the union. What brokers write for themselves is
        nobody's delivery, and never named.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from georelay.clock import Clock
from georelay.ids import BrokerId, RegionNumber
from georelay.trace.kinds import LedgerKind
from mesh.tracing.offset_run_core import LateRange
from region.broker.commit_recorder import CommitRecorder
from region.controller.topic import INTERNAL_PREFIX
from region.log.entry import Entry
from region.topics.stream import Stream


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
        if stream.topic.startswith(INTERNAL_PREFIX):
            return
        if stream.leader_id != self._me:  # else it is elected, and its first entry is not applied
            stream.unnamed.told(entries, leader=stream.leader_id, now_ns=self._clock.monotonic_ns())
            return
        stream.unnamed.committed(entries)
        first = stream.unnamed.first_index
        owning = [entry for entry in entries if entry.record_count]
        named = sum(1 for entry in owning if first is None or entry.index < first)
        for part, is_named in ((owning[:named], True), (owning[named:], False)):
            if part:
                self._recorder.aborted_late(
                    part,
                    topic=stream.topic,
                    origin=stream.key.origin,
                    partition=stream.partition,
                    epoch=stream.epoch,
                    is_named=is_named,
                )

    def leadership(self, stream: Stream) -> None:
        """Follow whether this broker leads a stream; to be told of the same again changes nothing."""
        stream.unnamed.leader_changed(stream.leader_id, now_ns=self._clock.monotonic_ns())
        if stream.is_leader:
            self._name(stream, stream.unnamed.take())
        elif stream.leader_id != self._me:  # else it is elected, and what it learns of transactions it will need
            self._recorder.left(topic=stream.topic, origin=stream.key.origin, partition=stream.partition)

    def left(self, stream: Stream) -> None:
        """Follow that a stream is here no longer."""
        self._recorder.left(topic=stream.topic, origin=stream.key.origin, partition=stream.partition)
        stream.unnamed.clear()

    def _name(self, stream: Stream, ranges: Sequence[LateRange]) -> None:
        by_kind: dict[LedgerKind, list[LateRange]] = {}
        for epoch, of_epoch in groupby(ranges, key=attrgetter("epoch")):
            by_kind.setdefault(_kind_of(stream, epoch), []).extend(of_epoch)
        for kind, named in by_kind.items():
            self._recorder.named_late(
                kind, named, topic=stream.topic, origin=stream.key.origin, partition=stream.partition
            )


def _kind_of(stream: Stream, epoch: int) -> LedgerKind:
    """Return what the records of an epoch are in this region: its own, or those of another home."""
    row = stream.home_row
    homes: dict[int, RegionNumber] = {} if row is None else dict(row.homes)
    is_home = homes[epoch] == stream.region if epoch in homes else stream.is_home
    return LedgerKind.COMMIT if is_home else LedgerKind.REPLICATED
