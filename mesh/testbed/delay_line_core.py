"""Packets under way between regions, and the packet that leaves next.

Rule 1: pure; packets are bytes, time is handed in.
Rule 2: only IPv4 is carried; one octet of a packet's destination says its region (Addressing). Anything else is dropped
        and counted: the kernel's router solicitations, mostly.
Rule 3: what is held is bounded: over HELD_BYTES_MAX a packet is dropped and counted, as by a full buffer.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mesh.testbed.path_core import Path
from mesh.testbed.plan_core import SLOTS

HELD_BYTES_MAX: Final = 512 * 1024 * 1024  # 10 Gbit/s over 75 ms are 94 MB
IPV4_HEADER_BYTES: Final = 20
_DESTINATION: Final = 16  # where the destination address begins in the header


@dataclass(frozen=True, slots=True)
class Addressing:
    """Which octet (0..3) of an address says the region, and for each of its 256 values the region's index; 0: none."""

    octet: int
    index_of: bytes


OF_TEST_BEDS: Final = Addressing(octet=2, index_of=bytes(value % SLOTS for value in range(256)))


class DelayLine:
    """All paths of a bed.

    Args:
        paths: by (index of the source region, index of the destination).
        header_bytes: in front of each IP packet (virtio_net_hdr of a TUN device with offloads).
        addressing: of the hosts.
    """

    def __init__(
        self,
        paths: Mapping[tuple[int, int], Path],
        *,
        header_bytes: int = 0,
        addressing: Addressing = OF_TEST_BEDS,
    ) -> None:
        self._by_source: dict[int, dict[int, Path]] = {}
        for (source, destination), path in paths.items():
            self._by_source.setdefault(source, {})[destination] = path
        self._header_bytes = header_bytes
        self._octet = header_bytes + _DESTINATION + addressing.octet
        self._index_of = addressing.index_of
        self._shortest = header_bytes + IPV4_HEADER_BYTES
        self._heap: list[tuple[int, int, int, bytes]] = []
        self._sequence = 0
        self.held_bytes = 0
        self.strange = 0
        self.overflown = 0

    def accept(self, source: int, packet: bytes, now_ns: int) -> None:
        """Take one packet that left region `source`."""
        if len(packet) < self._shortest or packet[self._header_bytes] >> 4 != 4:
            self.strange += 1
            return
        destination = self._index_of[packet[self._octet]]
        path = self._by_source[source].get(destination)
        if path is None:
            self.strange += 1
            return
        due_ns = path.admit(now_ns, len(packet) - self._header_bytes)
        if due_ns < 0:
            return
        if self.held_bytes + len(packet) > HELD_BYTES_MAX:
            self.overflown += 1
            return
        self.held_bytes += len(packet)
        self._sequence += 1
        heapq.heappush(self._heap, (due_ns, self._sequence, destination, packet))

    @property
    def next_due_ns(self) -> int:
        """Return when the next packet leaves, -1 when none is under way."""
        return self._heap[0][0] if self._heap else -1

    def take(self) -> tuple[int, int, bytes]:
        """Return (when it was due, index of its destination, packet) of the next one. IndexError when there is none."""
        due_ns, _, destination, packet = heapq.heappop(self._heap)
        self.held_bytes -= len(packet)
        return due_ns, destination, packet
