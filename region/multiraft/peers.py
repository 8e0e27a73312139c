"""Framed TCP connections between the brokers of one region.

Every broker dials every other broker twice: CONTROL carries beats, votes and small answers, APPEND carries
log entries, so that a full append socket never delays a heartbeat. A connection is used one way: the dialling
side sends, the accepting side only receives (answers travel on its own connections).

Frame: u32 length of what follows | u8 kind | body. The first frame must be HELLO; anything else, another mesh,
another protocol version or a frame over the limit closes the connection.

Rule 1: the accepting side believes nothing before HELLO.
Rule 2: sending never blocks and never raises: without a connection, or over the buffer limit, frames are
        dropped and counted; Raft repairs it.
Rule 3: a broker that comes with another disk than the one it is registered with is not heard: an empty log that
        votes under an old id can lose what was committed.
"""

from __future__ import annotations

import asyncio
import enum
import random
import socket
import struct
import uuid
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

import structlog

from georelay.ids import BrokerId
from georelay.limits import KIB, MIB, PEER_FRAME_BYTES_MAX

log = structlog.get_logger()

PROTOCOL_VERSION: Final = 1
HELLO_BYTES_MAX: Final = 512
SEND_BUFFER_BYTES_MAX: Final = 64 * MIB  # per connection: beyond it frames are dropped
REDIAL_MS: Final = 100
HELLO_TIMEOUT_MS: Final = 2_000
CONNECT_TIMEOUT_MS: Final = 2_000
UNREAD_MS_MAX: Final = 10_000  # a peer that takes no byte for this long is cut off, and what it was sent is dropped
INCOMING_MAX: Final = 256
LAZY_MS: Final = 2
JOIN_BYTES_MAX: Final = 64 * KIB  # below it one copy is cheaper than a vector of buffers
READ_BUFFER_BYTES: Final = 256 * KIB
LARGE_FRAME_BYTES: Final = 64 * KIB  # received into a buffer of its own
assert LARGE_FRAME_BYTES < READ_BUFFER_BYTES
_HEAD: Final = struct.Struct(">IB")
_HELLO: Final = struct.Struct(">HBII16s16sH")  # version, lane, from, to, disk uuid, reserved, mesh id length


class FrameKind(enum.IntEnum):
    """Kinds of peer frames."""

    HELLO = 0
    RAFT = 1
    BEAT = 2
    BEAT_ACK = 3
    HINTS = 4


class Lane(enum.IntEnum):
    """The connections of one broker pair."""

    CONTROL = 0
    APPEND = 1


class PeerProtocolError(ValueError):
    """The peer broke the protocol: its connection is closed."""


class PeerReceiver(Protocol):
    """What the host does with frames."""

    def frame_received(self, peer: BrokerId, kind: FrameKind, body: memoryview, connection: object) -> None:
        """Handle one frame; `body` is valid during the call only. Raises ValueError (PeerProtocolError) on garbage."""

    def peer_connected(self, peer: BrokerId, lane: Lane) -> None:
        """The outgoing connection is up."""

    def peer_lost(self, peer: BrokerId, lane: Lane) -> None:
        """The outgoing connection is gone (reset, refused or closed)."""

    def connection_closed(self, connection: object) -> None:
        """An incoming connection is gone."""


def encode_hello(*, lane: Lane, sender: BrokerId, to: BrokerId, disk: bytes, mesh_id: str) -> bytes:
    """Return the whole HELLO frame."""
    name = mesh_id.encode()
    body = _HELLO.pack(PROTOCOL_VERSION, lane, sender, to, disk, bytes(16), len(name)) + name
    return _HEAD.pack(1 + len(body), FrameKind.HELLO) + body


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


class _Incoming(asyncio.BufferedProtocol):
    """Accepting side of one connection.

    Small frames are handled where they were received; the body of a large one is received straight into a
    buffer of its own, so that a megabyte of log entries is not moved before it is decoded.
    """

    def __init__(self, owner: PeerTransport) -> None:
        self._owner = owner
        self._buffer = bytearray(READ_BUFFER_BYTES)
        self._filled = 0
        self._large: bytearray | None = None
        self._large_filled = 0
        self._large_kind = 0
        self._peer: BrokerId | None = None
        self._lane: Lane | None = None
        self._disk = b""
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

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
        while filled - position >= _HEAD.size:
            length, kind = _HEAD.unpack_from(view, position)
            limit = HELLO_BYTES_MAX if self._peer is None else PEER_FRAME_BYTES_MAX
            if not 1 <= length <= limit:
                raise PeerProtocolError(f"frame of {length} bytes, the limit is {limit}")
            start, end = position + _HEAD.size, position + 4 + length
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
        if kind != FrameKind.HELLO:
            raise PeerProtocolError("the first frame is not a hello")
        peer, lane, disk = decode_hello(body, me=self._owner.me, mesh_id=self._owner.mesh_id)
        if peer not in self._owner.peers:
            raise PeerProtocolError(f"broker {peer} is not of this region")
        if not self._owner.admits(peer, disk):
            self.close()
            return
        for older in [other for other in self._owner.incoming if (other._peer, other._lane) == (peer, lane)]:
            older.close()  # its broker has gone without a word: nothing of the past is read any more
        self._peer, self._lane, self._disk = peer, lane, disk

    def check_disk(self) -> None:
        """Close when the peer turns out to have the wrong disk."""
        if self._peer is not None and not self._owner.admits(self._peer, self._disk):
            self.close()


class _Outgoing(asyncio.Protocol):
    """Dialling side of one connection; re-dials for ever until closed."""

    def __init__(self, owner: PeerTransport, peer: BrokerId, lane: Lane, address: tuple[str, int]) -> None:
        self._owner = owner
        self._peer = peer
        self._lane = lane
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._pending: list[bytes | bytearray | memoryview] = []
        self._pending_bytes = 0
        self._flush_is_near = False
        self._lazy_timer: asyncio.TimerHandle | None = None
        self.frames_dropped = 0

    async def run(self) -> None:
        """Keep the connection up."""
        loop = asyncio.get_running_loop()
        refused = False
        while True:
            self._closed.clear()
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                    await loop.create_connection(lambda: self, *self._address)
            except OSError as error:
                if not refused:
                    log.info("peer.unreachable", peer=self._peer, lane=self._lane.name, reason=str(error))
                    refused = True
                    self._owner.receiver.peer_lost(self._peer, self._lane)
            else:
                refused = False
                await self._closed.wait()
            await asyncio.sleep(REDIAL_MS / 1000 * (0.5 + self._owner.rng.random()))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop has transport classes of its own: isinstance would refuse them.
        self._transport = stream = cast("asyncio.Transport", transport)
        stream.set_write_buffer_limits(high=SEND_BUFFER_BYTES_MAX, low=SEND_BUFFER_BYTES_MAX // 2)
        stream.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS_MAX)
        owner = self._owner
        stream.write(
            encode_hello(lane=self._lane, sender=owner.me, to=self._peer, disk=owner.disk, mesh_id=owner.mesh_id)
        )
        owner.receiver.peer_connected(self._peer, self._lane)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pending.clear()  # the next connection starts from nothing, as its reader does
        self._pending_bytes = 0
        self._closed.set()
        self._owner.receiver.peer_lost(self._peer, self._lane)
        self._owner.connection_gone()

    def data_received(self, data: bytes) -> None:
        log.warning("peer.refused", peer=self._peer, reason="data on a one-way connection")
        self.close()

    @property
    def is_up(self) -> bool:
        """Return whether there is a connection."""
        return self._transport is not None

    def close(self) -> None:
        """Close now; `run` dials again unless it was cancelled."""
        if self._transport is not None:
            self._transport.abort()

    def send(self, kind: FrameKind, parts: Sequence[bytes | bytearray | memoryview], *, can_wait: bool = False) -> bool:
        """Queue one frame; False when it was dropped.

        The frames of one loop turn leave in one write. A frame that can wait leaves with the next one that
        cannot, or after LAZY_MS: a write and the wake-up of its reader cost more than a small frame.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        length = 1
        for part in parts:
            length += len(part)
        if transport.get_write_buffer_size() + self._pending_bytes + length > SEND_BUFFER_BYTES_MAX:
            self.frames_dropped += 1
            return False
        self._pending.append(_HEAD.pack(length, kind))
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


class PeerTransport:
    """All connections of this broker with the other brokers of its region.

    Args:
        disk: uuid of this broker's own disk, 16 bytes.
        registered_disk: the uuid that a broker is registered with, None while nothing is known of it.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        mesh_id: str,
        disk: bytes,
        listen: tuple[str, int],
        peers: dict[BrokerId, tuple[str, int]],
        receiver: PeerReceiver,
        rng: random.Random,
        registered_disk: Callable[[BrokerId], str | None] = lambda _: None,
    ) -> None:
        self.me = me
        self.mesh_id = mesh_id
        self.disk = disk
        self.peers = peers
        self.receiver = receiver
        self.rng = rng
        self.incoming: set[_Incoming] = set()
        self.stopped = False
        self._registered_disk = registered_disk
        self._refused: set[BrokerId] = set()  # told once, not at every dial
        self._all_gone = asyncio.Event()
        self._listen = listen
        self._server: asyncio.Server | None = None
        self._outgoing = {
            (peer, lane): _Outgoing(self, peer, lane, address) for peer, address in peers.items() for lane in Lane
        }
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen and dial. Raises OSError when the address is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Incoming(self), *self._listen)
        self._tasks = [
            asyncio.create_task(connection.run(), name=f"peer-{peer}-{lane.name.lower()}")
            for (peer, lane), connection in self._outgoing.items()
        ]

    async def stop(self) -> None:
        """Close every connection; returns when all are gone."""
        self.stopped = True
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._outgoing.values():
            connection.close()
        for accepted in list(self.incoming):
            accepted.close()
        self.connection_gone()
        await self._all_gone.wait()  # an aborted connection says so in the next turn

    def connection_gone(self) -> None:
        """Note that a connection is lost; the last one ends `stop`."""
        if self.stopped and not self.incoming and not any(connection.is_up for connection in self._outgoing.values()):
            self._all_gone.set()

    def send(
        self,
        peer: BrokerId,
        lane: Lane,
        kind: FrameKind,
        parts: Sequence[bytes | bytearray | memoryview],
        *,
        can_wait: bool = False,
    ) -> bool:
        """Queue one frame for a peer; False when it was dropped (no connection, or its buffer is full)."""
        return self._outgoing[peer, lane].send(kind, parts, can_wait=can_wait)

    def admits(self, peer: BrokerId, disk: bytes) -> bool:
        """Return whether a peer comes from the disk it is registered with; an unknown one does (rule 3)."""
        registered, shown = self._registered_disk(peer), str(uuid.UUID(bytes=disk))
        if registered is None or registered == shown:
            self._refused.discard(peer)
            return True
        if peer not in self._refused:
            self._refused.add(peer)
            log.error("peer.disk_refused", peer=peer, disk=shown, registered=registered)
        return False

    def check_disks(self) -> None:
        """Look at the open connections again: more is known about the disks now."""
        for accepted in list(self.incoming):
            accepted.check_disk()

    def disconnect(self, peer: BrokerId, lane: Lane) -> None:
        """Drop the outgoing connection; it is dialled again at once."""
        self._outgoing[peer, lane].close()

    def dropped_frames(self) -> int:
        """Return how many frames were dropped because a buffer was full."""
        return sum(connection.frames_dropped for connection in self._outgoing.values())
