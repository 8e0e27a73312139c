"""The 61-byte header of a Kafka v2 record batch: parse, check, stamp, split. No record is looked at here.

Layout (big-endian; bytes 0-20 are outside the checksum, which covers byte 21 to the end):

    pos  size  field
      0     8  base_offset           stamped by the home's leader
      8     4  length                of everything after this field
     12     4  epoch                 Kafka's partitionLeaderEpoch; here the home epoch, stamped too
     16     1  magic                 2
     17     4  crc                   CRC-32C
     21     2  attributes            bits 0-2 codec, 3 log append time, 4 transactional, 5 control
     23     4  last_offset_delta     record_count - 1
     27     8  first_timestamp_ms
     35     8  max_timestamp_ms
     43     8  producer_id           -1: not idempotent
     51     2  producer_epoch
     53     4  base_sequence
     57     4  record_count

Rule 1: a batch is stored and shipped verbatim; only base_offset and epoch are ever written after it was built and, once
        and by its home, type and time of its records where the topic wants another than the batch has.
Rule 2: the broker's cost does not depend on the number of records.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from georelay.errors import CorruptRecordBatch, TooLarge
from georelay.limits import RECORD_BATCH_BYTES_MAX, RECORDS_PER_BATCH_MAX, RECORDS_PER_STORED_BATCH_MAX
from georelay.wire.compression import Compression
from georelay.wire.crc import crc32c

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12  # base_offset and length: what `length` does not count
CRC_START: Final = 21  # first byte that the checksum covers
MAGIC: Final = 2
RECORD_BYTES_MIN: Final = 7  # six one-byte varints and the record's attributes
assert HEADER.size == HEADER_BYTES

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
_KNOWN_ATTRIBUTES: Final = CODEC_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL
_CODEC_LAST: Final = max(Compression)

_BASE_OFFSET: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")
_EPOCH: Final = struct.Struct(">i")
_EPOCH_POSITION: Final = 12
_LENGTH_POSITION: Final = 8
_CRC: Final = struct.Struct(">I")
_CRC_POSITION: Final = 17
_ATTRIBUTES: Final = struct.Struct(">h")
_TIMESTAMP: Final = struct.Struct(">q")
_MAX_TIMESTAMP_POSITION: Final = 35

Buffer = bytes | bytearray | memoryview


class BatchHeader(NamedTuple):
    """The header as it stands; a tuple because one is made for every batch that passes."""

    base_offset: int
    length: int
    epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the whole batch, header included."""
        return LENGTH_PREFIX_BYTES + self.length

    @property
    def compression(self) -> Compression:
        """Return the codec of the records."""
        return Compression(self.attributes & CODEC_MASK)

    @property
    def is_log_append_time(self) -> bool:
        """Return whether all records carry the batch's max timestamp instead of their own."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def timestamp_type(self) -> int:
        """Return 0 (the client's create time) or 1 (log append time), as Kafka numbers them."""
        return (self.attributes & LOG_APPEND_TIME) >> 3

    @property
    def is_transactional(self) -> bool:
        """Return whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Return whether the batch is a marker that only brokers write."""
        return bool(self.attributes & CONTROL)

    @property
    def is_idempotent(self) -> bool:
        """Return whether (producer_id, producer_epoch, base_sequence) identify the batch."""
        return self.producer_id >= 0

    @property
    def last_offset(self) -> int:
        """Return the offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Return the first offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Return the sequence of the last record; sequences wrap from 2^31-1 to 0."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def parse_header(raw: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position`, trusting it: for batches that were validated when they came in.

    Raises:
        CorruptRecordBatch: fewer than 61 bytes are there.
    """
    try:
        return BatchHeader._make(HEADER.unpack_from(raw, position))
    except struct.error:
        left = len(raw) - position
        raise CorruptRecordBatch(f"a record batch header needs {HEADER_BYTES} bytes, {left} are left") from None


def validate(
    raw: Buffer, *, from_client: bool, transactional_ok: bool = False, is_forwarded: bool = False
) -> BatchHeader:
    """Check that `raw` is exactly one well-formed batch and return its header; records are not walked.

    Args:
        raw: the batch, nothing before or after it.
        from_client: also refuse what clients may not write (control batches, transactional ones too).
        transactional_ok: let a client's transactional batch through; the caller judges its transaction.
        is_forwarded: another broker took it from a client, or copied what is stored.

    Raises:
        CorruptRecordBatch: wrong length, magic, checksum, attributes, counts or producer fields.
        TooLarge: over RECORD_BATCH_BYTES_MAX, or over RECORDS_PER_BATCH_MAX from a client, over
            RECORDS_PER_STORED_BATCH_MAX else.
    """
    header = parse_header(raw)
    _check_size(header.length, len(raw))
    if header.magic != MAGIC:
        raise CorruptRecordBatch(f"record format (magic) {header.magic} is not supported, only {MAGIC} is")
    actual = crc32c(memoryview(raw)[CRC_START:])
    if actual != header.crc:
        raise CorruptRecordBatch(f"checksum is {actual:#010x}, the header says {header.crc:#010x}")
    _check_attributes(header.attributes)
    if from_client:
        _check_client(header, transactional_ok=transactional_ok)
    _check_counts(header, is_stored=is_forwarded or not from_client)
    _check_producer(header)
    return header


def _check_size(length: int, have_bytes: int) -> None:
    size = length + LENGTH_PREFIX_BYTES
    if size < HEADER_BYTES:
        raise CorruptRecordBatch(f"batch length {length} is below the {HEADER_BYTES - LENGTH_PREFIX_BYTES} of a header")
    if size > RECORD_BATCH_BYTES_MAX:
        raise TooLarge(f"batch of {size} bytes is over RECORD_BATCH_BYTES_MAX ({RECORD_BATCH_BYTES_MAX})")
    if size != have_bytes:
        raise CorruptRecordBatch(f"batch says it has {size} bytes, {have_bytes} are here")


def _check_attributes(attributes: int) -> None:
    if attributes & ~_KNOWN_ATTRIBUTES:
        raise CorruptRecordBatch(f"unknown attribute bits in {attributes & 0xFFFF:#06x}")
    if attributes & CODEC_MASK > _CODEC_LAST:
        raise CorruptRecordBatch(f"compression codec {attributes & CODEC_MASK} is unknown, the last is {_CODEC_LAST}")


def _check_client(header: BatchHeader, *, transactional_ok: bool) -> None:
    if header.attributes & CONTROL:
        raise CorruptRecordBatch("control batches are written by brokers only")
    if header.attributes & TRANSACTIONAL:
        if not transactional_ok:
            raise CorruptRecordBatch("transactions are not supported")
        if header.producer_id < 0:
            raise CorruptRecordBatch("a transactional batch has no producer id")


def _check_counts(header: BatchHeader, *, is_stored: bool) -> None:
    count = header.record_count
    if count < 1:
        raise CorruptRecordBatch(f"record count {count} is below 1")
    if count > RECORDS_PER_BATCH_MAX and not is_stored:
        text = f"batch of {count} records is over RECORDS_PER_BATCH_MAX ({RECORDS_PER_BATCH_MAX})"
        raise TooLarge(f"{text}: publish them in several batches")
    if count > RECORDS_PER_STORED_BATCH_MAX:
        text = f"batch of {count} records is over RECORDS_PER_STORED_BATCH_MAX ({RECORDS_PER_STORED_BATCH_MAX})"
        raise TooLarge(text)
    if header.last_offset_delta != count - 1:
        raise CorruptRecordBatch(f"last offset delta {header.last_offset_delta} does not fit {count} records")
    room = header.length + LENGTH_PREFIX_BYTES - HEADER_BYTES
    if not header.attributes & CODEC_MASK and count * RECORD_BYTES_MIN > room:
        raise CorruptRecordBatch(f"{count} records cannot stand in {room} bytes")


def _check_producer(header: BatchHeader) -> None:
    if header.producer_id < -1:
        raise CorruptRecordBatch(f"producer id {header.producer_id} is below -1")
    if header.attributes & CONTROL:  # a marker names its producer and is none of its batches
        return
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise CorruptRecordBatch(
            f"producer {header.producer_id} without epoch or sequence ({header.producer_epoch}, {header.base_sequence})"
        )


def stamp(raw: bytearray | memoryview, *, base_offset: int, epoch: int, position: int = 0) -> None:
    """Write offset and home epoch into the batch at `position`; both are outside the checksum."""
    _BASE_OFFSET.pack_into(raw, position, base_offset)
    _EPOCH.pack_into(raw, position + _EPOCH_POSITION, epoch)


def stamp_time(
    raw: bytearray | memoryview, header: BatchHeader, *, append_ms: int | None, position: int = 0
) -> BatchHeader:
    """Write the type of its timestamps into the batch at `position`, and the checksum that follows; return the header.

    Args:
        append_ms: all records have this time, ms since 1970 (KIP-32, LogAppendTime); None: each its own (CreateTime).
    """
    is_append_time = append_ms is not None
    if not is_append_time and not header.is_log_append_time:
        return header
    attributes = header.attributes & ~LOG_APPEND_TIME | (LOG_APPEND_TIME if is_append_time else 0)
    max_timestamp_ms = header.max_timestamp_ms if append_ms is None else append_ms
    _ATTRIBUTES.pack_into(raw, position + CRC_START, attributes)
    _TIMESTAMP.pack_into(raw, position + _MAX_TIMESTAMP_POSITION, max_timestamp_ms)
    end = position + LENGTH_PREFIX_BYTES + header.length
    crc = crc32c(memoryview(raw)[position + CRC_START : end])
    _CRC.pack_into(raw, position + _CRC_POSITION, crc)
    return header._replace(attributes=attributes, max_timestamp_ms=max_timestamp_ms, crc=crc)


def split_batches(raw: Buffer, *, partial_tail: bool = False) -> list[memoryview]:
    """Cut a records field into its batches, without copying and without checking more than lengths.

    Args:
        raw: batches one after the other.
        partial_tail: drop an incomplete last batch (a Fetch answer may end with one) instead of refusing it.

    Raises:
        CorruptRecordBatch: a length that does not fit.
        TooLarge: a batch over RECORD_BATCH_BYTES_MAX.
    """
    view, total, position = memoryview(raw), len(raw), 0
    batches: list[memoryview] = []
    while position < total:
        left = total - position
        if left < HEADER_BYTES:
            if partial_tail:
                break
            raise CorruptRecordBatch(f"{left} bytes after batch {len(batches)} are not a record batch")
        size = _LENGTH.unpack_from(view, position + _LENGTH_POSITION)[0] + LENGTH_PREFIX_BYTES
        if size > left and partial_tail and size <= RECORD_BATCH_BYTES_MAX:
            break
        _check_size(size - LENGTH_PREFIX_BYTES, min(size, left))
        batches.append(view[position : position + size])
        position += size
    return batches
