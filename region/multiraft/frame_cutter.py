"""Cuts the frames of an index range out of a segment that arrives in pieces.

Replicas seal their segments at different indexes, so what one broker lacks is seldom a whole segment of another.
Pure: it only walks over frame headers, whose checksums are verified; payloads and chain are verified later, where
the frames were staged.
"""

from __future__ import annotations

import struct
from typing import Final

from region.log.entry import ENTRY_HEADER_BYTES, EntryError, frame_bytes

_INDEX: Final = struct.Struct(">Q")
_INDEX_AT: Final = 20


class FrameCutter:
    """Keeps the frames with first_index <= index <= last_index of one stream of whole entries."""

    def __init__(self, *, first_index: int, last_index: int) -> None:
        self._first_index = first_index
        self._last_index = last_index
        self._rest = b""
        self._skip = 0  # bytes of a frame that is not wanted
        self._keep = 0  # bytes of a wanted frame that were not seen yet
        self.kept_index = first_index - 1  # last index whose frame began to be kept

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Return what is wanted of the next piece, in order. Raises EntryError when it is no entry."""
        stream = memoryview(self._rest + bytes(data)) if self._rest else memoryview(bytes(data))
        self._rest = b""
        position, wanted = 0, list[tuple[int, int]]()
        while position < len(stream):
            left = len(stream) - position
            if self._skip:
                step = min(self._skip, left)
                self._skip -= step
            elif self._keep:
                step = min(self._keep, left)
                self._keep -= step
                if wanted and wanted[-1][1] == position:
                    wanted[-1] = (wanted[-1][0], position + step)
                else:
                    wanted.append((position, position + step))
            elif left < ENTRY_HEADER_BYTES:
                self._rest = bytes(stream[position:])
                break
            else:
                self._begin(stream, position)
                continue
            position += step
        return [bytes(stream[start:end]) for start, end in wanted]

    def _begin(self, stream: memoryview, position: int) -> None:
        size = frame_bytes(stream, position)
        (index,) = _INDEX.unpack_from(stream, position + _INDEX_AT)
        if not self._first_index <= index <= self._last_index:
            self._skip = size
            return
        if index != self.kept_index + 1:
            raise EntryError(f"entry {index} follows entry {self.kept_index}: the segment has a gap")
        self.kept_index = index
        self._keep = size

    @property
    def whole(self) -> bool:
        """Return whether the stream stopped between two frames."""
        return not self._rest and not self._keep and not self._skip
