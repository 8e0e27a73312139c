"""The TCP sockets of this process that libraries keep to themselves: /proc/self/fd names them, and a duplicate of a
descriptor is a socket object of the same connection.

That a descriptor is another connection's by the time it is borrowed cannot be told; what is done with it must be
harmless then.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Final

_DESCRIPTORS: Final = "/proc/self/fd"


def descriptor_count() -> int:
    """Return how many descriptors of anything are open."""
    return len(os.listdir(_DESCRIPTORS))


def own_sockets() -> Iterator[tuple[int, str]]:
    """Yield (descriptor, "socket:[inode]") of every socket of this process."""
    for entry in os.listdir(_DESCRIPTORS):
        try:
            what = os.readlink(f"{_DESCRIPTORS}/{entry}")
        except FileNotFoundError:
            continue  # closed meanwhile, or the listing's own
        if what.startswith("socket:"):
            yield int(entry), what


@contextlib.contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Look at a socket that belongs to somebody else, by a duplicate of its descriptor. Raises OSError."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        yield connection
