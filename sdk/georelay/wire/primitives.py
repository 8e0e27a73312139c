"""The primitive types of the Kafka protocol: bounded reads, and writes.

Rule 1: every count and length is checked against the bytes left before anything is allocated for it.
Rule 2: a frame has a budget of items (array elements and tagged fields), so that millions of tiny elements
        cannot cost seconds and gigabytes; the budget is generous for every honest frame.
Rule 3: a read past the end raises IndexError or struct.error here; the codec turns both into WireError once,
        so that no read pays for a check of its own.
"""

from __future__ import annotations

import struct
from typing import Final

from georelay.errors import BadRequest
from georelay.limits import PARTITIONS_PER_TOPIC_MAX, TOPICS_MAX

REQUEST_ITEMS_MAX: Final = 2 * TOPICS_MAX
RESPONSE_ITEMS_MAX: Final = 2 * TOPICS_MAX * 100
assert REQUEST_ITEMS_MAX > PARTITIONS_PER_TOPIC_MAX

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
_UVARINT_BYTES_MAX: Final = 5


class WireError(BadRequest):
    """Bytes that are not a valid frame of the Kafka protocol; the only error that decoding raises."""


class Reader:
    """A position in a frame and the budget that is left."""

    __slots__ = ("end", "items_left", "position", "raw")

    def __init__(self, raw: bytes | memoryview, position: int, items_max: int) -> None:
        self.raw = raw
        self.position = position
        self.end = len(raw)
        self.items_left = items_max

    def spend(self, items: int) -> None:
        """Take `items` from the budget."""
        self.items_left -= items
        if self.items_left < 0:
            raise WireError("the frame holds more elements than a frame may")


def read_uvarint(reader: Reader) -> int:
    """Read an unsigned varint of at most 32 bits."""
    raw, position = reader.raw, reader.position
    number = raw[position]
    if number < 0x80:
        reader.position = position + 1
        return number
    number &= 0x7F
    for index in range(1, _UVARINT_BYTES_MAX):
        byte = raw[position + index]
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            reader.position = position + index + 1
            return number
    raise WireError(f"a varint is longer than {_UVARINT_BYTES_MAX} bytes")


def read_length16(reader: Reader) -> int:
    """Read a length of two bytes; -1 is null."""
    length: int = INT16.unpack_from(reader.raw, reader.position)[0]
    reader.position += 2
    return length


def read_length32(reader: Reader) -> int:
    """Read a length of four bytes; -1 is null."""
    length: int = INT32.unpack_from(reader.raw, reader.position)[0]
    reader.position += 4
    return length


def read_compact_length(reader: Reader) -> int:
    """Read a compact length (stored plus one); -1 is null."""
    position = reader.position
    number = reader.raw[position]
    if number < 0x80:  # nearly always: no call for it
        reader.position = position + 1
        return number - 1
    return read_uvarint(reader) - 1


def take(reader: Reader, length: int) -> bytes | memoryview:
    """Return the next `length` bytes: a view when the frame is one."""
    start = reader.position
    stop = start + length
    if length < 0 or stop > reader.end:
        raise WireError(f"a length of {length} does not fit the {reader.end - start} bytes left")
    reader.position = stop
    return reader.raw[start:stop]


def take_text(reader: Reader, length: int) -> str:
    """Return the next `length` bytes as text."""
    try:
        return str(take(reader, length), "utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"a string is not UTF-8: {error.reason}") from None


def check_count(reader: Reader, count: int, item_bytes_min: int) -> None:
    """Refuse an array whose `count` elements cannot stand in the bytes left, or that overdraws the budget."""
    left = reader.end - reader.position
    if count < 0 or count * item_bytes_min > left:
        raise WireError(f"an array of {count} elements does not fit the {left} bytes left")
    reader.spend(count)


def skip_tags(reader: Reader) -> None:
    """Step over tagged fields; this codec knows none at this place."""
    if reader.raw[reader.position] == 0:  # nearly always: no tag
        reader.position += 1
        return
    for _, _ in each_tag(reader):
        pass


def each_tag(reader: Reader) -> list[tuple[int, Reader]]:
    """Return (tag, reader of its bytes, without a budget) for each tagged field; tags must ascend."""
    count = read_uvarint(reader)
    check_count(reader, count, 2)
    tags: list[tuple[int, Reader]] = []
    last = -1
    for _ in range(count):
        tag = read_uvarint(reader)
        if tag <= last:
            raise WireError(f"tagged field {tag} follows {last}")
        last = tag
        size = read_uvarint(reader)
        tags.append((tag, Reader(take(reader, size), 0, 0)))
    return tags


def write_uvarint(out: bytearray, number: int) -> None:
    """Append an unsigned varint."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def write_length16(out: bytearray, length: int) -> None:
    """Append a length of two bytes; -1 is null."""
    out += INT16.pack(length)


def write_length32(out: bytearray, length: int) -> None:
    """Append a length of four bytes; -1 is null."""
    out += INT32.pack(length)


def write_compact_length(out: bytearray, length: int) -> None:
    """Append a compact length; -1 is null."""
    write_uvarint(out, length + 1)
