"""The copy of one record batch for one binding: a function of batch, binding and place. Pure.

Rule 1: one batch gives one copy or none, so that a copy that is made again is the same batch: same producer, same
        sequence, same number of records. The target recognises it and stores it once.
Rule 2: without header rules no record is looked at: header fields are replaced, the records stay as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Final

from georelay.limits import RECORDS_PER_STORED_BATCH_MAX
from georelay.wire.batch import Record, RecordDraft, build_batch, iterate_records, parse_header
from georelay.wire.crc import crc32c
from georelay.wire.header import CRC_START
from region.routing.binding import Binding

SEQUENCES: Final = 2**31
_PRODUCER: Final = struct.Struct(">qhi")  # producer id, producer epoch, base sequence
_PRODUCER_POSITION: Final = 43
_CRC: Final = struct.Struct(">I")
_CRC_POSITION: Final = 17
COPY_EPOCH: Final = 0  # of the producer; a producer that is replaced gets a new id


def copy_of(payload: bytes | memoryview, binding: Binding, *, producer_id: int, sequence: int) -> bytes | None:
    """Return the copy of a batch, None when no record of it matches.

    Args:
        payload: a stored batch. sequence: records that were copied before; it wraps at 2^31 as producers' do.

    Raises:
        CorruptRecordBatch: header rules choose, and the records are none.
        TooLarge: they unfold to too much, or the records that match do not fit into one batch (only where they were
            compressed better before).
    """
    header = parse_header(payload)
    if header.is_control or header.is_transactional:
        return None
    base_sequence = sequence % SEQUENCES
    if binding.headers:
        chosen = _Chosen(payload, binding)
        if not chosen.timestamps_ms:
            return None
        if len(chosen) < header.record_count:
            return build_batch(
                chosen,
                timestamps_ms=chosen.timestamps_ms,
                compression=header.compression,
                producer_id=producer_id,
                producer_epoch=COPY_EPOCH,
                base_sequence=base_sequence,
                records_max=RECORDS_PER_STORED_BATCH_MAX,
            )
    return _with_producer(payload, producer_id, base_sequence)


class _Chosen(Collection[RecordDraft]):
    """The records of a batch that a binding takes: read again by whoever walks them, for all of them may be large."""

    def __init__(self, payload: bytes | memoryview, binding: Binding) -> None:
        self._payload = payload
        self._binding = binding
        self.timestamps_ms = [record.timestamp_ms for record in self._records()]

    def __len__(self) -> int:
        return len(self.timestamps_ms)

    def __iter__(self) -> Iterator[RecordDraft]:
        return (RecordDraft(record.value, record.key, record.headers) for record in self._records())

    def __contains__(self, draft: object) -> bool:
        return any(draft == own for own in self)

    def _records(self) -> Iterator[Record]:
        walked = iterate_records(self._payload, validated=True)
        return (record for record in walked if self._binding.takes_record(record.headers))


def _with_producer(payload: bytes | memoryview, producer_id: int, base_sequence: int) -> bytes:
    raw = bytearray(payload)
    _PRODUCER.pack_into(raw, _PRODUCER_POSITION, producer_id, COPY_EPOCH, base_sequence)
    _CRC.pack_into(raw, _CRC_POSITION, crc32c(memoryview(raw)[CRC_START:]))
    return bytes(raw)
