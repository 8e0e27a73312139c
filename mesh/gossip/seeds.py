"""Where a pool is looked for: "host:port", or a DNS name with several addresses, looked up anew every time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Final

import structlog

from mesh.gossip.member import Address

log = structlog.get_logger()

ADDRESSES_PER_SEED_MAX: Final = 32
RESOLVE_S: Final = 5.0


def split_seed(seed: str) -> tuple[str, int]:
    """Return (host, port). Raises ValueError."""
    host, separator, port = seed.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"seed '{seed}' is not host:port")
    return host.strip("[]"), int(port)


async def resolve(seeds: Sequence[str]) -> list[Address]:
    """Return the addresses of all seeds; one that cannot be looked up now has none."""
    found: dict[Address, None] = {}
    for seed in seeds:
        host, port = split_seed(seed)
        try:
            async with asyncio.timeout(RESOLVE_S):
                rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError, UnicodeError) as error:  # the last: nothing that DNS could know
            log.warning("gossip_seed.not_resolved", seed=seed, reason=str(error) or "no answer in time")
            continue
        for row in rows[:ADDRESSES_PER_SEED_MAX]:
            found[(str(row[4][0]), port)] = None
    return list(found)
