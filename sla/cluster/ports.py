"""Ports of this machine: whether one can be had, and one that nobody has."""

from __future__ import annotations

import errno
import socket

from sla.errors import JobFailed, UsageError


def take_port(host: str, port: int, option: str) -> int:
    """Return a port that can be listened on now: the one asked for, or with 0 one that the kernel chooses.

    The daemon opens it a moment later; should another process be faster the daemon ends with an error.

    Args:
        option: what the user writes to ask for another, for errors.

    Raises:
        UsageError: the host is none of this machine's, or the port needs a right that we do not have.
        JobFailed: another process listens there.
    """
    try:
        with socket.socket() as listener:
            # As Java does: connections that ended a minute ago do not block the port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(1)
            return int(listener.getsockname()[1])
    except socket.gaierror:
        raise UsageError(f"--host {host} is no address and no known name") from None
    except OverflowError:
        raise UsageError(f"{option} must be 0 to 65535, not {port}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise JobFailed(f"port {port} of {host} is taken by another process: end it, or give {option}") from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"--host {host} is no address of this machine") from None
        raise UsageError(f"port {port} of {host} cannot be used: {error.strerror}") from None
