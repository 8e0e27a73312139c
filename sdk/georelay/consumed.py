"""Records as consumers get them, unfolded from the batches that brokers deliver as they are stored."""

from __future__ import annotations

from typing import Final, NamedTuple

from georelay._pb import streams_pb2 as pb
from georelay.errors import CorruptRecordBatch
from georelay.positions import Place
from georelay.wire.header import HEADER_BYTES
from georelay.wire.records import iterate_records

_EPOCH: Final = slice(12, 16)  # of a batch: the home epoch


class ConsumedRecord(NamedTuple):
    """A record of a stream. `epoch` is the home's; `timestamp_ms` is the producer's, since 1970."""

    stream: str
    partition: int
    offset: int
    epoch: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def place(self) -> Place:
        """Return its partition."""
        return Place(self.stream, self.partition)


def unfold(delivery: pb.Delivery, first: int) -> list[ConsumedRecord]:
    """Return the records of a delivery from offset `first` on; checksums are verified here, end to end.

    Raises:
        CorruptRecordBatch: a batch is not what was published.
    """
    found = []
    for raw in delivery.batches:
        if len(raw) < HEADER_BYTES:
            raise CorruptRecordBatch(f"{delivery.stream}/{delivery.partition}: {len(raw)} bytes are no batch")
        epoch = int.from_bytes(raw[_EPOCH], "big", signed=True)
        for record in iterate_records(raw):
            if record.offset >= first:
                found.append(
                    ConsumedRecord(
                        delivery.stream,
                        delivery.partition,
                        record.offset,
                        epoch,
                        record.timestamp_ms,
                        record.key,
                        record.value,
                        record.headers,
                    )
                )
    return found
