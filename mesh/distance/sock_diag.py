"""Round trips of a connection whose socket a library keeps to itself: the kernel is asked for it by its two ends.

Source: sock_diag(7), struct inet_diag_req_v2 and inet_diag_msg of linux/inet_diag.h. One connection is asked for, not a
list: 0.1 ms however many there are. It takes no privilege. An exact question of IPv4 finds the sockets of a dual-stack
listener too.
"""

from __future__ import annotations

import os
import socket
import struct
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from mesh.distance.kernel_sample import KernelSample
from mesh.distance.tcp_info import decode

_SOCK_DIAG: Final = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY: Final = 20  # SOCK_DIAG_BY_FAMILY
_REQUEST: Final = 1  # NLM_F_REQUEST
_INFO: Final = 2  # INET_DIAG_INFO: struct tcp_info
_HEADER: Final = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port id
_ASKED: Final = struct.Struct("=BBBxI")  # family, protocol, attributes wanted, states wanted
_ENDS: Final = struct.Struct("!HH16s16sI8s")  # ports and addresses: local, remote; interface; cookie
_ATTRIBUTE: Final = struct.Struct("=HH")  # length with this header, type; the next one begins at a multiple of 4
_MESSAGE_BYTES: Final = 72  # struct inet_diag_msg, before the attributes
_ANY_STATE: Final = 0xFFFFFFFF
_ANY_COOKIE: Final = b"\xff" * 8
_ANSWER_BYTES_MAX: Final = 8192
_ANSWER_S_MAX: Final = 0.1  # it comes with the question; this is for a kernel that says nothing


def sample_between(port: int, host: str, peer_port: int) -> KernelSample | None:
    """Return the round trips of the connection of a port of this machine with a peer.

    Args:
        port: local. host, peer_port: the far end; an address, not a name.

    Returns:
        None where the kernel knows no such connection, does not answer such questions, or measured nothing yet; also
        where the peer came to another address of this machine than the one from which it would be answered.
    """
    try:
        family, remote = _address(host)
        local = _address(_source(family, remote))[1]
        return decode(_info_of(family, (local, port), (remote, peer_port)))
    except (OSError, ValueError, struct.error):
        return None


def _address(host: str) -> tuple[socket.AddressFamily, str]:
    """Return the family and the address, an IPv4 one for an IPv6 one that stands for it."""
    address = IPv6Address(host) if ":" in host else IPv4Address(host)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return (socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6), str(address)


def _source(family: socket.AddressFamily, remote: str) -> str:
    """Return the address of this machine that packets to a remote one come from; nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as route:
        route.connect((remote, 9))
        return str(route.getsockname()[0])


def _info_of(family: socket.AddressFamily, local: tuple[str, int], remote: tuple[str, int]) -> bytes:
    """Return the struct tcp_info of a connection, b"" when there is none."""
    near, far = (socket.inet_pton(family, host) for host, _ in (local, remote))
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _ANY_STATE)
    asked += _ENDS.pack(local[1], remote[1], near, far, 0, _ANY_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(_ANSWER_S_MAX)
        size = _HEADER.size + len(asked)
        kernel.sendto(_HEADER.pack(size, _BY_FAMILY, _REQUEST, os.getpid(), 0) + asked, (0, 0))
        answer = kernel.recv(_ANSWER_BYTES_MAX)
    if _HEADER.unpack_from(answer)[1] != _BY_FAMILY:  # an error: there is no such connection
        return b""
    place = _HEADER.size + _MESSAGE_BYTES
    while place < len(answer):
        length, kind = _ATTRIBUTE.unpack_from(answer, place)
        if kind == _INFO:
            return answer[place + _ATTRIBUTE.size : place + length]
        place += max(length + 3 & ~3, _ATTRIBUTE.size)
    return b""
