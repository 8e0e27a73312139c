"""Accepting side of the connections between brokers: hello first, then frames in their order.

Rule 1: it believes nothing before HELLO, and the PROOF behind it where the mesh has a secret; garbage closes the
connection.
Rule 2: a paused lane is not read at all: what its peer wants to send waits in the peer's own buffers.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Final, Protocol, cast

import structlog

from georelay.ids import BrokerId
from georelay.limits import KIB, PEER_FRAME_BYTES_MAX
from georelay.tls import TlsContexts, broker_name, certificate_names
from mesh.listening.mesh_secret import NO_NONCE, NONCE_BYTES, Call, MeshSecret
from region.multiraft.peer_hello import (
    HEAD,
    HELLO_BYTES_MAX,
    NOT_PROVED,
    Hello,
    PeerProtocolError,
    check_proof,
    decode_hello,
    encode_challenge,
)
from region.multiraft.transport import Address, FrameKind, Lane, PeerReceiver

log = structlog.get_logger()

HELLO_TIMEOUT_MS: Final = 2_000
INCOMING_MAX: Final = 256
READ_BUFFER_BYTES: Final = 256 * KIB
LARGE_FRAME_BYTES: Final = 64 * KIB  # received into a buffer of its own
assert LARGE_FRAME_BYTES < READ_BUFFER_BYTES


class IncomingOwner(Protocol):
    """What an accepted connection needs of the transport."""

    me: BrokerId
    mesh_id: str
    receiver: PeerReceiver
    incoming: set[IncomingConnection]
    stopped: bool
    appends_paused: bool
    tls: TlsContexts | None
    secret: MeshSecret | None

    @property
    def peers(self) -> Mapping[BrokerId, Address]:
        """Return the brokers that may connect."""

    def admits(self, peer: BrokerId, disk: bytes) -> bool:
        """Return whether that peer comes from the disk it is registered with."""

    def greeted(self, peer: BrokerId, address: Address) -> None:
        """A peer that was admitted says where it listens."""

    def connection_gone(self) -> None:
        """Note that a connection is lost."""


class IncomingConnection(asyncio.BufferedProtocol):
    """Accepting side of one connection.

    Small frames are handled where they were received; the body of a large one is received straight into a
    buffer of its own, so that a megabyte of log entries is not moved before it is decoded.
    """

    def __init__(self, owner: IncomingOwner) -> None:
        self._owner = owner
        self._buffer = bytearray(READ_BUFFER_BYTES)
        self._filled = 0
        self._large: bytearray | None = None
        self._large_filled = 0
        self._large_kind = 0
        self._peer: BrokerId | None = None
        self._lane: Lane | None = None
        self._disk = b""
        self._challenged: tuple[Hello, Call] | None = None
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._paused = False

    @property
    def peer(self) -> BrokerId | None:
        """Return who introduced itself, None before that."""
        return self._peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop has transport classes of its own: isinstance would refuse them.
        self._transport = cast("asyncio.Transport", transport)
        if self._owner.stopped or len(self._owner.incoming) >= INCOMING_MAX:
            self.close()
            return
        self._owner.incoming.add(self)
        self._deadline = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_MS / 1000, self._hello_missing)

    def _hello_missing(self) -> None:
        if self._peer is None:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.incoming.discard(self)
        self._large = None  # whatever still refers to this object must not keep megabytes
        if self._deadline is not None:
            self._deadline.cancel()
        self._owner.receiver.connection_closed(self)
        self._owner.connection_gone()

    def close(self) -> None:
        """Close now."""
        if self._transport is not None:
            self._transport.abort()

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
                    self._handle(self._large_kind, body)
            else:
                self._filled += nbytes
                self._take_frames()
        except ValueError as error:
            log.warning("peer.refused", peer=self._peer, reason=str(error))
            self.close()

    def _take_frames(self) -> None:
        view = memoryview(self._buffer)
        position, filled = 0, self._filled
        while filled - position >= HEAD.size:
            length, kind = HEAD.unpack_from(view, position)
            limit = HELLO_BYTES_MAX if self._peer is None else PEER_FRAME_BYTES_MAX
            if not 1 <= length <= limit:
                raise PeerProtocolError(f"frame of {length} bytes, the limit is {limit}")
            start, end = position + HEAD.size, position + 4 + length
            if end <= filled:
                position = end
                # Whoever handles a frame copies what it keeps: the buffer is used again.
                self._handle(kind, view[start:end])
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

    def _handle(self, kind: int, body: memoryview) -> None:
        if self._peer is not None:
            self._owner.receiver.frame_received(self._peer, FrameKind(kind), body, self)
            return
        if self._challenged is not None:
            hello, call = self._challenged
            assert self._owner.secret is not None, "who challenged has one"
            check_proof(self._owner.secret, kind, body, call, hello.lane)
            self._hear(hello)
            return
        if kind != FrameKind.HELLO:
            raise PeerProtocolError("the first frame is not a hello")
        hello = decode_hello(body, me=self._owner.me, mesh_id=self._owner.mesh_id)
        if hello.sender not in self._owner.peers:
            raise PeerProtocolError(f"broker {hello.sender} is not of this region")
        self._check_certificate(hello.sender)
        if not self._challenge(hello):
            self._hear(hello)

    def _challenge(self, hello: Hello) -> bool:
        """Ask who says HELLO to prove the secret; return whether it was asked. Raises PeerProtocolError."""
        secret = self._owner.secret
        if secret is None:
            return False
        if hello.nonce == NO_NONCE:
            if secret.required:
                raise PeerProtocolError(f"broker {hello.sender}: {NOT_PROVED}")
            return False
        assert self._transport is not None
        call = Call(hello.sender, self._owner.me, hello.nonce, secrets.token_bytes(NONCE_BYTES))
        self._challenged = hello, call
        self._transport.write(encode_challenge(secret, call, hello.lane))
        return True

    def _hear(self, hello: Hello) -> None:
        """Believe from now on what comes."""
        peer, lane, disk = hello.sender, hello.lane, hello.disk
        if not self._owner.admits(peer, disk):
            self.close()
            return
        for older in [other for other in self._owner.incoming if (other._peer, other._lane) == (peer, lane)]:
            older.close()  # its broker has gone without a word: nothing of the past is read any more
        self._peer, self._lane, self._disk = peer, lane, disk
        if hello.port and self._transport is not None:
            self._owner.greeted(peer, (self._transport.get_extra_info("peername")[0], hello.port))
        self.follow_pause()

    def _check_certificate(self, peer: BrokerId) -> None:
        """Refuse a broker whose certificate is another's. Raises PeerProtocolError."""
        if self._owner.tls is None:
            return
        assert self._transport is not None
        needed = broker_name(peer, self._owner.mesh_id)
        names = certificate_names(self._transport.get_extra_info("ssl_object"))
        if needed not in names:
            raise PeerProtocolError(f"the certificate of broker {peer} is for {_listed(names)}, not for {needed}")

    def follow_pause(self) -> None:
        """Read, or do not read, as the owner wants it for this lane."""
        paused = self._owner.appends_paused and self._lane is Lane.APPEND
        if self._transport is None or paused == self._paused or self._transport.is_closing():
            return
        self._paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def check_disk(self) -> None:
        """Close when the peer turns out to have the wrong disk."""
        if self._peer is not None and not self._owner.admits(self._peer, self._disk):
            self.close()


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)[:8]) or "no name"
