"""Records into a batch and out of it again.

Inside a batch a record is: length, attributes (1 byte, 0), timestamp delta, offset delta, key, value, headers;
all numbers are zigzag varints, a length of -1 means null.

Rule 1: offsets inside a batch are dense (delta i for the i-th record); anything else is refused.
Rule 2: reading is bounded: what a codec may unfold to, what a length may claim, how many headers.
The loops are flat on purpose: they run once per record.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from georelay.errors import CorruptRecordBatch, TooLarge
from georelay.limits import (
    DECOMPRESSED_BATCH_BYTES_MAX,
    HEADERS_PER_RECORD_MAX,
    RECORD_BATCH_BYTES_MAX,
    RECORDS_PER_BATCH_MAX,
)
from georelay.wire.compression import Compression, compress, decompress
from georelay.wire.crc import crc32c
from georelay.wire.header import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    RECORD_BYTES_MIN,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    parse_header,
    validate,
)

Headers = Sequence[tuple[str, bytes | None]]

_CRC_POSITION: Final = 17
_U32: Final = struct.Struct(">I")
_VARINT_BYTES_MAX: Final = 10


class RecordDraft(NamedTuple):
    """A record before it has an offset."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()


class Record(NamedTuple):
    """A record of a stream. `timestamp_ms` counts from the Unix epoch; headers keep their order and duplicates."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def _varint(number: int) -> bytes:
    """Return `number` (64-bit signed) as a zigzag varint."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_SMALL: Final = tuple(_varint(n) for n in range(4096))  # most lengths and deltas: a lookup instead of a loop
_SMALL_END: Final = len(_SMALL)
_NULL: Final = _varint(-1)
_ZERO: Final = _varint(0)


def build_batch(
    records: Collection[RecordDraft | tuple[bytes | None, bytes | None, Headers]],
    *,
    timestamps_ms: int | Sequence[int],
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    epoch: int = -1,
    is_transactional: bool = False,
    records_max: int = RECORDS_PER_BATCH_MAX,
) -> bytes:
    """Return one batch of `records` in their order.

    Args:
        records: 1..records_max of (value, key, headers).
        timestamps_ms: one for all, or one per record; milliseconds since the Unix epoch.
        producer_id, producer_epoch, base_sequence: all >= 0 for an idempotent producer, else all -1.
        base_offset, epoch: normally left to the home's leader, who stamps them.
        is_transactional: the records count only if the producer's transaction commits.

    Raises:
        ValueError: no record, or another number of timestamps than records.
        TooLarge: over `records_max` or RECORD_BATCH_BYTES_MAX.
    """
    count = len(records)
    if not 1 <= count <= records_max:
        if count:
            raise TooLarge(f"batch of {count} records is over RECORDS_PER_BATCH_MAX ({records_max})")
        raise ValueError("a batch needs at least one record")
    first_ms, max_ms, deltas = _timestamp_deltas(timestamps_ms, count)
    body = compress(compression, b"".join(_record_parts(records, deltas)))
    size = HEADER_BYTES + len(body)
    if size > RECORD_BATCH_BYTES_MAX:
        raise TooLarge(f"batch of {size} bytes is over RECORD_BATCH_BYTES_MAX ({RECORD_BATCH_BYTES_MAX})")
    attributes = compression | TRANSACTIONAL if is_transactional else compression
    raw = bytearray(
        HEADER.pack(
            base_offset, size - LENGTH_PREFIX_BYTES, epoch, MAGIC, 0, attributes, count - 1,
            first_ms, max_ms, producer_id, producer_epoch, base_sequence, count,
        )
    )  # fmt: skip
    raw += body
    _U32.pack_into(raw, _CRC_POSITION, crc32c(raw[CRC_START:]))
    return bytes(raw)


def _timestamp_deltas(timestamps_ms: int | Sequence[int], count: int) -> tuple[int, int, Sequence[bytes]]:
    if isinstance(timestamps_ms, int):
        return timestamps_ms, timestamps_ms, (_ZERO,) * count
    if len(timestamps_ms) != count:
        raise ValueError(f"{len(timestamps_ms)} timestamps for {count} records")
    first_ms = timestamps_ms[0]
    return first_ms, max(timestamps_ms), [_number(at - first_ms) for at in timestamps_ms]


def _number(number: int) -> bytes:
    return _SMALL[number] if 0 <= number < _SMALL_END else _varint(number)


def _record_parts(
    records: Collection[RecordDraft | tuple[bytes | None, bytes | None, Headers]], deltas: Sequence[bytes]
) -> list[bytes]:
    parts: list[bytes] = []
    append = parts.append
    small, small_end = _SMALL, _SMALL_END
    for index, (value, key, headers) in enumerate(records):
        head = b"\x00" + deltas[index] + (small[index] if index < small_end else _varint(index))
        if key is None:
            head += _NULL
        else:
            size = len(key)
            head += (small[size] if size < small_end else _varint(size)) + key
        if value is None:
            head += _NULL
            value = b""
        else:
            size = len(value)
            head += small[size] if size < small_end else _varint(size)
        tail = _header_parts(headers) if headers else _ZERO
        size = len(head) + len(value) + len(tail)
        append((small[size] if size < small_end else _varint(size)) + head)
        append(value)
        append(tail)
    return parts


def _header_parts(headers: Headers) -> bytes:
    if len(headers) > HEADERS_PER_RECORD_MAX:
        raise TooLarge(f"{len(headers)} headers are over HEADERS_PER_RECORD_MAX ({HEADERS_PER_RECORD_MAX})")
    parts = [_number(len(headers))]
    for name, value in headers:
        raw_name = name.encode()
        parts += (_number(len(raw_name)), raw_name)
        parts += (_NULL,) if value is None else (_number(len(value)), value)
    return b"".join(parts)


def iterate_records(raw: Buffer, *, validated: bool = False) -> Iterator[Record]:
    """Yield the records of one batch, decompressing it if need be (at most DECOMPRESSED_BATCH_BYTES_MAX).

    The header is checked before the first record; a flaw inside shows when iteration reaches it, so use
    `list(...)` first where a batch must be all good or refused.

    Args:
        raw: exactly one batch.
        validated: skip the checks of `validate` (the checksum above all) for a batch that passed them before.

    Raises:
        CorruptRecordBatch: header or records are malformed.
        TooLarge: the batch or what it unfolds to is over a limit.
    """
    return open_records(raw, validated=validated)[1]


def open_records(raw: Buffer, *, validated: bool = False) -> tuple[int, Iterator[Record]]:
    """Return how many bytes are held while the records are walked, and the records; all else as `iterate_records`."""
    header = parse_header(raw) if validated else validate(raw, from_client=False)
    data = bytes(raw[HEADER_BYTES : header.size_bytes])
    if header.compression is not Compression.NONE:
        data = decompress(header.compression, data, DECOMPRESSED_BATCH_BYTES_MAX)
    if header.record_count * RECORD_BYTES_MIN > len(data):
        raise CorruptRecordBatch(f"{header.record_count} records cannot stand in {len(data)} bytes")
    return len(data), _walk(data, header)


def _walk(data: bytes, header: BatchHeader) -> Iterator[Record]:
    position, total = 0, len(data)
    base_offset, first_ms = header.base_offset, header.first_timestamp_ms
    fixed_ms = header.max_timestamp_ms if header.is_log_append_time else None
    for index in range(header.record_count):
        try:
            size, position = _read_varint(data, position)
            end = position + size
            if end > total:
                raise _broken(index, f"says it has {size} bytes, {total - position} are left")
            position += 1  # attributes: no bit of them is in use
            delta_ms, position = _read_varint(data, position)
            delta, position = _read_varint(data, position)
            key, position = _read_bytes(data, position, end)
            value, position = _read_bytes(data, position, end)
            headers: tuple[tuple[str, bytes | None], ...] = ()
            if data[position]:  # a count of 0 is one zero byte
                headers, position = _read_headers(data, position, end)
            else:
                position += 1
        except IndexError:
            raise _broken(index, "is cut short") from None
        if position != end:
            raise _broken(index, f"ends {position - end:+d} bytes from where its length says")
        if delta != index:
            raise _broken(index, f"has offset delta {delta}")
        yield Record(base_offset + index, first_ms + delta_ms if fixed_ms is None else fixed_ms, key, value, headers)
    if position != total:
        raise CorruptRecordBatch(f"{total - position} bytes follow the last record")


def _broken(index: int, what: str) -> CorruptRecordBatch:
    return CorruptRecordBatch(f"record {index} of the batch {what}")


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    number, shift = byte & 0x7F, 7
    for at in range(position + 1, position + _VARINT_BYTES_MAX):
        byte = data[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + 1
        shift += 7
    raise CorruptRecordBatch(f"a varint of a record is longer than {_VARINT_BYTES_MAX} bytes")


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = _read_varint(data, position)
    if size < 0:
        if size != -1:
            raise CorruptRecordBatch(f"a length inside a record is {size}")
        return None, position
    stop = position + size
    if stop > end:
        raise CorruptRecordBatch(f"a field of {size} bytes does not fit its record")
    return data[position:stop], stop


def _read_headers(data: bytes, position: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = _read_varint(data, position)
    if not 0 <= count <= HEADERS_PER_RECORD_MAX:
        raise CorruptRecordBatch(f"a record has {count} headers, HEADERS_PER_RECORD_MAX is {HEADERS_PER_RECORD_MAX}")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _read_bytes(data, position, end)
        value, position = _read_bytes(data, position, end)
        if name is None:
            raise CorruptRecordBatch("a record header has no name")
        try:
            headers.append((name.decode(), value))
        except UnicodeDecodeError:
            raise CorruptRecordBatch("a record header's name is not UTF-8") from None
    return tuple(headers), position
