"""What a campaign does with a running mesh: topics, leaders, readiness, producers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp

from loadtest.child_process import PYTHON, ChildProcess
from loadtest.mesh_process import MeshProcess

BROKERS_PER_REGION: Final = 3
READY_SECONDS_MAX: Final = 30
POLL_SECONDS: Final = 0.1
COMMAND_S: Final = 60.0
CLI: Final = (sys.executable, "-P", "-m", "georelay.cli")
HTTP_TIMEOUT: Final = aiohttp.ClientTimeout(total=5)


class CampaignFailed(Exception):
    """The campaign itself could not go on: nothing was measured."""


class Reachable(Protocol):
    """A mesh whose brokers can be reached."""

    @property
    def endpoints(self) -> Mapping[str, Any]:
        """Return what `georelay up` writes into its endpoint file."""


class RunningMesh(Reachable, Protocol):
    """A mesh as a campaign uses it."""

    @property
    def gateway(self) -> str:
        """Return the base URL at which topics are created."""


def new_mesh(
    directory: Path, regions: Sequence[str], *options: str, brokers_per_region: int = BROKERS_PER_REGION
) -> MeshProcess:
    """Return a mesh of three brokers per region, or as many as is said; not yet started."""
    return MeshProcess(directory, regions=",".join(regions), brokers_per_region=brokers_per_region, arguments=options)


async def run_command(
    words: Sequence[str], *, within_s: float = COMMAND_S, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a command to its end; return its exit code, output and errors. Raises CampaignFailed: it does not end.

    Args:
        environment: set beside that of this process.
    """
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    try:
        async with asyncio.timeout(within_s):
            said, why = await process.communicate()
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise CampaignFailed(f"{' '.join(words)} did not end within {within_s:g} s") from error
    assert process.returncode is not None, "it has ended"
    return process.returncode, said.decode("utf-8", "replace"), why.decode("utf-8", "replace")


async def georelay(*words: str, within_s: float = COMMAND_S, environment: Mapping[str, str] | None = None) -> str:
    """Run `georelay WORDS` as anybody would; return what it prints. Raises CampaignFailed with its last line."""
    code, said, why = await run_command((*CLI, *words), within_s=within_s, environment=environment)
    if code:
        last = ["it said nothing", *(why or said).strip().splitlines()][-1]
        raise CampaignFailed(f"georelay {' '.join(words)}: {last}")
    return said


async def get_json(
    url: str, *, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None
) -> dict[str, Any] | None:
    """Return the JSON answer with status 200; None for anything else."""
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=HTTP_TIMEOUT) as http,
            http.get(url, ssl=tls or True) as answer,
        ):
            return dict(await answer.json(content_type=None)) if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None


async def create_topic(mesh: RunningMesh, name: str, *, home: str, partitions: int = 1) -> None:
    """Create a topic that is replicated on three brokers. Raises CampaignFailed."""
    body = {"name": name, "partitions": partitions, "homes": "one", "home": home}
    async with (
        aiohttp.ClientSession(timeout=HTTP_TIMEOUT) as http,
        http.post(f"{mesh.gateway}/v1/topics", json=body) as answer,
    ):
        if answer.status >= 300:
            raise CampaignFailed(f"topic {name} was not created: {answer.status} {await answer.text()}")


async def leader_of(mesh: RunningMesh, region: str, topic: str, partition: int = 0) -> str:
    """Return the name of the broker that leads a partition in a region. Raises CampaignFailed."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline:
        for admin in mesh.endpoints["regions"][region]["admin"]:
            status = await get_json(f"http://{admin}/v1/status")
            for stream in status["streams"] if status else ():
                if (stream["topic"], stream["partition"]) == (topic, partition) and stream["leader"] > 0:
                    return f"{region}-{stream['leader'] % 1000}"
        await asyncio.sleep(POLL_SECONDS)
    raise CampaignFailed(f"{topic} has no leader in {region}")


async def wait_until_whole(mesh: RunningMesh, *, within_s: float = READY_SECONDS_MAX) -> None:
    """Wait until every broker is ready and sees every other one of its region. Raises CampaignFailed."""
    deadline = time.monotonic() + within_s
    for brokers in mesh.endpoints["regions"].values():
        for admin in brokers["admin"]:
            while not _is_whole(await get_json(f"http://{admin}/v1/status"), len(brokers["admin"])):
                if time.monotonic() > deadline:
                    raise CampaignFailed(f"the broker at {admin} is not ready after {within_s:g} s")
                await asyncio.sleep(POLL_SECONDS)


def _is_whole(status: dict[str, Any] | None, brokers: int) -> bool:
    return status is not None and status["ready"] and sum(row["alive"] for row in status["brokers"]) == brokers


class ForeignProducer(ChildProcess):
    """loadtest.campaign.producer as a child process."""

    def __init__(self, name: str, directory: Path) -> None:
        super().__init__(name)
        self.history = directory / f"{name}.history"

    async def start(
        self,
        brokers: Sequence[str],
        topic: str,
        *,
        per_second: float,
        seconds: float,
        partitions: int = 1,
        request_timeout_ms: int = 0,
    ) -> None:
        """Start to send."""
        arguments = (",".join(brokers), topic, self.name, str(per_second), str(seconds), str(self.history))
        options = ("--partitions", str(partitions), "--request-timeout-ms", str(request_timeout_ms))
        await self.launch(PYTHON, "-m", "loadtest.campaign.producer", *arguments, *options)

    async def wait_for_acknowledgement(self) -> None:
        """Wait until something was acknowledged. Raises CampaignFailed."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self.history.exists() or b'{"e":"ok"' not in self.history.read_bytes():
            if time.monotonic() > deadline:
                raise CampaignFailed(f"producer {self.name} got no acknowledgement within {READY_SECONDS_MAX} s")
            await asyncio.sleep(0.02)

    def end_sending(self) -> None:
        """Ask it to send nothing more; it still waits for what it has sent."""
        self.send(signal.SIGTERM)

    async def finish(self) -> dict[str, Any]:
        """Wait for the end; return its counts. Raises CampaignFailed."""
        code, said, why = await self.answer()
        if code:
            raise CampaignFailed(f"producer {self.name} ended with {code}: {why.strip()[-300:]}")
        return dict(json.loads(said))

    async def stop(self) -> None:
        """Kill it if it still runs."""
        await self.kill()
