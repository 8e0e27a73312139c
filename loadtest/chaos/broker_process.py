"""One broker as a child process that can be killed, stopped, started again and broken (`python -m region.faults`)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from loadtest.campaign.mesh import CampaignFailed, get_json
from loadtest.chaos.control_file import ControlFile

READY_SECONDS_MAX: Final = 60
STOP_SECONDS_MAX: Final = 15
SAID_BYTES_MAX: Final = 4_096


class BrokerProcess:
    """One broker.

    Args:
        name: such as "us-1"; also the name of its files.
        directory: where its configuration, control file and log are.
        admin: where it answers /readyz.
    """

    def __init__(self, name: str, *, directory: Path, data_dir: Path, admin: str) -> None:
        self.name = name
        self.data_dir = data_dir
        self.config_file = directory / f"{name}.toml"
        self.wires_file = directory / f"{name}.wires.json"
        self.log_file = directory / f"{name}.log"
        self._control = ControlFile(directory / f"{name}.faults.json")
        self._admin = admin
        self._process: asyncio.subprocess.Process | None = None
        self._stopped = False

    @property
    def is_running(self) -> bool:
        """Return whether there is a process."""
        return self._process is not None and self._process.returncode is None

    @property
    def ended_by_itself(self) -> bool:
        """Return whether the process is gone although nobody here asked it to go."""
        return self._process is not None and self._process.returncode is not None

    async def start(self) -> None:
        """Start it; does not wait until it is ready."""
        assert not self.is_running, f"{self.name} runs already"
        self._stopped = False
        # -P: a folder named `region` in the working directory must not be taken for ours
        arguments = ("-P", "-m", "region.faults", "broker", "--break-things", "--config", str(self.config_file))
        with self.log_file.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, *arguments, "--control", str(self._control.path), "--wires", str(self.wires_file)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    async def wait_until_ready(self) -> None:
        """Wait until it answers that it can commit. Raises CampaignFailed."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while await get_json(f"http://{self._admin}/readyz") is None:
            if self.ended_by_itself or time.monotonic() > deadline:
                raise CampaignFailed(f"{self.name} is not ready: {self.last_words()}")
            await asyncio.sleep(0.1)

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing when it is gone."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.send(signal.SIGKILL)
        await self.reap()

    async def reap(self) -> None:
        """Wait until it is gone, and do not call that its own doing."""
        if self._process is not None:
            await self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """SIGSTOP: it stands still and its connections stay open."""
        self._stopped = True
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._stopped = False
        self.send(signal.SIGCONT)

    async def stop(self) -> None:
        """Stop it in order; kill -9 after STOP_SECONDS_MAX."""
        self.thaw()
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self.reap()
        except TimeoutError:
            await self.kill()

    async def break_with(self, **faults: Any) -> None:
        """Set faults (see region.faults.settings); None heals one. Returns when a running broker obeys.

        Raises:
            CampaignFailed: it does not.
        """
        self._control.set(**faults)
        if not await self._control.obeyed(lambda: self.is_running and not self._stopped):
            raise CampaignFailed(f"{self.name} does not obey its control file: {self.last_words()}")

    def last_words(self) -> str:
        """Return the last line of its log, cut to one screen line or two."""
        if not self.log_file.exists():
            return "it said nothing"
        with self.log_file.open("rb") as file:
            file.seek(max(0, self.log_file.stat().st_size - SAID_BYTES_MAX))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"
