"""Parts of `make bench` that are loads: what is sent, over which ways in turn.

Single records at a steady rate over eight topics, and over a thousand partitions: publish -> deliver, in the region and
at a mirror. Batches of 100 B records of two producers: as fast as they can, producers and brokers share the cores of
one machine and slow each other down; at a pace some of the CPU stays idle, so that the CPU seconds are those of the
brokers. TLS on and off: with it everything is encrypted, also between brokers; both meshes run all the time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from typing import Final

from loadtest.bench.cluster import clusters_of
from loadtest.bench.measured import WARM_S, Way, in_turns, measure, median, report
from loadtest.bench.mesh_asks import create_topic
from loadtest.bench.schedule_core import Load
from loadtest.mesh_process import MeshProcess

RUNS: Final = 3
SECONDS: Final = 10
RATE: Final = 1_000
HOME: Final = "us"
TOPICS: Final = [f"single-{number}" for number in range(8)]
ACTIVE: Final = "active"
ACTIVE_PARTITIONS: Final = 1_000
WINDOW: Final = 1_000_000
PRODUCERS: Final = 2
PARTITIONS: Final = 6
PACE: Final = 200_000  # of each producer
SETTLE_S: Final = 3.0


def single_load(rate: int = RATE, seconds: float = SECONDS) -> Load:
    """Return single records over eight topics, one after the other."""
    return Load(topics=TOPICS, rate_per_s=rate, seconds=WARM_S + seconds)


def active_load(seconds: float = SECONDS) -> Load:
    """Return single records over a thousand partitions, one per second in each."""
    return Load(topics=[ACTIVE], rate_per_s=ACTIVE_PARTITIONS, seconds=WARM_S + seconds, partitions=ACTIVE_PARTITIONS)


def batches(topic: str, *, value_bytes: int = 100, is_idempotent: bool = True) -> Load:
    """Return batches, as fast as a producer can."""
    return Load(
        topics=[topic],
        rate_per_s=0,
        seconds=4,
        value_bytes=value_bytes,
        window=WINDOW,
        partitions=PARTITIONS,
        exactly_once=is_idempotent,
    )


def of(mesh: MeshProcess, load: Load) -> Way:
    """Return a load on a mesh: batches of two producers and no readers, single records with a reader everywhere."""
    if load.window:
        return Way(places={HOME: clusters_of(mesh)[HOME]}, load=load, producers=PRODUCERS, readers=())
    return Way(places=clusters_of(mesh), load=load)


def prepare(mesh: MeshProcess, *loads: Load) -> None:
    """Create the topics of loads, and let them settle."""
    partitions = {topic: load.partitions for load in loads for topic in load.topics}
    for topic, count in partitions.items():
        create_topic(mesh, topic, count, home=HOME)
    time.sleep(SETTLE_S + max(partitions.values()) / 100)


SINGLE: Final = {"single records over 8 topics": single_load()}
MANY: Final = {f"single records over {ACTIVE_PARTITIONS:,} partitions": active_load()}  # what small streams cost
BATCHED: Final = {
    "batches, idempotence off": batches("plain", is_idempotent=False),
    "batches, idempotence on": batches("idempotent"),
}


def run(loads: Mapping[str, Load], mesh: MeshProcess) -> list[str]:
    """Return report lines of loads in turn, for every region of the mesh; the first region is the home."""
    prepare(mesh, *loads.values())
    return report(in_turns({label: of(mesh, load) for label, load in loads.items()}, RUNS))


def run_paced(mesh: MeshProcess) -> list[str]:
    """Return report lines at a pace; the first run is for connections, first segments and caches."""
    plain = batches("paced", is_idempotent=False)
    paced = dataclasses.replace(plain, rate_per_s=PACE, seconds=6, linger_ms=25)
    prepare(mesh, paced)
    measure(of(mesh, paced))
    return report(in_turns({f"batches at {PRODUCERS * PACE:,}/s, linger 25 ms": of(mesh, paced)}, RUNS))


def run_tls(plain: MeshProcess) -> list[str]:
    """Return report lines with TLS off and on."""
    return asyncio.run(_tls(plain))


async def _tls(plain: MeshProcess) -> list[str]:
    secure = MeshProcess(plain.directory.with_name("tls-on"), regions=HOME, brokers_per_region=3, arguments=("--tls",))
    async with secure:
        return await asyncio.to_thread(_tls_costs, {"TLS off": plain, "TLS on": secure})


def _tls_costs(meshes: dict[str, MeshProcess]) -> list[str]:
    load = batches("bench-tls")
    for mesh in meshes.values():
        prepare(mesh, load)
    found = in_turns({name: of(mesh, load) for name, mesh in meshes.items()}, RUNS)
    off, on = (median(runs, HOME, "cpu_s_per_100k") for runs in found.values())
    return [*report(found), f"  TLS costs the brokers {on / off:.2f} times the CPU"]
