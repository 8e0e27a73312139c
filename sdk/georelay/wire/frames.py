"""Bytes of a connection into frames: a length of four bytes, then so many bytes. Pure: it never touches a socket.

Rule 1: no more is buffered than the frame's cap, and the cap is known before the frame is collected: the first
        two bytes of a request name its API.
Rule 2: a frame that came in one piece is a view of it; one that came in pieces was copied once.
"""

from __future__ import annotations

import struct
from typing import Final

from georelay.wire.keys import FrameCap, frame_bytes_max
from georelay.wire.primitives import WireError

_START: Final = struct.Struct(">ih")  # length, and the API key that follows it in a request
_FRAME_BYTES_MIN: Final = 4  # a correlation id
LENGTH_BYTES: Final = 4


class FrameReader:
    """Collects frames of one connection.

    Args:
        cap: largest frame by the number in its first two bytes (for requests, the API key).
    """

    __slots__ = ("_buffer", "_cap", "_wanted")

    def __init__(self, cap: FrameCap = frame_bytes_max) -> None:
        self._cap = cap
        self._buffer = bytearray()
        self._wanted = _START.size  # bytes that the buffer must hold before it is looked at again

    @property
    def buffered_bytes(self) -> int:
        """Return the bytes held of a frame that is not whole yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[memoryview]:
        """Return the frames that `data` completes, in order, without their length.

        Raises:
            WireError: a length below the least or above the cap; the connection cannot go on.
        """
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._wanted:
                return []
            view, self._buffer = memoryview(self._buffer), bytearray()  # the frames keep the old buffer
        else:
            view = memoryview(data)
        frames: list[memoryview] = []
        position, total = 0, len(view)
        self._wanted = _START.size
        while total - position >= _START.size:
            stop = position + LENGTH_BYTES + self._checked_length(view, position)
            if stop > total:
                self._wanted = stop - position
                break
            frames.append(view[position + LENGTH_BYTES : stop])
            position = stop
        if position < total:
            self._buffer += view[position:]
        return frames

    def _checked_length(self, view: memoryview, position: int) -> int:
        length, key = _START.unpack_from(view, position)
        cap = self._cap(key)
        if not _FRAME_BYTES_MIN <= length <= cap:
            raise WireError(f"a frame of {length} bytes is outside {_FRAME_BYTES_MIN}..{cap}")
        return int(length)
