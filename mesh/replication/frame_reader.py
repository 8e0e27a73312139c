"""The receiving half of a connection between brokers: bytes in, whole frames out.

Frame (big-endian): u32 length of what follows | u8 kind | body.

Small frames are handled where they were received; the body of a large one is received straight into a buffer of its
own, so that a megabyte of log entries is not moved before it is decoded.
"""

from __future__ import annotations

import asyncio
import struct
from abc import ABC, abstractmethod
from typing import Final

from georelay.limits import KIB

HEAD: Final = struct.Struct(">IB")
READ_BUFFER_BYTES: Final = 256 * KIB
LARGE_FRAME_BYTES: Final = 64 * KIB  # received into a buffer of its own
assert LARGE_FRAME_BYTES < READ_BUFFER_BYTES


class FrameReader(asyncio.BufferedProtocol, ABC):
    """One end of a connection that receives frames."""

    def __init__(self) -> None:
        self._buffer = bytearray(READ_BUFFER_BYTES)
        self._filled = 0
        self._large: bytearray | None = None
        self._large_filled = 0
        self._large_kind = 0

    @abstractmethod
    def frame_bytes_max(self) -> int:
        """Return how long a frame may be now, its kind included."""

    @abstractmethod
    def frame_received(self, kind: int, body: memoryview) -> None:
        """Handle a frame; `body` is valid during the call only. Raises ValueError on garbage."""

    @abstractmethod
    def garbage_received(self, error: ValueError) -> None:
        """Close: what came is no frame, or none that anybody takes."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Keep nothing: whatever still refers to this object must not keep megabytes."""
        self._large = None

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        if self._large is not None:
            return memoryview(self._large)[self._large_filled :]
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frames that are whole now."""
        try:
            if self._large is not None:
                self._large_filled += nbytes
                if self._large_filled == len(self._large):
                    body, self._large = memoryview(self._large), None
                    self.frame_received(self._large_kind, body)
            else:
                self._filled += nbytes
                self._take_frames()
        except ValueError as error:
            self.garbage_received(error)

    def _take_frames(self) -> None:
        view = memoryview(self._buffer)
        position, filled = 0, self._filled
        while filled - position >= HEAD.size:
            length, kind = HEAD.unpack_from(view, position)
            limit = self.frame_bytes_max()
            if not 1 <= length <= limit:
                raise ValueError(f"frame of {length} bytes, the limit is {limit}")
            start, end = position + HEAD.size, position + 4 + length
            if end <= filled:
                position = end
                # Whoever handles a frame copies what it keeps: the buffer is used again.
                self.frame_received(kind, view[start:end])
            elif length > LARGE_FRAME_BYTES:
                self._large = bytearray(end - start)
                self._large_filled, self._large_kind = filled - start, kind
                self._large[: filled - start] = view[start:filled]
                position = filled
            else:
                break
        rest = filled - position
        if position and rest:
            self._buffer[:rest] = bytes(view[position:filled])
        self._filled = rest
