"""One run: a topic, load from foreign clients, one fault, everything healed and read, one verdict."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.campaign.mesh import (
    CampaignFailed,
    ForeignProducer,
    create_topic,
    leader_of,
    wait_until_whole,
)
from loadtest.campaign.region_read import read_everything
from loadtest.chaos.chaos_mesh import ChaosMesh
from loadtest.chaos.end_asker import EndAsker
from loadtest.chaos.nemesis import Nemesis, Scene
from loadtest.child_process import PYTHON, ChildProcess
from loadtest.history.checker_core import check
from loadtest.history.evidence_core import silences_ms
from loadtest.history.history_file import read_history
from loadtest.history.operation import Kind, Operation
from loadtest.history.verdict import Verdict

LOAD_SECONDS_MAX: Final = 600
ANSWER_SECONDS_MAX: Final = 60  # after healing, every record that was sent must be answered by then
CONSUMER_STOP_SECONDS_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the clients do.

    Args:
        per_second: records of each producer.
        producers: in the home, and as many in the second region when there is one.
        settle_seconds: load before the fault and after healing.
        request_timeout_ms: after which a client gives up on a silent broker.
        linear_ends: the home's end offsets promise to count everything that was acknowledged before.
    """

    per_second: float = 1_000
    producers: int = 1
    partitions: int = 3
    settle_seconds: float = 2
    request_timeout_ms: int = 1_000
    linear_ends: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosRun:
    """What came of one run.

    Args:
        gap_ms: longest time without an acknowledgement of any one partition.
        recovery_ms: from the begin of healing until all brokers were ready.
        complaints: what is wrong besides the verdict: brokers that ended, records never answered.
    """

    nemesis: str
    fault: str
    verdict: Verdict
    gap_ms: float
    recovery_ms: float
    complaints: tuple[str, ...]
    histories: tuple[Path, ...]

    @property
    def is_clean(self) -> bool:
        """Return whether every promise was kept."""
        return self.verdict.is_valid and not self.complaints


class ForeignConsumer(ChildProcess):
    """loadtest.chaos.foreign_consumer as a child process."""

    def __init__(self, name: str, directory: Path) -> None:
        super().__init__(name)
        self.history = directory / f"{name}.history"

    async def start(self, brokers: Sequence[str], topic: str, partitions: int, *, site: str, linear: bool) -> None:
        """Start to read."""
        words = [",".join(brokers), topic, str(partitions), self.name, site, str(self.history)]
        await self.launch(
            PYTHON, "-m", "loadtest.chaos.foreign_consumer", *words, *(["--linear-ends"] if linear else [])
        )

    async def finish(self) -> str | None:
        """End it; return what went wrong, None when nothing did."""
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(CONSUMER_STOP_SECONDS_MAX):
                code, _, why = await self.answer()
        except TimeoutError:
            await self.kill()
            return f"consumer {self.name} did not end"
        return f"consumer {self.name}: {why.strip()[-300:]}" if code else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clients:
    producers: list[ForeignProducer]
    consumers: list[ForeignConsumer]

    @property
    def histories(self) -> list[Path]:
        written = [*(each.history for each in self.producers), *(each.history for each in self.consumers)]
        return [path for path in written if path.exists()]

    async def finish(self) -> list[str]:
        """Wait until everything that was sent is answered; return what went wrong."""
        for producer in self.producers:
            producer.end_sending()
        complaints = []
        for producer in self.producers:
            try:
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    row: Mapping[str, Any] = await producer.finish()
            except TimeoutError:
                complaints.append(f"producer {producer.name} still waits {ANSWER_SECONDS_MAX} s after healing")
                await producer.stop()
            except CampaignFailed as error:
                complaints.append(str(error))
            else:
                if row["failed"]:
                    complaints.append(f"producer {producer.name} gave up {row['failed']} records: {row['error']}")
        complaints += [said for consumer in self.consumers if (said := await consumer.finish()) is not None]
        return complaints


@asynccontextmanager
async def _clients(mesh: ChaosMesh, topic: str, load: Load, directory: Path) -> AsyncIterator[_Clients]:
    """Run producers and consumers; ready once each producer was answered."""
    sites = list(mesh.regions)[:2]
    producers = {
        f"{topic}-{site}-{row}": (site, ForeignProducer(f"{topic}-{site}-{row}", directory))
        for site in sites
        for row in range(load.producers)
    }
    consumers = {site: ForeignConsumer(f"{topic}-reader-{site}", directory) for site in sites}
    regions: Mapping[str, Mapping[str, list[str]]] = mesh.endpoints["regions"]
    async with AsyncExitStack() as stack:
        for site, consumer in consumers.items():
            stack.push_async_callback(consumer.kill)
            brokers = regions[site]["kafka"]
            linear = load.linear_ends and site == mesh.home
            await consumer.start(brokers, topic, load.partitions, site=site, linear=linear)
        for site, producer in producers.values():
            stack.push_async_callback(producer.stop)
            await producer.start(
                regions[site]["kafka"],
                topic,
                per_second=load.per_second,
                seconds=LOAD_SECONDS_MAX,
                partitions=load.partitions,
                request_timeout_ms=load.request_timeout_ms,
            )
        for _, producer in producers.values():
            await producer.wait_for_acknowledgement()
        yield _Clients(producers=[row[1] for row in producers.values()], consumers=list(consumers.values()))


async def run_once(
    mesh: ChaosMesh, name: str, nemesis: Nemesis, topic: str, *, load: Load, rng: random.Random, directory: Path
) -> ChaosRun:
    """Strike once under load.

    Raises:
        CampaignFailed: the mesh cannot be used at all.
    """
    await wait_until_whole(mesh)
    await create_topic(mesh, topic, home=mesh.home, partitions=load.partitions)
    for region in mesh.regions:
        for partition in range(load.partitions):
            await leader_of(mesh, region, topic, partition)
    asker = EndAsker(
        mesh.endpoints["regions"][mesh.home]["kafka"],
        topic,
        load.partitions,
        site=mesh.home,
        linear=load.linear_ends,
        directory=directory,
    )
    async with _clients(mesh, topic, load, directory) as clients:
        async with asker:
            await asyncio.sleep(load.settle_seconds)
            fault = await nemesis.strike(Scene(mesh=mesh, topic=topic, rng=rng))
            healing = time.monotonic()
            ended = await mesh.heal()
            recovery_ms = (time.monotonic() - healing) * 1000
            await asyncio.sleep(load.settle_seconds)
        complaints = await clients.finish()
        complaints += [] if nemesis.may_end else [f"ended by itself: {said}" for said in ended]
        complete = await read_everything(mesh, topic, load.partitions, directory / f"{topic}-complete.history")
        histories = (*clients.histories, *asker.histories, complete)
    operations = await asyncio.to_thread(read_history, histories)
    verdict = await asyncio.to_thread(check, operations)
    if not verdict.acknowledged:
        raise CampaignFailed(f"{topic}: nothing was acknowledged")
    return ChaosRun(
        nemesis=name,
        fault=fault + (f"; ended: {', '.join(row.partition(':')[0] for row in ended)}" if ended else ""),
        verdict=verdict,
        gap_ms=longest_silence_ms(operations),
        recovery_ms=recovery_ms,
        complaints=tuple(complaints),
        histories=histories,
    )


def longest_silence_ms(operations: Sequence[Operation]) -> float:
    """Return the longest time between two acknowledgements of one producer and partition, over all of them."""
    sends = (each for each in operations if each.kind is Kind.PRODUCE and each.is_ok)
    return max(silences_ms(((send.key, send.process), send) for send in sends).values(), default=0.0)
