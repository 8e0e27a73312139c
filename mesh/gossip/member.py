"""One member of a pool as gossip knows it, and what is accepted as name, address and version vector.

Rule 1: a version vector has six bytes, or it is none: shorter ones stop old Go members, so they are never passed on.
Rule 2: an address is one that somebody can be reached at: no port 0, no 0.0.0.0, no multicast.
"""

from __future__ import annotations

import enum
import functools
import ipaddress
import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from mesh.gossip.faults import CodecError

Address = tuple[str, int]  # IP address as text, port

NAME_BYTES_MAX: Final = 128
META_BYTES_MAX: Final = 512
INCARNATION_MAX: Final = 2**32 - 1
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")
_ADDRESS_CACHE: Final = 8192


class MemberState(enum.IntEnum):
    """State of a member; the numbers are those of the wire."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


GONE: Final = frozenset({MemberState.DEAD, MemberState.LEFT})


class Versions(NamedTuple):
    """Versions that a member speaks: lowest, highest and current, of memberlist (p) and of the layer above (d)."""

    pmin: int
    pmax: int
    pcur: int
    dmin: int
    dmax: int
    dcur: int

    @classmethod
    def parse(cls, raw: bytes) -> Versions:
        """Read the six bytes.

        Raises:
            CodecError: another length, a lowest version of 0, or an empty range.
        """
        if len(raw) != 6:
            raise CodecError(f"a version vector of {len(raw)} bytes")
        found = cls(*raw)
        if found.pmin == 0 or found.pmax == 0 or found.pmin > found.pmax or found.dmin > found.dmax:
            raise CodecError("a version vector without a version")
        return found

    def raw(self) -> bytes:
        """Return the six bytes."""
        return bytes(self)

    def agrees_with(self, other: Versions) -> bool:
        """Return whether each speaks what the other speaks now."""
        return (
            self.pmin <= other.pcur <= self.pmax
            and other.pmin <= self.pcur <= other.pmax
            and self.dmin <= other.dcur <= self.dmax
            and other.dmin <= self.dcur <= other.dmax
        )


OUR_VERSIONS: Final = Versions(pmin=1, pmax=5, pcur=2, dmin=2, dmax=5, dcur=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What is known about one member.

    Args:
        name: unique in the pool.
        address: where it listens, UDP and TCP.
        meta: its tags, opaque here, at most 512 bytes.
        versions: what it speaks.
        state: ALIVE, SUSPECT, DEAD or LEFT.
        incarnation: its own counter; a claim about an older one is void.
        changed_at: when `state` changed, seconds on our monotonic clock.
    """

    name: str
    address: Address
    meta: bytes
    versions: Versions
    state: MemberState
    incarnation: int
    changed_at: float

    @property
    def is_gone(self) -> bool:
        """Return whether it is dead or has left."""
        return self.state in GONE

    @property
    def reads_stream_pings(self) -> bool:
        """Return whether it answers a ping over TCP."""
        return self.versions.pmax >= 3

    @property
    def sends_nacks(self) -> bool:
        """Return whether it tells that an indirect ping got no answer."""
        return self.versions.pmax >= 4

    @property
    def reads_crc(self) -> bool:
        """Return whether it reads packets with a checksum."""
        return self.versions.pmax >= 5


def is_name(text: str) -> bool:
    """Return whether `text` is a name we take: letters, digits, dot, hyphen, underscore."""
    return _NAME.match(text) is not None


@functools.lru_cache(maxsize=_ADDRESS_CACHE)
def address_raw(host: str) -> bytes:
    """Return the 4 or 16 bytes of an IP address.

    Raises:
        CodecError: no IP address.
    """
    try:
        return ipaddress.ip_address(host).packed
    except ValueError as error:
        raise CodecError("not an IP address") from error


@functools.lru_cache(maxsize=_ADDRESS_CACHE)
def address_text(raw: bytes) -> str:
    """Return the text of 4 or 16 bytes; Go writes an IPv4 address in either form, and both are the same member.

    Raises:
        CodecError: another length, or an address that nobody can be reached at.
    """
    if len(raw) not in (4, 16):
        raise CodecError(f"an IP address of {len(raw)} bytes")
    found = ipaddress.ip_address(raw)
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_unspecified or found.is_multicast:
        raise CodecError("an IP address that nobody listens at")
    return str(found)
