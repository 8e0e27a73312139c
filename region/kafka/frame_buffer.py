"""Where the bytes of a connection are received, and the frames in them: a length of four bytes, then so many bytes.

Small frames are received into a buffer that all connections of a listener share and are handled in there; the rest of
a large frame, once its length is known, is received straight into a buffer of its own. So a record batch is copied by
the kernel, and once more into the log entry that keeps it.

Rule 1: a frame in the shared buffer is gone with the next read of any connection: what is kept of it is copied.
Rule 2: no more is buffered than the frame's cap, and the cap is known before the frame is collected: the first two
        bytes of a request name its API.
Rule 3: memory for a large frame is taken as its bytes come: a length alone takes FIRST_BYTES. While there is none to
        take, what was received of it waits (`is_held`) and nothing more is read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from georelay.limits import KIB, MIB
from georelay.wire.api import FrameCap, WireError, frame_bytes_max

SHARED_BYTES: Final = 256 * KIB
OWN_BUFFER_BYTES_MIN: Final = 32 * KIB  # a smaller frame that is not whole yet waits for the next read
FIRST_BYTES: Final = 1 * MIB  # of a large frame; then four times as much as is full
LENGTH_BYTES: Final = 4
_START: Final = struct.Struct(">ih")  # length, and the API key that follows it in a request
_FRAME_BYTES_MIN: Final = 4  # a correlation id


class FrameBuffer:
    """Receives the frames of one connection.

    Args:
        shared: SHARED_BYTES, shared with other connections of the same event loop.
        cap: largest frame by the number in its first two bytes.
        may_begin: asked whether so many bytes may be taken for a large frame.
    """

    __slots__ = ("_cap", "_large", "_large_bytes", "_large_filled", "_may_begin", "_rest", "_shared", "is_held")

    def __init__(
        self,
        shared: memoryview,
        cap: FrameCap = frame_bytes_max,
        may_begin: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._may_begin = may_begin
        self._large_bytes = 0  # of the whole frame
        self.is_held = False
        self._shared = shared
        self._cap = cap
        self._rest = b""  # the start of a frame that is not whole yet
        self._large: bytearray | None = None
        self._large_filled = 0

    @property
    def buffered_bytes(self) -> int:
        """Return the bytes held of a frame that is not whole yet."""
        return len(self._rest) + self._large_filled

    @property
    def reserved_bytes(self) -> int:
        """Return the bytes that were taken for a large frame that is not whole yet."""
        return 0 if self._large is None else len(self._large)

    def drop(self) -> None:
        """Forget what is buffered."""
        self._rest, self._large, self.is_held = b"", None, False

    def retry(self) -> list[memoryview]:
        """Return what `received` returns, for a frame that was held: there may be memory now. Raises WireError."""
        self.is_held = False
        self.room()
        return self.received(0)

    def room(self) -> memoryview:
        """Return where the next bytes of the connection go, to be filled before anything else happens."""
        if self._large is not None:
            return memoryview(self._large)[self._large_filled :]
        rest = self._rest
        if rest:
            self._shared[: len(rest)] = rest
        return self._shared[len(rest) :]

    def received(self, size: int) -> list[memoryview]:
        """Return the frames that `size` more bytes complete, in order, without their length (rule 1).

        Raises:
            WireError: a length below the least or above the cap; the connection cannot go on.
        """
        if self._large is not None:
            self._large_filled += size
            if self._large_filled < self._large_bytes:
                if self._large_filled == len(self._large):
                    self._grow(self._large)
                return []
            whole, self._large, self._large_filled = memoryview(self._large), None, 0
            return [whole]
        view, position, total = self._shared, 0, len(self._rest) + size
        self._rest = b""
        frames: list[memoryview] = []
        while total - position >= _START.size:
            length = self._checked_length(view, position)
            start = position + LENGTH_BYTES
            if start + length > total:
                if length < OWN_BUFFER_BYTES_MIN:
                    break
                first_bytes = min(length, FIRST_BYTES)
                self.is_held = not self._may_begin(first_bytes)
                if self.is_held:
                    break
                self._large, self._large_bytes = bytearray(first_bytes), length
                self._large_filled = total - start
                self._large[: total - start] = view[start:total]
                return frames
            position = start + length
            frames.append(view[start:position])
        if position < total:
            self._rest = bytes(view[position:total])
        return frames

    def _grow(self, full: bytearray) -> None:
        larger = bytearray(min(self._large_bytes, 4 * len(full)))
        larger[: len(full)] = full
        self._large = larger

    def is_shared(self, frame: bytes | memoryview) -> bool:
        """Return whether a frame is gone with the next read."""
        return type(frame) is memoryview and frame.obj is self._shared.obj

    def _checked_length(self, view: memoryview, position: int) -> int:
        length, key = _START.unpack_from(view, position)
        cap = self._cap(key)
        if not _FRAME_BYTES_MIN <= length <= cap:
            raise WireError(f"a frame of {length} bytes is outside {_FRAME_BYTES_MIN}..{cap}")
        return int(length)
