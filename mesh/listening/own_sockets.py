"""The TCP sockets of this process that libraries keep to themselves: /proc/self/fd names them, and a duplicate of a
descriptor is a socket object of the same connection.

That a descriptor is another connection's by the time it is borrowed cannot be told; what is done with it must be
harmless then.

A broker has a descriptor for every open segment, so thousands, and is looked at each second. Reading the link of one in
/proc takes 5 us, of /proc/self/fd as a whole 1 us per entry, so both are done for nothing that is a file: a file has a
position, which takes 0.4 us to ask for, and a socket has none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from typing import Final

_DESCRIPTORS: Final = "/proc/self/fd"
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)
_HOLES_MAX: Final = 1_000  # numbers that are not open, among as many that are, before all are listed


def descriptor_count() -> int:
    """Return how many descriptors of anything are open."""
    return os.stat(_DESCRIPTORS).st_size or len(os.listdir(_DESCRIPTORS))  # Linux says it since 6.2


def own_sockets() -> Iterator[tuple[int, str]]:
    """Yield (descriptor, "socket:[inode]") of every socket of this process."""
    left = descriptor_count()
    beyond = 2 * left + _HOLES_MAX
    for descriptor in range(beyond):
        if not left:
            return
        try:
            os.lseek(descriptor, 0, os.SEEK_CUR)
        except OSError as error:
            if error.errno == errno.EBADF:
                continue  # not open
            if (what := socket_of(descriptor)) is not None:
                yield descriptor, what
        left -= 1
    for entry in os.listdir(_DESCRIPTORS):  # many were closed, or one that was counted just now
        if int(entry) >= beyond and (what := socket_of(int(entry))) is not None:
            yield int(entry), what


def socket_of(descriptor: int) -> str | None:
    """Return "socket:[inode]", which no other socket has while this one is open; None when it is none, or closed."""
    try:
        what = os.readlink(f"{_DESCRIPTORS}/{descriptor}")
    except FileNotFoundError:
        return None
    return what if what.startswith("socket:") else None


def listening_on(port: int) -> list[tuple[int, str]]:
    """Return (descriptor, "socket:[inode]") of the TCP sockets of this process that listen on a port."""
    found = []
    for descriptor, what in own_sockets():
        with contextlib.suppress(OSError), borrowed(descriptor) as connection:
            is_tcp = connection.family in _FAMILIES and connection.type == socket.SOCK_STREAM
            if is_tcp and connection.getsockname()[1] == port and _accepts(connection):
                found.append((descriptor, what))
    return found


def _accepts(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


@contextlib.contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Look at a socket that belongs to somebody else, by a duplicate of its descriptor.

    Raises:
        OSError: it is closed, or is that of something else by now.
    """
    own = os.dup(descriptor)
    try:
        connection = socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise
    with connection:
        yield connection
