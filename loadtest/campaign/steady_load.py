"""Foreign producers that go on while a campaign works, the phases of that work, and the judgement of all they sent."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadtest.campaign.changing_region import REGION, ChangingRegion
from loadtest.campaign.loading import loading
from loadtest.campaign.mesh import ForeignProducer
from loadtest.campaign.phases_core import Phase, PhaseReport, report
from loadtest.campaign.region_read import read_everything, replicas_differ
from loadtest.history.checker_core import check
from loadtest.history.history_file import read_history
from loadtest.history.verdict import Verdict

TOPIC: Final = "load"
PRODUCERS: Final = 2
SECONDS_MAX: Final = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkReport:
    """What a campaign found.

    Args:
        phases: in order.
        verdict: of everything the producers were told, against everything read at the end.
        given_up: records that a producer gave up.
        differing: replicas that did not hold what the others of their partition hold, at any comparison.
        compared: replicas that were compared.
        facts: (what, how much) of this campaign.
    """

    title: str
    phases: Sequence[PhaseReport]
    verdict: Verdict
    given_up: int
    differing: tuple[str, ...]
    compared: int
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def is_exact(self) -> bool:
        """Return whether nothing was lost, doubled, moved or given up, and all replicas were equal."""
        return self.verdict.is_valid and not (self.given_up or self.differing)


@dataclass(slots=True)
class SteadyLoad:
    """Producers that run, and what was done meanwhile."""

    region: ChangingRegion
    partitions: int
    directory: Path
    say: Callable[[str], None]
    producers: list[ForeignProducer]
    facts: list[tuple[str, str]] = field(default_factory=list)
    _phases: list[Phase] = field(default_factory=list)
    _differing: list[str] = field(default_factory=list)
    _compared: int = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure what is published while the body runs."""
        self.say(f"-- {name}")
        began_ns = time.monotonic_ns()
        yield
        self._phases.append(Phase(name=name, from_ns=began_ns, to_ns=time.monotonic_ns()))

    async def compare_replicas(self, topic: str = TOPIC) -> None:
        """Compare the files of all replicas of a topic, as far as it is committed now."""
        for partition, end, folders in await self.region.wait_until_level(topic):
            different = await replicas_differ(folders, below=end)
            self._compared += len(folders)
            self._differing += [f"{broker} {topic}/{partition}" for broker in different]
        self.say(f"   {self._compared} replicas compared by their files so far, {len(self._differing)} differ")

    async def judge(self, title: str) -> WorkReport:
        """End the load, read everything back and judge it. Raises CampaignFailed."""
        for producer in self.producers:
            producer.end_sending()
        counts = [await producer.finish() for producer in self.producers]
        complete = await read_everything(self.region, TOPIC, self.partitions, self.directory / "complete.history")
        await self.compare_replicas()
        operations = read_history([complete, *(producer.history for producer in self.producers)])
        return WorkReport(
            title=title,
            phases=report(self._phases, operations),
            verdict=check(operations),
            given_up=sum(row["failed"] for row in counts),
            differing=tuple(self._differing),
            compared=self._compared,
            facts=tuple(self.facts),
        )


@asynccontextmanager
async def steady_load(
    region: ChangingRegion, directory: Path, *, partitions: int, per_second: float, say: Callable[[str], None]
) -> AsyncIterator[SteadyLoad]:
    """Create the topic and send `per_second` records in all, spread over its partitions; ready once each was answered.

    Raises:
        CampaignFailed: nothing is acknowledged.
    """
    await region.create_topic(TOPIC, partitions=partitions)
    load = loading(
        region,
        TOPIC,
        entries=[REGION] * PRODUCERS,
        directory=directory,
        per_second=per_second / PRODUCERS,
        seconds=SECONDS_MAX,
        partitions=partitions,
    )
    async with load as producers:
        yield SteadyLoad(region=region, partitions=partitions, directory=directory, say=say, producers=producers)
