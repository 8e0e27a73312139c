"""One broker as a child process whose disk, clock and connections can be broken (`python -m region.faults`)."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any, Final

from loadtest.campaign.mesh import CampaignFailed, get_json
from loadtest.chaos.control_file import ControlFile
from loadtest.child_process import PYTHON, ChildProcess

READY_SECONDS_MAX: Final = 60


class BrokerProcess(ChildProcess):
    """One broker.

    Args:
        name: such as "us-1"; also the name of its files.
        directory: where its configuration, control file and log are.
        admin: where it answers /readyz.
    """

    def __init__(self, name: str, *, directory: Path, data_dir: Path, admin: str) -> None:
        super().__init__(name, log=directory / f"{name}.log")
        self.data_dir = data_dir
        self.config_file = directory / f"{name}.toml"
        self.wires_file = directory / f"{name}.wires.json"
        self._control = ControlFile(directory / f"{name}.faults.json")
        self._admin = admin
        self._stopped = False

    async def start(self) -> None:
        """Start it; does not wait until it is ready."""
        self._stopped = False
        # -P: a folder named `region` in the working directory must not be taken for ours
        words = ("-P", "-m", "region.faults", "broker", "--break-things", "--config", str(self.config_file))
        await self.launch(
            PYTHON, *words, "--control", str(self._control.path), "--wires", str(self.wires_file), own_session=True
        )

    async def wait_until_ready(self) -> None:
        """Wait until it answers that it can commit. Raises CampaignFailed."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while await get_json(f"http://{self._admin}/readyz") is None:
            if self.ended_by_itself or time.monotonic() > deadline:
                raise CampaignFailed(f"{self.name} is not ready: {self.last_words()}")
            await asyncio.sleep(0.1)

    def freeze(self) -> None:
        """SIGSTOP: it stands still and its connections stay open."""
        self._stopped = True
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._stopped = False
        self.send(signal.SIGCONT)

    async def stop(self) -> None:
        """Stop it in order, also when it stands still."""
        self.thaw()
        await super().stop()

    async def break_with(self, **faults: Any) -> None:
        """Set faults (see region.faults.settings); None heals one. Returns when a running broker obeys.

        Raises:
            CampaignFailed: it does not.
        """
        self._control.set(**faults)
        if not await self._control.obeyed(lambda: self.is_running and not self._stopped):
            raise CampaignFailed(f"{self.name} does not obey its control file: {self.last_words()}")
