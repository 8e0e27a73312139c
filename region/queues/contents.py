"""Records of a queue's topic, read from the log: one after the other, or again by offset.

Rule: a chunk of records is held at a time, whatever a batch unfolds to; see region.api.unfolding.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from georelay.errors import OffsetOutOfRange, Unavailable
from georelay.wire.records import Record
from mesh.replication.ports import EpochRow
from region.api.unfolding import Unreadable, readable_chunks, unfolds_on_loop
from region.kafka.ports import EntryLike, ReadAnswer
from region.queues.delivery_traces import BatchFacts
from region.queues.epochs_core import agreeing, are_gaps_sure, newest_epoch
from region.queues.limits import TAKEN_IN_PER_TURN_MAX
from region.queues.ports import QueueCluster
from region.queues.queue_core import FIRST_EPOCH, Place

UNREADABLE_HEADER: Final = "georelay-unreadable"  # of a dead letter: why
UNREADABLE_RECORDS_HEADER: Final = "georelay-records"  # and how many records of its batch it stands for
EARLIEST = -2
LATEST = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    """A record, and what its batch says of its way here.

    Args:
        flaw: why the batch cannot be read from here on; then the record is empty and stands for the rest of it.
    """

    record: Record
    batch: BatchFacts
    flaw: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What is between two offsets: records, and ranges of offsets without one.

    Args:
        following: read on there. end: of what readers may see.
    """

    records: Sequence[ReadRecord]
    gaps: Sequence[tuple[int, int]]
    following: int
    end: int


def size_bytes(record: Record) -> int:
    """Return the bytes of key, value and headers."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


class Unread:
    """What was read of a partition and not taken in yet, from `offset` on.

    Args:
        epoch: the newest home epoch that control knew when it was read. begun: one that has begun in the log that was
            read. is_polled: nobody waited for it, it may well be empty.

    Attributes:
        following: of what was taken so far.
    """

    def __init__(self, answer: ReadAnswer, offset: int, where: str, *, epoch: int, begun: int, is_polled: bool) -> None:
        self.following = offset
        self.epoch = epoch
        self.begun = begun
        self.is_polled = is_polled
        self._stretches = stretches(answer, offset, where)
        self._rest: Stretch | None = None

    async def fill(self) -> bool:
        """Return once there is something to take; False at the end."""
        if self._rest is None:
            self._rest = await anext(self._stretches, None)
        return self._rest is not None

    def take(self, records_max: int) -> Stretch:
        """Return what follows, with at most so many records: at least one. Call it after `fill`."""
        assert self._rest is not None
        stretch, self._rest = split(self._rest, records_max)
        self.following = stretch.following
        return stretch

    async def close(self) -> None:
        """Hold nothing more."""
        await self._stretches.aclose()


async def stretches(answer: ReadAnswer, offset: int, where: str) -> AsyncGenerator[Stretch]:
    """Yield what an answer holds from `offset` on, about TAKEN_IN_PER_TURN_MAX records or a chunk at a time.

    There is at least one stretch. A batch that cannot be read on is a record with a flaw and a gap to its end.

    Args:
        where: who reads what, for the log.
    """
    rows: list[ReadRecord] = []
    gaps: list[tuple[int, int]] = []
    at = offset
    for entry in answer.entries:
        facts, is_small, first = _facts(entry), unfolds_on_loop(entry.payload), entry.base_offset
        async with aclosing(readable_chunks(entry, where, bytes_max=None)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, Unreadable):
                    fresh = [_unreadable(chunk, at, facts)] if chunk.following > at else []
                else:
                    fresh = [
                        ReadRecord(record=record._replace(offset=number), batch=facts)
                        for number, record in enumerate(chunk, first)
                        if number >= at
                    ]
                    first += len(chunk)
                if not fresh:
                    continue
                if fresh[0].record.offset > at:
                    gaps.append((at, fresh[0].record.offset))
                rows += fresh
                at = fresh[-1].record.offset + 1
                if len(rows) >= TAKEN_IN_PER_TURN_MAX or not is_small:
                    yield Stretch(records=rows, gaps=gaps, following=at, end=answer.end)
                    rows, gaps = [], []
        if at < (end := entry.base_offset + entry.record_count):
            gaps.append((at, end))
            at = end
    following = max(at, answer.next_offset)
    if following > at:
        gaps.append((at, following))
    if rows or gaps or following == offset:
        yield Stretch(records=rows, gaps=gaps, following=following, end=answer.end)


def _unreadable(rest: Unreadable, at: int, facts: BatchFacts) -> ReadRecord:
    first = max(at, rest.first)
    headers = (
        (UNREADABLE_HEADER, rest.why.encode()),
        (UNREADABLE_RECORDS_HEADER, str(rest.following - first).encode()),
    )
    record = Record(offset=first, timestamp_ms=facts.append_us // 1000, key=None, value=None, headers=headers)
    return ReadRecord(record=record, batch=facts, flaw=rest.why)


def _facts(entry: EntryLike) -> BatchFacts:
    header = entry.header()
    return BatchFacts(
        append_us=header.append_us,
        epoch=header.epoch,
        received_ns=header.received_ns,
        entry_region=header.entry_region,
    )


def split(stretch: Stretch, records_max: int) -> tuple[Stretch, Stretch | None]:
    """Return the first records of a stretch, and the rest of it."""
    if len(stretch.records) <= records_max:
        return stretch, None
    head, tail = stretch.records[:records_max], stretch.records[records_max:]
    following = head[-1].record.offset + 1
    before = [gap for gap in stretch.gaps if gap[1] <= following]
    behind = [gap for gap in stretch.gaps if gap[1] > following]
    return replace(stretch, records=head, gaps=before, following=following), replace(stretch, records=tail, gaps=behind)


def agreed(stretch: Stretch, table: Sequence[EpochRow], *, first: int, begun: int) -> Stretch:
    """Return the part of a stretch that control's table agrees with; see region.queues.epochs_core.

    Args:
        first: where the stretch begins. begun: an epoch that has begun in the log that was read.
    """
    rows = [(row.batch.epoch, row.record.offset) for row in stretch.records]
    good = agreeing(table, rows)
    if good == len(rows) and are_gaps_sure(table, rows, stretch.following, begun=begun):
        return stretch
    following = rows[good - 1][1] + 1 if good else first
    gaps = [gap for gap in stretch.gaps if gap[1] <= following]
    return replace(stretch, records=stretch.records[:good], gaps=gaps, following=following)


def begun_in_log(cluster: QueueCluster, topic: str, partition: int) -> int:
    """Return the newest epoch that began in this region's log, as a replica here says; the first without one."""
    stream = cluster.stream(topic, partition)
    return FIRST_EPOCH if stream is None else max(FIRST_EPOCH, stream.epoch)


async def read_again(cluster: QueueCluster, topic: str, wanted: Mapping[Place, int]) -> dict[Place, Record]:
    """Return records by place; one that is not there was deleted by retention.

    Args:
        wanted: the home epoch of each record.

    Raises:
        UnknownTopic, Unavailable and what else Cluster.read_records raises: nothing is known. So it is where the log
        ends before a record (it has not come here yet, or an epoch has begun below it), or has one of another epoch
        there, or may have a branch there that will be cut off.
    """
    found: dict[Place, Record] = {}
    for partition, rows in groupby(sorted(wanted), key=lambda place: place.partition):
        offsets = [place.offset for place in rows]
        while offsets:
            stretch = await _read_sure(cluster, topic, partition, offsets)
            for row in stretch.records:
                place = Place(partition, row.record.offset)
                if wanted.get(place, row.batch.epoch) != row.batch.epoch:
                    text = f"record {place.offset} of partition {partition} of {topic!r} was of epoch {wanted[place]}"
                    raise Unavailable(f"{text}, here it is of epoch {row.batch.epoch}")
                if place in wanted:
                    found[place] = row.record
            offsets = [offset for offset in offsets if offset >= stretch.following]
    return found


async def _read_sure(cluster: QueueCluster, topic: str, partition: int, offsets: Sequence[int]) -> Stretch:
    """Return those of some records, ascending, that the batch of the first one holds, as control's table has it.

    Raises:
        Unavailable: the log here does not say.
    """
    offset = offsets[0]
    table, begun = cluster.epoch_table(topic, partition), begun_in_log(cluster, topic, partition)
    try:
        answer = await cluster.read_records(topic, partition, offset, 1, 0)
    except OffsetOutOfRange:
        answer = await cluster.read_records(topic, partition, EARLIEST, 1, 0)
        if offset < answer.log_start:
            return Stretch(records=(), gaps=(), following=answer.log_start, end=answer.end)
    following, found, wanted = offset, list[ReadRecord](), frozenset(offsets)
    async with aclosing(stretches(answer, offset, f"{topic}/{partition}")) as pieces:
        async for whole in pieces:
            piece = agreed(whole, table, first=following, begun=begun)
            found += [row for row in piece.records if row.record.offset in wanted]
            following = piece.following
            begun = max([begun, *(row.batch.epoch for row in piece.records[-1:])])
            if piece is not whole or following > offsets[-1]:
                break
    if offset >= min(following, answer.high_watermark):
        raise Unavailable(f"record {offset} of partition {partition} of {topic!r} is not in this region's log")
    return Stretch(records=found, gaps=(), following=following, end=answer.end)


async def end_of(cluster: QueueCluster, topic: str, partition: int, table: Sequence[EpochRow]) -> int:
    """Return the end of a partition as far as this region's log has it, without a branch that will be cut off.

    Where the newest epoch of `table` has not begun in that log, what lies beyond its start is not believed. That it has
    begun a replica here says, and where there is none or it is behind, the record that is read at its start.

    Raises what Cluster.read_records raises.
    """
    has_begun = begun_in_log(cluster, topic, partition) >= newest_epoch(table)
    if not has_begun:
        try:
            answer = await cluster.read_records(topic, partition, table[-1][1], 1, 0)
        except OffsetOutOfRange:
            answer = await cluster.read_records(topic, partition, EARLIEST, 1, 0)
        has_begun = any(entry.header().epoch >= newest_epoch(table) for entry in answer.entries)
    latest = await cluster.read_records(topic, partition, LATEST, 1, 0)
    return latest.high_watermark if has_begun else min(latest.high_watermark, table[-1][1])
