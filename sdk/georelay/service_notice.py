"""What a process tells the service manager that started it: sd_notify(3) of systemd, without libsystemd.

Rule 1: without NOTIFY_SOCKET nothing is opened and nothing is told.
Rule 2: READY=1 means what /readyz means with 200, and comes once; after it STATUS says when that changes.
Rule 3: the event loop feeds the watchdog by itself, so that it starves exactly when the loop stands still. Files are
        written by other threads: a slow disk does not starve it.
Rule 4: until READY=1 the loop asks for more time while it turns: how long recovery takes depends on the disk.
Rule 5: nothing that the manager does, or does not, stops the process or makes it wait.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from georelay.errors import ConfigError

log = structlog.get_logger()

LOOK_S: Final = 1.0  # a change of readiness is told within it
START_TIMEOUT_US: Final = 120_000_000  # what a start that goes on asks for, again and again


class ServiceNotice:
    """One per process; `environment` is os.environ.

    Raises:
        ConfigError: NOTIFY_SOCKET or WATCHDOG_USEC is not what a service manager writes.
    """

    def __init__(self, environment: Mapping[str, str], *, pid: int | None = None) -> None:
        self._address = _socket_address(environment.get("NOTIFY_SOCKET", ""))
        self._watchdog_s = _watchdog_s(environment, os.getpid() if pid is None else pid) if self._address else 0.0
        self._status = ""
        self._is_heard = True

    @property
    def every_s(self) -> float:
        """Return the seconds between two notices: half of what the watchdog waits for, and a second at most."""
        return min(LOOK_S, self._watchdog_s / 2) if self._watchdog_s else LOOK_S

    async def follow(
        self, is_ready: Callable[[], bool], *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Tell how it goes until cancelled; returns at once where nobody listens."""
        if not self._address:
            return
        while not is_ready():
            self._tell(f"EXTEND_TIMEOUT_USEC={START_TIMEOUT_US}", status="starting: not ready to serve yet")
            await sleep(self.every_s)
        self._tell("READY=1", status="serving")
        while True:
            await sleep(self.every_s)
            feed = ["WATCHDOG=1"] if self._watchdog_s else []
            self._tell(*feed, status="serving" if is_ready() else "not ready: see /readyz")

    def stopping(self) -> None:
        """Tell that the process stops."""
        if self._address:
            self._tell("STOPPING=1", status="stopping")

    def _tell(self, *lines: str, status: str) -> None:
        if status != self._status:
            lines = (*lines, f"STATUS={status}")
        if not lines:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as out:
                out.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if self._is_heard:
                log.warning("service.notice_lost", socket=self._address, reason=str(error))
            self._is_heard = False
            return
        self._status, self._is_heard = status, True


def _socket_address(named: str) -> str:
    """Return what to send to: a path, or a name of the abstract namespace (unix(7)); "" where nobody listens."""
    if named and (named[0] not in "/@" or len(named) < 2):
        raise ConfigError(
            f"NOTIFY_SOCKET '{named}' is neither a path nor @name: unset it, or use Type=notify of systemd"
        )
    return f"\0{named[1:]}" if named.startswith("@") else named


def _watchdog_s(environment: Mapping[str, str], pid: int) -> float:
    """Return after how many seconds of silence this process is killed (sd_watchdog_enabled(3)); 0: never."""
    microseconds = environment.get("WATCHDOG_USEC", "0")
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    if not (microseconds.isascii() and microseconds.isdigit()):
        raise ConfigError(f"WATCHDOG_USEC '{microseconds}' is no number of microseconds: unset it, or set WatchdogSec")
    return int(microseconds) / 1e6
