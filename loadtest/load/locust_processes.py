"""Locust as child processes: one for everything, or a master and so many workers in each region."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtest.campaign.mesh import CampaignFailed
from loadtest.child_process import PYTHON, SAID_NOTHING, ChildProcess, guarded
from loadtest.free_ports import HOST, free_ports
from loadtest.load.campaign import Campaign
from loadtest.load.engine_values import FLUSH_S
from loadtest.load.stage import Stage
from loadtest.login import environment

LOCUSTFILE: Final = Path(__file__).resolve().parent.parent / "locustfile.py"
START_S: Final = 120
WORKERS_S: Final = 90
POLL_S: Final = 0.05
STOP_S: Final = 10
END_S: Final = 120  # for what else there is to do at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line asked for.

    Args:
        campaign_text: the campaign as it is run.
        out: below it the folder of the results is made.
        web: address of Locust's page, "" for none.
        workers_per_region: so many for each region, and a master; 0: one process of Locust for all.
    """

    campaign_text: str
    out: Path
    web: str = ""
    workers_per_region: int = 0


class LocustProcesses:
    """The processes of a run. They end with this one, however it ends."""

    def __init__(self, campaign: Campaign, options: RunOptions, folder: Path, stage: Stage) -> None:
        self._campaign = campaign
        self._options = options
        self._folder = folder
        self._stage = stage
        self._processes: dict[str, ChildProcess] = {}  # the one that ends with the load is the first
        self._has_ended = False

    async def start(self) -> None:
        """Start them and wait until the load begins. Raises CampaignFailed."""
        words = ["--html", str(self._folder / "locust.html")]
        if self._options.web:
            host, _, port = self._options.web.rpartition(":")
            words += ["--web-host", host, "--web-port", port, "--autostart", "--autoquit", "5"]
        else:
            words += ["--headless", "--only-summary"]
        if self._options.workers_per_region:
            await self._start_workers(words)
        else:
            await self._started("local", words)
        deadline = time.monotonic() + START_S
        while not (self._folder / "began.json").exists():
            for process in self._processes.values():
                if process.ended_by_itself:
                    raise CampaignFailed(f"Locust did not begin: {_last_words(process)}")
            if time.monotonic() > deadline:
                raise CampaignFailed(f"Locust did not begin within {START_S} s; its logs are in {self._folder}")
            await asyncio.sleep(POLL_S)

    async def ended(self) -> None:
        """Wait for the end of the load. Raises CampaignFailed: Locust failed, or does not end."""
        first = next(iter(self._processes.values()))
        within_s = self._campaign.seconds + FLUSH_S + self._campaign.checks.settle_s + END_S
        try:
            async with asyncio.timeout(within_s):
                code = await first.ended()
        except TimeoutError as error:
            raise CampaignFailed(f"Locust did not end within {within_s:g} s; its logs are in {self._folder}") from error
        if code:
            raise CampaignFailed(f"Locust ended with {code}: {_last_words(first)}")
        self._has_ended = True

    async def stop(self) -> None:
        """Give what still runs a moment to end by itself, then end it."""
        for process in self._processes.values():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S if self._has_ended else 0):
                    await process.ended()
            await process.kill()

    async def _start_workers(self, words: list[str]) -> None:
        """Start a master with these words and its workers; the first of each region has the readers."""
        regions, port, bed = self._campaign.topology.regions, str(free_ports(1)[0]), self._stage.bed
        host = await asyncio.to_thread(lambda: bed.host) if bed else HOST
        workers = [row for region in regions for row in workers_of(region, self._options.workers_per_region)]
        words = [*words, "--master", "--master-bind-host", host, "--master-bind-port", port]
        words += ["--expect-workers", str(len(workers)), "--expect-workers-max-wait", str(WORKERS_S)]
        await self._started("master", words)
        for name, region, reads in workers:
            of_worker = ["--worker", "--master-host", host, "--master-port", port, "--load-regions", region]
            of_worker += [] if reads else ["--load-publishers-only"]
            await self._started(name, of_worker, *(bed.entrance(region) if bed else ()))

    async def _started(self, name: str, words: list[str], *inside: str) -> None:
        common = ["--campaign", str(self._folder / f"{self._campaign.name}.toml")]
        common += ["--endpoints", str(self._stage.endpoints_file), "--results", str(self._folder)]
        self._processes[name] = process = ChildProcess(name, log=self._folder / f"locust-{name}.log")
        await process.launch(
            *guarded(*inside, PYTHON, "-m", "locust", "-f", LOCUSTFILE, *common, "--load-worker", name, *words),
            environment=environment(self._stage.settings),
        )


def workers_of(region: str, count: int) -> list[tuple[str, str, bool]]:
    """Return (name, region, whether it has the readers) of each worker of a region."""
    names = [region] if count == 1 else [f"{region}-{number}" for number in range(1, count + 1)]
    return [(name, region, name == names[0]) for name in names]


def _last_words(process: ChildProcess) -> str:
    """Return the last line of a log that is none of Locust's own, which begin with their time."""
    assert process.log_file is not None, "each has one"
    lines = process.log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    told = [line for line in lines if not line.startswith("[")]
    return (told or lines or [SAID_NOTHING])[-1]
