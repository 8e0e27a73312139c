"""A development mesh as a child process: started, asked for its endpoints, wounded, stopped."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

from georelay.tls import client_contexts
from loadtest.child_process import end, guarded

READY_SECONDS_MAX = 180  # of a machine without an idle moment
STOP_SECONDS_MAX = 20


class MeshProcess:
    """`georelay up` in a directory of its own. Use as an async context manager."""

    def __init__(
        self,
        directory: Path,
        *,
        regions: str,
        brokers_per_region: int,
        arguments: tuple[str, ...] = (),
        user: tuple[str, str] | None = None,
        checkout: Path | None = None,
    ) -> None:
        """Take what `georelay up` is told.

        Args:
            user: name and password of the one whom it lets do everything.
            checkout: whose code runs, with the environment in its .venv; None: that of this process.
        """
        self.directory = directory
        self.data: Path | None = directory / "mesh"
        self._checkout = checkout
        self.user = user
        self.endpoints: dict[str, Any] = {}
        self.endpoints_file = directory / "endpoints.json"
        python = sys.executable if checkout is None else str(checkout / ".venv" / "bin" / "python")
        self._arguments = [  # what it started ends with it
            *guarded(python, "-m", "georelay.cli", "up"),
            *("--regions", regions, "--brokers-per-region", str(brokers_per_region)),
            *("--data", str(directory / "mesh"), "--base-port", "0", "--endpoints", str(self.endpoints_file)),
            *(() if user is None else ("--user", ":".join(user))),
            *arguments,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> MeshProcess:
        """Start it and wait until it is ready. Raises RuntimeError with what it said when it is not."""
        self.directory.mkdir(parents=True, exist_ok=True)
        said = self.directory / "up.log"
        # A checkout's code is what is imported, whatever PYTHONPATH names here.
        path = {} if self._checkout is None else {"PYTHONPATH": f"{self._checkout}:{self._checkout / 'sdk'}"}
        with said.open("wb") as output:
            self._process = subprocess.Popen(
                self._arguments, stdout=output, stderr=output, cwd=self._checkout, env={**os.environ, **path}
            )
        try:
            for _ in range(READY_SECONDS_MAX * 10):
                if self.endpoints_file.exists():
                    self.endpoints = json.loads(self.endpoints_file.read_text())
                    return self
                if self._process.poll() is not None:
                    break
                await asyncio.sleep(0.1)
        except BaseException:
            self.stop()  # nobody calls __aexit__ after this
            raise
        self.stop()
        raise RuntimeError(f"the mesh did not become ready:\n{said.read_text()[-2000:]}")

    async def __aexit__(self, *_: object) -> None:
        """Stop it and wait."""
        await asyncio.to_thread(self.stop)

    @property
    def pid(self) -> int:
        """Return the pid of `georelay up` itself."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def ca(self) -> Path | None:
        """Return whom clients trust, None without TLS."""
        return Path(self.endpoints["ca"]) if "ca" in self.endpoints else None

    @property
    def scheme(self) -> str:
        """Return the scheme of its HTTP listeners."""
        return "http" if self.ca is None else "https"

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """Return what HTTP clients dial with, None without TLS."""
        return None if self.ca is None else client_contexts(ca=self.ca).client()

    @property
    def headers(self) -> dict[str, str]:
        """Return what HTTP requests carry: the user's credentials, nothing without one."""
        if self.user is None:
            return {}
        return {"authorization": f"Basic {base64.b64encode(':'.join(self.user).encode()).decode()}"}

    @property
    def gateway(self) -> str:
        """Return the base URL of the gateway."""
        return f"{self.scheme}://{self.endpoints['gateway']['http'][0]}"

    @property
    def traces(self) -> Path:
        """Return the directory of the trace files."""
        return self.directory / "mesh" / "traces"

    def pid_of(self, name: str) -> int:
        """Return the pid of a child, such as "us-1" or "gateway"."""
        return int((self.directory / "mesh" / "run" / f"{name}.pid").read_text())

    def kill(self, name: str) -> int:
        """kill -9 one child; returns its pid."""
        pid = self.pid_of(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL when it does not end."""
        if self._process is not None:
            end(self._process, within_s=STOP_SECONDS_MAX)
