"""Ports that nobody listens on, for processes and brokers which take a port by number.

They lie below the range from which the kernel takes ports for outgoing connections (32768 on): one that was
free a moment ago is not taken by somebody who dials meanwhile. Whoever listens by number on 127.0.0.1 still may.
"""

from __future__ import annotations

import contextlib
import random
import socket

FIRST, END = 10_000, 21_000  # from there on `georelay up` looks for blocks, and comes back to those it had
_CHANCE = random.SystemRandom()  # processes that run side by side look elsewhere


def free_ports(count: int) -> list[int]:
    """Return so many ports of 127.0.0.1 that are free for TCP and UDP."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            port = _CHANCE.randrange(FIRST, END)
            if port not in found and _is_free(port, stack):
                found.append(port)
        return found


def _is_free(port: int, stack: contextlib.ExitStack) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        probe = stack.enter_context(socket.socket(socket.AF_INET, kind))
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
