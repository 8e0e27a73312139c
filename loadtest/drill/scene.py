"""One run: a topic, publishers and readers in every region, something is lost and comes back, everything is counted.

Publishers: `home` speaks with the home's brokers and asks for level `region`; `away-region` and `away-geo` speak with
other regions and ask for `region` and `geo:2`. A reader in every region.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from georelay import Durability
from georelay.client.gateway_http import GatewayError
from loadtest.campaign.mesh import CampaignFailed
from loadtest.drill import evidence
from loadtest.drill.drill_core import broken_promises, judge
from loadtest.drill.load import Publisher, Reader
from loadtest.drill.mesh import DrillMesh
from loadtest.drill.run_result import RunResult
from loadtest.drill.values import Observed

FIRST_ANSWER_S: Final = 60.0
READERS_S: Final = 60.0
AFTER_S: Final = 3.0
GEO: Final = 2
HOME: Final = "home"
AWAY_REGION: Final = "away-region"
AWAY_GEO: Final = "away-geo"


class How(enum.StrEnum):
    """How a region is lost."""

    KILL = "kill"  # SIGKILL of all its brokers
    CUT = "cut"  # cut off from the other regions; it and its clients go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the clients do: records per second of each publisher, and seconds before the fault and of it."""

    rate_per_s: float = 50.0
    before_s: float = 4.0
    fault_s: float = 10.0


@dataclass(slots=True, kw_only=True)
class Scene:
    """What a script acts on. `marks`: what it measured itself, in seconds. `notes`: for a person."""

    mesh: DrillMesh
    topic: str
    home: str
    load: Load
    publishers: Mapping[str, Publisher]
    readers: Mapping[str, Reader]
    epoch: int
    marks: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fault_ns: int = 0
    healed_ns: int = 0

    @property
    def elsewhere(self) -> str:
        """Return a region that is not the home, where there is one: it knows what the mesh decided."""
        return next(iter(self.others), self.home)

    @property
    def others(self) -> list[str]:
        """Return the regions that are not the home."""
        return [region for region in self.mesh.regions if region != self.home]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One kind of loss.

    Args:
        play: breaks something at `scene.home`, waits, and mends it; sets `fault_ns`, and `healed_ns` where it heals.
        settings: of the topic. moves_home: whether the home goes elsewhere by itself.
        away: publishers whose answers say when the mesh works again.
    """

    play: Callable[[Scene], Awaitable[None]]
    settings: Mapping[str, str]
    moves_home: bool
    away: frozenset[str]


async def run(
    mesh: DrillMesh, script: Script, *, topic: str, home: str, how: str, control_leader: str, load: Load
) -> RunResult:
    """Play a script once. Raises CampaignFailed when nothing could be measured."""
    try:
        await evidence.create_topic(mesh, topic, home=home, settings=dict(script.settings))
    except GatewayError as error:
        raise CampaignFailed(f"topic {topic} was not created: {error}") from error
    async with AsyncExitStack() as stack:
        scene = await _opened(stack, mesh, topic, home=home, load=load)
        await asyncio.sleep(load.before_s)
        scene.epoch = (await evidence.home_of(mesh, topic, seen_from=scene.elsewhere)).epoch
        await script.play(scene)
        await asyncio.sleep(AFTER_S)
        after = await evidence.home_of(mesh, topic, seen_from=scene.elsewhere)
        await asyncio.gather(*(publisher.close() for publisher in scene.publishers.values()))
        end = await evidence.until_equal(mesh, topic)
        await asyncio.gather(*(reader.until_read(end, timeout_s=READERS_S) for reader in scene.readers.values()))
    observed = await _observed(scene, script, end)
    findings = judge(observed)
    audit = await evidence.audited(mesh, topic)
    broken = broken_promises(findings)
    if audit[0] in ("diverged", "incomplete"):
        broken.append(f"the audit says {audit[0]}: {audit[1]}")
    return RunResult(
        topic=topic,
        victim=home,
        how=how,
        control_leader=control_leader,
        old_epoch=scene.epoch,
        new_home=after,
        findings=findings,
        audit=audit,
        marks=scene.marks,
        notes=tuple(scene.notes),
        broken=tuple(broken),
        deliveries={region: tuple(reader.reading.deliveries) for region, reader in scene.readers.items()},
        fault_ns=scene.fault_ns,
        healed_ns=scene.healed_ns,
    )


async def _opened(stack: AsyncExitStack, mesh: DrillMesh, topic: str, *, home: str, load: Load) -> Scene:
    """Start all clients, and wait until every publisher was answered once."""
    others = [region for region in mesh.regions if region != home] or [home]
    geo = Durability.geo(GEO) if len(mesh.regions) >= GEO else Durability.REGION
    plan = {
        HOME: (home, Durability.REGION),
        AWAY_REGION: (others[0], Durability.REGION),
        AWAY_GEO: (others[-1], geo),
    }
    publishers = {
        name: Publisher(name, mesh.dial, region, topic, durability=durability, rate_per_s=load.rate_per_s)
        for name, (region, durability) in plan.items()
    }
    readers = {region: Reader(mesh.dial, region, topic) for region in mesh.regions}
    for reader in readers.values():
        await stack.enter_async_context(reader)
    for publisher in publishers.values():
        await stack.enter_async_context(publisher)
    try:
        for publisher in publishers.values():
            await publisher.until_acknowledged(timeout_s=FIRST_ANSWER_S)
    except TimeoutError as error:
        raise CampaignFailed(
            f"a publisher got no acknowledgement within {FIRST_ANSWER_S:g} s: before any fault"
        ) from error
    return Scene(mesh=mesh, topic=topic, home=home, load=load, publishers=publishers, readers=readers, epoch=0)


async def _observed(scene: Scene, script: Script, end: int) -> Observed:
    mesh, topic = scene.mesh, scene.topic
    return Observed(
        sent=[row for publisher in scene.publishers.values() for row in publisher.sent()],
        streams={region: await evidence.read_back(mesh, region, topic, end) for region in mesh.regions},
        branches=await evidence.branches_of(mesh, topic),
        readings=[reader.reading for reader in scene.readers.values()],
        fault_ns=scene.fault_ns,
        old_epoch=scene.epoch,
        away=script.away,
        moves_home=script.moves_home,
    )


async def rest_of_fault(scene: Scene) -> None:
    """Wait until the fault has lasted for as long as it was to last."""
    left_s = scene.load.fault_s - (time.monotonic_ns() - scene.fault_ns) / 1e9
    await asyncio.sleep(max(0.0, left_s))
