"""CRC-32C (Castagnoli), the checksum of record batches and log entries; the only file that names the C library.

The library takes any buffer, so that nothing is copied to be checked.
"""

from __future__ import annotations

from crc32c import crc32c as _native


def crc32c(data: bytes | bytearray | memoryview, previous: int = 0) -> int:
    """Return the checksum of `data`, 0..2^32-1; `previous` is that of the bytes before it."""
    return _native(data, previous)
