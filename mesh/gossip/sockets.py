"""The UDP and TCP sockets of one member: the same port for both, read as far as there is something.

Rule 1: nothing a peer does raises here: what the operating system says is counted.
Rule 2: a turn of the loop reads at most READS_PER_TURN packets, then others have a turn.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from mesh.gossip.member import Address

READS_PER_TURN: Final = 256
PACKET_BYTES_MAX: Final = 65_535
RECEIVE_BUFFER_BYTES: Final = 2 * 1024 * 1024
BIND_TRIES: Final = 16
BACKLOG: Final = 128

OnPacket = Callable[[bytes, Address, float], None]


def bind_pair(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Return (UDP, TCP) sockets bound to one port; 0: any that is free for both.

    Raises:
        OSError: taken, or not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for left in range(BIND_TRIES, 0, -1):
        tcp = socket.socket(family, socket.SOCK_STREAM)
        udp = socket.socket(family, socket.SOCK_DGRAM)
        try:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tcp.bind((host, port))
            udp.bind((host, tcp.getsockname()[1]))
        except OSError:
            tcp.close()
            udp.close()
            if port or left == 1:
                raise
            continue
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        for each in (tcp, udp):
            each.setblocking(False)
        tcp.listen(BACKLOG)
        return udp, tcp
    raise AssertionError("unreachable")


class DatagramSocket:
    """UDP of one member.

    Args:
        on_packet: called with (bytes, source, when it was read in monotonic seconds).
    """

    def __init__(self, sock: socket.socket, *, on_packet: OnPacket, counts: Counter[str]) -> None:
        self._socket = sock
        self._on_packet = on_packet
        self._counts = counts
        self._closed = False
        self.bytes_in = self.bytes_out = 0

    def start(self) -> None:
        """Read from now on."""
        asyncio.get_running_loop().add_reader(self._socket, self.read_waiting)

    def read_waiting(self) -> None:
        """Read what has arrived."""
        for _ in range(READS_PER_TURN):
            if self._closed:
                return
            try:
                raw, source = self._socket.recvfrom(PACKET_BYTES_MAX)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # such as a "port unreachable" that an earlier packet of ours met
                self._counts["receive_failed"] += 1
                continue
            self._counts["packets_in"] += 1
            self.bytes_in += len(raw)
            self._on_packet(raw, (source[0], source[1]), time.monotonic())

    def send(self, raw: bytes, address: Address) -> None:
        """Send one packet, or drop and count it."""
        if self._closed:
            return
        try:
            self._socket.sendto(raw, address)
        except OSError:  # a full buffer, an unreachable network: SWIM is built for lost packets
            self._counts["send_failed"] += 1
            return
        self._counts["packets_out"] += 1
        self.bytes_out += len(raw)

    def close(self) -> None:
        """Close it."""
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
