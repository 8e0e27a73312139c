"""Ports for brokers that are started here, and started again on the same ones."""

from __future__ import annotations

import random
import socket
from typing import Final

HOST: Final = "127.0.0.1"
# Below the range from which Linux takes the ports of outgoing connections: a broker that is started again must find
# its own ports free.
FIRST_PORT: Final = 15_000
LAST_PORT: Final = 30_000


def free_ports(count: int) -> range:
    """Return `count` free ports in a row. Raises RuntimeError."""
    for _ in range(100):
        first = random.randrange(FIRST_PORT, LAST_PORT - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return range(first, first + count)
    raise RuntimeError(f"there are no {count} free ports in a row between {FIRST_PORT} and {LAST_PORT}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
