"""Records of a queue's topic, read from the log: one after the other, or again by offset.

Rule: a batch that may unfold to much is unfolded in a thread, and no second one with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from georelay.errors import OffsetOutOfRange, Unavailable
from georelay.wire.records import Record, iterate_records
from mesh.replication.ports import EpochRow
from region.api.unfolding import unfolds_on_loop
from region.kafka.ports import EntryLike, ReadAnswer
from region.queues.delivery_traces import BatchFacts
from region.queues.epochs_core import agreeing, are_gaps_sure, newest_epoch
from region.queues.ports import QueueCluster
from region.queues.queue_core import FIRST_EPOCH, Place

EARLIEST = -2
LATEST = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    """A record, and what its batch says of its way here."""

    record: Record
    batch: BatchFacts


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


async def read_stretch(answer: ReadAnswer, offset: int) -> Stretch:
    """Return the records from `offset` on: all of an answer, or those up to the end of its first heavy batch."""
    heavy = next((at for at, entry in enumerate(answer.entries) if not unfolds_on_loop(entry.payload)), None)
    if heavy is None:
        return stretch_of(answer, offset)
    if heavy + 1 < len(answer.entries):
        answer = replace(answer, entries=answer.entries[: heavy + 1], next_offset=-1)
    return await asyncio.to_thread(stretch_of, answer, offset)


def stretch_of(answer: ReadAnswer, offset: int) -> Stretch:
    """Return the records from `offset` on that an answer holds."""
    records: list[ReadRecord] = []
    gaps: list[tuple[int, int]] = []
    at = offset
    for entry in answer.entries:
        header = entry.header()
        facts = BatchFacts(
            append_us=header.append_us,
            epoch=header.epoch,
            received_ns=header.received_ns,
            entry_region=header.entry_region,
        )
        for record in _records(entry):
            if record.offset < at:
                continue
            if record.offset > at:
                gaps.append((at, record.offset))
            records.append(ReadRecord(record=record, batch=facts))
            at = record.offset + 1
    following = max(at, answer.next_offset)
    if following > at:
        gaps.append((at, following))
    return Stretch(records=records, gaps=gaps, following=following, end=answer.end)


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


def _records(entry: EntryLike) -> list[Record]:
    return [
        record._replace(offset=entry.base_offset + at)
        for at, record in enumerate(iterate_records(entry.payload, validated=True))
    ]


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
            stretch = await _read_sure(cluster, topic, partition, offsets[0])
            for row in stretch.records:
                place = Place(partition, row.record.offset)
                if wanted.get(place, row.batch.epoch) != row.batch.epoch:
                    text = f"record {place.offset} of partition {partition} of {topic!r} was of epoch {wanted[place]}"
                    raise Unavailable(f"{text}, here it is of epoch {row.batch.epoch}")
                if place in wanted:
                    found[place] = row.record
            offsets = [offset for offset in offsets if offset >= stretch.following]
    return found


async def _read_sure(cluster: QueueCluster, topic: str, partition: int, offset: int) -> Stretch:
    """Return at least one offset, as control's table has it (Unavailable: the log here does not say)."""
    table, begun = cluster.epoch_table(topic, partition), begun_in_log(cluster, topic, partition)
    try:
        answer = await cluster.read_records(topic, partition, offset, 1, 0)
    except OffsetOutOfRange:
        answer = await cluster.read_records(topic, partition, EARLIEST, 1, 0)
        if offset < answer.log_start:
            return Stretch(records=(), gaps=(), following=answer.log_start, end=answer.end)
    stretch = agreed(await read_stretch(answer, offset), table, first=offset, begun=begun)
    if offset >= min(stretch.following, answer.high_watermark):
        raise Unavailable(f"record {offset} of partition {partition} of {topic!r} is not in this region's log")
    return stretch


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
