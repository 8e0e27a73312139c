"""The state of a coordinator's stream as bytes: what a manifest of it holds.

Layout of version 1 (big-endian; it never changes):

    u8 129                              version 1; below 128 it is the plain state of a stream
    u32 bytes, stream                   region.topics.stream_state, in its own version
    u8 parts, each u8 part, u32 bytes, state      ascending; a part without state is left out

Rule: replicas hold equal bytes at equal index, so every part's snapshot has to be canonical.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from region.coordination.part import Part

CONTAINER_VERSION: Final = 129
_PLAIN_BELOW: Final = 128
_HEAD: Final = struct.Struct(">BI")
_PART: Final = struct.Struct(">BI")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamContainer:
    """The state of a stream, and of the parts that are not empty.

    `is_plain`: the stream was followed by what does not know parts (a broker of an older version).
    """

    stream: bytes
    parts: Mapping[Part, bytes] = field(default_factory=dict)
    is_plain: bool = False

    def encode(self) -> bytes:
        """Return the bytes of version 1."""
        rows = [(part, self.parts[part]) for part in sorted(self.parts) if self.parts[part]]
        head = (_HEAD.pack(CONTAINER_VERSION, len(self.stream)), self.stream, bytes([len(rows)]))
        return b"".join((*head, *(piece for part, state in rows for piece in (_PART.pack(part, len(state)), state))))

    @classmethod
    def decode(cls, raw: bytes | memoryview) -> StreamContainer:
        """Decode what `encode` returned, or a plain state.

        Raises:
            ValueError: another version, a part that is unknown or out of order, or lengths that cannot be.
        """
        raw = bytes(raw)
        if not raw or raw[0] < _PLAIN_BELOW:
            return cls(stream=raw, is_plain=True)
        if raw[0] != CONTAINER_VERSION:
            raise ValueError(f"container version {raw[0]} is unknown, this broker reads {CONTAINER_VERSION}")
        try:
            at = _HEAD.size + _HEAD.unpack_from(raw)[1]
            stream, count = raw[_HEAD.size : at], raw[at]
            at += 1
            parts: dict[Part, bytes] = {}
            for _ in range(count):
                number, size = _PART.unpack_from(raw, at)
                at += _PART.size + size
                if parts and number <= max(parts):
                    raise ValueError(f"part {number} of a container is out of order")
                parts[Part(number)] = raw[at - size : at]
        except (struct.error, IndexError) as error:
            raise ValueError(f"a container ends too early: {error}") from error
        if at != len(raw):
            raise ValueError(f"a container of {len(raw)} bytes says that it has {at}")
        return cls(stream=stream, parts=parts)
