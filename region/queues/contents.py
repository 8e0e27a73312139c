"""Records of a queue's topic, read from the log: one after the other, or again by offset.

Rule: a batch that may unfold to much is unfolded in a thread, and no second one with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from georelay.errors import OffsetOutOfRange, Unavailable
from georelay.wire.records import Record, iterate_records
from mesh.replication.ports import EpochRow
from region.api.unfolding import unfolds_on_loop
from region.kafka.ports import EntryLike, ReadAnswer
from region.queues.delivery_traces import BatchFacts
from region.queues.epochs_core import agreeing, are_gaps_sure
from region.queues.ports import QueueCluster
from region.queues.queue_core import Place

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


async def read_again(cluster: QueueCluster, topic: str, places: Iterable[Place]) -> dict[Place, Record]:
    """Return records by place; one that is not there was deleted by retention.

    Raises:
        UnknownTopic, Unavailable and what else Cluster.read_records raises: nothing is known. So it is where the log
        ends before a record: it has not come here yet, or an epoch has begun below it.
    """
    found: dict[Place, Record] = {}
    for partition, rows in groupby(sorted(places), key=lambda place: place.partition):
        wanted = [place.offset for place in rows]
        while wanted:
            batch = await _read_batch(cluster, topic, partition, wanted[0])
            for offset in wanted:
                if offset in batch:
                    found[Place(partition, offset)] = batch[offset]
            last = max(batch, default=wanted[0])
            wanted = [offset for offset in wanted if offset > max(last, wanted[0])]
    return found


async def _read_batch(cluster: QueueCluster, topic: str, partition: int, offset: int) -> dict[int, Record]:
    try:
        answer = await cluster.read_records(topic, partition, offset, 1, 0)
    except OffsetOutOfRange:
        answer = await cluster.read_records(topic, partition, EARLIEST, 1, 0)
        if offset < answer.log_start:
            return {}
    if offset >= answer.high_watermark:
        raise Unavailable(f"record {offset} of partition {partition} of {topic!r} is not in this region's log")
    stretch = await read_stretch(answer, offset)
    return {row.record.offset: row.record for row in stretch.records}
