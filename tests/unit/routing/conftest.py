"""A source stream and target topics in memory, with coordinators that a test lets die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from georelay.errors import GeorelayError, OutOfOrderSequence, Unavailable, UnknownProducer, UnknownTopic
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from georelay.wire.batch import BatchHeader, build_batch, iterate_records, parse_header
from mesh.replication.publish import Publish
from region.controller.topic import Homes, TopicDefinition, TopicView
from region.coordination.in_memory import InMemoryCoordinators
from region.coordination.part import Part
from region.kafka.ports import Published
from region.queues.part import QueuesPart
from region.routing.binding import Binding
from region.routing.router import Routing


@dataclass(frozen=True)
class FakeEntry:
    base_offset: int
    record_count: int
    payload: memoryview


class FakeSource:
    """A stream whose batches commit when the test says so."""

    def __init__(self, topic: str = "orders", partition: int = 0) -> None:
        self.key = StreamKey(topic.encode().ljust(16, b".")[:16], RegionNumber(0), partition)
        self.topic = topic
        self.partition = partition
        self.is_leader = True
        self.has_quorum = True
        self.is_home = True
        self.epoch = Epoch(1)
        self.decided_table: tuple[tuple[Epoch, Offset], ...] = ()
        self.log_start = Offset(0)
        self.high_watermark = Offset(0)
        self.next_offset = Offset(0)
        self.entries: list[FakeEntry] = []
        self.waiters: dict[int, Callable[[], None]] = {}

    def append(self, raw: bytes) -> int:
        header = parse_header(raw)
        base = int(self.next_offset)
        self.entries.append(FakeEntry(base, header.record_count, memoryview(raw)))
        self.next_offset = Offset(base + header.record_count)
        return base

    def commit(self) -> None:
        self.high_watermark = self.next_offset
        for wake in list(self.waiters.values()):
            wake()

    @property
    def visible_end(self) -> Offset:
        return self.high_watermark

    def read(self, offset: Offset, max_bytes: int) -> Sequence[FakeEntry] | None:
        return None if offset % 2 else self._from(offset)  # both ways are used

    async def read_cold(self, offset: Offset, max_bytes: int) -> Sequence[FakeEntry]:
        return self._from(offset)

    def _from(self, offset: int) -> list[FakeEntry]:
        return [row for row in self.entries if offset <= row.base_offset < self.high_watermark]

    async def confirmed_end(self) -> Offset:
        if not self.has_quorum:
            raise Unavailable("no quorum answers")
        return self.high_watermark

    def add_waiter(self, callback: Callable[[], None]) -> int:
        number = max(self.waiters, default=0) + 1
        self.waiters[number] = callback
        return number

    def remove_waiter(self, handle: int) -> None:
        self.waiters.pop(handle, None)


class Targets:
    """Topics that recognise the newest five batches of a producer, as streams do."""

    region_number = RegionNumber(1)

    def __init__(self) -> None:
        self.partitions = {"audit": 1, "bills": 2, "orders": 1}
        self.batches: dict[tuple[str, int], list[bytes]] = {}
        self.known: dict[tuple[str, int, int], list[tuple[int, int, int]]] = {}
        self.errors: list[GeorelayError] = []
        self.lost_answers: list[GeorelayError] = []  # stored, and then this is said
        self.allocated = 0

    def topic(self, name: str) -> TopicView | None:
        if name not in self.partitions:
            return None
        definition = TopicDefinition(
            name=name, topic_id=bytes(16), partitions=self.partitions[name], replication_factor=3, homes=Homes.ONE,
            home=RegionNumber(1), retention_ms=-1, retention_bytes=-1, config=(), index=1,
        )  # fmt: skip
        return TopicView(
            name=name, topic_id=bytes(16), wire_id=bytes(16), partitions=self.partitions[name], replication_factor=3,
            homes=Homes.ONE, home=RegionNumber(1), is_mirror_name=False, origin=RegionNumber(0), internal=False,
            definition=definition,
        )  # fmt: skip

    async def allocate_producer_id(self) -> int:
        self.allocated += 1
        return 1000 + self.allocated

    def publish(self, name: str, partition: int, publish: Publish) -> asyncio.Future[Published]:
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        try:
            if self.errors:
                raise self.errors.pop(0)
            if name not in self.partitions:
                raise UnknownTopic(name)
            self._store(name, partition, publish.header, bytes(publish.raw))
            if self.lost_answers:
                raise self.lost_answers.pop(0)
        except GeorelayError as error:
            future.set_exception(error)
            future.exception()
        else:
            future.set_result(Published(epoch=Epoch(1), base_offset=Offset(0), append_us=0, log_start=Offset(0)))
        return future

    def _store(self, name: str, partition: int, header: BatchHeader, raw: bytes) -> None:
        known = self.known.setdefault((name, partition, header.producer_id), [])
        if (header.base_sequence, header.last_sequence, header.crc) in known[-5:]:
            return
        if (header.base_sequence, header.last_sequence) in [row[:2] for row in known[-5:]]:
            raise UnknownProducer(f"{header.base_sequence} is another batch")
        if not known and header.base_sequence:
            raise UnknownProducer(f"{header.base_sequence} is not 0")
        if known and header.base_sequence != known[-1][1] + 1:
            raise OutOfOrderSequence(f"{header.base_sequence} after {known[-1]}")
        known.append((header.base_sequence, header.last_sequence, header.crc))
        self.batches.setdefault((name, partition), []).append(raw)

    def values(self, name: str, partition: int = 0) -> list[str]:
        rows = self.batches.get((name, partition), [])
        return [(record.value or b"").decode() for raw in rows for record in iterate_records(raw)]


class RoutingScene:
    """One broker that leads one source stream."""

    def __init__(self) -> None:
        self.targets = Targets()
        self.coordinators = InMemoryCoordinators()
        self.coordinators.register(Part.QUEUES, lambda log: QueuesPart(log, cluster=self.targets))  # type: ignore[arg-type]
        self.bindings: list[Binding] = []
        self.index = 0
        self.now_ns = 0
        self.source = FakeSource()
        self.routing = self.new_routing(self.source)

    def new_routing(self, source: FakeSource) -> Routing:
        return Routing(
            cluster=self.targets,
            coordinators=self.coordinators,
            definitions=lambda: (self.index, self.bindings),
            version=lambda: self.index,
            streams=lambda: [cast("Any", source)],
            wall_ns=lambda: 0,
            monotonic_ns=lambda: self.now_ns,
        )

    def define(self, name: str, target: str, source: str = "orders", **more: Any) -> None:
        self.index += 1
        self.bindings.append(Binding(name=name, source=source, target=target, index=self.index, **more))

    async def bind(self, name: str, target: str, source: str = "orders", **more: Any) -> None:
        """Define a binding, and wait until its copies have begun."""
        self.define(name, target, source, **more)
        await self.look()

    async def bind_to_deleted(self, name: str) -> None:
        """Bind to a topic `gone` that is deleted once the copies have begun."""
        self.targets.partitions["gone"] = 1
        await self.bind(name, "gone")
        del self.targets.partitions["gone"]

    async def look(self) -> None:
        """Let the broker look at what it leads, and at its bindings."""
        self.routing.sweep()
        await self.settle()

    def publish(self, *values: str, commit: bool = True, **headers: str) -> asyncio.Future[Published]:
        """Publish one batch the way a broker does."""
        extra = tuple((name, value.encode()) for name, value in headers.items())
        return self.publish_raw(
            build_batch([(value.encode(), None, extra) for value in values], timestamps_ms=1), commit=commit
        )

    def publish_raw(self, raw: bytes, *, commit: bool = True) -> asyncio.Future[Published]:
        """Publish a batch as it is."""
        header = parse_header(raw)
        copies = self.routing.admit(cast("Any", self.source), header)
        base = self.source.append(raw)
        stored: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        answer = stored if copies is None else self.routing.gate(copies, header, stored)
        stored.set_result(Published(epoch=Epoch(1), base_offset=Offset(base), append_us=0, log_start=Offset(0)))
        if commit:
            self.source.commit()
        return answer

    async def settle(self, turns: int = 120) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def replace_leader(self) -> None:
        """Let another broker lead the source: it has the same log and asks the coordinator."""
        self.source.is_leader = False
        self.routing.sweep()
        new = FakeSource()
        new.entries, new.next_offset, new.high_watermark = (
            list(self.source.entries),
            self.source.next_offset,
            self.source.high_watermark,
        )
        self.source = new
        self.routing = self.new_routing(new)
        self.routing.sweep()
        await self.settle()

    async def close(self) -> None:
        await self.routing.close()
        for log in self.coordinators.logs:
            for part in log.parts.values():
                part.close()


@pytest.fixture
async def broker() -> AsyncIterator[RoutingScene]:
    """A broker with one source stream and no binding."""
    scene = RoutingScene()
    yield scene
    await scene.close()
