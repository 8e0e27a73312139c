"""The loop that moves packets between the TUN devices of the regions, each when it is due.

Rule 1: one thread, no event loop: select() wakes with microsecond timeouts, epoll's are rounded to milliseconds.
Rule 2: real-time priority (SCHED_FIFO) when the kernel allows it. Without it, on a busy machine, packets are tens of
        milliseconds late (measured), and measurements must be thrown away: the lag says so.
Rule 3: lag is taken of every packet, and of a beat every 10 ms, so that a second without packets has a lag too.
Rule 4: a device that is gone is forgotten (its descriptor stays readable for ever); a packet that cannot be written
        is counted.
"""

from __future__ import annotations

import gc
import os
import random
import select
import socket
import time
from collections.abc import Mapping
from typing import Final

import structlog

from georelay.fields import JsonObject
from mesh.testbed.control_core import BedControl
from mesh.testbed.control_socket import ControlSocket
from mesh.testbed.delay_line_core import OF_TEST_BEDS, Addressing, DelayLine
from mesh.testbed.kernel import VIRTIO_HEADER_BYTES, allow_large_packets, spare_timer_slack
from mesh.testbed.lag_core import LagBook
from mesh.testbed.path_core import Path, PathSettings
from mesh.testbed.plan_core import BedPlan, Engine

log = structlog.get_logger()

REALTIME_PRIORITY: Final = 10
BATCH_PACKETS: Final = 64  # of one device before the others and the due ones have their turn
BEAT_NS: Final = 10_000_000
_READ_BYTES: Final = 65_536 + VIRTIO_HEADER_BYTES


def paths_of(plan: BedPlan, rng: random.Random) -> dict[tuple[int, int], Path]:
    """Return the paths of a plan: both directions of every pair."""
    return {
        (one.index, other.index): Path(PathSettings(delay_us=plan.delay_us(one.name, other.name)), rng)
        for one in plan.regions
        for other in plan.regions
        if one != other
    }


class Router:
    """Runs until it is told to stop or its lifeline ends.

    Args:
        tuns: descriptor of each region's device, by its index.
        control: bound unix datagram socket, not blocking.
        lifeline: descriptor whose end of file means that whoever wanted this bed is gone.
        addressing: of the hosts behind the devices.
    """

    def __init__(
        self,
        plan: BedPlan,
        tuns: Mapping[int, int],
        *,
        control: socket.socket,
        lifeline: int,
        addressing: Addressing = OF_TEST_BEDS,
    ) -> None:
        paths = paths_of(plan, random.Random())
        self._sources = {descriptor: index for index, descriptor in tuns.items()}
        self._devices = dict(tuns)
        self._lifeline = lifeline
        self._control = BedControl(plan, paths)
        self._socket = ControlSocket(self._control, control, self.state)
        self._line = DelayLine(paths, header_bytes=VIRTIO_HEADER_BYTES, addressing=addressing)
        self._lag = LagBook()
        self._single = dict.fromkeys(tuns, False)
        self._started_ns = time.monotonic_ns()
        self.is_realtime = False
        self.write_errors = 0

    def prepare(self) -> None:
        """Ask the kernel for punctual wake-ups; what it refuses is logged and noted."""
        spare_timer_slack()
        try:
            parameters = os.sched_param(REALTIME_PRIORITY)
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, parameters)
            self.is_realtime = True
        except PermissionError as error:
            log.warning("router.realtime_refused", error=str(error))
        gc.collect()
        gc.freeze()
        gc.disable()  # the loop makes no cycles

    def run(self) -> None:
        """Move packets until the end. Raises OSError when select() itself fails."""
        line, lag, monotonic_ns = self._line, self._lag, time.monotonic_ns
        beat_ns, control = monotonic_ns() + BEAT_NS, self._socket.fileno()
        while not self._control.is_stopped:
            now_ns = monotonic_ns()
            if now_ns >= beat_ns:
                lag.note(now_ns, now_ns - beat_ns)
                beat_ns = now_ns + BEAT_NS
            while 0 <= line.next_due_ns <= now_ns:
                due_ns, destination, packet = line.take()
                self._write(destination, packet)
                now_ns = monotonic_ns()
                lag.note(now_ns, now_ns - due_ns)
            wake_ns = beat_ns if line.next_due_ns < 0 else min(beat_ns, line.next_due_ns)
            timeout_s = max(0, wake_ns - monotonic_ns()) / 1e9
            readable, _, _ = select.select([*self._sources, control, self._lifeline], (), (), timeout_s)
            for source in readable:
                if source == control:
                    self._socket.answer()
                    self._switch_packet_sizes()
                elif source == self._lifeline:
                    if not os.read(self._lifeline, 4_096):
                        return
                else:
                    self._read(source)

    def _read(self, descriptor: int) -> None:
        index, accept, monotonic_ns = self._sources[descriptor], self._line.accept, time.monotonic_ns
        next_due_ns = self._line.next_due_ns
        for _ in range(BATCH_PACKETS):
            try:
                packet = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                log.warning("router.device_lost", region=index, error=str(error))
                del self._sources[descriptor]
                del self._devices[index]
                return
            now_ns = monotonic_ns()
            accept(index, packet, now_ns)
            if 0 <= next_due_ns <= now_ns:
                return  # somebody's packet must not wait for the rest of this batch

    def _write(self, destination: int, packet: bytes) -> None:
        descriptor = self._devices.get(destination)
        if descriptor is None:
            self.write_errors += 1
            return
        try:
            os.write(descriptor, packet)
        except OSError:  # the device is down, or its queue is full: as on a wire, the packet is gone
            self.write_errors += 1

    def _switch_packet_sizes(self) -> None:
        for index, descriptor in self._devices.items():
            single = self._control.source_needs_single_packets(index)
            if single != self._single[index]:
                allow_large_packets(descriptor, allowed=not single)
                self._single[index] = single

    def state(self) -> JsonObject:
        """Return what "stat" says of the router: seconds are of the monotonic clock, lags in microseconds."""
        cpu = os.times()
        return {
            "engine": Engine.ROUTER.value,
            "realtime": self.is_realtime,
            "up_ms": (time.monotonic_ns() - self._started_ns) // 1_000_000,
            "cpu_ms": round((cpu.user + cpu.system) * 1_000),
            "held_bytes": self._line.held_bytes,
            "strange": self._line.strange,
            "overflown": self._line.overflown,
            "write_errors": self.write_errors,
            "lag_samples": self._lag.samples,
            "lag_worst_us": self._lag.worst_ns // 1_000,
            "lag_seconds_us": [[second, lag_ns // 1_000] for second, lag_ns in self._lag.maxima()],
        }
