"""The link listener of one broker: framed links, and gRPC of brokers of an older version on the same port.

Rule 1: the first byte decides: a frame begins with a zero (it is below 16 MiB), HTTP/2 with a "P". Whoever has not
        shown within MEET_S that it is a broker of the mesh is cut off, an address has STRANGERS_PER_ADDRESS_MAX such
        connections, and none of them says more than FIRST_WORDS_BYTES_MAX. Of STRANGERS_MAX the oldest goes for one
        more, because a broker shows it in a moment: strangers keep no region from dialling, and hold no memory.
Rule 2: what is HTTP/2 is passed on to a gRPC server on the loopback, without TLS, which serves nobody else: it knows
        the connections that are passed on by their near end, and whose certificates they showed. It is started when
        the first such broker comes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final, cast

import structlog

from georelay.errors import Unavailable
from georelay.limits import KIB
from georelay.tls import TlsContexts, certificate_names
from mesh.listening.acceptor import Acceptor
from mesh.listening.admission_core import AdmissionCounters, AdmissionLimits, Refusal, group_of
from mesh.listening.dial_patience_core import DIAL_MS_MAX
from mesh.listening.link_ends_core import Endpoint
from mesh.replication.frame_reader import FrameReader
from mesh.replication.link import Link
from mesh.replication.link_framed import (
    ACCEPTED,
    BEGIN_KIND,
    FRAME_BYTES_MAX,
    FramedLink,
    end_of,
    nothing_else,
    open_far,
)
from mesh.replication.link_grpc import Caller, GrpcLinks

log = structlog.get_logger()

# Brokers dial again every REDIAL_MS, from few addresses: what is counted per address is not what they take.
LIMITS: Final = AdmissionLimits(
    connections_max=1_000,
    connections_per_address_max=500,
    handshakes_max=256,
    handshakes_per_address_max=64,
    admits_per_address_per_s=500,
    handshake_s=DIAL_MS_MAX / 1000,
)
STRANGERS_PER_ADDRESS_MAX: Final = 32
STRANGERS_MAX: Final = 400  # a machine has as many addresses on loopback as it likes
MEET_S: Final = DIAL_MS_MAX / 1000  # as long as its dial may take
FIRST_FRAME_BYTES_MAX: Final = 4 * KIB  # an OPEN or a PROOF
FIRST_WORDS_BYTES_MAX: Final = 64 * KIB  # the same in HTTP/2, with all that goes before
FIRST_OF_HTTP2: Final = ord("P")
RELAYED_BYTES_MAX: Final = 256 * KIB  # beyond it the other side is not read
PROTOCOLS: Final = ("h2",)  # what TLS is asked for by gRPC; framed links ask for nothing


class LinkListener:
    """Accepts links: `accept(link)` must call `link.start`.

    Args:
        tls: None for plain text.
        limits: others only in tests.
    """

    def __init__(
        self,
        accept: Callable[[Link], None],
        *,
        tls: TlsContexts | None = None,
        counters: AdmissionCounters | None = None,
        limits: AdmissionLimits = LIMITS,
    ) -> None:
        self.accept = accept
        self.secure = tls is not None
        self.counters = AdmissionCounters() if counters is None else counters
        self.connections: set[_Accepted] = set()
        self.strangers: Counter[str] = Counter()  # connections by address, until they are those of brokers
        self.unmet: dict[_Accepted, None] = {}  # the same, the oldest first
        self.older = GrpcLinks(accept, counters=self.counters)
        if tls is not None:
            tls.speak(*PROTOCOLS)
        self._acceptor = Acceptor(
            lambda: _Accepted(self), name="link", limits=limits, counters=self.counters, contexts=tls
        )

    async def start(self, listen: str) -> int:
        """Listen on "host:port" and return the bound port.

        Raises:
            Unavailable: the address cannot be bound.
        """
        host, _, port = listen.rpartition(":")
        host = host.strip("[]")
        try:
            return await self._acceptor.start("" if host == "::" else host, int(port))  # IPv4 too, as gRPC does
        except OSError as error:
            raise Unavailable(f"cannot listen for links on {listen}: {error}") from error

    async def stop(self) -> None:
        """Stop listening and end every accepted link."""
        await self._acceptor.close()
        for connection in list(self.connections):
            connection.end()
        await self.older.stop()


class _Accepted(FrameReader):
    """The accepting side of one connection."""

    def __init__(self, owner: LinkListener) -> None:
        super().__init__()
        self._owner = owner
        self._link: FramedLink | None = None
        self._relay: _Relay | None = None
        self._transport: asyncio.Transport | None = None
        self._group: str | None = None  # of addresses, while it may be a stranger's
        self._deadline: asyncio.TimerHandle | None = None
        self._passed_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own
        owner, group = self._owner, group_of(str(transport.get_extra_info("peername", ("",))[0]))
        if owner.strangers[group] >= STRANGERS_PER_ADDRESS_MAX:
            owner.counters.refuse(Refusal.TOO_MANY_OF_ADDRESS)
            self._transport.abort()
            return
        if len(owner.unmet) >= STRANGERS_MAX:
            next(iter(owner.unmet)).not_met(Refusal.TOO_MANY)
        owner.connections.add(self)
        owner.unmet[self] = None
        self._group = group
        owner.strangers[group] += 1
        self._deadline = asyncio.get_running_loop().call_later(MEET_S, self.not_met)

    def not_met(self, reason: Refusal = Refusal.NO_SIGN_IN) -> None:
        """Cut it off, for it has not shown what it is."""
        self._owner.counters.refuse(reason)
        self._met()
        self.end()

    def _met(self) -> None:
        """It is a broker of the mesh, or gone."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._owner.unmet.pop(self, None)
        group, self._group = self._group, None
        if group is not None:
            strangers = self._owner.strangers
            strangers[group] -= 1
            if not strangers[group]:
                del strangers[group]

    def end(self) -> None:
        """Close now."""
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> None:
        """Close: nobody ends one half of a link, and TLS would wait for a goodbye for half a minute."""
        self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._met()
        self._owner.connections.discard(self)
        if self._link is not None:
            self._link.lost(end_of(exc))
        if self._relay is not None:
            self._relay.end()

    # --- what comes -------------------------------------------------------------------------------

    def buffer_updated(self, nbytes: int) -> None:
        """Take frames, or what is to be passed on."""
        is_first = self._link is None and self._relay is None
        if is_first and self._buffer[0] == FIRST_OF_HTTP2:
            self._pass_on()
        if self._relay is None:
            super().buffer_updated(nbytes)
        else:
            self._passed_bytes += nbytes
            if self._group is not None and self._passed_bytes > FIRST_WORDS_BYTES_MAX:
                self.not_met()
                return
            self._relay.write(bytes(memoryview(self._buffer)[:nbytes]))

    def frame_bytes_max(self) -> int:
        """Return how long a frame may be now."""
        return FRAME_BYTES_MAX if self._group is None else FIRST_FRAME_BYTES_MAX

    def frame_received(self, kind: int, body: memoryview) -> None:
        """Take BEGIN, then what the link carries. Raises ValueError on anything else."""
        if self._link is not None:
            self._link.received(kind, body)
            return
        if kind != BEGIN_KIND:
            raise ValueError(f"frame of kind {kind} before a link was begun")
        assert self._transport is not None
        transport, caller = self._transport, self._caller()
        self._link = FramedLink(peer=caller.peer, quiet_ns=nothing_else, peer_names=caller.names, met=caller.met)
        transport.write(ACCEPTED)
        open_far(self._link, transport)
        self._owner.accept(self._link)

    def garbage_received(self, error: ValueError) -> None:
        """Close: nothing after it would be understood."""
        log.warning("link.garbage", peer=self._caller().peer, reason=str(error))
        self.end()

    def pause_writing(self) -> None:
        if self._link is not None:
            self._link.paused()
        if self._relay is not None:
            self._relay.pause()

    def resume_writing(self) -> None:
        if self._link is not None:
            self._link.resumed()
        if self._relay is not None:
            self._relay.resume()

    def _caller(self) -> Caller:
        transport = self._transport
        assert transport is not None
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        names = certificate_names(transport.get_extra_info("ssl_object")) if self._owner.secure else None
        return Caller(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", names, self._met)

    def _pass_on(self) -> None:
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=RELAYED_BYTES_MAX)
        self._relay = _Relay(self._transport, self._owner.older, self._caller())


class _Relay(asyncio.Protocol):
    """The connection to the gRPC server for one that came from outside."""

    def __init__(self, outside: asyncio.Transport, links: GrpcLinks, caller: Caller) -> None:
        self._outside = outside
        self._links = links
        self._caller = caller
        self._inside: asyncio.Transport | None = None
        self._near_end: Endpoint = ("", 0)
        self._early = b""
        outside.pause_reading()
        self._connecting = asyncio.get_running_loop().create_task(self._connect(), name="older link")

    async def _connect(self) -> None:
        try:
            port = await self._links.port()
            await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", port)
        except OSError as error:
            log.warning("link.not_passed_on", peer=self._caller.peer, reason=str(error))
            self._outside.abort()

    def write(self, data: bytes) -> None:
        """Pass on what came from outside; what comes before there is a connection is kept: it is read no further."""
        if self._inside is None:
            self._early += data
        else:
            self._inside.write(data)

    def pause(self) -> None:
        """Outside takes no more for now."""
        if self._inside is not None:
            _read(self._inside, False)

    def resume(self) -> None:
        """It does again."""
        if self._inside is not None:
            _read(self._inside, True)

    def end(self) -> None:
        """The connection from outside is gone."""
        self._connecting.cancel()
        if self._inside is not None:
            self._inside.close()

    # --- of the gRPC server -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        inside = cast("asyncio.Transport", transport)
        if self._outside.is_closing():
            inside.abort()
            return
        self._inside = inside
        self._near_end = self._links.expect(inside.get_extra_info("sockname"), self._caller)
        inside.set_write_buffer_limits(high=RELAYED_BYTES_MAX)
        inside.write(self._early)
        self._outside.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._outside.write(data)

    def pause_writing(self) -> None:
        _read(self._outside, False)

    def resume_writing(self) -> None:
        _read(self._outside, True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._links.forget(self._near_end)
        self._outside.close()


def _read(connection: asyncio.Transport, is_read: bool) -> None:
    """Read a connection, or do not; uvloop raises where it has ended."""
    if connection.is_closing():
        return
    if is_read:
        connection.resume_reading()
    else:
        connection.pause_reading()
