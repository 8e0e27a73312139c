"""The head of a peer frame and the HELLO that opens every connection.

Layout (big-endian): u32 length of what follows | u8 kind | body. HELLO: version u16 | lane u8 | from u32 | to u32
| disk uuid 16 bytes | reserved 16 | length of the mesh id u16 | mesh id.
"""

from __future__ import annotations

import struct
from typing import Final

from georelay.ids import BrokerId
from region.multiraft.transport import FrameKind, Lane

PROTOCOL_VERSION: Final = 1
HELLO_BYTES_MAX: Final = 512
HEAD: Final = struct.Struct(">IB")
_HELLO: Final = struct.Struct(">HBII16s16sH")  # version, lane, from, to, disk uuid, reserved, mesh id length


class PeerProtocolError(ValueError):
    """The peer broke the protocol: its connection is closed."""


def encode_hello(*, lane: Lane, sender: BrokerId, to: BrokerId, disk: bytes, mesh_id: str) -> bytes:
    """Return the whole HELLO frame."""
    name = mesh_id.encode()
    body = _HELLO.pack(PROTOCOL_VERSION, lane, sender, to, disk, bytes(16), len(name)) + name
    return HEAD.pack(1 + len(body), FrameKind.HELLO) + body


def decode_hello(body: bytes | memoryview, *, me: BrokerId, mesh_id: str) -> tuple[BrokerId, Lane, bytes]:
    """Check a HELLO body and return who speaks on which lane, and from which disk. Raises PeerProtocolError."""
    if len(body) < _HELLO.size:
        raise PeerProtocolError("hello is too short")
    version, lane, sender, to, disk, _, length = _HELLO.unpack_from(body)
    if version != PROTOCOL_VERSION:
        raise PeerProtocolError(f"peer speaks protocol {version}, this broker {PROTOCOL_VERSION}")
    if len(body) != _HELLO.size + length or bytes(body[_HELLO.size :]) != mesh_id.encode():
        raise PeerProtocolError("peer belongs to another mesh")
    if to != me:
        raise PeerProtocolError(f"peer looks for broker {to}, this is {me}: check the peers addresses")
    try:
        return BrokerId(sender), Lane(lane), disk
    except ValueError as error:
        raise PeerProtocolError(f"unknown lane {lane}") from error
