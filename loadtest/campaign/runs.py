"""The runs: load, one fault, and everything read back in every region."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
import tomllib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Final

from loadtest.campaign.forwarder import Forwarder
from loadtest.campaign.mesh import (
    CampaignFailed,
    ForeignProducer,
    create_topic,
    get_json,
    leader_of,
    read_back,
    wait_until_whole,
)
from loadtest.campaign.verdict_core import Verdict, judge
from loadtest.mesh_process import MeshProcess

BROKERS_PER_REGION: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent: records per second, for how long, and when the fault comes (seconds after the first answer)."""

    per_second: float = 1_000
    seconds: float = 6
    fault_after_seconds: float = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: what was done, and what came of it. `catch_up_ms` is the time from healing to equal regions."""

    fault: str
    verdict: Verdict
    catch_up_ms: float = 0.0


def new_mesh(
    directory: Path, regions: Sequence[str], *options: str, brokers_per_region: int = BROKERS_PER_REGION
) -> MeshProcess:
    """Return a mesh of three brokers per region, or as many as is said; not yet started."""
    return MeshProcess(directory, regions=",".join(regions), brokers_per_region=brokers_per_region, arguments=options)


@asynccontextmanager
async def _loading(
    mesh: MeshProcess, topic: str, *, entries: Sequence[str], directory: Path, load: Load
) -> AsyncIterator[list[ForeignProducer]]:
    """Run one producer in each region of `entries`; ready once each was answered."""
    producers = [ForeignProducer(f"{topic}-{region}", directory) for region in entries]
    try:
        for region, producer in zip(entries, producers, strict=True):
            brokers = mesh.endpoints["regions"][region]["kafka"]
            await producer.start(brokers, topic, per_second=load.per_second, seconds=load.seconds)
        for producer in producers:
            await producer.wait_for_acknowledgement()
        yield producers
    finally:
        for producer in producers:
            await producer.stop()


async def _verdict(mesh: MeshProcess, topic: str, home: str, producers: Sequence[ForeignProducer]) -> Verdict:
    counts = [await producer.finish() for producer in producers]
    acknowledgements = [ack for producer in producers for ack in producer.acknowledgements()]
    regions: Mapping[str, Mapping[str, list[str]]] = mesh.endpoints["regions"]
    found = await read_back(regions[home]["kafka"], topic)
    mirrors = {
        region: await read_back(addresses["kafka"], topic, at_least=len(found))
        for region, addresses in regions.items()
        if region != home
    }
    return judge(
        sent=sum(row["sent"] for row in counts),
        failed=sum(row["failed"] for row in counts),
        acknowledgements=acknowledgements,
        found=found,
        mirrors=mirrors,
    )


async def kill_leader(mesh: MeshProcess, topic: str, *, home: str, directory: Path, load: Load) -> Run:
    """kill -9 of the broker that leads the partition. The mesh runs with --restart, so it comes back."""
    await wait_until_whole(mesh)
    await create_topic(mesh, topic, home=home)
    async with _loading(mesh, topic, entries=[home], directory=directory, load=load) as producers:
        await asyncio.sleep(load.fault_after_seconds)
        leader = await leader_of(mesh, home, topic)
        mesh.kill(leader)
        verdict = await _verdict(mesh, topic, home, producers)
    return Run(fault=f"kill -9 {leader}", verdict=verdict)


async def restart_all(
    directory: Path,
    regions: Sequence[str],
    topic: str,
    *,
    load: Load,
    brokers_per_region: int = BROKERS_PER_REGION,
) -> Run:
    """kill -9 of every broker of the mesh at once under load, then `georelay up` again on the same data."""
    home = regions[0]
    async with AsyncExitStack() as stack:
        async with new_mesh(directory, regions, brokers_per_region=brokers_per_region) as mesh:
            await create_topic(mesh, topic, home=home)
            loading = _loading(mesh, topic, entries=[home], directory=directory, load=load)
            producers = await stack.enter_async_context(loading)
            await asyncio.sleep(load.fault_after_seconds)
            brokers = [f"{region}-{number + 1}" for region in regions for number in range(brokers_per_region)]
            for pid in [mesh.pid_of(broker) for broker in brokers]:
                os.kill(pid, signal.SIGKILL)
        async with new_mesh(directory, regions, brokers_per_region=brokers_per_region) as mesh:
            verdict = await _verdict(mesh, topic, home, producers)
    return Run(fault=f"kill -9 of {len(brokers)} brokers", verdict=verdict)


class CuttableLinks:
    """A forwarder in front of every broker of every region, for each region that dials it."""

    def __init__(self, regions: Sequence[str]) -> None:
        self._forwarders = {
            (source, target, number + 1): Forwarder()
            for source, target in permutations(regions, 2)
            for number in range(BROKERS_PER_REGION)
        }

    def options(self) -> list[str]:
        """Return the flags of `georelay up` that lead the links through the forwarders."""
        return [
            part
            for (source, target, number), forwarder in self._forwarders.items()
            for part in ("--link-override", f"{source}:{target}:{number}={forwarder.address}")
        ]

    async def start(self) -> None:
        """Accept; connections end at once until `lead_to` was called."""
        for forwarder in self._forwarders.values():
            await forwarder.start()

    def lead_to(self, addresses: Mapping[tuple[str, int], tuple[str, int]]) -> None:
        """Set the true link address of each (region, broker number)."""
        for (_, target, number), forwarder in self._forwarders.items():
            forwarder.target = addresses[target, number]

    async def cut(self, one: str, other: str) -> None:
        """Cut both directions between two regions."""
        for (source, target, _), forwarder in self._forwarders.items():
            if {source, target} == {one, other}:
                await forwarder.cut()

    async def heal(self, one: str, other: str) -> None:
        """Undo `cut`."""
        for (source, target, _), forwarder in self._forwarders.items():
            if {source, target} == {one, other}:
                await forwarder.heal()

    async def close(self) -> None:
        """End."""
        for forwarder in self._forwarders.values():
            await forwarder.close()


@asynccontextmanager
async def mesh_with_cuttable_links(
    directory: Path, regions: Sequence[str]
) -> AsyncIterator[tuple[MeshProcess, CuttableLinks]]:
    """Run a mesh whose inter-region links all go through forwarders."""
    links = CuttableLinks(regions)
    await links.start()
    try:
        pointing = asyncio.create_task(_point_when_known(directory, regions, links))
        try:
            async with new_mesh(directory, regions, *links.options()) as mesh:
                yield mesh, links
        finally:
            pointing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pointing
    finally:
        await links.close()


async def _point_when_known(directory: Path, regions: Sequence[str], links: CuttableLinks) -> None:
    """`georelay up` chooses the ports and writes them into its configuration files before it starts a broker."""
    files = {
        (region, number + 1): directory / "mesh" / "config" / f"{region}-{number + 1}.toml"
        for region in regions
        for number in range(BROKERS_PER_REGION)
    }
    while not all(path.exists() for path in files.values()):
        await asyncio.sleep(0.02)
    links.lead_to({broker: link_address(path) for broker, path in files.items()})


def link_address(config: Path) -> tuple[str, int]:
    """Return where a broker listens for links, from its configuration file."""
    host, _, port = tomllib.loads(config.read_text())["listen"]["link"].rpartition(":")
    return host, int(port)


async def cut_link(
    mesh: MeshProcess,
    links: CuttableLinks,
    topic: str,
    *,
    regions: Sequence[str],
    directory: Path,
    load: Load,
    cut_seconds: float,
) -> Run:
    """Cut home from the second region under load from both, heal, and wait until they are equal."""
    home, far = regions[:2]
    await wait_until_whole(mesh)
    await create_topic(mesh, topic, home=home)
    await leader_of(mesh, far, topic)  # known there too
    async with _loading(mesh, topic, entries=[home, far], directory=directory, load=load) as producers:
        await asyncio.sleep(load.fault_after_seconds)
        await links.cut(home, far)
        await asyncio.sleep(cut_seconds)
        await links.heal(home, far)
        healed = time.monotonic()
        reached = await _end_of(mesh, home, topic)
        while await _end_of(mesh, far, topic) < reached:
            await asyncio.sleep(0.02)
        catch_up_ms = (time.monotonic() - healed) * 1000
        verdict = await _verdict(mesh, topic, home, producers)
    return Run(fault=f"{home}-{far} cut for {cut_seconds:g} s", verdict=verdict, catch_up_ms=catch_up_ms)


async def _end_of(mesh: MeshProcess, region: str, topic: str) -> int:
    best = -1
    for admin in mesh.endpoints["regions"][region]["admin"]:
        status = await get_json(f"http://{admin}/v1/status")
        if status is None:
            raise CampaignFailed(f"the broker at {admin} does not answer")
        best = max([best, *(row["high_watermark"] for row in status["streams"] if row["topic"] == topic)])
    return best
