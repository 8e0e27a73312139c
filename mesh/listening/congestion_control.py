"""Which congestion control the connections of the links use: chosen by the region at the other end, and recorded.

gRPC keeps its sockets to itself, but a TCP option that is set on a duplicate of one (mesh.listening.own_sockets) is set
on the connection. Each end sets it for what it sends.

Rule 1: a connection is a link's when its own port, or its peer's, is one of the links' ports; anything else is left
        alone. That the same port number at some other place is taken for a link costs nothing.
Rule 2: looked for again every PERIOD_S where links or the number of open descriptors changed, and every
        UNCHANGED_PERIODS_MAX anyway: a new connection has the kernel's default until then, and that of links to unknown
        regions until its broker has said who it is. A descriptor that was looked at is not opened again while it is the
        same socket and wants the same.
Rule 3: what the kernel does not have is refused at the start, not later. "auto" is cubic, or the kernel's default where
        it refuses that; "kernel" is its default.
Rule 4: what is shown is what the kernel says when it is asked, never what was wanted.
Why it matters: BBR's probing of the round trip costs a clean path p99 +50..200 ms; with loss BBR carries ten times what
cubic does (docs/development/wan.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from georelay.cadence import pause_s
from georelay.errors import ConfigError
from mesh.listening.link_ends_core import Endpoint, LinkEnd, LinkEnds, endpoint_of, is_name, plain_host
from mesh.listening.own_sockets import borrowed, descriptor_count, own_sockets

log = structlog.get_logger()

PERIOD_S: Final = 1.0
UNCHANGED_PERIODS_MAX: Final = 5  # one connection closed and another opened meanwhile: as many as before
RESOLVE_S: Final = 60.0  # names of brokers are resolved again after so long
AUTO: Final = "auto"
KERNEL: Final = "kernel"
AUTO_CHOICE: Final = "cubic"  # of a clean path's records 1 in 100 is late by 4 ms, with BBR by 105 (measured)
NAME_BYTES_MAX: Final = 16  # TCP_CA_NAME_MAX of linux/tcp.h
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


def chosen(setting: str) -> str:
    """Return the algorithm for a value of `link_congestion_control`; "" leaves connections as they are.

    Raises:
        ConfigError: the kernel refuses an algorithm that was named.
    """
    if setting == KERNEL:
        return ""
    if setting == AUTO:
        try:
            require_known(AUTO_CHOICE)
        except ConfigError as error:
            log.warning("links.congestion_control_refused", error=str(error))
            return ""
        return AUTO_CHOICE
    require_known(setting)
    return setting


def require_known(name: str) -> None:
    """Refuse an algorithm that this process may not use.

    Raises:
        ConfigError: with the ones that it may.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode("ascii"))
        except OSError as error:
            raise ConfigError(
                f"link_congestion_control: the kernel refuses {name} ({error.strerror}); "
                "see net.ipv4.tcp_allowed_congestion_control"
            ) from error


class _Seen(NamedTuple):
    """A socket that was looked at. `peer` None: no link. `first`: what the kernel gave it. `wanted`: set last."""

    what: str
    peer: Endpoint | None
    first: str
    wanted: str


def _no_ends() -> Iterable[LinkEnd]:
    return ()


class LinkSockets(Collector):
    """The TCP connections of this process's links.

    Args:
        setting: what they shall use: "auto", "kernel" or a name.
        ports: where links listen, here and at the other brokers of the configuration.
        by_region: the same by the name of the region at the other end.
        ends: the links that there are now.

    Raises:
        ConfigError: the kernel does not know a name.
    """

    def __init__(
        self,
        setting: str,
        ports: frozenset[int],
        *,
        by_region: Mapping[str, str] | None = None,
        ends: Callable[[], Iterable[LinkEnd]] = _no_ends,
    ) -> None:
        self.name = chosen(setting)
        self._by_region = {region: chosen(name) for region, name in (by_region or {}).items()}
        self._ports = ports
        self._ends = ends
        self._resolved: dict[str, frozenset[str]] = {}
        self._resolve_at_s = 0.0
        self._seen: dict[int, _Seen] = {}  # by descriptor
        self._looked_at: tuple[object, ...] = ()
        self._unchanged = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for new connections."""
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="link-congestion-control")

    async def stop(self) -> None:
        """End; connections keep what they have."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _follow(self) -> None:
        while True:
            try:
                await self.look()
            except OSError as error:  # no descriptor is left to look with
                log.warning("links.cannot_look", reason=str(error))
            await asyncio.sleep(pause_s(PERIOD_S))

    async def look(self) -> None:
        """Set it on new connections, if there may be any. To be called every PERIOD_S."""
        ends = tuple(self._ends())
        await self._resolve(ends)
        found = (ends, self._resolved, descriptor_count())
        self._unchanged = self._unchanged + 1 if found == self._looked_at else 0
        if self._unchanged % UNCHANGED_PERIODS_MAX == 0:
            self._looked_at = found
            self.apply()

    async def _resolve(self, ends: Iterable[LinkEnd]) -> None:
        """Look up the names of brokers, so that connections to them are known for what they are."""
        loop = asyncio.get_running_loop()
        found = (endpoint_of(end.address) for end in ends if end.is_dialled)
        hosts = {row[0]: row[1] for row in found if row is not None and is_name(row[0])}
        if loop.time() < self._resolve_at_s and hosts.keys() <= self._resolved.keys():
            return
        self._resolve_at_s = loop.time() + RESOLVE_S
        resolved: dict[str, frozenset[str]] = {}
        for host, port in hosts.items():
            try:
                rows = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                log.info("links.broker_not_resolved", host=host, reason=str(error))
                resolved[host] = self._resolved.get(host, frozenset())
            else:
                resolved[host] = frozenset(plain_host(str(row[4][0])) for row in rows)
        self._resolved = resolved

    # --- setting ----------------------------------------------------------------------------------

    def apply(self) -> int:
        """Set it on the connections that are new or whose region has become known; returns on how many."""
        ends = LinkEnds(self._ends(), self._resolved)
        changed: Counter[tuple[str, str]] = Counter()
        seen: dict[int, _Seen] = {}
        for descriptor, what in own_sockets():
            row = self._seen.get(descriptor)
            if row is None or row.what != what:
                row = self._look_at(descriptor, what, ends)
            if row is not None and row.peer is not None:
                region = ends.region_of(row.peer)
                row, is_changed = self._set(descriptor, row, self._by_region.get(region, self.name))
                changed[region, row.wanted] += is_changed
            if row is not None:
                seen[descriptor] = row
        self._seen = seen
        for (region, name), connections in changed.items():
            if connections:
                log.info("links.congestion_control_set", name=name, region=region, connections=connections)
        return changed.total()

    def _look_at(self, descriptor: int, what: str, ends: LinkEnds) -> _Seen | None:
        """Return what a socket is, None while it cannot be told."""
        try:
            with borrowed(descriptor) as connection:
                peer = self._link_peer(connection, ends)
                first = "" if peer is None else _in_force(connection)
        except OSError:  # it listens, or is just closing or not connected yet
            return None
        return _Seen(what, peer, first, "")

    def _set(self, descriptor: int, row: _Seen, wanted: str) -> tuple[_Seen, bool]:
        """Let a connection use `wanted`, "": what the kernel gave it; return whether that was news."""
        if wanted == row.wanted:
            return row, False
        try:
            with borrowed(descriptor) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, (wanted or row.first).encode("ascii"))
        except OSError:  # it may just be closing
            return row, False
        return row._replace(wanted=wanted), True

    # --- what is in force -------------------------------------------------------------------------

    def in_use(self) -> Counter[tuple[str, str]]:
        """Return how many connections of links use what, as the kernel says, by (region, algorithm)."""
        return Counter((region, name) for region, _, name in self._in_force())

    def in_use_by(self, addresses: Iterable[str]) -> dict[str, str]:
        """Return what connections to brokers that are dialled at "host:port" use, by that; without one: left out."""
        by_peer: dict[Endpoint, set[str]] = {}
        for _, peer, name in self._in_force():
            by_peer.setdefault(peer, set()).add(name)
        found: dict[str, str] = {}
        for address in addresses:
            host, port = endpoint_of(address) or ("", 0)
            hosts = self._resolved.get(host, frozenset()) if is_name(host) else {host}
            names = set[str]().union(*(by_peer.get((row, port), set()) for row in hosts))
            if names:
                found[address] = ", ".join(sorted(names))
        return found

    def _in_force(self) -> Iterator[tuple[str, Endpoint, str]]:
        """Yield (region, far end, algorithm) of every connection of a link."""
        ends = LinkEnds(self._ends(), self._resolved)
        for descriptor, what in own_sockets():
            row = self._seen.get(descriptor)
            if row is not None and row.what == what and row.peer is None:
                continue  # a client's
            with contextlib.suppress(OSError), borrowed(descriptor) as connection:
                peer = self._link_peer(connection, ends)
                if peer is not None:
                    yield ends.region_of(peer), peer, _in_force(connection)

    def collect(self) -> Iterator[Metric]:
        """Yield the number of connections by region and algorithm."""
        family = GaugeMetricFamily(
            "georelay_link_connections", "TCP connections of links", labels=("region", "congestion_control")
        )
        for (region, name), count in sorted(self.in_use().items()):
            family.add_metric((region, name), count)
        yield family

    def describe(self) -> list[Metric]:
        """Return nothing: values are read only when they are asked for."""
        return []

    def _link_peer(self, connection: socket.socket, ends: LinkEnds) -> Endpoint | None:
        """Return the far end of a link's connection, None for anything else. Raises OSError without a far end."""
        if connection.family not in _FAMILIES or connection.type != socket.SOCK_STREAM:
            return None
        own, peer = connection.getsockname(), connection.getpeername()
        is_link = {own[1], peer[1]} & self._ports or peer[1] in ends.ports
        return endpoint_of(f"[{peer[0]}]:{peer[1]}") if is_link else None


def _in_force(connection: socket.socket) -> str:
    raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME_BYTES_MAX)
    return raw.rstrip(b"\0").decode("ascii", "replace")
