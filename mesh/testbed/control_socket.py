"""Where a bed is asked: one datagram, one answer (control_core.py says which)."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

import structlog

from georelay.fields import JsonObject
from mesh.testbed.control_core import REQUEST_BYTES_MAX, BedControl

log = structlog.get_logger()


class ControlSocket:
    """Answers requests, one per call.

    Args:
        control: bound unix datagram socket, not blocking.
        state: what "stat" says besides the paths.
    """

    def __init__(self, control: BedControl, bound: socket.socket, state: Callable[[], JsonObject]) -> None:
        self._control = control
        self._socket = bound
        self._state = state

    def fileno(self) -> int:
        """Return the descriptor, for select()."""
        return self._socket.fileno()

    def answer(self) -> None:
        """Answer one request."""
        try:
            raw, sender = self._socket.recvfrom(REQUEST_BYTES_MAX + 1)
        except OSError:
            return  # taken back by its sender
        answer = self._control.answer(raw)
        answer["at_ns"] = time.monotonic_ns()  # one clock for all processes of this machine
        if "paths" in answer:
            answer["router"] = self._state()
        if sender:
            try:
                self._socket.sendto(json.dumps(answer, separators=(",", ":")).encode(), sender)
            except OSError as error:  # it did not wait
                log.info("bed.answer_dropped", error=str(error))
