"""Is a block of loopback ports free, and where is one that is?

The check binds TCP and UDP, without SO_REUSEPORT: a port that another process shares is taken too. Nothing holds the
ports between the check and the start of the processes; a process that loses that race says so in its log.
"""

from __future__ import annotations

import os
import socket
from typing import Final

from georelay.errors import ConfigError
from region.devmesh.plan_core import BASE_PORT_DEFAULT, HOST

SEARCH_STEP: Final = 100
SEARCH_END: Final = 32_000  # above it the kernel hands out ports for outgoing connections


def first_taken(base_port: int, count: int) -> int | None:
    """Return the first port of the block that cannot be bound, None when all can."""
    return next((port for port in range(base_port, base_port + count) if not _is_free(port)), None)


def _is_free(port: int) -> bool:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as stream,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            stream.bind((HOST, port))
            stream.listen(1)
            datagrams.bind((HOST, port))
        except OSError:
            return False
    return True


def require_free(base_port: int, count: int) -> None:
    """Raise ConfigError naming the first port of the block that is taken."""
    taken = first_taken(base_port, count)
    if taken is not None:
        raise ConfigError(
            f"port {taken} is taken (the mesh needs {base_port}..{base_port + count - 1}); "
            "stop what listens there or choose another --base-port"
        )


def search_block(count: int) -> int:
    """Return the first port of a free block. Starts at a place of this process's own, so that two searches rarely meet.

    Raises:
        ConfigError: none is free.
    """
    bases = range(BASE_PORT_DEFAULT, SEARCH_END - count, SEARCH_STEP)
    start = os.getpid() * 7 % len(bases)
    for position in range(len(bases)):
        base_port = bases[(start + position) % len(bases)]
        if first_taken(base_port, count) is None:
            return base_port
    raise ConfigError(
        f"no {count} consecutive free ports between {BASE_PORT_DEFAULT} and {SEARCH_END}; name a --base-port"
    )
