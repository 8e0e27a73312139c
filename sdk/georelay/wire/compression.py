"""The four codecs of record batches, each with a bound on what it may unfold to.

Rule 1: no more than `limit_bytes` (plus one) of output is ever held, whatever the input claims.
Rule 2: the only error is CorruptRecordBatch or TooLarge; a codec's own exceptions end here.
Rule 3: what it costs follows from the bytes: pieces that cost much and hold little (gzip members, snappy blocks) are
        counted.
Rule 4: gzip is always there; the others come with `georelay[codecs]` (a broker has them), else ConfigError says so.
"""

from __future__ import annotations

import enum
import importlib
import zlib
from functools import cache
from typing import Any, Final

from georelay.errors import ConfigError, CorruptRecordBatch, TooLarge
from georelay.limits import DECOMPRESSED_BATCH_BYTES_MAX, GZIP_MEMBERS_MAX, SNAPPY_BLOCKS_MAX

_GZIP: Final = 31  # zlib window bits: gzip container, 32 KiB window
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"  # the Java library's framing: magic, two versions, then sized blocks
_XERIAL_HEADER_BYTES: Final = 16
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_ZSTD_WINDOW_BYTES_MAX: Final = DECOMPRESSED_BATCH_BYTES_MAX
_CHUNK_BYTES: Final = 1024 * 1024


class Compression(enum.IntEnum):
    """Codec of a batch: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


@cache
def _library(name: str) -> Any:
    """Return a codec's library, loaded when it is first used (ConfigError: it is not installed)."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"this batch needs {name}: install it with `pip install 'georelay[codecs]'`") from error


def compress(codec: Compression, data: bytes) -> bytes:
    """Return `data` in `codec`, framed as the Java client frames it (snappy: xerial blocks)."""
    if codec is Compression.NONE:
        return data
    if codec is Compression.GZIP:
        packer = zlib.compressobj(wbits=_GZIP)
        return packer.compress(data) + packer.flush()
    if codec is Compression.SNAPPY:
        return _compress_xerial(data)
    if codec is Compression.LZ4:
        return bytes(_library("lz4.frame").compress(data, block_linked=False))
    packed: bytes = _library("zstandard").ZstdCompressor().compress(data)
    return packed


def decompress(codec: Compression, data: bytes, limit_bytes: int = DECOMPRESSED_BATCH_BYTES_MAX) -> bytes:
    """Return what `data` unfolds to, at most `limit_bytes`.

    Raises:
        CorruptRecordBatch: not a whole stream of this codec.
        TooLarge: it unfolds to more than `limit_bytes`, or is over GZIP_MEMBERS_MAX or SNAPPY_BLOCKS_MAX.
    """
    if codec is Compression.NONE:
        plain = data
    elif codec is Compression.GZIP:
        plain = _decompress_gzip(data, limit_bytes)
    elif codec is Compression.SNAPPY:
        plain = _decompress_snappy(data, limit_bytes)
    elif codec is Compression.LZ4:
        plain = _decompress_lz4(data, limit_bytes)
    else:
        plain = _decompress_zstd(data, limit_bytes)
    if len(plain) > limit_bytes:
        raise _too_large(codec, limit_bytes)
    return plain


def _too_large(codec: Compression, limit_bytes: int) -> TooLarge:
    return TooLarge(f"a {codec.name.lower()} batch unfolds to more than {limit_bytes} bytes")


def _corrupt(codec: Compression, cause: object) -> CorruptRecordBatch:
    return CorruptRecordBatch(f"records are not a whole {codec.name.lower()} stream: {cause}")


def _decompress_gzip(data: bytes, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    room = limit_bytes + 1
    while data:  # gzip allows several members in a row; each copies what is behind it
        if len(parts) >= GZIP_MEMBERS_MAX:
            raise TooLarge(f"a gzip batch has more members than GZIP_MEMBERS_MAX ({GZIP_MEMBERS_MAX})")
        unpacker = zlib.decompressobj(_GZIP)
        try:
            part = unpacker.decompress(data, room)
        except zlib.error as error:
            raise _corrupt(Compression.GZIP, error) from error
        parts.append(part)
        room -= len(part)
        if room <= 0:
            raise _too_large(Compression.GZIP, limit_bytes)
        if not unpacker.eof:
            raise _corrupt(Compression.GZIP, "the end is missing")
        data = unpacker.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _compress_xerial(data: bytes) -> bytes:
    cramjam = _library("cramjam")
    parts = [_XERIAL_MAGIC, (1).to_bytes(4, "big"), (1).to_bytes(4, "big")]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: bytes, limit_bytes: int) -> bytes:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _snappy_block(data, limit_bytes, limit_bytes)
    parts: list[bytes] = []
    room, position = limit_bytes, _XERIAL_HEADER_BYTES
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        block = data[position + 4 : position + 4 + size]
        if size == 0 or len(block) < size:
            raise _corrupt(Compression.SNAPPY, "a block is cut short")
        if len(parts) >= SNAPPY_BLOCKS_MAX:
            raise TooLarge(f"a snappy batch has more blocks than SNAPPY_BLOCKS_MAX ({SNAPPY_BLOCKS_MAX})")
        parts.append(_snappy_block(block, room, limit_bytes))
        room -= len(parts[-1])
        position += 4 + size
    return b"".join(parts)


def _snappy_block(data: bytes, room: int, limit_bytes: int) -> bytes:
    cramjam = _library("cramjam")
    try:
        # The length is what the block claims: it must be checked before the codec allocates it.
        if cramjam.snappy.decompress_raw_len(data) > room:
            raise _too_large(Compression.SNAPPY, limit_bytes)
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise _corrupt(Compression.SNAPPY, error) from error


def _decompress_lz4(data: bytes, limit_bytes: int) -> bytes:
    unpacker: Any = _library("lz4.frame").LZ4FrameDecompressor()
    parts: list[bytes] = []
    room = limit_bytes + 1
    try:
        while room > 0 and not unpacker.eof:
            part = bytes(unpacker.decompress(data, max_length=min(room, _CHUNK_BYTES)))
            if not part and (unpacker.needs_input or not data):
                break
            data = b""  # the codec keeps what it has not used yet
            parts.append(part)
            room -= len(part)
    except (RuntimeError, EOFError) as error:
        raise _corrupt(Compression.LZ4, error) from error
    if room <= 0:
        raise _too_large(Compression.LZ4, limit_bytes)
    if not unpacker.eof:
        raise _corrupt(Compression.LZ4, "the end is missing")
    return b"".join(parts)


def _decompress_zstd(data: bytes, limit_bytes: int) -> bytes:
    zstandard = _library("zstandard")
    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    parts: list[bytes] = []
    room = limit_bytes + 1
    try:
        known_bytes = zstandard.frame_content_size(data)
        if known_bytes > limit_bytes:
            raise _too_large(Compression.ZSTD, limit_bytes)
        if known_bytes > 0:
            return bytes(unpacker.decompress(data))
        with unpacker.stream_reader(data) as reader:
            while room > 0 and (part := reader.read(min(room, _CHUNK_BYTES))):
                parts.append(part)
                room -= len(part)
    except zstandard.ZstdError as error:
        raise _corrupt(Compression.ZSTD, error) from error
    if room <= 0:
        raise _too_large(Compression.ZSTD, limit_bytes)
    return b"".join(parts)
