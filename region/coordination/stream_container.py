"""The state of a coordinator's stream as bytes: what a manifest of it holds.

Layouts (big-endian; they never change):

    u8 129                              version 1; below 128 it is the plain state of a stream
    u32 bytes, stream                   region.topics.stream_state, in its own version
    u8 parts, each u8 part, u32 bytes, state      ascending; a part without state is left out

    u8 130                              version 2: of a stream whose home moved, or of which a beginning is missing here
    u32 checkpoint epoch | u8 flags (1: exact) | u16 pieces, each u32 bytes, piece
    what follows the version in version 1

Rule: replicas hold equal bytes at equal index, so every part's snapshot has to be canonical.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from georelay.ids import Epoch
from region.coordination.part import Part

CONTAINER_VERSION: Final = 129
MOVED_VERSION: Final = 130
_PLAIN_BELOW: Final = 128
_EXACT: Final = 1
_HEAD: Final = struct.Struct(">BI")
_LENGTH: Final = struct.Struct(">I")
_MOVED: Final = struct.Struct(">BIBH")
_PART: Final = struct.Struct(">BI")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamContainer:
    """The state of a stream, and of the parts that are not empty.

    Args:
        is_plain: the stream was followed by what does not know parts (a broker of an older version).
        is_exact: the parts are what the commands of this stream's agreed history make, from the first on.
        checkpoint_epoch: newest epoch of which the stream holds a checkpoint, 0 without one.
        pieces: of a checkpoint that is not over here.
    """

    stream: bytes
    parts: Mapping[Part, bytes] = field(default_factory=dict)
    is_plain: bool = False
    is_exact: bool = True
    checkpoint_epoch: Epoch = Epoch(0)  # noqa: RUF009
    pieces: Sequence[bytes] = ()

    def encode(self) -> bytes:
        """Return the bytes of the lowest version that holds everything."""
        rows = [(part, self.parts[part]) for part in sorted(self.parts) if self.parts[part]]
        tail = (
            _LENGTH.pack(len(self.stream)),
            self.stream,
            bytes([len(rows)]),
            *(piece for part, state in rows for piece in (_PART.pack(part, len(state)), state)),
        )
        if self.is_exact and not self.checkpoint_epoch and not self.pieces:
            return b"".join((bytes([CONTAINER_VERSION]), *tail))
        flags = _EXACT if self.is_exact else 0
        head = _MOVED.pack(MOVED_VERSION, self.checkpoint_epoch, flags, len(self.pieces))
        pieces = (part for piece in self.pieces for part in (_LENGTH.pack(len(piece)), piece))
        return b"".join((head, *pieces, *tail))

    @classmethod
    def decode(cls, raw: bytes | memoryview) -> StreamContainer:
        """Decode what `encode` returned, or a plain state.

        Raises:
            ValueError: another version, a part that is unknown or out of order, or lengths that cannot be.
        """
        raw = bytes(raw)
        if not raw or raw[0] < _PLAIN_BELOW:
            return cls(stream=raw, is_plain=True)
        if raw[0] not in (CONTAINER_VERSION, MOVED_VERSION):
            raise ValueError(f"container version {raw[0]} is unknown, this broker reads {MOVED_VERSION}")
        try:
            return cls._decode(raw)
        except (struct.error, IndexError) as error:
            raise ValueError(f"a container ends too early: {error}") from error

    @classmethod
    def _decode(cls, raw: bytes) -> StreamContainer:
        at, flags, epoch, pieces = 1, _EXACT, 0, []
        if raw[0] == MOVED_VERSION:
            _, epoch, flags, count = _MOVED.unpack_from(raw)
            at = _MOVED.size
            for _ in range(count):
                piece, at = _take(raw, at)
                pieces.append(piece)
        stream, at = _take(raw, at)
        parts, at = _take_parts(raw, at)
        if at != len(raw):
            raise ValueError(f"a container of {len(raw)} bytes says that it has {at}")
        if flags > _EXACT:
            raise ValueError(f"flags {flags} of a container are unknown")
        return cls(
            stream=stream,
            parts=parts,
            is_exact=bool(flags & _EXACT),
            checkpoint_epoch=Epoch(epoch),
            pieces=tuple(pieces),
        )


def _take(raw: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes whose length stands at `at`, and where they end."""
    begin = at + _LENGTH.size
    end = begin + _LENGTH.unpack_from(raw, at)[0]
    if end > len(raw):
        raise IndexError(f"{end - begin} bytes from {begin} on")
    return raw[begin:end], end


def _take_parts(raw: bytes, at: int) -> tuple[dict[Part, bytes], int]:
    parts: dict[Part, bytes] = {}
    count, at = raw[at], at + 1
    for _ in range(count):
        number, size = _PART.unpack_from(raw, at)
        at += _PART.size + size
        if parts and number <= max(parts):
            raise ValueError(f"part {number} of a container is out of order")
        parts[Part(number)] = raw[at - size : at]
    return parts, at
