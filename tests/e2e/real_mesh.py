"""What tests do with a mesh of real processes: topics, leaders, readiness, and the judgement of all that was sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from loadtest.campaign.mesh import HTTP_TIMEOUT, POLL_SECONDS, CampaignFailed, get_json
from loadtest.history.checker_core import check
from loadtest.history.history_file import read_history
from loadtest.history.verdict import Verdict
from loadtest.mesh_process import MeshProcess
from tests.e2e.foreign_producer import READY_SECONDS_MAX, ForeignProducer, Reachable, read_everything

BROKERS_PER_REGION: Final = 3


def new_mesh(
    directory: Path, regions: Sequence[str], *options: str, brokers_per_region: int = BROKERS_PER_REGION
) -> MeshProcess:
    """Return a mesh of three brokers per region, or as many as is said; not yet started."""
    return MeshProcess(directory, regions=",".join(regions), brokers_per_region=brokers_per_region, arguments=options)


async def create_topic(mesh: MeshProcess, name: str, *, home: str, partitions: int = 1) -> None:
    """Create a topic that is replicated on three brokers. Raises CampaignFailed."""
    body = {"name": name, "partitions": partitions, "homes": "one", "home": home}
    async with (
        aiohttp.ClientSession(timeout=HTTP_TIMEOUT) as http,
        http.post(f"{mesh.gateway}/v1/topics", json=body) as answer,
    ):
        if answer.status >= 300:
            raise CampaignFailed(f"topic {name} was not created: {answer.status} {await answer.text()}")


async def leader_of(mesh: MeshProcess, region: str, topic: str, partition: int = 0) -> str:
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


async def wait_until_whole(mesh: Reachable, *, within_s: float = READY_SECONDS_MAX) -> None:
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


async def judged(mesh: Reachable, topic: str, producers: Sequence[ForeignProducer], directory: Path) -> Verdict:
    """Wait for the last answers, read everything in every region and judge it. Raises CampaignFailed."""
    for producer in producers:
        await producer.finish()
    complete = await read_everything(mesh, topic, 1, directory / "complete.history")
    return check(read_history([complete, *(producer.history for producer in producers)]))
