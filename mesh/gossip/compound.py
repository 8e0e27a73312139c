"""Several messages in one packet: 07 | count u8 | count * length u16 | bodies. A truncated tail is dropped.

Rule 1: at most 127 bodies are written: old Go members double the count in one byte.
Rule 2: taking apart is bounded: depth, bodies and bytes. What is beyond is dropped, because a packet is a hint.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from mesh.gossip import lzw
from mesh.gossip.codec import Compress, MessageType, decode
from mesh.gossip.faults import CodecError

BODIES_MAX: Final = 127
HEADER_BYTES: Final = 2
ENTRY_BYTES: Final = 2  # a body's length
DEPTH_MAX: Final = 4
FLAT_BODIES_MAX: Final = 1024
UNFOLDED_BYTES_MAX: Final = 65_536  # of one packet, all its compressions together


def make_compound(bodies: Sequence[bytes]) -> bytes:
    """Return one packet of 1..127 messages of at most 65535 bytes; a single one stands alone."""
    assert 1 <= len(bodies) <= BODIES_MAX, len(bodies)
    if len(bodies) == 1:
        return bodies[0]
    lengths = struct.pack(f">{len(bodies)}H", *map(len, bodies))
    return b"".join((bytes((MessageType.COMPOUND, len(bodies))), lengths, *bodies))


def flatten(messages: bytes) -> list[bytes]:
    """Return the plain messages of a packet in order, compounds and compressions taken apart.

    Raises:
        CodecError: a compression that does not unfold, or to more than UNFOLDED_BYTES_MAX together with the others;
            containers nested deeper than DEPTH_MAX.
    """
    found: list[bytes] = []
    _flatten(messages, found, DEPTH_MAX, UNFOLDED_BYTES_MAX)
    return found


def unfold(raw: bytes, *, limit_bytes: int) -> bytes:
    """Return what a compressed message holds.

    Raises:
        CodecError: no compressed message, or more than `limit_bytes`.
    """
    message = decode(raw)
    if not isinstance(message, Compress):
        raise CodecError("not a compressed message")
    return lzw.decompress(message.buffer, limit_bytes=limit_bytes)


def _flatten(messages: bytes, found: list[bytes], depth: int, budget: int) -> int:
    """Take apart into `found`; return how much may still be unfolded."""
    kind = messages[0] if messages else -1
    if kind == MessageType.COMPOUND or kind == MessageType.COMPRESS:
        if depth == 0:
            raise CodecError("containers are nested too deeply")
        if kind == MessageType.COMPRESS:
            unfolded = unfold(messages, limit_bytes=budget)
            return _flatten(unfolded, found, depth - 1, budget - len(unfolded))
        for body in _split(messages):
            budget = _flatten(body, found, depth - 1, budget)
    elif messages and len(found) < FLAT_BODIES_MAX:
        found.append(messages)
    return budget


def _split(compound: bytes) -> list[bytes]:
    if len(compound) < HEADER_BYTES:
        raise CodecError("a compound without a count")
    count = compound[1]
    at = HEADER_BYTES + count * ENTRY_BYTES
    if len(compound) < at:
        raise CodecError("a compound without its lengths")
    bodies = []
    for length in struct.unpack_from(f">{count}H", compound, HEADER_BYTES):
        if at + length > len(compound):
            break  # the tail was truncated on its way
        bodies.append(compound[at : at + length])
        at += length
    return bodies
