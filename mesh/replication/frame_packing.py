"""Frames of a link compressed with zstd (RFC 8878) as a whole: between brokers that both speak version 2.

    u8 0x80 | u32 bytes of the frame inside | zstd frame, whose content is one frame as in mesh.replication.frames

Rule 1: the size is bounded before a byte is unpacked, must be exact, and a packed frame inside another is refused.
Rule 2: no state lasts from one frame to the next: a lost link loses nothing but its frames.
"""

from __future__ import annotations

import struct
from typing import Final

import zstandard

from georelay.clock import Clock
from georelay.limits import LINK_FRAME_BYTES_MAX, MIB
from mesh.replication.compression_core import CompressionCore
from mesh.replication.frames import FrameError

PACKED: Final = 0x80
COMPRESSION_VERSION: Final = 2  # of the link protocol
LEVEL: Final = 1  # 256 KiB of JSON in half a millisecond to a quarter; level 3 takes twice as long and saves no more
_HEAD: Final = struct.Struct(">BI")
_WINDOW_BYTES_MAX: Final = 32 * MIB


def pack_frame(frame: bytes, compressor: zstandard.ZstdCompressor) -> bytes:
    """Return the packed form of a frame."""
    return _HEAD.pack(PACKED, len(frame)) + compressor.compress(frame)


def unpack_frame(raw: bytes) -> bytes:
    """Return the frame inside a packed one, or `raw` itself when it is not packed.

    Raises:
        FrameError: not zstd, or its content is larger than it says, than a frame may be, or packed again.
    """
    if not raw or raw[0] != PACKED:
        return raw
    if len(raw) < _HEAD.size or len(raw) > LINK_FRAME_BYTES_MAX:
        raise FrameError(f"a packed frame of {len(raw)} bytes")
    _, size = _HEAD.unpack_from(raw)
    if not 0 < size <= LINK_FRAME_BYTES_MAX:
        raise FrameError(f"a packed frame of {size} bytes inside is over {LINK_FRAME_BYTES_MAX}")
    packed = memoryview(raw)[_HEAD.size :]
    try:
        if zstandard.frame_content_size(packed) != size:
            raise FrameError(f"a packed frame does not hold the {size} bytes that it names")
        plain: bytes = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX).decompress(
            packed, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise FrameError(f"a packed frame: {str(error)[:200]}") from error
    if len(plain) != size or plain[0] == PACKED:
        raise FrameError("a packed frame holds something else than one frame")
    return plain


class FramePacker:
    """Packs the frames of one direction of one link when it pays.

    Args:
        clock: measures what compressing costs, and how fast the link is.
        is_on: False: never.
    """

    def __init__(self, clock: Clock, *, is_on: bool) -> None:
        self._clock = clock
        self._is_on = is_on
        self._core = CompressionCore()
        self._compressor = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True) if is_on else None
        self._on_its_way: tuple[int, int] | None = None  # (bytes, sent at ns) while more waits behind it

    def packed(self, frame: bytes, *, backlog_bytes: int, peer_version: int) -> bytes:
        """Return the frame as it is to be sent, `backlog_bytes` waiting behind it."""
        if self._compressor is None or peer_version < COMPRESSION_VERSION:
            return frame
        sent = frame
        if self._core.wants(len(frame), backlog_bytes=backlog_bytes):
            began_ns = self._clock.monotonic_ns()
            packed = pack_frame(frame, self._compressor)
            if self._core.pays(len(frame), len(packed), self._clock.monotonic_ns() - began_ns):
                sent = packed
        self._on_its_way = (len(sent), self._clock.monotonic_ns()) if backlog_bytes > 0 else None
        return sent

    def carried(self) -> None:
        """The carrier took the last frame."""
        if self._on_its_way is not None:
            size, sent_ns = self._on_its_way
            self._on_its_way = None
            self._core.carried(size, self._clock.monotonic_ns() - sent_ns)
