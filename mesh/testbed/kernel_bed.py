"""A bed whose delays the kernel makes: nothing to do but to answer, until its owner is gone."""

from __future__ import annotations

import os
import select
import socket
import time

from georelay.fields import JsonObject
from mesh.testbed.control_core import BedControl
from mesh.testbed.control_socket import ControlSocket
from mesh.testbed.kernel_paths import KernelCore, paths_in
from mesh.testbed.plan_core import BedPlan, Engine


class KernelBed:
    """Runs until it is told to stop or its lifeline ends; arguments as of Router."""

    is_realtime = True  # the kernel's timers need no priority

    def __init__(self, plan: BedPlan, core: KernelCore, *, control: socket.socket, lifeline: int) -> None:
        self._control = BedControl(plan, paths_in(core, plan))
        self._socket = ControlSocket(self._control, control, self.state)
        self._lifeline = lifeline
        self._started_ns = time.monotonic_ns()

    def prepare(self) -> None:
        """Nothing is to be prepared."""

    def run(self) -> None:
        """Answer until the end. Raises OSError when select() itself fails."""
        while not self._control.is_stopped:
            readable, _, _ = select.select([self._socket.fileno(), self._lifeline], (), ())
            if self._socket.fileno() in readable:
                self._socket.answer()
            if self._lifeline in readable and not os.read(self._lifeline, 4_096):
                return

    def state(self) -> JsonObject:
        """Return what Router.state does, as far as it is known: nobody knows how late the kernel is."""
        cpu = os.times()
        return {
            "engine": Engine.NETEM.value,
            "realtime": self.is_realtime,
            "up_ms": (time.monotonic_ns() - self._started_ns) // 1_000_000,
            "cpu_ms": round((cpu.user + cpu.system) * 1_000),
            "lag_worst_us": 0,
            "lag_seconds_us": [],
        }
