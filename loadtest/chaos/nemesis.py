"""The faults. Each strikes a running mesh under load, for a while, and leaves the healing to ChaosMesh.heal.

Whatever is random comes from the scene's generator: the same seed strikes in the same way.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from loadtest.campaign.mesh import CampaignFailed, leader_of
from loadtest.chaos.broker_process import BrokerProcess
from loadtest.chaos.chaos_mesh import ChaosMesh

CLOCK_STEPS_MS: Final = (1_000, 60_000, 3_600_000, 30 * 24 * 3_600_000)
FREE_BYTES: Final = (0, 4_096, 262_144)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where a fault strikes: partition 0 of the topic has its home in the first region."""

    mesh: ChaosMesh
    topic: str
    rng: random.Random

    async def leader(self) -> BrokerProcess:
        """Return the broker that leads partition 0 at home."""
        return self.mesh.brokers[await leader_of(self.mesh, self.mesh.home, self.topic)]

    async def hold(self, least: float, most: float) -> float:
        """Wait for a random time; return the seconds."""
        seconds = round(self.rng.uniform(least, most), 2)
        await asyncio.sleep(seconds)
        return seconds


Strike = Callable[[Scene], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nemesis:
    """One kind of fault.

    Args:
        text: for --list and the documentation.
        strike: does it and returns what it did.
        median_ms_max, worst_ms_max: goals for the longest time without an acknowledgement; None: no goal.
        may_end: a broker that ends by itself is no error, when its disk was taken away.
        regions_min: how many regions it needs.
        must_fail: it breaks what the brokers are promised, so that the verdict must be NOT VALID: a test of the test.
    """

    text: str
    strike: Strike
    median_ms_max: float | None = None
    worst_ms_max: float | None = None
    may_end: bool = False
    regions_min: int = 1
    must_fail: bool = False


async def calm(scene: Scene) -> str:
    """Do nothing: some systems lose records without any fault."""
    return f"nothing for {await scene.hold(1, 2)} s"


async def kill_the_leader(scene: Scene) -> str:
    """kill -9 of the leader, started again after a while."""
    leader = await scene.leader()
    await leader.kill()
    seconds = await scene.hold(1, 3)
    await leader.start()
    return f"kill -9 {leader.name}, down for {seconds} s"


async def kill_any(scene: Scene) -> str:
    """kill -9 of some broker, and perhaps of the next one as soon as it is back."""
    said = []
    for _ in range(scene.rng.randint(1, 2)):
        broker = scene.rng.choice([*scene.mesh.brokers.values()])
        await broker.kill()
        seconds = await scene.hold(0, 2)
        await broker.start()
        await broker.wait_until_ready()
        said.append(f"{broker.name} for {seconds} s")
    return f"kill -9 {', '.join(said)}"


async def cut_the_power(scene: Scene) -> str:
    """Take the power from every broker of the home at once: what was not synced is lost, and logs end torn."""
    brokers = scene.mesh.of(scene.mesh.home)
    for broker in brokers:
        await broker.break_with(volatile_writes=True)
    await scene.hold(0.2, 1)
    await asyncio.gather(*(broker.kill() for broker in brokers))
    torn = scene.rng.sample(brokers, scene.rng.randint(1, len(brokers)))
    tears = [await _tear(broker, scene.rng.randrange(2**32)) for broker in torn]
    await scene.hold(0, 1)
    await asyncio.gather(*(broker.start() for broker in brokers))
    return f"power cut of {len(brokers)} brokers; torn: {', '.join(tears)}"


async def lie_about_syncs(scene: Scene) -> str:
    """Take the power from disks that answered every sync without doing it: acknowledged records are lost."""
    brokers = scene.mesh.of(scene.mesh.home)
    for broker in brokers:
        await broker.break_with(volatile_writes=True, lying_syncs=True)
    await scene.hold(1, 2)
    await asyncio.gather(*(broker.kill() for broker in brokers))
    for broker in brokers:
        await broker.break_with(lying_syncs=None)
    await asyncio.gather(*(broker.start() for broker in brokers))
    return f"power cut of {len(brokers)} brokers whose disks lied"


async def _tear(broker: BrokerProcess, seed: int) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "region.faults", "tear", "--break-things"),
        *("--data-dir", str(broker.data_dir), "--seed", str(seed)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    if process.returncode:
        raise CampaignFailed(f"the log of {broker.name} could not be torn: {errors.decode(errors='replace').strip()}")
    done = json.loads(output)
    segment = "/".join(done["segment"].split("/")[-2:])
    return f"{broker.name} {segment}@{done['position']} {done['kind']} ({done['size']} bytes)"


async def stop_the_leader(scene: Scene) -> str:
    """SIGSTOP of the leader, SIGCONT after 2-6 s: for a moment it still believes that it leads."""
    leader = await scene.leader()
    leader.freeze()
    seconds = await scene.hold(2, 6)
    leader.thaw()
    return f"SIGSTOP {leader.name} for {seconds} s"


async def step_the_clocks(scene: Scene) -> str:
    """Step the wall clocks of the brokers to and fro, each by itself, by up to a month."""
    steps = []
    for _ in range(scene.rng.randint(4, 10)):
        broker = scene.rng.choice([*scene.mesh.brokers.values()])
        step_ms = scene.rng.choice(CLOCK_STEPS_MS) * scene.rng.choice((-1, 1))
        await broker.break_with(wall_step_ms=step_ms)
        steps.append(f"{broker.name} {step_ms / 1000:+g} s")
        await scene.hold(0.1, 0.6)
    return f"clock steps: {', '.join(steps)}"


async def fill_the_disk(scene: Scene) -> str:
    """Let the leader's disk run full, and give it room again."""
    leader = await scene.leader()
    room = scene.rng.choice(FREE_BYTES)
    await leader.break_with(free_bytes=room)
    seconds = await scene.hold(2, 4)
    return f"disk of {leader.name} full after {room} bytes, for {seconds} s"


async def slow_the_disk(scene: Scene) -> str:
    """Let each sync of the leader, or of a follower, take far longer than it should."""
    broker = await scene.leader() if scene.rng.random() < 0.5 else scene.rng.choice(scene.mesh.of(scene.mesh.home))
    delay_ms = scene.rng.choice((50, 200, 1_000))
    await broker.break_with(sync_delay_ms=delay_ms)
    seconds = await scene.hold(2, 4)
    await broker.break_with(sync_delay_ms=None)
    return f"syncs of {broker.name} take {delay_ms} ms for {seconds} s"


async def cut_the_leader_off(scene: Scene) -> str:
    """Reset and refuse every connection between the leader and the other brokers of its region."""
    leader = (await scene.leader()).name
    await scene.mesh.wires.cut_peers(lambda wire: leader in wire)
    seconds = await scene.hold(2, 4)
    await scene.mesh.wires.heal()
    return f"{leader} cut off for {seconds} s"


async def swallow_the_leader(scene: Scene) -> str:
    """Let nothing pass between the leader and the others; its connections stay open."""
    leader = (await scene.leader()).name
    scene.mesh.wires.freeze_peers(lambda wire: leader in wire)
    seconds = await scene.hold(2, 5)
    await scene.mesh.wires.heal()
    return f"{leader} black-holed for {seconds} s"


async def cut_one_way(scene: Scene) -> str:
    """Let the leader hear and not be heard, or be heard and not hear."""
    leader = (await scene.leader()).name
    end = scene.rng.randrange(2)
    await scene.mesh.wires.cut_peers(lambda wire: wire[end] == leader)
    seconds = await scene.hold(2, 4)
    await scene.mesh.wires.heal()
    return f"{leader} {'is not heard' if end == 0 else 'does not hear'} for {seconds} s"


async def flap(scene: Scene) -> str:
    """Cut and heal random connections of the home, quickly."""
    rounds = scene.rng.randint(8, 16)
    for _ in range(rounds):
        chosen = {wire for wire in scene.mesh.wires.peers if scene.rng.random() < 0.4}
        await scene.mesh.wires.cut_peers(chosen.__contains__)
        await scene.hold(0.05, 0.3)
        await scene.mesh.wires.heal()
        await scene.hold(0.05, 0.2)
    return f"{rounds} rounds of random cuts"


async def cut_the_links(scene: Scene) -> str:
    """Cut the home from another region in both directions."""
    home = scene.mesh.home
    far = scene.rng.choice([region for region in scene.mesh.regions if region != home])
    sides = {(home, name) for name in scene.mesh.regions[far]} | {(far, name) for name in scene.mesh.regions[home]}
    await scene.mesh.wires.cut_links(sides.__contains__)
    seconds = await scene.hold(2, 4)
    await scene.mesh.wires.heal()
    return f"{home}-{far} cut for {seconds} s"


NEMESES: Final[dict[str, Nemesis]] = {
    "calm": Nemesis(text="no fault at all", strike=calm),
    "leader-kill": Nemesis(
        text="kill -9 of a partition's leader", strike=kill_the_leader, median_ms_max=500, worst_ms_max=2_000
    ),
    "broker-kill": Nemesis(text="kill -9 of one or two random brokers, one after the other", strike=kill_any),
    "power-cut": Nemesis(
        text="kill -9 of the whole home region with un-synced writes lost and torn log ends", strike=cut_the_power
    ),
    "leader-stop": Nemesis(text="SIGSTOP of a leader for 2-6 s", strike=stop_the_leader, worst_ms_max=4_000),
    "clock-steps": Nemesis(text="wall clocks step by up to a month, each broker's by itself", strike=step_the_clocks),
    "disk-full": Nemesis(text="a leader's disk runs full", strike=fill_the_disk, may_end=True),
    "disk-slow": Nemesis(text="each sync of a broker takes 50-1000 ms", strike=slow_the_disk),
    "peer-cut": Nemesis(text="a leader cut off from its region, connections refused", strike=cut_the_leader_off),
    "peer-blackhole": Nemesis(text="the same, connections open and silent", strike=swallow_the_leader),
    "peer-one-way": Nemesis(text="a leader that hears and is not heard, or the other way round", strike=cut_one_way),
    "peer-flap": Nemesis(text="random connections between brokers cut and healed quickly", strike=flap),
    "lying-disk": Nemesis(
        text="power cut after syncs that did nothing: MUST be found not valid; only when named",
        strike=lie_about_syncs,
        must_fail=True,
    ),
    "link-cut": Nemesis(text="the home cut from another region", strike=cut_the_links, regions_min=2),
}
