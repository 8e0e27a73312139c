"""A queue over an in-memory coordinator and a topic in memory; time stands still until a test lets it pass."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from georelay.errors import GeorelayError, OffsetOutOfRange, OutOfOrderSequence, UnknownProducer, UnknownTopic
from georelay.ids import Epoch, Offset, RegionNumber
from georelay.wire.batch import build_batch, iterate_records
from mesh.replication.publish import Publish
from region.controller.topic import Homes, TopicDefinition, TopicSpec, TopicView
from region.coordination.in_memory import InMemoryClock, InMemoryCoordinatorLog
from region.kafka.ports import Published, ReadAnswer
from region.queues.delivery_traces import QueueTraces
from region.queues.part import QueuesPart

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class FakeHeader:
    append_us: int
    epoch: int = 1
    received_ns: int = 0
    entry_region: int = 1


@dataclass(frozen=True)
class FakeEntry:
    base_offset: int
    record_count: int
    payload: memoryview
    append_us: int
    epoch: int = 1

    def header(self) -> FakeHeader:
        return FakeHeader(
            self.append_us, epoch=self.epoch, received_ns=self.append_us * 1000 - 5_000_000, entry_region=3
        )


@dataclass
class FakeLog:
    epoch: int = 1
    entries: list[FakeEntry] = field(default_factory=list)
    end: int = 0
    start: int = 0
    sequences: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    moved: asyncio.Event = field(default_factory=asyncio.Event)


class FakeCluster:
    """Topics in memory; implements region.queues.ports.QueueCluster."""

    region_number = RegionNumber(1)

    def __init__(self, clock: InMemoryClock) -> None:
        self.clock = clock
        self.views: dict[str, TopicView] = {}
        self.logs: dict[tuple[str, int], FakeLog] = {}
        self.tables: dict[tuple[str, int], list[tuple[int, int]]] = {}  # control's word
        self.publish_errors: list[GeorelayError] = []  # one for each of the next publishes
        self.read_error: GeorelayError | None = None
        self._producers = 100

    def make(self, name: str, partitions: int = 1) -> None:
        topic_id = name.encode().ljust(16, b".")[:16]
        definition = TopicDefinition(
            name=name, topic_id=topic_id, partitions=partitions, replication_factor=3, homes=Homes.ONE,
            home=RegionNumber(1), retention_ms=-1, retention_bytes=-1, config=(), index=1,
        )  # fmt: skip
        self.views[name] = TopicView(
            name=name, topic_id=topic_id, wire_id=topic_id, partitions=partitions, replication_factor=3,
            homes=Homes.ONE, home=RegionNumber(1), is_mirror_name=False, origin=RegionNumber(0), internal=False,
            definition=definition,
        )  # fmt: skip
        for partition in range(partitions):
            self.logs.setdefault((name, partition), FakeLog())

    def topic(self, name: str) -> TopicView | None:
        return self.views.get(name)

    def stream(self, name: str, partition: int) -> Any:
        return self.logs.get((name, partition))

    def make_everywhere(self, name: str, *regions: str) -> None:
        """Make a topic that each region is home of; this one is the first of them."""
        self.make(name)
        plain = self.views[name]
        for number, region in enumerate(regions, 1):
            self.make(f"{region}.{name}")
            self.views[f"{region}.{name}"] = replace(
                plain,
                name=f"{region}.{name}",
                homes=Homes.EVERY,
                home=RegionNumber(number),
                origin=RegionNumber(number),
                is_mirror_name=number != self.region_number,
            )
        self.views[name] = replace(plain, homes=Homes.EVERY, origin=RegionNumber(self.region_number))
        self.logs[name, 0] = self.logs[f"{regions[self.region_number - 1]}.{name}", 0]

    def stream_names(self, name: str) -> Sequence[str]:
        return [row for row in self.views if row.endswith(f".{name}")] or [name]

    def epoch_table(self, name: str, partition: int) -> Sequence[Any]:
        return self.tables.get((name, partition), [])

    def decide(self, name: str, epoch: int, start: int, *, partition: int = 0) -> None:
        """Let control say that an epoch begins at `start`; the log here does not know yet."""
        self.tables.setdefault((name, partition), [(1, 0)]).append((epoch, start))

    def begin(self, name: str, *, partition: int = 0) -> None:
        """Let the newest epoch begin in the log: what is beyond its start is cut off."""
        log, (epoch, start) = self.logs[name, partition], self.tables[name, partition][-1]
        log.entries = [entry for entry in log.entries if entry.base_offset < start]
        log.end = min(log.end, start)
        log.epoch = epoch
        log.moved.set()

    async def create_topic(self, spec: TopicSpec) -> TopicView:
        self.make(spec.name)
        return self.views[spec.name]

    async def allocate_producer_id(self) -> int:
        self._producers += 1
        return self._producers

    async def read_records(
        self, name: str, partition: int, offset: int, max_bytes: int, wait_ms: int, *, read_uncommitted: bool = False
    ) -> ReadAnswer:
        if self.read_error is not None:
            raise self.read_error
        log = self.logs.get((name, partition))
        if log is None:
            raise UnknownTopic(name)
        offset = {-2: log.start, -1: log.end}.get(offset, offset)
        if offset < log.start:
            raise OffsetOutOfRange(f"offset {offset} is below the log start {log.start}")
        if offset >= log.end and wait_ms:
            log.moved.clear()
            await log.moved.wait()
            offset = min(offset, log.end)
        found = [entry for entry in log.entries if entry.base_offset + entry.record_count > offset]
        shown = found[:1] if max_bytes == 1 else found[:50]
        return ReadAnswer(
            entries=shown,
            log_start=Offset(log.start),
            high_watermark=Offset(log.end),
            next_offset=shown[-1].base_offset + shown[-1].record_count if shown else log.end,
        )

    def append(self, name: str, partition: int, raw: bytes, count: int) -> int:
        log = self.logs[name, partition]
        base = log.end
        log.entries.append(FakeEntry(base, count, memoryview(raw), self.clock.wall_ns() // 1000, log.epoch))
        log.end += count
        log.moved.set()
        return base

    def publish(self, name: str, partition: int, publish: Publish) -> asyncio.Future[Published]:
        """Store as a stream does: the newest five batches of a producer are recognised."""
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        if self.publish_errors:
            future.set_exception(self.publish_errors.pop(0))
            future.exception()
            return future
        header, log = publish.header, self.logs[name, partition]
        known = log.sequences.setdefault(header.producer_id, [])
        again = [(base, crc) for sequence, base, crc in known[-5:] if sequence == header.base_sequence]
        if again and again[0][1] != header.crc:
            future.set_exception(UnknownProducer(f"{header.base_sequence} is another batch"))
            future.exception()
            return future
        if again:
            base = again[0][0]
        elif header.base_sequence != (known[-1][0] + 1 if known else 0):
            future.set_exception(OutOfOrderSequence(f"{header.base_sequence} after {known[-1:]}"))
            future.exception()
            return future
        else:
            base = self.append(name, partition, bytes(publish.raw), header.record_count)
            known.append((header.base_sequence, base, header.crc))
        future.set_result(Published(epoch=Epoch(1), base_offset=Offset(base), append_us=0, log_start=Offset(0)))
        return future

    def records(self, name: str, partition: int = 0) -> list[Any]:
        entries = self.logs[name, partition].entries
        return [record for entry in entries for record in iterate_records(entry.payload)]


async def settle(turns: int = 40) -> None:
    """Let everything that can happen without time passing happen."""
    for _ in range(turns):
        await asyncio.sleep(0)


class Scene:
    """One coordinator whose queues a test consumes."""

    def __init__(self) -> None:
        self.clock = InMemoryClock()
        self.traces = QueueTraces()
        self.cluster = FakeCluster(self.clock)
        self.log = InMemoryCoordinatorLog(clock=self.clock)
        self.part = self.new_part()
        self.log.add(self.part)
        self.log.elect()

    def new_part(self) -> QueuesPart:
        return QueuesPart(self.log, cluster=self.cluster, traces=self.traces)

    async def call(self, operation: str, **body: Any) -> dict[str, Any]:
        queue = {} if operation == "list" else {"queue": body.pop("queue", "q")}
        return await self.part.call(operation, queue | body, principal="")

    async def make(self, partitions: int = 1, **definition: Any) -> dict[str, Any]:
        self.cluster.make("orders", partitions)
        made = await self.call("create", topic="orders", **definition)
        await settle()
        return made

    async def publish(
        self,
        *values: str,
        partition: int = 0,
        keys: Sequence[str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        extra = tuple((name, value.encode()) for name, value in (headers or {}).items())
        rows = [(value.encode(), None if keys is None else keys[at].encode(), extra) for at, value in enumerate(values)]
        raw = build_batch(rows, timestamps_ms=1)
        self.cluster.append("orders", partition, raw, len(rows))
        await settle()

    async def receive(self, consumer: str = "c", count: int = 100, wait_ms: int = 0, **more: Any) -> list[Any]:
        answer = await self.call("receive", consumer=consumer, max=count, wait_ms=wait_ms, **more)
        rows: list[Any] = answer["records"]
        return rows

    def receiving(self, consumer: str = "c", count: int = 100, wait_ms: int = 30_000) -> asyncio.Task[list[Any]]:
        return asyncio.ensure_future(self.receive(consumer, count, wait_ms))

    async def pass_s(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await settle()

    async def codes(self, operation: str, rows: Sequence[Any], **more: Any) -> list[str]:
        answer = await self.call(operation, leases=[row["lease"] for row in rows], **more)
        await settle()
        return [row["code"] for row in answer["results"]]

    async def move(self, epoch: int, part: QueuesPart | None = None, *, region: int = 1) -> None:
        """Let the coordinator's home move: another replica follows it from the beginning, and then the epoch begins."""
        self.log.depose()
        await settle()
        self.part.close()
        new = self.new_part() if part is None else part
        if part is None:
            self.log.replay(new)
        self.cluster.region_number = RegionNumber(region)
        new.fence(append_us=self.log.now_us(), epoch=epoch)
        self.log.parts[new.part] = self.part = new
        self.log.elect()
        await settle()

    async def fail_over(self, part: QueuesPart | None = None) -> None:
        """Let another replica lead, which followed the log from the beginning."""
        self.log.depose()
        await settle()
        self.part.close()
        new = self.new_part() if part is None else part
        self.log.replay(new)
        self.log.parts[new.part] = self.part = new
        self.log.elect()
        await settle()


def values(rows: Sequence[Any]) -> list[str]:
    """Return the texts of received records."""
    return [base64.b64decode(row["value"]).decode() for row in rows]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """A coordinator that leads."""
    made = Scene()
    yield made
    made.part.close()
    await settle()


@pytest.fixture
def texts() -> Any:
    """What the values of received records are."""
    return values


@pytest.fixture
def settled() -> Any:
    """Lets everything that can happen without time passing happen."""
    return settle
