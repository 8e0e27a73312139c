"""Locust as child processes: one for everything, or a master and a worker in each region."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.bench.client_settings import environment
from loadtest.campaign.mesh import CampaignFailed
from loadtest.load.campaign import Campaign
from loadtest.load.stage import Stage

LOCUSTFILE: Final = Path(__file__).resolve().parent.parent / "locustfile.py"
HOST: Final = "127.0.0.1"
START_S: Final = 120
WORKERS_S: Final = 90
POLL_S: Final = 0.05
STOP_S: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line asked for.

    Args:
        campaign_text: the campaign as it is run.
        out: below it the folder of the results is made.
        web: address of Locust's page, "" for none.
        has_workers: a master, and a worker for each region; else one process of Locust for all.
    """

    campaign_text: str
    out: Path
    web: str = ""
    has_workers: bool = False


class LocustProcesses:
    """The processes of a run. They end with this one, however it ends."""

    def __init__(self, campaign: Campaign, options: RunOptions, folder: Path, stage: Stage) -> None:
        self._campaign = campaign
        self._options = options
        self._folder = folder
        self._stage = stage
        self._first: asyncio.subprocess.Process | None = None
        self._workers: dict[str, asyncio.subprocess.Process] = {}

    async def start(self) -> None:
        """Start them and wait until the load begins. Raises CampaignFailed."""
        words = ["--html", str(self._folder / "locust.html")]
        if self._options.web:
            host, _, port = self._options.web.rpartition(":")
            words += ["--web-host", host, "--web-port", port, "--autostart", "--autoquit", "5"]
        else:
            words += ["--headless", "--only-summary"]
        if self._options.has_workers:
            regions, port = self._campaign.topology.regions, str(_free_port())
            words += ["--master", "--master-bind-host", HOST, "--master-bind-port", port]
            words += ["--expect-workers", str(len(regions)), "--expect-workers-max-wait", str(WORKERS_S)]
            self._first = await self._started("master", words)
            for region in regions:
                of_worker = ["--worker", "--master-host", HOST, "--master-port", port, "--load-regions", region]
                self._workers[region] = await self._started(region, of_worker)
        else:
            self._first = await self._started("local", words)
        deadline = time.monotonic() + START_S
        while not (self._folder / "began.json").exists():
            for name, process in {"local": self._first, **self._workers}.items():
                if process.returncode is not None:
                    raise CampaignFailed(f"Locust did not begin: {self._last_words(name)}")
            if time.monotonic() > deadline:
                raise CampaignFailed(f"Locust did not begin within {START_S} s; its logs are in {self._folder}")
            await asyncio.sleep(POLL_S)

    async def ended(self) -> None:
        """Wait for the end of the load. Raises CampaignFailed: Locust failed."""
        assert self._first is not None, "not started"
        if code := await self._first.wait():
            raise CampaignFailed(f"Locust ended with {code}: {self._last_words('local')}")

    async def stop(self) -> None:
        """Give what still runs a moment to end by itself, then end it."""
        running = [each for each in (self._first, *self._workers.values()) if each is not None]
        for process in running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S if self._first and self._first.returncode == 0 else 0):
                    await process.wait()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _started(self, name: str, words: list[str]) -> asyncio.subprocess.Process:
        common = ["--campaign", str(self._folder / f"{self._campaign.name}.toml")]
        common += ["--endpoints", str(self._stage.endpoints_file), "--results", str(self._folder)]
        with self._log(name).open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *common, "--load-worker", name, *words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self._stage.settings) | {"GEORELAY_LOAD_PARENT": str(os.getpid())},
            )

    def _log(self, name: str) -> Path:
        return self._folder / f"locust-{name}.log"

    def _last_words(self, name: str) -> str:
        log = self._log(name) if self._log(name).exists() else self._log("master")
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        told = [line for line in lines if not line.startswith("[")]
        return (told or lines or ["it said nothing"])[-1]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
