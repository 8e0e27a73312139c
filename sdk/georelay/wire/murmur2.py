"""Kafka's default partitioner: every client sends the records of one key to the same partition.

The hash is the 32-bit murmur2 of Kafka's Java client (seed 0x9747b28c, little-endian words), its sign bit
cleared ("positive") before the modulo. Changing a bit here would split a key's records over two partitions.
"""

from __future__ import annotations

import struct
from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit hash of `data`."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    words = length >> 2
    for k in struct.unpack_from(f"<{words}I", data):
        k = (k * _M) & _MASK
        k ^= k >> 24
        h = ((h * _M) & _MASK) ^ ((k * _M) & _MASK)
    if length & 3:
        h ^= int.from_bytes(data[words << 2 :], "little")
        h = (h * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ (h >> 15)


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition, 0..partitions-1, that Kafka clients choose for `key`. `partitions` is at least 1."""
    return (murmur2(key) & _POSITIVE) % partitions
