"""What viewers of the console cost brokers and the gateway: nobody, one, and VIEWERS who look at the first screen.

Each asks as the page does: for what is newer than what it has, again LOOK_S after the answer.
"""

from __future__ import annotations

import asyncio
from typing import Final

import aiohttp

from loadtest.bench.machine import Meter
from loadtest.bench.mesh_asks import create_topic, pids_of
from loadtest.mesh_process import MeshProcess

VIEWERS: Final = 20
PARTITIONS: Final = 100
LOOK_S: Final = 0.1  # LOOK_MS of gateway/console/static/app.js
SETTLE_SECONDS: Final = 10
SECONDS: Final = 30


def run(mesh: MeshProcess) -> list[str]:
    """Return a report line for nobody, for one viewer and for all."""
    create_topic(mesh, "viewed", PARTITIONS)
    return asyncio.run(_measured(mesh))


async def _measured(mesh: MeshProcess) -> list[str]:
    names = pids_of(mesh)
    pids = names | {"gateway": mesh.pid_of("gateway")}
    lines = []
    for count in (0, 1, VIEWERS):
        answers: list[int] = []
        viewers = [asyncio.create_task(_look(mesh, answers)) for _ in range(count)]
        await asyncio.sleep(SETTLE_SECONDS)
        meter, seen = Meter(pids), len(answers)
        await asyncio.sleep(SECONDS)
        took_s = meter.seconds
        shares = {name: meter.share(name) for name in pids}
        asked = answers[seen:]
        if any(viewer.done() for viewer in viewers):
            raise RuntimeError("a viewer was refused")
        for viewer in viewers:
            viewer.cancel()
        await asyncio.gather(*viewers, return_exceptions=True)
        brokers = ", ".join(f"{name} {shares[name]:.1%}" for name in names)
        each = (
            f"{len(asked) / took_s / count:.1f} answers/s each, {sum(asked) / len(asked) / 1024:.1f} KiB"
            if count
            else "-"
        )
        lines.append(f"{count:2} viewers: {brokers}, gateway {shares['gateway']:.1%} of a core ({each})")
    return lines


async def _look(mesh: MeshProcess, answers: list[int]) -> None:
    """Look until cancelled; `answers` gets the size of each answer, in bytes."""
    version = 0
    async with aiohttp.ClientSession(mesh.gateway, raise_for_status=True) as session:
        while True:
            async with session.get("/v1/overview", params={"after": str(version)}) as answer:
                answers.append(len(await answer.read()))
                version = (await answer.json())["version"]
            await asyncio.sleep(LOOK_S)
