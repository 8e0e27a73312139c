"""The head of a peer frame and the HELLO that opens every connection.

Layout (big-endian): u32 length of what follows | u8 kind | body. HELLO: version u16 | lane u8 | from u32 | to u32
| disk uuid 16 bytes | port u16 | reserved 14 | length of the mesh id u16 | mesh id. `port` is where the sender's own
peer listener is, at the address that it dials from; 0 when it does not say. A hint, as every address.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from georelay.ids import BrokerId
from region.multiraft.transport import FrameKind, Lane

PROTOCOL_VERSION: Final = 1
HELLO_BYTES_MAX: Final = 512
HEAD: Final = struct.Struct(">IB")
_HELLO: Final = struct.Struct(">HBII16sH14sH")  # version, lane, from, to, disk uuid, port, reserved, mesh id length


class PeerProtocolError(ValueError):
    """The peer broke the protocol: its connection is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who dials: on which lane, from which disk; `port` is where it listens for peers, 0 when it does not say."""

    sender: BrokerId
    lane: Lane
    disk: bytes
    port: int = 0


def encode_hello(*, lane: Lane, sender: BrokerId, to: BrokerId, disk: bytes, mesh_id: str, port: int = 0) -> bytes:
    """Return the whole HELLO frame."""
    name = mesh_id.encode()
    body = _HELLO.pack(PROTOCOL_VERSION, lane, sender, to, disk, port, bytes(14), len(name)) + name
    return HEAD.pack(1 + len(body), FrameKind.HELLO) + body


def decode_hello(body: bytes | memoryview, *, me: BrokerId, mesh_id: str) -> Hello:
    """Check a HELLO body. Raises PeerProtocolError."""
    if len(body) < _HELLO.size:
        raise PeerProtocolError("hello is too short")
    version, lane, sender, to, disk, port, _, length = _HELLO.unpack_from(body)
    if version != PROTOCOL_VERSION:
        raise PeerProtocolError(f"peer speaks protocol {version}, this broker {PROTOCOL_VERSION}")
    if len(body) != _HELLO.size + length or bytes(body[_HELLO.size :]) != mesh_id.encode():
        raise PeerProtocolError("peer belongs to another mesh")
    if to != me:
        raise PeerProtocolError(f"peer looks for broker {to}, this is {me}: check the peers addresses")
    try:
        return Hello(sender=BrokerId(sender), lane=Lane(lane), disk=disk, port=port)
    except ValueError as error:
        raise PeerProtocolError(f"unknown lane {lane}") from error
