"""Links between brokers of one region over the peer transport: what brokers of other regions
say on connections to the link listener.

A link is a connection of its own (lane LINK) to the peer listener: a large answer never stands before a beat or log
entries. Frames of the link protocol travel in both directions, each as one peer frame of kind LINK.

Rule 1: behind HELLO, and PROOF where the mesh has a secret, the accepting side says ACCEPTED, once it serves links;
        nobody sends LINK before.
        Who closes before that knows of no such lane (a broker of an older version): that one is dialled with gRPC,
        anew for each link.
Rule 2: nobody sends signs of life on it while beats go between both brokers: these are the signs of life.
Rule 3: any broker of the region may open one, whatever its disk: it asks for nothing that a disk decides, and one with
        a new disk must ask to be taken in.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol, cast

import structlog

from georelay.ids import BrokerId, region_of
from georelay.limits import KIB
from georelay.tls import TlsContexts, broker_name
from mesh.listening.dialling import carried, connected_within
from mesh.listening.mesh_secret import NO_NONCE, NONCE_BYTES, Call, MeshSecret
from mesh.replication.frame_reader import HEAD, FrameReader
from mesh.replication.link import Dial, Link, LinkReceiver
from mesh.replication.link_framed import ACCEPTED, FRAME_BYTES_MAX, FramedLink, cut_off_when_unread, end_of
from mesh.replication.settings import BrokerAddress
from region.multiraft.peer_hello import NOT_PROVED, PeerProtocolError, answer_challenge, encode_hello
from region.multiraft.transport import Address, FrameKind, Lane

log = structlog.get_logger()

CONNECT_TIMEOUT_MS: Final = 1_000  # for TCP; TLS and what follows it have the patience of who dials the link


class LinkOwner(Protocol):
    """What a link needs of the transport."""

    me: BrokerId
    mesh_id: str
    disk: bytes
    tls: TlsContexts | None
    secret: MeshSecret | None

    @property
    def port(self) -> int:
        """Return where this broker listens for peers."""

    @property
    def peers(self) -> Mapping[BrokerId, Address]:
        """Return the other brokers of the region and where they are dialled."""


class PeerLinks:
    """Makes and accepts the links of one broker inside its region.

    Args:
        quiet_ns: how long a broker was not heard; None while one of both does not hear the other (rule 2).

    Attributes:
        transport: whose listener and identity are used; None before it was made.
    """

    def __init__(self, quiet_ns: Callable[[BrokerId], int | None]) -> None:
        self.transport: LinkOwner | None = None
        self._quiet_ns = quiet_ns
        self._accepted: Callable[[Link], None] | None = None
        self._waiting: list[tuple[asyncio.Transport, FramedLink]] = []

    def serve(self, accepted: Callable[[Link], None]) -> None:
        """Say ACCEPTED to who waits and to whoever comes; `accepted` must call the `start` of each link."""
        self._accepted = accepted
        waiting, self._waiting = self._waiting, []
        for transport, link in waiting:
            self._open(transport, link, accepted)

    def stop(self) -> None:
        """Let those wait who come: the peer transport goes next."""
        self._accepted = None

    def dial(self, target: BrokerAddress, *, otherwise: Dial) -> Link:
        """Return a link to a broker; `otherwise` makes it to who is not of the region, or cannot do this."""
        owner, broker = self.transport, target.broker_id
        if owner is None or region_of(broker) != region_of(owner.me) or broker not in owner.peers:
            return otherwise(target)
        return DialledPeerLink(
            owner, broker, otherwise=partial(otherwise, target), quiet_ns=partial(self._quiet_ns, broker)
        )

    def accept(self, transport: asyncio.Transport, broker: BrokerId, names: frozenset[str] | None) -> FramedLink:
        """Return the link of a connection whose broker is known; it opens as soon as links are served here."""
        address = transport.get_extra_info("peername")
        link = FramedLink(peer=_text(address), peer_names=names, quiet_ns=partial(self._quiet_ns, broker))
        if self._accepted is not None:
            self._open(transport, link, self._accepted)
        else:
            self._waiting = [row for row in self._waiting if not row[0].is_closing()]
            self._waiting.append((transport, link))
        return link

    def _open(self, transport: asyncio.Transport, link: FramedLink, accepted: Callable[[Link], None]) -> None:
        if not transport.is_closing():
            transport.write(ACCEPTED)
            link.opened(transport)
            accepted(link)


class DialledPeerLink(FramedLink):
    """The dialling end: owns its connection."""

    def __init__(
        self,
        owner: LinkOwner,
        broker: BrokerId,
        *,
        otherwise: Callable[[], Link],
        quiet_ns: Callable[[], int | None],
    ) -> None:
        self._owner = owner
        self._broker = broker
        self._address = owner.peers[broker]
        self._otherwise = otherwise
        self._instead: Link | None = None  # what is used once the peer turned out to know of no such lane
        self._dialling: asyncio.Task[None] | None = None
        self._connection: asyncio.Transport | None = None
        super().__init__(peer=_text(self._address), quiet_ns=quiet_ns)

    @property
    def is_writable(self) -> bool:
        """Return whether a frame is taken now."""
        return super().is_writable if self._instead is None else self._instead.is_writable

    def quiet_ns(self) -> int | None:
        """Return how long the other broker was not heard on other lanes."""
        return super().quiet_ns() if self._instead is None else self._instead.quiet_ns()

    def start(self, receiver: LinkReceiver) -> None:
        """Dial and begin to receive."""
        super().start(receiver)
        self._dialling = asyncio.get_running_loop().create_task(self._dial(), name=f"link to {self._peer}")

    def send(self, frame: bytes) -> None:
        """Hand over one frame."""
        if self._instead is None:
            super().send(frame)
        else:
            self._instead.send(frame)

    def close(self, reason: str) -> None:
        """Close at once."""
        if self._instead is not None:
            self._instead.close(reason)
            return
        super().close(reason)
        if self._connection is not None:
            self._connection.abort()
        elif self._dialling is not None:
            self._dialling.cancel()
            asyncio.get_running_loop().call_soon(self.lost, "closed")

    async def _dial(self) -> None:
        owner, options = self._owner, dict[str, Any]()
        if owner.tls is not None:
            # The name is the broker's, whatever the address is: nobody else of the mesh can take its place.
            options = {"ssl": owner.tls.client(), "server_hostname": broker_name(self._broker, owner.mesh_id)}
        try:
            connection = await connected_within(*self._address[:2], timeout_ms=CONNECT_TIMEOUT_MS)
            await carried(lambda: _DialledConnection(owner, self._broker, self), connection, **options)
        except (OSError, RuntimeError) as error:  # a certificate that does not fit too; uvloop has words of its own
            self.lost(f"{self._peer}: {error or 'no answer'}")

    def connected(self, connection: asyncio.Transport) -> None:
        """There is a connection, on which nothing may be said yet."""
        self._connection = connection
        if self._reason:
            connection.abort()

    def unanswered(self) -> None:
        """The peer closed before it said ACCEPTED."""
        receiver = self._receiver
        if self._reason or receiver is None:
            self.lost("closed")
            return
        log.info("peer.takes_no_links", peer=self._broker, address=self._peer)
        self._instead = self._otherwise()
        self._instead.start(receiver)
        receiver.link_writable()


class _DialledConnection(FrameReader):
    """Says HELLO, proves the secret and passes the frames of a link."""

    def __init__(self, owner: LinkOwner, broker: BrokerId, link: DialledPeerLink) -> None:
        super().__init__()
        self._owner = owner
        self._broker = broker
        self._link = link
        self._nonce = NO_NONCE if owner.secret is None else secrets.token_bytes(NONCE_BYTES)
        self._transport: asyncio.Transport | None = None
        self._is_proved = owner.secret is None or not owner.secret.required
        self._is_accepted = False
        self._garbage = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast("asyncio.Transport", transport)  # uvloop has classes of its own
        cut_off_when_unread(stream)
        self._link.connected(stream)
        owner = self._owner
        stream.write(
            encode_hello(
                lane=Lane.LINK,
                sender=owner.me,
                to=self._broker,
                disk=owner.disk,
                mesh_id=owner.mesh_id,
                port=owner.port,
                nonce=self._nonce,
            )
        )

    def frame_bytes_max(self) -> int:
        """Return how long a frame may be now."""
        return FRAME_BYTES_MAX if self._is_accepted else KIB

    def frame_received(self, kind: int, body: memoryview) -> None:
        """Take CHALLENGE and ACCEPTED, then what the link carries. Raises PeerProtocolError."""
        assert self._transport is not None
        if self._is_accepted:
            self._link.received(kind, body)
        elif kind == FrameKind.ACCEPTED and not len(body):
            if not self._is_proved:
                raise PeerProtocolError(f"broker {self._broker}: {NOT_PROVED}")
            self._is_accepted = True
            self._link.opened(self._transport)
            self._link.resumed()
        elif kind == FrameKind.CHALLENGE and self._owner.secret is not None:
            call = Call(self._owner.me, self._broker, self._nonce, NO_NONCE)
            challenge = HEAD.pack(1 + len(body), kind) + body
            self._transport.write(answer_challenge(self._owner.secret, challenge, call, Lane.LINK))
            self._is_proved = True
        else:
            raise PeerProtocolError(f"frame of kind {kind} before a link was accepted")

    def garbage_received(self, error: ValueError) -> None:
        """Close for good: it is not an older broker that says what nobody expects."""
        log.warning("peer.refused", peer=self._broker, lane=Lane.LINK.name, reason=str(error))
        self._garbage = str(error)
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._link.paused()

    def resume_writing(self) -> None:
        self._link.resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._is_accepted or self._garbage:
            self._link.lost(self._garbage or end_of(exc))
        else:
            self._link.unanswered()


def _text(address: Address) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
