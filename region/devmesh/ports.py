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

PORTS_VARIABLE: Final = "GEORELAY_UP_PORTS"  # FIRST-END: where a search stays, so that meshes that rest keep theirs
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
        ConfigError: none is free, or PORTS_VARIABLE is no range of ports that has room for one.
    """
    first, end = _searched()
    bases = range(first, end - count, SEARCH_STEP)
    if not bases:
        raise ConfigError(f"{PORTS_VARIABLE}: {first}-{end} has no room for the {count} ports of this mesh")
    start = os.getpid() * 7 % len(bases)
    for position in range(len(bases)):
        base_port = bases[(start + position) % len(bases)]
        if first_taken(base_port, count) is None:
            return base_port
    raise ConfigError(f"no {count} consecutive free ports between {first} and {end}; name a --base-port")


def _searched() -> tuple[int, int]:
    """Return the first port that is searched and the one behind the last."""
    text = os.environ.get(PORTS_VARIABLE, "")
    if not text:
        return BASE_PORT_DEFAULT, SEARCH_END
    first, _, end = text.partition("-")
    if not (first.isascii() and first.isdigit() and end.isascii() and end.isdigit()) or int(end) > SEARCH_END:
        raise ConfigError(f"{PORTS_VARIABLE} must be FIRST-END, such as 21000-25000, up to {SEARCH_END}; not {text!r}")
    return int(first), int(end)
