"""Calls of Linux that Python 3.11 has no names for: network namespaces, TUN devices, timers.

Sources: unshare(2), setns(2), prctl(2), linux/if_tun.h, linux/virtio_net.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

CLONE_NEWNET: Final = 0x4000_0000
CLONE_NEWUSER: Final = 0x1000_0000
TUN_DEVICE: Final = "/dev/net/tun"
VIRTIO_HEADER_BYTES: Final = 10  # in front of each packet of a device with IFF_VNET_HDR
_PR_SET_TIMERSLACK: Final = 29
_TUNSETIFF: Final = 0x4004_54CA
_TUNSETOFFLOAD: Final = 0x4004_54D0
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000
_IFF_VNET_HDR: Final = 0x4000
_TUN_F_CSUM: Final = 0x01
_TUN_F_TSO4: Final = 0x02
_libc: Final = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def current_network() -> int:
    """Return a descriptor of this thread's network namespace; the namespace lives at least as long as it is open."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def new_network() -> int:
    """Make a network namespace and return its descriptor; this thread stays where it is. Raises OSError."""
    home = current_network()
    try:
        _check(_libc.unshare(CLONE_NEWNET), "unshare(CLONE_NEWNET)")
        made = current_network()
        enter(home, CLONE_NEWNET)
    finally:
        os.close(home)
    return made


def enter(descriptor: int, kind: int) -> None:
    """Move this thread into a namespace; all threads started later begin there. Raises OSError."""
    _check(_libc.setns(descriptor, kind), "setns")


@contextmanager
def inside(descriptor: int) -> Iterator[None]:
    """Be in another network namespace for a while. Raises OSError."""
    home = current_network()
    try:
        enter(descriptor, CLONE_NEWNET)
        try:
            yield
        finally:
            enter(home, CLONE_NEWNET)
    finally:
        os.close(home)


def spare_timer_slack() -> None:
    """Ask for timers without the 50 us by which the kernel may delay them to save power. Raises OSError."""
    _check(_libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0), "prctl(PR_SET_TIMERSLACK)")


def open_tun(name: str) -> int:
    """Make a TUN device in this thread's network namespace; it lives while the descriptor is open.

    Packets have a virtio_net_hdr in front, which is passed on untouched to another such device. Raises OSError.
    """
    descriptor = os.open(TUN_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode("ascii"), flags))
        allow_large_packets(descriptor, allowed=True)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def allow_large_packets(descriptor: int, *, allowed: bool) -> None:
    """Say whether the kernel may hand over TCP segments of up to 64 KiB, to be cut by nobody. Raises OSError."""
    fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4 if allowed else 0)
