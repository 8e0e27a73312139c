"""The part of an address that says where it is: /24 of IPv4, /48 of IPv6. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address, NetmaskValueError, ip_network
from typing import Final

IPV4_BYTES: Final = 3
IPV6_BYTES: Final = 6
_REMEMBERED: Final = 4096


@dataclass(frozen=True, slots=True)
class Prefix:
    """Leading bytes of an address: 3 (IPv4 /24) or 6 (IPv6 /48)."""

    raw: bytes

    def __str__(self) -> str:
        if len(self.raw) == IPV4_BYTES:
            return f"{IPv4Address(self.raw + bytes(1))}/24"
        return f"{IPv6Address(self.raw + bytes(10))}/48"


@lru_cache(maxsize=_REMEMBERED)
def prefix_of(address: str) -> Prefix | None:
    """Return the prefix of an IP address; None for what is none, such as the path of a unix socket."""
    if ":" not in address:
        try:
            return Prefix(IPv4Address(address).packed[:IPV4_BYTES])
        except AddressValueError:
            return None
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except AddressValueError:
        return None
    if parsed.ipv4_mapped is not None:
        return Prefix(parsed.ipv4_mapped.packed[:IPV4_BYTES])
    return Prefix(parsed.packed[:IPV6_BYTES])


def prefix_named(text: str) -> Prefix | None:
    """Return the prefix that a person names: an address or a.b.c.0/24 or x::/48; None: it is none of these."""
    address, slash, length = text.partition("/")
    found = prefix_of(address)
    if found is None or not slash:
        return found
    try:
        network = ip_network(text, strict=True)
    except (ValueError, AddressValueError, NetmaskValueError):
        return None
    wanted = 8 * len(found.raw)
    return found if network.prefixlen == wanted and length == str(wanted) else None
