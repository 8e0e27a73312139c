"""What operators are shown of hosted streams: producers that a log remembers, and bytes that a replica takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from georelay.ids import RegionNumber
from region.kafka.operator_views import NO_TRANSACTION, ProducerInfo, ReplicaSize
from region.topics.hosted_stream import HostedStream

UNKNOWN: Final = -1


def producers_of(stream: HostedStream) -> Sequence[ProducerInfo]:
    """Return the producers of a stream by id: those with committed batches, and those whose transaction is open."""
    transactions = stream.transactions.committed
    infos: dict[int, ProducerInfo] = {}
    for producer_id, state in stream.committed_producers():
        infos[producer_id] = ProducerInfo(
            producer_id=producer_id,
            producer_epoch=state.epoch,
            last_sequence=state.last_sequence,
            newest_append_ms=state.newest_append_us // 1000,
        )
    numbers = {producer_id: row.number for producer_id, row in transactions.ended.items()}
    for producer_id, row in transactions.ongoing.items():
        known = infos.get(producer_id)
        infos[producer_id] = ProducerInfo(
            producer_id=producer_id,
            producer_epoch=row.producer_epoch,
            last_sequence=UNKNOWN if known is None else known.last_sequence,
            newest_append_ms=row.append_us // 1000 if known is None else known.newest_append_ms,
            transaction_number=numbers.get(producer_id, NO_TRANSACTION),
            transaction_start=row.first_offset,
        )
    return [infos[producer_id] for producer_id in sorted(infos)]


def sizes_of(
    streams: Iterable[HostedStream], local_name: Callable[[HostedStream, RegionNumber], str]
) -> list[ReplicaSize]:
    """Return the bytes of every replica's segments, by the local name of its topic."""
    rows = [
        ReplicaSize(
            topic=local_name(stream, stream.key.origin),
            partition=stream.partition,
            size_bytes=stream.disk.size_bytes,
        )
        for stream in streams
    ]
    return sorted(rows, key=lambda row: (row.topic, row.partition))
