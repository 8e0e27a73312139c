"""The marker that ends a transaction: a control batch of one record, which every Kafka client steps over.

The record's key is (version 0, type 0 abort or 1 commit), its value is (version 0, coordinator epoch); see Kafka's
schema EndTxnMarker and `ControlRecordType`. The batch carries the producer whose transaction ends, and no sequence.

Rule: any other control batch is refused: nothing of georelay writes one.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from georelay.errors import CorruptRecordBatch
from georelay.wire.crc import crc32c
from georelay.wire.header import (
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    TRANSACTIONAL,
    Buffer,
    validate,
)
from georelay.wire.records import iterate_records

_VERSION: Final = 0
_ABORT: Final = 0
_COMMIT: Final = 1
_KEY: Final = struct.Struct(">hh")  # version, type
_VALUE: Final = struct.Struct(">hi")  # version, coordinator epoch
_U32: Final = struct.Struct(">I")
_CRC_POSITION: Final = 17
# length 16, attributes, timestamp delta, offset delta, key of 4 bytes, value of 6 bytes, no headers: as varints
_RECORD: Final = struct.Struct(">B3xB4sB6sx")
_RECORD_LENGTH: Final = 32
_KEY_LENGTH: Final = 8
_VALUE_LENGTH: Final = 12

MARKER_BYTES: Final = HEADER_BYTES + _RECORD.size


class Marker(NamedTuple):
    """The end of one producer's transaction in one partition."""

    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int
    timestamp_ms: int


def build_marker(
    *, producer_id: int, producer_epoch: int, is_commit: bool, coordinator_epoch: int, timestamp_ms: int
) -> bytes:
    """Return the marker as a record batch; the home's leader stamps its offset.

    Args:
        producer_id, producer_epoch: whose transaction ends, >= 0.
        coordinator_epoch: term of the transaction's coordinator, 0..2^31-1.
        timestamp_ms: since the Unix epoch.

    Raises:
        ValueError: a number out of its range.
    """
    if producer_id < 0 or producer_epoch < 0:
        raise ValueError(f"a marker needs a producer id and epoch, not {producer_id} and {producer_epoch}")
    try:
        key = _KEY.pack(_VERSION, _COMMIT if is_commit else _ABORT)
        record = _RECORD.pack(_RECORD_LENGTH, _KEY_LENGTH, key, _VALUE_LENGTH, _VALUE.pack(_VERSION, coordinator_epoch))
        head = HEADER.pack(
            0, MARKER_BYTES - LENGTH_PREFIX_BYTES, -1, MAGIC, 0, TRANSACTIONAL | CONTROL, 0,
            timestamp_ms, timestamp_ms, producer_id, producer_epoch, -1, 1,
        )  # fmt: skip
    except struct.error as error:
        raise ValueError(f"a marker holds a number out of range: {error}") from error
    raw = bytearray(head + record)
    _U32.pack_into(raw, _CRC_POSITION, crc32c(raw[CRC_START:]))
    return bytes(raw)


def parse_marker(batch: Buffer) -> Marker:
    """Read a marker.

    Raises:
        CorruptRecordBatch: malformed, or no marker of a transaction.
        TooLarge: what its header claims is over a limit.
    """
    header = validate(batch, from_client=False)
    if not (header.is_control and header.is_transactional):
        raise CorruptRecordBatch("the batch is no marker of a transaction")
    record, *more = iterate_records(batch, validated=True)
    if more or record.key is None or len(record.key) < _KEY.size or record.value is None:
        raise CorruptRecordBatch("a marker has one record with key and value")
    kind = _KEY.unpack_from(record.key)[1]
    if kind not in (_ABORT, _COMMIT) or len(record.value) < _VALUE.size:
        raise CorruptRecordBatch(f"control record type {kind} of {len(record.value)} bytes is no marker")
    epoch: int = _VALUE.unpack_from(record.value)[1]
    return Marker(header.producer_id, header.producer_epoch, kind == _COMMIT, epoch, record.timestamp_ms)
