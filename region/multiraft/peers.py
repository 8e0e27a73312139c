"""Framed TCP connections between the brokers of one region.

Every broker dials every other broker twice: CONTROL carries beats, votes and small answers, APPEND carries
log entries, so that a full append socket never delays a heartbeat. A third one, BULK, is dialled when it is first
used: whole segments never stand before log entries. Such a connection is used one way: the dialling
side sends, the accepting side only receives (answers travel on its own connections). Lane LINK is peer_links.py's.

Frame: u32 length of what follows | u8 kind | body. The first frame must be HELLO; anything else, another mesh,
another protocol version or a frame over the limit closes the connection.

Rule 1: the accepting side believes nothing before HELLO.
Rule 2: sending never blocks and never raises: without a connection, or over the buffer limit, frames are
        dropped and counted; Raft repairs it.
Rule 3: with TLS both ends show certificates of the mesh's authority: the dialled end must have the DNS name
        `broker-<id>.<mesh>` of the broker that was looked for, the dialling end that of the broker its HELLO names.
Rule 4: an address is a hint (mesh.listening.addresses_core): each known one is dialled until the broker answers that
        was looked for, and an open connection is not given up for a newer word.
Rule 5: with a secret of the mesh both ends prove that they have it, behind HELLO: CHALLENGE is the one frame that the
        accepting side sends.
Rule 6: a broker that comes with another disk than the one it is registered with is not heard: an empty log that
        votes under an old id can lose what was committed.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from georelay.ids import BrokerId
from georelay.tls import TlsContexts
from mesh.listening.acceptor import Acceptor
from mesh.listening.addresses_core import Addresses, Source
from mesh.listening.admission_core import AdmissionCounters, AdmissionLimits
from mesh.listening.dial_patience_core import DIAL_MS_MAX
from mesh.listening.mesh_secret import MeshSecret
from region.multiraft.peer_hello import PeerProtocolError, decode_hello, encode_hello
from region.multiraft.peer_incoming import IncomingConnection
from region.multiraft.peer_links import PeerLinks
from region.multiraft.peer_outgoing import OutgoingConnection
from region.multiraft.transport import Address, FrameKind, Lane, Part, PeerReceiver

__all__ = ["FrameKind", "Lane", "PeerProtocolError", "PeerReceiver", "PeerTransport", "decode_hello", "encode_hello"]

log = structlog.get_logger()

# Brokers dial again every REDIAL_MS, from few addresses: what is counted per address is not what they take.
PEER_LIMITS: Final = AdmissionLimits(
    connections_max=1_000,
    connections_per_address_max=1_000,
    handshakes_max=256,
    handshakes_per_address_max=256,
    admits_per_address_per_s=500,
    handshake_s=DIAL_MS_MAX / 1000,
)
_DIALLED_AT_ONCE: Final = (Lane.CONTROL, Lane.APPEND)
_ONE_WAY: Final = (*_DIALLED_AT_ONCE, Lane.BULK)


class PeerTransport:
    """All connections of this broker with the other brokers of its region.

    Args:
        disk: uuid of this broker's own disk, 16 bytes.
        registered_disk: the uuid that a broker is registered with, None while nothing is known of it.
        tls: None for plain text.
        secret: what brokers prove to each other; None: nothing.
        links: get this transport to dial on, and what comes on lane LINK. None: that waits, nobody serves it.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        mesh_id: str,
        disk: bytes,
        listen: Address,
        peers: Mapping[BrokerId, Address],
        receiver: PeerReceiver,
        rng: random.Random,
        registered_disk: Callable[[BrokerId], str | None] = lambda _: None,
        tls: TlsContexts | None = None,
        secret: MeshSecret | None = None,
        limits: AdmissionLimits = PEER_LIMITS,
        counters: AdmissionCounters | None = None,
        links: PeerLinks | None = None,
    ) -> None:
        self.me = me
        self.mesh_id = mesh_id
        self.disk = disk
        self.receiver = receiver
        self.rng = rng
        self.incoming: set[IncomingConnection] = set()
        self.linked: set[IncomingConnection] = set()  # of lane LINK, whatever its disk and whether it is a peer
        self.stopped = False
        self.appends_paused = False
        self._registered_disk = registered_disk
        self._refused: set[BrokerId] = set()  # told once, not at every dial
        self._all_gone = asyncio.Event()
        self._listen = listen
        self.tls = tls
        self.secret = secret
        self.links = PeerLinks(lambda _: None) if links is None else links
        self.links.transport = self
        self._acceptor = Acceptor(
            lambda: IncomingConnection(self), name="peers", limits=limits, counters=counters, contexts=tls
        )
        self._listening = False
        self._peers: dict[BrokerId, Addresses[Address]] = {}
        self._outgoing: dict[tuple[BrokerId, Lane], OutgoingConnection] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._dropped_before = 0  # by connections that are no more
        for peer, address in peers.items():
            self.add_peer(peer, address, Source.CONFIGURATION)

    @property
    def peers(self) -> Mapping[BrokerId, Address]:
        """Return the brokers it speaks with, never this one, and where it dials them."""
        return {peer: addresses.current for peer, addresses in self._peers.items()}

    @property
    def port(self) -> int:
        """Return where this broker listens for peers."""
        return self._listen[1]

    async def start(self) -> None:
        """Listen and dial. Raises OSError when the address is taken."""
        await self._acceptor.start(*self._listen)
        self._listening = True
        for (_, lane), connection in self._outgoing.items():
            if lane in _DIALLED_AT_ONCE:
                connection.start()

    async def stop(self) -> None:
        """Close every connection; returns when all are gone."""
        self.stopped = True
        await self._acceptor.close()
        await asyncio.gather(*(connection.stop() for connection in self._outgoing.values()), *self._leaving)
        for accepted in [*self.incoming, *self.linked]:
            accepted.close()
        self.connection_gone()
        await self._all_gone.wait()  # an aborted connection says so in the next turn

    def connection_gone(self) -> None:
        """Note that a connection is lost; the last one ends `stop`."""
        is_accepted = bool(self.incoming or self.linked)
        if self.stopped and not is_accepted and not any(each.is_up for each in self._outgoing.values()):
            self._all_gone.set()

    def add_peer(self, broker: BrokerId, address: Address, source: Source) -> None:
        """Speak with this broker too; another address of a known one is dialled when what is dialled now fails."""
        if broker == self.me or self.stopped:
            return
        known = self._peers.get(broker)
        if known is not None:
            known.tell(address, source)
            return
        addresses = self._peers[broker] = Addresses(address, source)
        for lane in _ONE_WAY:
            connection = self._outgoing[broker, lane] = OutgoingConnection(self, broker, lane, addresses)
            if self._listening and lane in _DIALLED_AT_ONCE:
                connection.start()

    def remove_peer(self, broker: BrokerId) -> None:
        """Close every connection with this broker and hear it no more."""
        if self._peers.pop(broker, None) is None:
            return
        for lane in _ONE_WAY:
            connection = self._outgoing.pop((broker, lane))
            self._dropped_before += connection.frames_dropped
            leaving = asyncio.ensure_future(connection.stop())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        for accepted in list(self.incoming):
            if accepted.peer == broker:
                accepted.close()

    def send(
        self, peer: BrokerId, lane: Lane, kind: FrameKind, parts: Sequence[Part], *, can_wait: bool = False
    ) -> bool:
        """Queue one frame; False when it was dropped: stranger, no connection, or its buffer is full."""
        connection = self._outgoing.get((peer, lane))
        if connection is None:
            return False
        if not connection.started and not self.stopped and self._listening:
            connection.start()
        return connection.send(kind, parts, can_wait=can_wait)

    def pause_appends(self) -> None:
        """Read nothing from APPEND lanes, present and future ones, until `resume_appends`."""
        self._pause(True)

    def resume_appends(self) -> None:
        """Read the APPEND lanes again."""
        self._pause(False)

    def _pause(self, paused: bool) -> None:
        self.appends_paused = paused
        for accepted in self.incoming:
            accepted.follow_pause()

    def admits(self, peer: BrokerId, disk: bytes) -> bool:
        """Return whether a peer comes from the disk it is registered with; an unknown one does (rule 6)."""
        registered, shown = self._registered_disk(peer), str(uuid.UUID(bytes=disk))
        if registered is None or registered == shown:
            self._refused.discard(peer)
            return True
        if peer not in self._refused:
            self._refused.add(peer)
            log.error("peer.disk_refused", peer=peer, disk=shown, registered=registered)
        return False

    def greeted(self, peer: BrokerId, address: Address) -> None:
        """Note where a peer that dialled us says that it listens."""
        if peer in self._peers:
            self._peers[peer].tell(address, Source.GREETING)

    def hears(self, peer: BrokerId) -> bool:
        """Return whether a peer has a connection to us."""
        return any(accepted.peer == peer for accepted in self.incoming)

    def check_disks(self) -> None:
        """Look at the open connections again: more is known about the disks now."""
        for accepted in list(self.incoming):
            accepted.check_disk()

    def disconnect(self, peer: BrokerId, lane: Lane) -> None:
        """Drop the outgoing connection; it is dialled again at once."""
        connection = self._outgoing.get((peer, lane))
        if connection is not None:
            connection.close()

    def dropped_frames(self) -> int:
        """Return how many frames were dropped because a buffer was full."""
        return self._dropped_before + sum(connection.frames_dropped for connection in self._outgoing.values())
