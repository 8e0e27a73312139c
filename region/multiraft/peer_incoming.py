"""Accepting side of the connections between brokers: hello first, then frames in their order.

Rule 1: it believes nothing before HELLO, and the PROOF behind it where the mesh has a secret; garbage closes the
connection.
Rule 2: where INCOMING_MAX connections are open, the oldest of those that nobody knows yet goes for one more: a broker
shows who it is in a moment, and strangers keep none from dialling.
Rule 3: a paused lane is not read at all: what its peer wants to send waits in the peer's own buffers.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Final, Protocol, cast

import structlog

from georelay.ids import BrokerId, region_of
from georelay.limits import PEER_FRAME_BYTES_MAX
from georelay.tls import TlsContexts, broker_name, certificate_names
from mesh.listening.dial_patience_core import DIAL_MS_MAX
from mesh.listening.mesh_secret import NO_NONCE, NONCE_BYTES, Call, MeshSecret
from mesh.replication.frame_reader import FrameReader
from mesh.replication.link_framed import FRAME_BYTES_MAX, FramedLink
from region.multiraft.peer_hello import (
    HELLO_BYTES_MAX,
    NOT_PROVED,
    Hello,
    PeerProtocolError,
    check_proof,
    decode_hello,
    encode_challenge,
)
from region.multiraft.peer_links import PeerLinks
from region.multiraft.transport import Address, FrameKind, Lane, PeerReceiver

log = structlog.get_logger()

HELLO_TIMEOUT_MS: Final = DIAL_MS_MAX  # a dialling side may lack a core
INCOMING_MAX: Final = 256


class IncomingOwner(Protocol):
    """What an accepted connection needs of the transport."""

    me: BrokerId
    mesh_id: str
    receiver: PeerReceiver
    incoming: set[IncomingConnection]
    linked: set[IncomingConnection]
    stopped: bool
    appends_paused: bool
    tls: TlsContexts | None
    secret: MeshSecret | None
    links: PeerLinks

    @property
    def peers(self) -> Mapping[BrokerId, Address]:
        """Return the brokers that may connect."""

    def admits(self, peer: BrokerId, disk: bytes) -> bool:
        """Return whether that peer comes from the disk it is registered with."""

    def greeted(self, peer: BrokerId, address: Address) -> None:
        """A peer that was admitted says where it listens."""

    def connection_gone(self) -> None:
        """Note that a connection is lost."""


class IncomingConnection(FrameReader):
    """Accepting side of one connection."""

    def __init__(self, owner: IncomingOwner) -> None:
        super().__init__()
        self._owner = owner
        self._link: FramedLink | None = None  # on lane LINK
        self._peer: BrokerId | None = None
        self._lane: Lane | None = None
        self._disk = b""
        self._challenged: tuple[Hello, Call] | None = None
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._paused = False
        self._since_s = 0.0

    @property
    def peer(self) -> BrokerId | None:
        """Return who introduced itself, None before that."""
        return self._peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop has transport classes of its own: isinstance would refuse them.
        self._transport = cast("asyncio.Transport", transport)
        if self._owner.stopped or not self._has_room():
            self.close()
            return
        self._owner.incoming.add(self)
        self._since_s = asyncio.get_running_loop().time()
        self._deadline = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_MS / 1000, self._hello_missing)

    def _has_room(self) -> bool:
        """Return whether one more may be open; the oldest stranger goes for it."""
        owner = self._owner
        if len(owner.incoming) + len(owner.linked) < INCOMING_MAX:
            return True
        strangers = [other for other in owner.incoming if other._peer is None]
        if not strangers:
            return False
        oldest = min(strangers, key=lambda other: other._since_s)
        owner.incoming.discard(oldest)
        oldest.close()
        return True

    def pause_writing(self) -> None:
        if self._link is not None:
            self._link.paused()

    def resume_writing(self) -> None:
        if self._link is not None:
            self._link.resumed()

    def _hello_missing(self) -> None:
        if self._peer is None:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._owner.incoming.discard(self)
        self._owner.linked.discard(self)
        if self._link is not None:
            self._link.lost("the other end closed the connection" if exc is None else str(exc))
        if self._deadline is not None:
            self._deadline.cancel()
        self._owner.receiver.connection_closed(self)
        self._owner.connection_gone()

    def close(self) -> None:
        """Close now."""
        if self._transport is not None:
            self._transport.abort()

    def frame_bytes_max(self) -> int:
        """Return how long a frame may be now."""
        if self._peer is None:
            return HELLO_BYTES_MAX
        return PEER_FRAME_BYTES_MAX if self._link is None else FRAME_BYTES_MAX

    def garbage_received(self, error: ValueError) -> None:
        """Close: nothing after it would be understood."""
        log.warning("peer.refused", peer=self._peer, reason=str(error))
        self.close()

    def frame_received(self, kind: int, body: memoryview) -> None:
        """Handle one frame: the greeting, then what it is followed by. Raises ValueError on garbage."""
        if self._link is not None:
            self._link.received(kind, body)
            return
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
        if not self._is_expected(hello):
            raise PeerProtocolError(f"broker {hello.sender} is not of this region")
        self._check_certificate(hello.sender)
        if not self._challenge(hello):
            self._hear(hello)

    def _is_expected(self, hello: Hello) -> bool:
        """Return whether its sender may be here; a link may come from a broker that asks to be taken in."""
        if hello.lane is Lane.LINK:
            return region_of(hello.sender) == region_of(self._owner.me) and hello.sender != self._owner.me
        return hello.sender in self._owner.peers

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
        if lane is not Lane.LINK and not self._owner.admits(peer, disk):
            self.close()
            return
        others = self._owner.linked if lane is Lane.LINK else self._owner.incoming
        for older in [other for other in others if (other._peer, other._lane) == (peer, lane)]:
            older.close()  # its broker has gone without a word: nothing of the past is read any more
        self._peer, self._lane, self._disk = peer, lane, disk
        address = self._transport.get_extra_info("peername") if self._transport is not None else None
        if hello.port and address is not None:  # None: it has gone since it said hello, and nobody can ask from where
            self._owner.greeted(peer, (address[0], hello.port))
        self.follow_pause()
        if lane is Lane.LINK and self._transport is not None:
            tls = self._transport.get_extra_info("ssl_object")
            names = None if self._owner.tls is None else certificate_names(tls)
            self._owner.incoming.discard(self)
            self._owner.linked.add(self)
            self._link = self._owner.links.accept(self._transport, peer, names)

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
