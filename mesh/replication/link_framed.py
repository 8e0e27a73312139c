"""Links as frames on a TCP connection of their own, with TLS where the mesh has certificates.

Inside a region the connection is one of the peer transport (region.multiraft.peer_links); between regions it goes to
the link listener (link_listener.py). Frames are those of frame_reader.py. Between regions the dialling side says BEGIN
and its first LINK at once, the accepting side ACCEPTED before anything else:

    kind  name       body
      8   ACCEPTED   none
      9   LINK       one frame of the link protocol, both ways
     10   BEGIN      u16 version (1)

Rule 1: one frame is handed over at a time, the next one once the kernel took what goes before, inside a region
        WAITING_BYTES left out. Between regions the kernel takes no more than UNSENT_BYTES beyond what is on its way:
        what is urgent is not long behind, and how long a frame takes says how fast the link is (frame_packing.py).
Rule 2: who closes, or says something else, before ACCEPTED is of an older version: `Carriers` dials it with gRPC next.
Rule 3: a TCP connection that nobody takes is joined by another one every DIAL_AGAIN_S, and the first that is decided is
        taken: a SYN that was lost in a cut is sent again by the kernel after 1 s, 3 s, 7 s only. Nobody joins it once
        it is taken: a handshake is slow where both sides lack a core, and others beside it make it slower.
Rule 4: with TLS the accepting end must have the DNS name of the broker that was dialled, whatever its address is; the
        names of the dialling end are handed up, because only its OPEN says which broker it is.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, cast

import structlog

from georelay.limits import KIB, LINK_FRAME_BYTES_MAX
from georelay.tls import TlsContexts, broker_name
from mesh.listening.dialling import AddressRow, carried, connected, resolved
from mesh.replication.frame_reader import HEAD, FrameReader
from mesh.replication.link import Dial, Link, LinkReceiver
from mesh.replication.settings import BrokerAddress

log = structlog.get_logger()

ACCEPTED_KIND: Final = 8  # of peer frames too (region.multiraft.transport), as the next one
LINK_KIND: Final = 9
BEGIN_KIND: Final = 10
ACCEPTED: Final = HEAD.pack(1, ACCEPTED_KIND)  # the whole frame
VERSION: Final = 1
_VERSION: Final = struct.Struct(">H")
BEGIN: Final = HEAD.pack(1 + _VERSION.size, BEGIN_KIND) + _VERSION.pack(VERSION)
FRAME_BYTES_MAX: Final = 1 + LINK_FRAME_BYTES_MAX
WAITING_BYTES: Final = 256 * KIB
UNSENT_BYTES: Final = 128 * KIB
UNREAD_MS_MAX: Final = 10_000  # a peer that takes no byte for this long is cut off
JOIN_BYTES_MAX: Final = 64 * KIB  # below it one copy is cheaper than two writes
DIAL_AGAIN_S: Final = 0.25
DIALS_MAX: Final = 6  # in one dial of a link
OLDER_MAX: Final = 10_000  # addresses; then all are tried anew


class FramedLink:
    """One link, whichever side dialled.

    Args:
        quiet_ns: how long its broker was not heard by other means, None: there are none.
        met: told once the other end has shown that it is a broker of the mesh.
    """

    gather_ms = 0

    def __init__(
        self,
        *,
        peer: str,
        quiet_ns: Callable[[], int | None],
        peer_names: frozenset[str] | None = None,
        met: Callable[[], None] | None = None,
    ) -> None:
        self._met = met
        self._peer = peer
        self._peer_names = peer_names
        self._quiet_ns = quiet_ns
        self._receiver: LinkReceiver | None = None
        self._transport: asyncio.Transport | None = None  # None: LINK may not be sent
        self._is_handed_over = False  # a frame, in this turn of the loop
        self._is_paused = False
        self._reason = ""

    # --- Link -------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """Return the address of the other end."""
        return self._peer

    @property
    def peer_names(self) -> frozenset[str] | None:
        """Return the names in the certificate of the dialling end."""
        return self._peer_names

    @property
    def is_writable(self) -> bool:
        """Return whether a frame is taken now."""
        return self._transport is not None and not (self._is_handed_over or self._is_paused or self._reason)

    def quiet_ns(self) -> int | None:
        """Return how long the other broker was not heard by other means."""
        return self._quiet_ns()

    def start(self, receiver: LinkReceiver) -> None:
        """Begin to receive."""
        self._receiver = receiver

    def met(self) -> None:
        """The other end is a broker of the mesh."""
        if self._met is not None:
            self._met()

    def send(self, frame: bytes) -> None:
        """Hand over one frame."""
        transport = self._transport
        if self._reason or transport is None:
            return
        head = HEAD.pack(1 + len(frame), LINK_KIND)
        if len(frame) < JOIN_BYTES_MAX:
            transport.write(head + frame)
        else:
            transport.writelines((head, frame))
        self._is_handed_over = True
        asyncio.get_running_loop().call_soon(self._taken)

    def close(self, reason: str) -> None:
        """Close at once."""
        if self._reason:
            return
        self._reason = reason or "closed"
        if self._transport is not None:
            self._transport.abort()

    # --- the connection below ---------------------------------------------------------------------

    def opened(self, transport: asyncio.Transport, *, waiting_bytes: int = WAITING_BYTES) -> None:
        """Both sides know each other: frames may go, the next one once few `waiting_bytes` are left to the kernel."""
        transport.set_write_buffer_limits(high=waiting_bytes, low=waiting_bytes // 4)
        cut_off_when_unread(transport)  # the accepting side too: beats on another lane say nothing of this connection
        self._transport = transport

    def received(self, kind: int, body: memoryview) -> None:
        """Take one frame of the connection. Raises ValueError: it is none of a link."""
        if kind != LINK_KIND:
            raise ValueError(f"frame of kind {kind} on a link")
        if self._receiver is not None and not self._reason:
            self._receiver.frame_received(bytes(body))

    def paused(self) -> None:
        """The kernel takes no more for now."""
        self._is_paused = True

    def resumed(self) -> None:
        """It does again."""
        self._is_paused = False
        self._go_on()

    def lost(self, reason: str) -> None:
        """The connection is gone."""
        self._reason = self._reason or reason
        self._transport = None
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.link_closed(self._reason)

    def _taken(self) -> None:
        self._is_handed_over = False
        self._go_on()

    def _go_on(self) -> None:
        if self._receiver is not None and self.is_writable:
            self._receiver.link_writable()


def cut_off_when_unread(transport: asyncio.Transport) -> None:
    """End the connection once its peer takes no byte for UNREAD_MS_MAX."""
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS_MAX)


def open_far(link: FramedLink, transport: asyncio.Transport) -> None:
    """Open a link to another region: little waits where it cannot be overtaken."""
    link.opened(transport, waiting_bytes=1)  # nothing: at 0 asyncio's TLS pauses for ever
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def end_of(error: Exception | None) -> str:
    """Return why a connection ended, in words."""
    return "the other end closed the connection" if error is None else str(error) or type(error).__name__


def nothing_else() -> None:
    """Return None: the link itself says whether the other end lives."""
    return


class Carriers:
    """Dials the link listeners of other brokers: framed, and with gRPC who was found to know nothing else.

    Args:
        tls: None for plain text.
        otherwise: dials with gRPC.
    """

    def __init__(self, *, tls: TlsContexts | None, mesh_id: str, otherwise: Dial) -> None:
        self._tls = tls
        self._mesh_id = mesh_id
        self._otherwise = otherwise
        self._older: set[str] = set()

    def dial(self, target: BrokerAddress) -> Link:
        """Return a link to a broker; who was of an older version the last time may be a newer one the next time."""
        if target.address in self._older:
            self._older.discard(target.address)
            return self._otherwise(target)
        options: dict[str, Any] = {}
        if self._tls is not None:
            options = {"ssl": self._tls.client(), "server_hostname": broker_name(target.broker_id, self._mesh_id)}
        return DialledLink(target.address, options=options, older=partial(self._is_older, target.address))

    def _is_older(self, address: str) -> None:
        if len(self._older) >= OLDER_MAX:
            self._older.clear()
        self._older.add(address)


class DialledLink(FramedLink):
    """The dialling end of a link to another region: owns its connection, and keeps its first frame until it has one.

    Args:
        address: "host:port".
        options: of create_connection, for TLS.
        older: told once it turns out that the other end knows no such links.
    """

    def __init__(self, address: str, *, options: dict[str, Any], older: Callable[[], None]) -> None:
        super().__init__(peer=address, quiet_ns=nothing_else)
        self._options = options
        self._older = older
        self._first: bytes | None = None
        self._connection: asyncio.Transport | None = None
        self._dialling: asyncio.Task[None] | None = None

    @property
    def is_writable(self) -> bool:
        """Return whether a frame is taken now."""
        if self._transport is None:
            return self._first is None and not self._reason
        return super().is_writable

    def start(self, receiver: LinkReceiver) -> None:
        """Dial and begin to receive."""
        super().start(receiver)
        self._dialling = asyncio.get_running_loop().create_task(self._dial(), name=f"link to {self._peer}")

    def send(self, frame: bytes) -> None:
        """Hand over one frame."""
        if self._transport is not None or self._reason:
            super().send(frame)
            return
        self._first = frame
        if self._connection is not None:
            self._say_first(self._connection)

    def close(self, reason: str) -> None:
        """Close at once; `link_closed` follows on the next turn of the loop."""
        if self._reason:
            return
        super().close(reason)
        if self._connection is not None:
            self._connection.abort()
        elif self._dialling is not None:
            self._dialling.cancel()
            asyncio.get_running_loop().call_soon(self.lost, "closed")

    async def closed(self) -> None:
        """Wait until no dial is under way."""
        if self._dialling is not None:
            await asyncio.wait([self._dialling])

    # --- the connection below ---------------------------------------------------------------------

    async def _dial(self) -> None:
        host, _, port = self._peer.rpartition(":")
        try:
            rows = await resolved(host.strip("[]"), int(port))
            connection = await carried(_DialledConnection, await _first_connected(rows), **self._options)
        except (OSError, ValueError, RuntimeError) as error:  # a certificate that does not fit is an OSError
            self.lost(f"{self._peer}: {type(error).__name__}: {error}")
            return
        if self._reason:  # closed in this turn
            connection.transport.abort()
            return
        self._connection = connection.transport
        connection.carries(self)
        if self._reason:  # the connection has ended already
            return
        connection.transport.write(BEGIN)
        if self._first is not None:
            self._say_first(connection.transport)

    def _say_first(self, connection: asyncio.Transport) -> None:
        assert self._first is not None
        connection.write(HEAD.pack(1 + len(self._first), LINK_KIND) + self._first)

    def accepted(self) -> None:
        """The other end knows such links."""
        assert self._connection is not None
        open_far(self, self._connection)
        self._go_on()

    def unanswered(self, reason: str) -> None:
        """The other end closed, or said something else, before ACCEPTED."""
        if not self._reason:
            self._older()
        self.lost(f"{self._peer} takes no framed links, it is dialled with gRPC next ({reason})")


class _DialledConnection(FrameReader):
    """Passes the frames of a link that is dialled, once it `carries` one; others are given up."""

    def __init__(self) -> None:
        super().__init__()
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)  # set before anybody sees this
        self._link: DialledLink | None = None
        self._is_accepted = False
        self._ended = ""

    def carries(self, link: DialledLink) -> None:
        """Pass frames to a link from now on."""
        self._link = link
        if self._ended:
            link.unanswered(self._ended)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own
        cut_off_when_unread(self.transport)

    def frame_bytes_max(self) -> int:
        """Return how long a frame may be now."""
        return FRAME_BYTES_MAX if self._is_accepted else KIB

    def frame_received(self, kind: int, body: memoryview) -> None:
        """Take ACCEPTED, then what the link carries. Raises ValueError on anything else."""
        if self._is_accepted and self._link is not None:
            self._link.received(kind, body)
        elif kind == ACCEPTED_KIND and not len(body) and self._link is not None:
            self._is_accepted = True
            self._link.accepted()
        else:
            raise ValueError(f"frame of kind {kind} before a link was accepted")

    def garbage_received(self, error: ValueError) -> None:
        """Close: it is no link any more, or never was one."""
        self._ended = str(error)
        if self._is_accepted:
            log.warning("link.garbage", reason=self._ended)
        self.transport.abort()

    def pause_writing(self) -> None:
        if self._link is not None:
            self._link.paused()

    def resume_writing(self) -> None:
        if self._link is not None:
            self._link.resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._ended = self._ended or end_of(exc)
        if self._link is None:
            return
        if self._is_accepted:
            self._link.lost(self._ended)
        else:
            self._link.unanswered(self._ended)


async def _first_connected(rows: Sequence[AddressRow]) -> socket.socket:
    """Return the TCP connection that is decided first. Raises OSError: that one failed, or nobody answers."""
    waiting: list[asyncio.Task[socket.socket]] = []
    try:
        for attempt in range(DIALS_MAX):
            waiting.append(asyncio.ensure_future(connected(rows, first=attempt)))
            done, _ = await asyncio.wait(waiting, timeout=DIAL_AGAIN_S, return_when=asyncio.FIRST_COMPLETED)
            if done:
                chosen = next(task for task in waiting if task in done)
                waiting.remove(chosen)
                return chosen.result()
        raise TimeoutError(f"no answer within {DIALS_MAX * DIAL_AGAIN_S:g} s")
    finally:
        for task in waiting:
            task.cancel()
            task.add_done_callback(_close)


def _close(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()
