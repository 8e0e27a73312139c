"""Log entries behind each other, as they travel between brokers: u32 length, then the frame, for each."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from region.kafka.ports import EntryLike
from region.log.entry import Entry, decode_entry

_LENGTH: Final = struct.Struct(">I")


def encode_frames(entries: Sequence[EntryLike]) -> bytes:
    """Return the entries as bytes; they are those of this broker's log."""
    parts: list[bytes | bytearray] = []
    for entry in entries:
        assert isinstance(entry, Entry)
        parts += (_LENGTH.pack(entry.size), entry.frame)
    return b"".join(parts)


def decode_frames(raw: bytes) -> list[Entry]:
    """Decode what `encode_frames` returned, each entry fully checked.

    Raises:
        ValueError: not that.
    """
    entries = []
    position = 0
    try:
        while position < len(raw):
            (length,) = _LENGTH.unpack_from(raw, position)
            position += _LENGTH.size
            entries.append(decode_entry(memoryview(raw)[position : position + length]))
            position += length
    except struct.error as error:
        raise ValueError(f"entries end too early: {error}") from error
    return entries
