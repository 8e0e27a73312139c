"""Bounds for the connections of a server that accepts by itself and has no bound per address: grpcio's.

Rule 1: one address keeps at most so many connections; those that came last are cut off.
Rule 2: looked for every second in a thread, and only in a process that has many descriptors open: few harm nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

import structlog

from mesh.listening.admission_core import AdmissionCounters, Refusal, group_of
from mesh.listening.link_ends_core import Endpoint, endpoint_of
from mesh.listening.own_sockets import borrowed, descriptor_count, own_sockets

log = structlog.get_logger()

FEW_DESCRIPTORS: Final = 400  # below so many nothing is looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketLimits:
    """Of one listener.

    Args:
        per_address_max: connections of one address.
        looked_from: how many descriptors the process has when it is looked for.
    """

    per_address_max: int
    looked_from: int = FEW_DESCRIPTORS


@dataclass(frozen=True, slots=True)
class _Seen:
    what: str
    peer: Endpoint | None  # None: not an accepted connection of this port, or cut off
    since_s: float


class AcceptedSockets:
    """The connections of one port of this process."""

    def __init__(self, limits: SocketLimits, counters: AdmissionCounters, *, name: str) -> None:
        self._limits = limits
        self._counters = counters
        self._name = name
        self._seen: dict[int, _Seen] = {}  # by descriptor

    async def look(self, port: int) -> None:
        """Cut off what is over the limits."""
        if descriptor_count() < self._limits.looked_from:
            self._seen = {}
            return
        loop = asyncio.get_running_loop()
        self._seen = await asyncio.to_thread(self._found, port, self._seen, loop.time())
        for descriptor in self._too_many():
            self._counters.refuse(Refusal.TOO_MANY_OF_ADDRESS)
            _cut_off(descriptor, port)
            self._seen[descriptor] = replace(self._seen[descriptor], peer=None)  # its owner closes it

    def _found(self, port: int, before: dict[int, _Seen], now_s: float) -> dict[int, _Seen]:
        """Return the sockets there are now. Runs in a thread."""
        found: dict[int, _Seen] = {}
        for descriptor, what in own_sockets():
            row = before.get(descriptor)
            if row is None or row.what != what:
                row = _Seen(what, _peer(descriptor, port), now_s)
            found[descriptor] = row
        return found

    def _too_many(self) -> list[int]:
        cut: list[int] = []
        of_address: Counter[str] = Counter()
        rows = [(row.since_s, descriptor, row.peer) for descriptor, row in self._seen.items() if row.peer is not None]
        for _, descriptor, peer in sorted(rows):
            address = group_of(peer[0])
            if of_address[address] >= self._limits.per_address_max:
                cut.append(descriptor)
            else:
                of_address[address] += 1
        if cut:
            log.warning("listener.connections_cut_off", listener=self._name, count=len(cut))
        return cut


def _peer(descriptor: int, port: int) -> Endpoint | None:
    """Return the far end of an accepted connection of a port, None for any other socket."""
    try:
        with borrowed(descriptor) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
                return None
            if connection.getsockname()[1] != port:
                return None
            peer = connection.getpeername()
    except OSError as error:  # it listens, or is just closing
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise  # nobody looked: it must not be taken for another socket as long as it lives
        return None
    return endpoint_of(f"[{peer[0]}]:{peer[1]}")


def _cut_off(descriptor: int, port: int) -> None:
    """Shut a connection; its owner hears that the other end is gone."""
    if _peer(descriptor, port) is None:
        return
    with contextlib.suppress(OSError), borrowed(descriptor) as connection:
        connection.shutdown(socket.SHUT_RDWR)
