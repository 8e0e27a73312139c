"""Ports that nobody listens on, for processes and brokers which take a port by number.

They lie below the range from which the kernel takes ports for outgoing connections (32768 on): one that was
free a moment ago is not taken by somebody who dials meanwhile. Each process of the suite has a share of its own,
and goes round in it: a broker that a test stops finds its port free when it starts again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
from collections.abc import Sequence
from typing import Final

FIRST, END = 10_000, 21_000  # from there on `georelay up` looks for blocks, and comes back to those it had
WORKERS_MAX: Final = 8
_EACH: Final = (END - FIRST) // WORKERS_MAX
_WORKER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS_MAX
_ROUND: Final = itertools.count(random.SystemRandom().randrange(_EACH))  # processes of one share look elsewhere


def free_ports(count: int) -> list[int]:
    """Return so many ports of 127.0.0.1 that are free for TCP and UDP."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        for _, turn in zip(range(_EACH), _ROUND, strict=False):
            if len(found) == count:
                return found
            port = FIRST + _WORKER * _EACH + turn % _EACH
            if _is_free(port, stack):
                found.append(port)
    raise OSError(f"only {len(found)} of {_EACH} ports from {FIRST + _WORKER * _EACH} on are free, {count} are wanted")


def free_port() -> int:
    return free_ports(1)[0]


def free_addresses(names: Sequence[str]) -> dict[str, str]:
    """Return a free address for each name."""
    return {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(len(names)), strict=True)}


def _is_free(port: int, stack: contextlib.ExitStack) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        probe = stack.enter_context(socket.socket(socket.AF_INET, kind))
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
