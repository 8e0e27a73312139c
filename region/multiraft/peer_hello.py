"""The HELLO that opens every connection, and the proof of the mesh's secret behind it.

Layout (big-endian): u32 length of what follows | u8 kind | body. HELLO: version u16 | lane u8 | from u32 | to u32
| disk uuid 16 bytes | port u16 | nonce 14 | length of the mesh id u16 | mesh id. `port` is where the sender's own
peer listener is, at the address that it dials from; 0 when it does not say. A hint, as every address. CHALLENGE, the
only frame of the accepting side: nonce 14 | proof 32. PROOF: proof 32.

Rule 1: the nonce is zeros of whoever has no secret, and of brokers that know of none; nobody challenges those.
Rule 2: between HELLO and PROOF nothing is sent (mesh.listening.mesh_secret has what is proved).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from georelay.ids import BrokerId
from mesh.listening.mesh_secret import NO_NONCE, Call, MeshSecret, is_same
from mesh.replication.frame_reader import HEAD
from region.multiraft.transport import FrameKind, Lane

PROTOCOL_VERSION: Final = 1
HELLO_BYTES_MAX: Final = 512
_HELLO: Final = struct.Struct(">HBII16sH14sH")  # version, lane, from, to, disk uuid, port, nonce, mesh id length
_CHALLENGE: Final = struct.Struct(">14s32s")
CHALLENGE_FRAME_BYTES: Final = HEAD.size + _CHALLENGE.size
NOT_PROVED: Final = "it did not prove the secret of the mesh: the same mesh_secret_file, or certificates, on both sides"


class PeerProtocolError(ValueError):
    """The peer broke the protocol: its connection is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who dials: on which lane, from which disk.

    Args:
        port: where it listens for peers, 0 when it does not say.
        nonce: its random value for the proof of the secret; zeros without one.
    """

    sender: BrokerId
    lane: Lane
    disk: bytes
    port: int = 0
    nonce: bytes = NO_NONCE


def encode_hello(
    *,
    lane: Lane,
    sender: BrokerId,
    to: BrokerId,
    disk: bytes,
    mesh_id: str,
    port: int = 0,
    nonce: bytes = NO_NONCE,
) -> bytes:
    """Return the whole HELLO frame."""
    name = mesh_id.encode()
    body = _HELLO.pack(PROTOCOL_VERSION, lane, sender, to, disk, port, nonce, len(name)) + name
    return HEAD.pack(1 + len(body), FrameKind.HELLO) + body


def decode_hello(body: bytes | memoryview, *, me: BrokerId, mesh_id: str) -> Hello:
    """Check a HELLO body. Raises PeerProtocolError."""
    if len(body) < _HELLO.size:
        raise PeerProtocolError("hello is too short")
    version, lane, sender, to, disk, port, nonce, length = _HELLO.unpack_from(body)
    if version != PROTOCOL_VERSION:
        raise PeerProtocolError(f"peer speaks protocol {version}, this broker {PROTOCOL_VERSION}")
    if len(body) != _HELLO.size + length or bytes(body[_HELLO.size :]) != mesh_id.encode():
        raise PeerProtocolError("peer belongs to another mesh")
    if to != me:
        raise PeerProtocolError(f"peer looks for broker {to}, this is {me}: check the peers addresses")
    try:
        return Hello(sender=BrokerId(sender), lane=Lane(lane), disk=disk, port=port, nonce=nonce)
    except ValueError as error:
        raise PeerProtocolError(f"unknown lane {lane}") from error


def purpose(lane: Lane) -> bytes:
    """Return what a proof of this lane is for."""
    return b"peers/" + lane.name.encode()


def encode_challenge(secret: MeshSecret, call: Call, lane: Lane) -> bytes:
    """Return the whole CHALLENGE frame of the accepting side."""
    body = _CHALLENGE.pack(call.acceptor_nonce, secret.acceptor_proof(call, purpose(lane)))
    return HEAD.pack(1 + len(body), FrameKind.CHALLENGE) + body


def answer_challenge(secret: MeshSecret, frame: bytes, call: Call, lane: Lane) -> bytes:
    """Return the whole PROOF frame of the dialling side.

    Args:
        frame: CHALLENGE_FRAME_BYTES of the accepting side. call: with our nonce only.

    Raises:
        PeerProtocolError: it is no CHALLENGE, or who sent it has another secret and ours is required.
    """
    if HEAD.unpack_from(frame) != (1 + _CHALLENGE.size, FrameKind.CHALLENGE):
        raise PeerProtocolError("the answer to a hello is no challenge")
    nonce, shown = _CHALLENGE.unpack_from(frame, HEAD.size)
    call = call._replace(acceptor_nonce=nonce)
    if secret.required and not is_same(shown, secret.acceptor_proof(call, purpose(lane))):
        raise PeerProtocolError(NOT_PROVED)
    body = secret.dialler_proof(call, purpose(lane))
    return HEAD.pack(1 + len(body), FrameKind.PROOF) + body


def check_proof(secret: MeshSecret, kind: int, body: bytes | memoryview, call: Call, lane: Lane) -> None:
    """Check the frame behind our challenge. Raises PeerProtocolError."""
    if kind != FrameKind.PROOF:
        raise PeerProtocolError("the answer to a challenge is no proof")
    if secret.required and not is_same(bytes(body), secret.dialler_proof(call, purpose(lane))):
        raise PeerProtocolError(NOT_PROVED)
