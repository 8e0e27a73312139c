"""Framed TCP connections between the brokers of one region.

Every broker dials every other broker twice: CONTROL carries beats, votes and small answers, APPEND carries
log entries, so that a full append socket never delays a heartbeat. A connection is used one way: the dialling
side sends, the accepting side only receives (answers travel on its own connections).

Frame: u32 length of what follows | u8 kind | body. The first frame must be HELLO; anything else, another mesh,
another protocol version or a frame over the limit closes the connection.

Rule 1: the accepting side believes nothing before HELLO.
Rule 2: sending never blocks and never raises: without a connection, or over the buffer limit, frames are
        dropped and counted; Raft repairs it.
"""

from __future__ import annotations

import asyncio
import enum
import random
import socket
import struct
from collections.abc import Sequence
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


def decode_hello(body: bytes | memoryview, *, me: BrokerId, mesh_id: str) -> tuple[BrokerId, Lane]:
    """Check a HELLO body and return who speaks on which lane. Raises PeerProtocolError."""
    if len(body) < _HELLO.size:
        raise PeerProtocolError("hello is too short")
    version, lane, sender, to, _disk, _, length = _HELLO.unpack_from(body)
    if version != PROTOCOL_VERSION:
        raise PeerProtocolError(f"peer speaks protocol {version}, this broker {PROTOCOL_VERSION}")
    if len(body) != _HELLO.size + length or bytes(body[_HELLO.size :]) != mesh_id.encode():
        raise PeerProtocolError("peer belongs to another mesh")
    if to != me:
        raise PeerProtocolError(f"peer looks for broker {to}, this is {me}: check the peers addresses")
    try:
        return BrokerId(sender), Lane(lane)
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
        peer, lane = decode_hello(body, me=self._owner.me, mesh_id=self._owner.mesh_id)
        if peer not in self._owner.peers:
            raise PeerProtocolError(f"broker {peer} is not of this region")
        for older in [other for other in self._owner.incoming if (other._peer, other._lane) == (peer, lane)]:
            older.close()  # its broker has gone without a word: nothing of the past is read any more
        self._peer, self._lane = peer, lane


class _Outgoing(asyncio.Protocol):
    """Dialling side of one connection; re-dials for ever until closed."""

    def __init__(self, owner: PeerTransport, peer: BrokerId, lane: Lane, address: tuple[str, int]) -> None:
        self._owner = owner
        self._peer = peer
        self._lane = lane
        self._address = address
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.Event()
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

    def send(self, kind: FrameKind, parts: Sequence[bytes | bytearray | memoryview]) -> bool:
        """Queue one frame; False when it was dropped."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        length = 1
        for part in parts:
            length += len(part)
        if transport.get_write_buffer_size() + length > SEND_BUFFER_BYTES_MAX:
            self.frames_dropped += 1
            return False
        if length < 16 * KIB:
            transport.write(_HEAD.pack(length, kind) + b"".join(parts))
        else:
            transport.writelines([_HEAD.pack(length, kind), *parts])
        return True


class PeerTransport:
    """All connections of this broker with the other brokers of its region."""

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
    ) -> None:
        self.me = me
        self.mesh_id = mesh_id
        self.disk = disk
        self.peers = peers
        self.receiver = receiver
        self.rng = rng
        self.incoming: set[_Incoming] = set()
        self.stopped = False
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
        self, peer: BrokerId, lane: Lane, kind: FrameKind, parts: Sequence[bytes | bytearray | memoryview]
    ) -> bool:
        """Queue one frame for a peer; False when it was dropped (no connection, or its buffer is full)."""
        return self._outgoing[peer, lane].send(kind, parts)

    def disconnect(self, peer: BrokerId, lane: Lane) -> None:
        """Drop the outgoing connection; it is dialled again at once."""
        self._outgoing[peer, lane].close()

    def dropped_frames(self) -> int:
        """Return how many frames were dropped because a buffer was full."""
        return sum(connection.frames_dropped for connection in self._outgoing.values())
