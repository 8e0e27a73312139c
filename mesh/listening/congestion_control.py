"""Which congestion control the connections of the links use: chosen per link, and recorded.

gRPC keeps its sockets to itself, but their descriptors are in this process: /proc/self/fd names them, a duplicate of
one is a socket object, and a TCP option set on it is set on the connection.

Rule 1: a connection is a link's when its own port, or its peer's, is one of the links' ports; anything else is left
        alone. That the same port number at some other place is taken for a link costs nothing.
Rule 2: looked for again every PERIOD_S: a new connection has the kernel's default until then. A descriptor that was
        looked at is not opened again while it is the same socket.
Rule 3: what the kernel does not have is refused at the start, not later. "auto" is cubic, or the kernel's default where
        it refuses that; "kernel" is its default.
Why it matters: BBR's probing of the round trip costs a clean path p99 +50..200 ms; with loss BBR carries ten times what
cubic does (docs/development/wan.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Final

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from georelay.errors import ConfigError

log = structlog.get_logger()

PERIOD_S: Final = 1.0
AUTO: Final = "auto"
KERNEL: Final = "kernel"
AUTO_CHOICE: Final = "cubic"  # of a clean path's records 1 in 100 is late by 4 ms, with BBR by 105 (measured)
NAME_BYTES_MAX: Final = 16  # TCP_CA_NAME_MAX of linux/tcp.h
_DESCRIPTORS: Final = "/proc/self/fd"
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


class LinkSockets(Collector):
    """The TCP connections of this process's links.

    Args:
        setting: what they shall use: "auto", "kernel" or a name.
        ports: where links listen, here and at the other brokers.

    Raises:
        ConfigError: the kernel does not know the name.
    """

    def __init__(self, setting: str, ports: frozenset[int]) -> None:
        self.name = chosen(setting)
        self._ports = ports
        self._done: dict[int, str] = {}  # descriptor -> which socket it was when it was looked at
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for new connections, if there is something to set."""
        if self.name:
            self._task = asyncio.get_running_loop().create_task(self._follow(), name="link-congestion-control")

    async def stop(self) -> None:
        """End; connections keep what they have."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _follow(self) -> None:
        while True:
            changed = self.apply()
            if changed:
                log.info("links.congestion_control_set", name=self.name, connections=changed)
            await asyncio.sleep(PERIOD_S)

    def apply(self) -> int:
        """Set it on the connections that are new; returns on how many."""
        changed, seen = 0, {}
        for descriptor, what in _sockets():
            seen[descriptor] = what
            if self._done.get(descriptor) != what:
                with contextlib.suppress(OSError), _borrowed(descriptor) as connection:  # it may just be closing
                    if self._is_link(connection):
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self.name.encode("ascii"))
                        changed += 1
        self._done = seen
        return changed

    def in_use(self) -> Counter[str]:
        """Return how many connections of links use which algorithm, as the kernel says."""
        found: Counter[str] = Counter()
        for descriptor, _ in _sockets():
            with contextlib.suppress(OSError), _borrowed(descriptor) as connection:
                if self._is_link(connection):
                    raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME_BYTES_MAX)
                    found[raw.rstrip(b"\0").decode("ascii", "replace")] += 1
        return found

    def collect(self) -> Iterator[Metric]:
        """Yield the number of connections of each algorithm."""
        family = GaugeMetricFamily(
            "georelay_link_connections", "TCP connections of links", labels=("congestion_control",)
        )
        for name, count in sorted(self.in_use().items()):
            family.add_metric((name,), count)
        yield family

    def describe(self) -> list[Metric]:
        """Return nothing: values are read only when they are asked for."""
        return []

    def _is_link(self, connection: socket.socket) -> bool:
        if connection.family not in _FAMILIES or connection.type != socket.SOCK_STREAM:
            return False
        return bool({connection.getsockname()[1], connection.getpeername()[1]} & self._ports)


def _sockets() -> Iterator[tuple[int, str]]:
    """Yield (descriptor, "socket:[inode]") of every socket of this process."""
    for entry in os.listdir(_DESCRIPTORS):
        try:
            what = os.readlink(f"{_DESCRIPTORS}/{entry}")
        except FileNotFoundError:
            continue  # closed meanwhile, or the listing's own
        if what.startswith("socket:"):
            yield int(entry), what


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Look at a socket that belongs to somebody else, by a duplicate of its descriptor. Raises OSError."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        yield connection
