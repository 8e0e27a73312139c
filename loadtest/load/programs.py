"""Programs beside the load: foreign clients in processes that are killed and started again, and what came of them."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, TopicPartition

from loadtest.campaign.mesh import CampaignFailed
from loadtest.child_process import PYTHON, KeptProcess
from loadtest.groups.coordinator_log import read_generations
from loadtest.groups.events import read_events as read_member
from loadtest.groups.events import read_kcat
from loadtest.groups.member_process import GroupToJoin, command_of, kinds_of
from loadtest.groups.verdict_core import Event, Place, Read, unprocessed
from loadtest.groups.verdict_core import judge as judge_group
from loadtest.history.history_file import read_history
from loadtest.load.campaign import GROUP_MEMBER, MOVING_READER, QUEUE, QUEUE_CONSUMER, TRANSFORMER, Programs
from loadtest.load.engine_values import PROGRAM, name_of, written
from loadtest.load.programs_core import Leg, moved, piped
from loadtest.load.queue_history import is_poison, read_events
from loadtest.load.queue_verdict_core import judge
from loadtest.load.sources import ends_of, kafka_settings
from loadtest.login import PLAIN, Settings, environment

if TYPE_CHECKING:
    from loadtest.load.stage import Stage

DRAIN_S: Final = 240.0
GROUP_S: Final = 90.0
LOOK_S: Final = 1.0
LETTERS: Final = f"{QUEUE}-dead-letters"
VISIBILITY_MS: Final = 3_000
DELIVERIES_MAX: Final = 8  # a good record must not meet so much bad luck
Told = dict[str, Any]  # a line of the verdict
Found = TypeVar("Found")


class Program(ABC):
    """Processes of one kind, in the first region."""

    def __init__(self, stage: Stage, row: Programs) -> None:
        self.stage, self.row = stage, row
        self.processes: list[KeptProcess] = []
        self.told_to_leave: set[str] = set()
        self.kills = 0
        self.gateway = str(stage.endpoints["gateway"]["http"][0])
        self.bootstrap = ",".join(stage.endpoints["regions"][stage.regions[0]]["kafka"])

    async def start(self) -> None:
        """Start them. Raises CampaignFailed."""
        await self.prepare()
        for _ in range(self.row.count):
            await self.join()

    async def join(self) -> None:
        """Start one more."""
        number = len(self.processes)
        name = f"{PROGRAM}-{self.row.name.replace(' ', '-')}-{number}"
        words: Callable[[int], Sequence[str]] = partial(self.command, name, number)
        told = environment(self.stage.settings)
        self.processes.append(KeptProcess(name, words, log=self.stage.folder / f"{name}.log", environment=told))

    async def leave(self) -> None:
        """End the one that is there for the longest time, in order."""
        if running := [process for process in self.processes if process.is_running]:
            self.told_to_leave.add(running[0].name)
            await running[0].stop()

    async def strike(self) -> None:
        """kill -9 of one of them; it is started again."""
        if running := [process for process in self.processes if process.is_running]:
            self.kills += 1
            self.stage.rng.choice(running).strike()

    async def finish(self) -> None:
        """Let them do what is left, end them, and write down what came of them. Raises CampaignFailed."""
        try:
            told = await self.judged()
        finally:
            await self.stop()
        starts = sum(process.starts for process in self.processes)
        with (self.stage.folder / "programs.jsonl").open("a", encoding="utf-8") as file:
            for line in told:
                line["found"] += f"; killed {self.kills} times, started {starts} times"
                file.write(json.dumps(line) + "\n")

    async def stop(self) -> None:
        """End them."""
        await asyncio.gather(*(process.stop() for process in self.processes))

    async def settled(
        self, look: Callable[[], Awaitable[Found]], is_done: Callable[[Found], bool], seconds: float
    ) -> Found:
        """Look until the same is found twice and that is done, or for long enough; return what was found last.

        Raises what kept a process from starting: what it did not do says nothing about the mesh.
        """
        deadline, before = time.monotonic() + seconds, None
        while True:
            for process in self.processes:
                process.check()
            found = await look()
            if (found == before and is_done(found)) or time.monotonic() > deadline:
                return found
            before = found
            await asyncio.sleep(LOOK_S)

    async def names(self, topic: str, around: bytes = b"") -> list[str]:
        """Return the names of the records of a topic; `around`: what may stand around their values."""
        values = await asyncio.to_thread(read_all, self.bootstrap, topic)
        return [name_of(value.strip(around)) for value in values]

    def command(self, name: str, number: int, start: int) -> Sequence[str]:
        """Return the command line of a program at its start, 1 for the first."""
        return (PYTHON, "-m", f"loadtest.load.{self.row.kind.replace('-', '_')}", *self.words(name, number, start))

    async def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Do what comes before the first one."""

    def words(self, name: str, number: int, start: int) -> Sequence[str]:
        """Return what our own program is told."""
        raise NotImplementedError

    @abstractmethod
    async def judged(self) -> list[Told]:
        """Wait until all is done that was begun; return lines of the verdict."""


class TransactionalWriters(Program):
    """What they wrote is in histories; the checker judges it, and whether transactions are whole."""

    def words(self, name: str, number: int, start: int) -> Sequence[str]:
        """Return what it is told."""
        partitions = {topic.name: topic.partitions for topic in self.stage.campaign.topics}
        history = self.stage.folder / "histories" / f"{name}.{start}.history"
        sender = f"{name}.{start}-{self.stage.regions[0]}"
        topics = self.row.topics
        return (self.bootstrap, name, sender, str(partitions[topics[0]]), ",".join(topics), str(history))

    async def judged(self) -> list[Told]:
        """Let each end its transaction; histories are judged with all others. Raises CampaignFailed."""
        for process in self.processes:
            if not await process.ends_well(DRAIN_S):
                raise CampaignFailed(f"{process.name} came to no end of its transaction: {process.last_words()}")
        return []


class Transformers(Program):
    """A pipeline from the first of its topics to the second, exactly once."""

    def words(self, name: str, number: int, start: int) -> Sequence[str]:
        """Return what it is told."""
        return (self.bootstrap, name, *self.row.topics)

    async def judged(self) -> list[Told]:
        """Wait until everything that went in came out."""

        async def look() -> dict[str, int]:
            return piped(*[await self.names(topic, b"<>") for topic in self.row.topics])

        found = await self.settled(look, lambda found: not found["missing"], DRAIN_S)
        is_kept = found["inputs"] > 0 and not (found["missing"] or found["repeated"] or found["foreign"])
        text = ", ".join(f"{count:,} {what}" for what, count in found.items())
        return [{"what": "pipeline", "wanted": "each input comes out once", "found": text, "kept": is_kept}]


class QueueConsumers(Program):
    """Consumers of a queue that acknowledge, reject, and die; some records are poison, which each of them rejects."""

    async def prepare(self) -> None:
        """Make the queue."""
        limits = ("--visibility-timeout-ms", str(VISIBILITY_MS), "--max-deliveries", str(DELIVERIES_MAX))
        await self.stage.cli("queues", "create", QUEUE, "--topic", self.row.topics[0], *limits)

    def words(self, name: str, number: int, start: int) -> Sequence[str]:
        """Return what it is told."""
        url = f"http://{self.gateway}/v1/queues/{QUEUE}"
        return (url, f"{name}-{start}", str(self._history(name)), str(start * 1_000 + number))

    def _history(self, name: str) -> Path:
        return self.stage.folder / f"{name}.jsonl"

    async def judged(self) -> list[Told]:
        """Wait until the queue is empty."""

        async def look() -> tuple[list[str], str]:
            stored = await self.names(self.row.topics[0])
            described = await self.stage.ask(self.gateway, f"/v1/queues/{QUEUE}")
            return stored, "" if stored and described and _is_drained(described, len(stored)) else str(described)

        stored, left = await self.settled(look, lambda found: not found[1], DRAIN_S)
        if left:
            raise CampaignFailed(f"the queue is not empty after {DRAIN_S:g} s: {left}")
        paths = [self._history(process.name) for process in self.processes]
        poison = {name for name in stored if is_poison(name)}
        verdict = judge(
            good=set(stored) - poison,
            poison=poison,
            events=list(read_events(path for path in paths if path.exists())),
            dead_letters=await self.names(LETTERS),
        )
        late = f"late after a lease {_late(verdict.after_lease_ms)}, after a reject {_late(verdict.after_reject_ms)}"
        wrong = ", ".join(f"{len(names)} {what}" for what, names in verdict.wrong().items() if names)
        found = (
            f"{verdict.acknowledged_once + verdict.answer_lost:,} done once ({verdict.answer_lost} answers lost), "
            f"{verdict.dead_letters:,} poison, {verdict.redelivered:,} delivered again, {late}; "
            f"wrong: {wrong or 'none'}"
        )
        wanted = "each record done once, or a dead letter"
        return [{"what": "queue", "wanted": wanted, "found": found, "kept": not wrong}]


class GroupMembers(Program):
    """A group of one client, or of all of them, over one topic; its coordinator's own log is the witness."""

    def __init__(self, stage: Stage, row: Programs) -> None:
        super().__init__(stage, row)
        self._kinds = kinds_of(row.client, os.environ)
        regions = stage.endpoints["regions"][stage.regions[0]]
        self._told = GroupToJoin(
            bootstrap=self.bootstrap,
            url=f"grpc://{','.join(regions['grpc'])}",
            group=row.name.replace(" ", "-"),
            topic=row.topics[0],
            assignor=row.assignor,
        )

    def command(self, name: str, number: int, start: int) -> Sequence[str]:
        """Return the command line of a member."""
        return command_of(self._kind(number), f"{name}-{start}", self._told, self._events(name, start))

    async def judged(self) -> list[Told]:
        """Wait until everything was processed, or for long enough: the verdict says what is missing."""
        row, stage = self.row, self.stage
        line = {"what": f"group {row.name}", "wanted": "everything processed, once where it was committed"}
        partitions = next(topic.partitions for topic in stage.campaign.topics if topic.name == row.topics[0])
        spots = [(row.topics[0], partition) for partition in range(partitions)]
        droppers = [each.name for number, each in enumerate(self.processes) if self._drops(number, each)]

        async def look() -> tuple[set[Place], dict[str, list[Event]]]:
            ends = await asyncio.to_thread(ends_of, [self.bootstrap], {}, spots)
            stored = {(partition, offset) for (_, partition), end in ends.items() for offset in range(end)}
            return stored, await asyncio.to_thread(self._all_events)

        stored, events = await self.settled(look, lambda found: not unprocessed(*found, droppers)[0], GROUP_S)
        generations = await read_generations(self.bootstrap.split(","), self._told.group, row.topics[0])
        verdict = judge_group(
            stored=stored,
            events_by_process=events,
            generations=generations,
            partitions=partitions,
            droppers=droppers,
        )
        reads = [event for found in events.values() for event in found if isinstance(event, Read)]
        times = sorted(read.at_ms for read in reads if read.at_ms)
        found = (
            f"{verdict.processed:,} of {verdict.records:,}, {verdict.duplicates:,} again (uncommitted), "
            f"{verdict.generations} generations, longest pause {max(map(sub, times[1:], times), default=0):,} ms"
        )
        dropped = [f"{verdict.dropped} dropped by kcat as it left"] if verdict.dropped else []
        found = "; ".join((found, *dropped, *verdict.problems))
        return [line | {"found": found, "kept": verdict.is_exact and verdict.records > 0}]

    def _kind(self, number: int) -> str:
        return self._kinds[number % len(self._kinds)]

    def _drops(self, number: int, process: KeptProcess) -> bool:
        """Return whether it is a kcat that was told to end: it commits a record that comes then, and drops it."""
        return self._kind(number) == "kcat" and process.name in self.told_to_leave

    def _events(self, name: str, start: int) -> Path:
        return self.stage.folder / f"{name}-{start}.events"

    def _all_events(self) -> dict[str, list[Event]]:
        """Return what each did so far."""
        found: dict[str, list[Event]] = {}
        for number, process in enumerate(self.processes):
            assert process.log_file is not None, "programs have a log"
            if self._kind(number) == "kcat":
                found[process.name] = list(read_kcat(process.log_file)) if process.log_file.exists() else []
                continue
            paths = [self._events(process.name, start) for start in range(1, process.starts + 1)]
            by_start = [list(read_member(path)) if path.exists() else [] for path in paths]
            found[process.name] = by_start.pop()  # nobody kills it any more: it has to become a member
            if killed := [event for events in by_start for event in events]:
                found[f"{process.name} before"] = killed
        return found


class MovingReader(Program):
    """A reader at its topic's home; once it is killed it goes on in another region, by the position that it saved."""

    def words(self, name: str, number: int, start: int) -> Sequence[str]:
        """Return what it is told."""
        stage, topic = self.stage, self.row.topics[0]
        home = next(each.home for each in stage.campaign.topics if each.name == topic)
        region = home if start == 1 else next((each for each in reversed(stage.regions) if each != home), home)
        folder, campaign = stage.folder, stage.folder / f"{stage.campaign.name}.toml"
        plan = written(
            folder / f"plan-{name}.json",
            campaign=campaign,
            endpoints=stage.endpoints_file,
            regions=[region],
            folder=folder,
            worker=f"{name}.{start}",
        )
        saved = [self._saved(name, each) for each in range(start, 0, -1)]
        return (str(plan), topic, str(saved[0]), *[str(path) for path in saved[1:] if path.exists()][:1])

    def _saved(self, name: str, start: int) -> Path:
        return self.stage.folder / f"{name}.{start}.position"

    async def judged(self) -> list[Told]:
        """Wait until it has read everything, or for long enough: what is missing is counted."""
        (process,), spot = self.processes, (self.row.topics[0], 0)
        bootstraps = [",".join(region["kafka"]) for region in self.stage.endpoints["regions"].values()]

        async def look() -> tuple[int, dict[str, int]]:
            end = (await asyncio.to_thread(ends_of, bootstraps, self.stage.settings, [spot])).get(spot, 0)
            return end, moved(await asyncio.to_thread(self._legs, process), end)

        end, found = await self.settled(look, lambda found: found[0] > 0 and not found[1]["missing"], GROUP_S)
        is_kept = end > 0 and not found["missing"] and found["again"] <= found["in flight"]
        text = ", ".join(f"{count:,} {what}" for what, count in found.items())
        wanted = "every record; none again but what was in flight"
        return [{"what": "reader that moved", "wanted": wanted, "found": text, "kept": is_kept}]

    def _legs(self, process: KeptProcess) -> list[Leg]:
        """Return what it read each time that it was started."""
        legs = []
        for start in range(1, process.starts + 1):
            history = self.stage.folder / "histories" / f"{process.name}.{start}.history"
            reads = read_history([history]) if history.exists() else []
            saved = self._saved(process.name, start)
            position = json.loads(saved.read_text())["offset"] if saved.exists() else 0
            legs.append(Leg(saved=position, offsets=[offset for read in reads for offset, _ in read.records]))
        return legs


def _is_drained(described: dict[str, Any], records: int) -> bool:
    left = sum(described[name] for name in ("ready", "delayed", "leased", "dead_lettering"))
    done = described["acknowledged"] + described["dead_lettered"]
    return all(row["cursor"] > 0 for row in described["partitions"]) and not left and done >= records


def _late(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.0f}-{max(values):.0f} ms ({len(values)})" if values else "-"


def read_all(bootstrap: str, topic: str, settings: Settings = PLAIN) -> list[bytes]:
    """Return the committed values of a topic, as far as it goes now. Raises CampaignFailed."""
    consumer = Consumer(kafka_settings(bootstrap) | dict(settings))
    try:
        left = set(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
        values: list[bytes] = []
        deadline = time.monotonic() + DRAIN_S
        while left:
            for message in consumer.consume(500, 0.1):
                error = message.error()
                if error is None:
                    values.append(message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
            if time.monotonic() > deadline:
                raise CampaignFailed(f"partitions {sorted(left)} of {topic} cannot be read to their ends")
        return values
    finally:
        consumer.close()


PROGRAMS: Final[dict[str, type[Program]]] = {
    "transactional-writer": TransactionalWriters,
    TRANSFORMER: Transformers,
    QUEUE_CONSUMER: QueueConsumers,
    GROUP_MEMBER: GroupMembers,
    MOVING_READER: MovingReader,
}
