"""When each client leaves a region that drains: over a minute, in an order that everybody agrees on. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

SPREAD_S: Final = 60.0
_HASH_SPAN: Final = float(1 << 64)


def client_key(name: str, address: str) -> str:
    """Return what names a client the same at every gateway and broker: its own name, and its IP address."""
    return f"{name}@{address}"


def hash_share(key: str, region: str) -> float:
    """Return a client's place for a region, 0..1, the same everywhere and after every restart."""
    digest = blake2b(f"{key}\0{region}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / _HASH_SPAN


def turn_s(key: str, region: str) -> float:
    """Return how long a region drains before a client leaves it."""
    return hash_share(key, region) * SPREAD_S


def has_to_leave(key: str, region: str, draining_s: float) -> bool:
    """Return whether a client's turn has come in a region that drains for so long."""
    return draining_s >= turn_s(key, region)
