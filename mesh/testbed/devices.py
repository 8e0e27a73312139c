"""Small words of netlink and sysctl; all act in the network namespace of the calling thread, or of the given socket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

_SYSCTL: Final = Path("/proc/sys/net")


def device_index(route: Any, name: str) -> int:
    """Return the number of a device that is there."""
    return int(route.link_lookup(ifname=name)[0])


def set_up(route: Any, name: str) -> None:
    """Take a device up."""
    route.link("set", index=device_index(route, name), state="up")


def add_address(route: Any, device: str, address: str, prefix: int) -> None:
    """Give a device an IPv4 address."""
    route.addr("add", index=device_index(route, device), address=address, prefixlen=prefix)


def set_sysctl(name: str, value: str, *, optional: bool = False) -> None:
    """Set one of the calling thread's network namespace. Raises OSError unless `optional`."""
    path = _SYSCTL / name
    if optional and not os.access(path, os.W_OK):
        return  # a kernel without IPv6
    path.write_text(value, encoding="ascii")
