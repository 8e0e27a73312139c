"""Which region a TCP connection of a link leads to, told by the addresses at its two ends. Pure.

Rule 1: whom we dialled is known by its address, whoever dialled us by the end that its connection came from.
Rule 2: brokers of many regions may listen on one port number; the port alone decides only while it is one region's.
Rule 3: a name stands for the addresses that it was last resolved to; nothing here waits for that.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import unquote

Endpoint = tuple[str, int]  # (address without brackets, port)


class LinkEnd(NamedTuple):
    """The far end of a link.

    Args:
        region: its name.
        address: "host:port" that we dial, or the end that a connection came from, as gRPC writes it.
        is_dialled: whether it is we who dial.
    """

    region: str
    address: str
    is_dialled: bool


def endpoint_of(text: str) -> Endpoint | None:
    """Return the endpoint in "host:port", "[::1]:port" or gRPC's "ipv4:10.0.0.1:53100"; None in anything else."""
    plain = unquote(text)
    for family in ("ipv4:", "ipv6:"):
        plain = plain.removeprefix(family)
    host, separator, port = plain.rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit():
        return None
    return plain_host(host.strip("[]")), int(port)


def plain_host(host: str) -> str:
    """Return a host in one spelling: an IPv4 address inside an IPv6 one as IPv4, no zone, names in small letters."""
    host = host.partition("%")[0].lower()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(address if mapped is None else mapped)


def is_name(host: str) -> bool:
    """Return whether a host has to be resolved."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


class LinkEnds:
    """Regions by the far ends of links.

    Args:
        ends: every link that is dialled or was accepted.
        resolved: addresses of the names among them, as `plain_host` writes them, as far as they are known.
    """

    def __init__(self, ends: Iterable[LinkEnd], resolved: Mapping[str, Iterable[str]]) -> None:
        self._accepted: dict[Endpoint, str] = {}
        self._dialled: dict[Endpoint, str] = {}
        self._by_port: dict[int, set[str]] = {}
        for end in ends:
            found = endpoint_of(end.address)
            if found is None:
                continue
            if not end.is_dialled:
                self._accepted[found] = end.region
                continue
            host, port = found
            self._by_port.setdefault(port, set()).add(end.region)
            for address in resolved.get(host, ()) if is_name(host) else (host,):
                self._dialled[address, port] = end.region

    @property
    def ports(self) -> frozenset[int]:
        """Return the ports that are dialled."""
        return frozenset(self._by_port)

    def region_of(self, peer: Endpoint) -> str:
        """Return the region at the far end of a connection (as `endpoint_of` gives it), "" while unknown."""
        known = self._accepted.get(peer) or self._dialled.get(peer)
        if known is not None:
            return known
        regions = self._by_port.get(peer[1], set())
        return next(iter(regions)) if len(regions) == 1 else ""
