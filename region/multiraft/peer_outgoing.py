"""Dialling side of the connections between brokers: frames of one loop turn leave in one write.

Rule 1: sending never blocks and never raises: without a connection, or over the buffer limit, frames are dropped
        and counted.
Rule 2: an address is a hint. Where nobody answers, whoever answers closes at once (it is another broker), or takes what
        is sent while the peer is not heard from, the next address is dialled.
Rule 3: TLS, and the proof of the secret, have the time that a peer's dial has (dial_patience_core): on a machine that
        is short of a core each would be given up a moment too early, for ever.
Rule 4: where the mesh has a secret nothing follows HELLO before the accepting side proved that it has it too. While it
        is not required, a side that asks for no proof at once is taken for one that knows of none.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

import structlog

from georelay.ids import BrokerId
from georelay.limits import KIB, MIB
from georelay.tls import TlsContexts, broker_name
from mesh.listening.addresses_core import Addresses
from mesh.listening.dial_patience_core import DialPatience
from mesh.listening.dialling import carried, connected_within
from mesh.listening.mesh_secret import NO_NONCE, NONCE_BYTES, Call, MeshSecret
from mesh.replication.frame_reader import HEAD
from region.multiraft.peer_hello import (
    CHALLENGE_FRAME_BYTES,
    PeerProtocolError,
    answer_challenge,
    encode_hello,
)
from region.multiraft.transport import Address, FrameKind, Lane, Part, PeerReceiver

log = structlog.get_logger()

SEND_BUFFER_BYTES_MAX: Final = 64 * MIB  # per connection: beyond it frames are dropped
REDIAL_MS: Final = 100
CONNECT_TIMEOUT_MS: Final = 2_000  # for TCP
ANSWER_MS: Final = 2_000  # of a first dial: for TLS, and for the proof of the secret
UNREAD_MS_MAX: Final = 10_000  # a peer that takes no byte for this long is cut off, and what it was sent is dropped
BRIEF_MS: Final = 500  # a connection that ends within it was not wanted at the other end
DOUBT_MS: Final = 3_000  # of a connection to a peer that is not heard: whoever listens there may be a stranger
STRANGERS_MAX: Final = 3  # the pause before a dial is doubled for each, up to so many
LAZY_MS: Final = 2
UNASKED_MS: Final = 250  # while the secret is not required: without a challenge by then there comes none
JOIN_BYTES_MAX: Final = 64 * KIB  # below it one copy is cheaper than a vector of buffers


class OutgoingOwner(Protocol):
    """What a dialled connection needs of the transport."""

    me: BrokerId
    mesh_id: str
    disk: bytes
    receiver: PeerReceiver
    rng: random.Random
    tls: TlsContexts | None
    secret: MeshSecret | None

    @property
    def port(self) -> int:
        """Return where this broker listens for peers."""

    def hears(self, peer: BrokerId) -> bool:
        """Return whether a peer has a connection to us."""

    def connection_gone(self) -> None:
        """Note that a connection is lost."""


class Dial(asyncio.Protocol):
    """One dial of a connection.

    What comes of one that was given up, or replaced, is no news of the connection: a handshake may end after its time
    was up, and the accepting side ends the older of two.
    """

    def __init__(self, connection: OutgoingConnection) -> None:
        self._connection = connection

    @property
    def _is_current(self) -> bool:
        return self._connection.dial is self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop has transport classes of its own: isinstance would refuse them.
        stream = cast("asyncio.Transport", transport)
        if self._is_current:
            self._connection.connection_made(stream)
        else:
            stream.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_current:
            self._connection.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_current:
            self._connection.connection_lost()


class OutgoingConnection:
    """Dialling side of one connection; re-dials for ever until closed."""

    def __init__(self, owner: OutgoingOwner, peer: BrokerId, lane: Lane, addresses: Addresses[Address]) -> None:
        self._owner = owner
        self._peer = peer
        self._lane = lane
        self._transport: asyncio.Transport | None = None
        self.dial: Dial | None = None  # the newest, until it is given up
        self._closed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._pending: list[Part] = []
        self._pending_bytes = 0
        self._flush_is_near = False
        self._lazy_timer: asyncio.TimerHandle | None = None
        self._proving: asyncio.TimerHandle | None = None  # nothing is sent until the other side proved who it is
        self._challenge = b""
        self._nonce = NO_NONCE
        self._unproved = False  # told once, not at every dial
        self._task: asyncio.Task[None] | None = None
        self._addresses = addresses  # of all lanes to this peer
        self._patience = DialPatience(ANSWER_MS)
        self.frames_dropped = 0

    def start(self) -> None:
        """Keep the connection up from now on."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"peer-{self._peer}-{self._lane.name.lower()}")

    @property
    def started(self) -> bool:
        """Return whether it was asked to be up."""
        return self._task is not None

    async def stop(self) -> None:
        """Close for good."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._give_up()

    async def _run(self) -> None:
        refused = False
        strangers = 0  # in a row: whoever closes at once, or says nothing, is not asked ten times a second
        while True:
            self._closed.clear()
            address = self._addresses.current
            try:
                await self._connect(address)
            except (OSError, RuntimeError) as error:  # a certificate that does not fit too; uvloop has words of its own
                self._give_up()  # it may have been made in the moment when its time was up
                self._addresses.failed(address)
                if not refused:
                    log.info("peer.unreachable", peer=self._peer, lane=self._lane.name, reason=_one_line(error))
                    refused = True
                    self._owner.receiver.peer_lost(self._peer, self._lane)
            else:
                if await self._until_closed():
                    refused, strangers = False, 0
                else:
                    strangers = min(strangers + 1, STRANGERS_MAX)
                    self._addresses.failed(address)
            await asyncio.sleep((REDIAL_MS << strangers) / 1000 * (0.5 + self._owner.rng.random()))

    async def _connect(self, address: Address) -> None:
        connection = await connected_within(*address[:2], timeout_ms=CONNECT_TIMEOUT_MS)
        try:
            async with asyncio.timeout(self._patience.ms / 1000):
                await carried(self.new_dial, connection, **self._tls_options())
        except TimeoutError:
            late_ms = self._patience.ms
            self._patience.used_up()
            raise TimeoutError(f"no TLS handshake within {late_ms} ms") from None

    def new_dial(self) -> Dial:
        """Return the protocol of one more dial; from now on it is the one that counts."""
        self.dial = Dial(self)
        return self.dial

    def _give_up(self) -> None:
        """End what there is; what is not made yet shall not be."""
        if self._transport is None:
            self.dial = None
        self.close()

    async def _until_closed(self) -> bool:
        """Wait until the connection is gone; return whether it looked as if the peer was at the other end."""
        opened = self._loop.time()
        while True:
            try:
                async with asyncio.timeout(DOUBT_MS / 1000):
                    await self._closed.wait()
                return self._loop.time() - opened > BRIEF_MS / 1000 and not self._unproved
            except TimeoutError:
                if not self._addresses.is_only and not self._owner.hears(self._peer):
                    log.info("peer.doubted", peer=self._peer, lane=self._lane.name, address=self._addresses.current)
                    self.close()
                    return False

    def _tls_options(self) -> dict[str, Any]:
        tls = self._owner.tls
        if tls is None:
            return {}
        # The name is the broker's, whatever the address is: nobody else of the mesh can take its place.
        return {"ssl": tls.client(), "server_hostname": broker_name(self._peer, self._owner.mesh_id)}

    def connection_made(self, stream: asyncio.Transport) -> None:
        """Greet the other side of the newest dial."""
        self._transport = stream
        stream.set_write_buffer_limits(high=SEND_BUFFER_BYTES_MAX, low=SEND_BUFFER_BYTES_MAX // 2)
        stream.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS_MAX)
        owner = self._owner
        secret, self._challenge = owner.secret, b""
        self._nonce = NO_NONCE if secret is None else secrets.token_bytes(NONCE_BYTES)
        stream.write(
            encode_hello(
                lane=self._lane,
                sender=owner.me,
                to=self._peer,
                disk=owner.disk,
                mesh_id=owner.mesh_id,
                port=owner.port,
                nonce=self._nonce,
            )
        )
        if secret is None:
            self._speak()
        elif secret.required:
            self._proving = self._loop.call_later(self._patience.ms / 1000, self._not_proved_in_time)
        else:
            self._proving = self._loop.call_later(UNASKED_MS / 1000, self._speak)

    def _speak(self) -> None:
        """Begin to send: the other side is who it should be, as far as anybody asks."""
        self._stop_proving()
        self._unproved = False
        self._patience.answered()
        self._owner.receiver.peer_connected(self._peer, self._lane)

    def _not_proved_in_time(self) -> None:
        waited_ms = self._patience.ms
        self._patience.used_up()
        why = "it is cut off, too busy, or has another mesh_secret_file or no certificate"
        self._not_proved(f"no proof of the mesh secret within {waited_ms:.0f} ms: {why}")

    def _not_proved(self, reason: str) -> None:
        if not self._unproved:
            log.warning("peer.not_proved", peer=self._peer, lane=self._lane.name, reason=reason)
            self._unproved = True
        self.close()

    def _stop_proving(self) -> None:
        if self._proving is not None:
            self._proving.cancel()
            self._proving = None

    def connection_lost(self) -> None:
        """Note that the newest dial has ended."""
        self._transport = None
        self._stop_proving()
        self._pending.clear()  # the next connection starts from nothing, as its reader does
        self._pending_bytes = 0
        self._closed.set()
        self._owner.receiver.peer_lost(self._peer, self._lane)
        self._owner.connection_gone()

    def data_received(self, data: bytes) -> None:
        """Take bytes of the accepting side's challenge."""
        self._challenge += data
        secret, transport = self._owner.secret, self._transport
        if self._proving is None or secret is None or len(self._challenge) > CHALLENGE_FRAME_BYTES:
            log.warning("peer.refused", peer=self._peer, reason="data on a one-way connection")
            self.close()
        elif len(self._challenge) == CHALLENGE_FRAME_BYTES and transport is not None:
            call = Call(self._owner.me, self._peer, self._nonce, NO_NONCE)
            try:
                transport.write(answer_challenge(secret, self._challenge, call, self._lane))
            except PeerProtocolError as error:
                self._not_proved(str(error))
            else:
                self._speak()

    @property
    def is_up(self) -> bool:
        """Return whether there is a connection."""
        return self._transport is not None

    def close(self) -> None:
        """Close now; `run` dials again unless it was cancelled."""
        if self._transport is not None:
            self._transport.abort()

    def send(self, kind: FrameKind, parts: Sequence[Part], *, can_wait: bool = False) -> bool:
        """Queue one frame; False when it was dropped.

        The frames of one loop turn leave in one write. A frame that can wait leaves with the next one that
        cannot, or after LAZY_MS: a write and the wake-up of its reader cost more than a small frame.
        """
        transport = self._transport
        if transport is None or transport.is_closing() or self._proving is not None:
            return False
        length = 1
        for part in parts:
            length += len(part)
        if transport.get_write_buffer_size() + self._pending_bytes + length > SEND_BUFFER_BYTES_MAX:
            self.frames_dropped += 1
            return False
        self._pending.append(HEAD.pack(length, kind))
        self._pending.extend(parts)
        self._pending_bytes += length
        if not can_wait and not self._flush_is_near:
            self._flush_is_near = True
            self._loop.call_soon(self._flush)
        elif can_wait and not self._flush_is_near and self._lazy_timer is None:
            self._lazy_timer = self._loop.call_later(LAZY_MS / 1000, self._flush)
        return True

    def _flush(self) -> None:
        self._flush_is_near = False
        if self._lazy_timer is not None:
            self._lazy_timer.cancel()
            self._lazy_timer = None
        pending, self._pending = self._pending, []
        size, self._pending_bytes = self._pending_bytes, 0
        transport = self._transport
        if transport is None or transport.is_closing() or not pending:
            return
        if size < JOIN_BYTES_MAX:
            transport.write(b"".join(pending))
        else:
            transport.writelines(pending)


def _one_line(error: Exception) -> str:
    return (str(getattr(error, "verify_message", "")) or str(error) or type(error).__name__).splitlines()[0]
