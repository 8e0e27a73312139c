"""A queue that reads a real stream whose home moves by force, and which has a branch of its own."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from typing import Any

from georelay.ids import RegionNumber
from region.api.reading import read_stream
from region.controller.topic import Homes, TopicDefinition, TopicView
from region.coordination.in_memory import InMemoryClock, InMemoryCoordinatorLog
from region.kafka.ports import ReadAnswer
from region.queues.part import QueuesPart
from tests.unit.topics.home_moves import copied


class OneTopic:
    """The part of region.queues.ports.QueueCluster that reading one stream needs."""

    region_number = RegionNumber(1)

    def __init__(self, bench: Any) -> None:
        self._bench = bench
        topic_id = bench.stream.key.topic_id
        definition = TopicDefinition(
            name="orders", topic_id=topic_id, partitions=1, replication_factor=1, homes=Homes.ONE,
            home=RegionNumber(1), retention_ms=-1, retention_bytes=-1, config=(), index=1,
        )  # fmt: skip
        self._view = TopicView(
            name="orders", topic_id=topic_id, wire_id=topic_id, partitions=1, replication_factor=1, homes=Homes.ONE,
            home=RegionNumber(1), is_mirror_name=False, origin=RegionNumber(0), internal=False, definition=definition,
        )  # fmt: skip

    def topic(self, name: str) -> TopicView | None:
        return self._view if name == "orders" else None

    def stream(self, name: str, partition: int) -> Any:
        return self._bench.stream

    def epoch_table(self, name: str, partition: int) -> Sequence[Any]:
        table: Sequence[Any] = self._bench.stream.decided_table
        return table

    async def read_records(
        self, name: str, partition: int, offset: int, max_bytes: int, wait_ms: int, **_: Any
    ) -> ReadAnswer:
        return await read_stream(self._bench.stream, offset, max_bytes=max_bytes, wait_ms=wait_ms)


class Reader:
    """A queue over one stream, and a consumer of it."""

    def __init__(self, bench: Any) -> None:
        self.log = InMemoryCoordinatorLog(clock=InMemoryClock(wall_us=bench.clock.wall_ns() // 1000))
        cluster: Any = OneTopic(bench)
        self.part = QueuesPart(self.log, cluster=cluster)
        self.log.add(self.part)
        self.log.elect()

    async def call(self, operation: str, **body: Any) -> Any:
        return await self.part.call(operation, {"queue": "q", **body}, principal="")

    async def receive(self, count: int) -> list[Any]:
        """Return leased records; time passes while there are none."""
        rows: list[Any] = []
        async with asyncio.timeout(5):
            while len(rows) < count:
                rows += (await self.call("receive", consumer="c", max=count - len(rows)))["records"]
                await self.pass_s(0.5)
        return rows

    async def pass_s(self, seconds: float) -> None:
        self.log.clock.advance(seconds)
        await asyncio.sleep(0.002)

    async def acknowledge(self, rows: Sequence[Any]) -> set[str]:
        results = (await self.call("acknowledge", leases=[row["lease"] for row in rows]))["results"]
        return {row["code"] for row in results}


def values(rows: Sequence[Any]) -> list[bytes]:
    return [base64.b64decode(row["value"]) for row in rows]


async def test_a_queue_delivers_what_takes_the_offsets_of_a_branch_that_was_cut_off(
    make_moving: Callable[..., Any],
) -> None:
    us = make_moving().ready()
    for number in range(4):
        us.publish(b"%d" % number)
    us.store()
    eu = await copied(make_moving, us, records=2)
    queue = Reader(us)
    await queue.call("create", topic="orders", max_deliveries=0)
    rows = await queue.receive(4)
    assert await queue.acknowledge(rows[:3]) == {"OK"}

    row = us.row(2, 2, 2)
    us.stream.follow_home(row)  # the log still has its branch
    await queue.pass_s(3)
    await queue.pass_s(1)
    assert (await queue.call("receive", consumer="c", max=9))["records"] == []
    await us.until(lambda: us.stream.epoch == 2)
    eu.stream.follow_home(row)
    await eu.until(lambda: eu.stream.epoch == 2)
    for value in (b"new 2", b"new 3", b"new 4"):
        eu.publish(value)
    eu.store()
    for entry in eu.log.entries:
        if entry.record_count and entry.base_offset >= 2:
            us.mirror(entry)
    us.store()

    new = await queue.receive(3)
    assert values(new) == [b"new 2", b"new 3", b"new 4"]
    assert await queue.acknowledge(rows[3:]) == {"LEASE_EXPIRED"}, "it was of the branch"
    assert await queue.acknowledge(new) == {"OK"}
    assert (await queue.call("describe"))["partitions"][0]["cursor"] == 5
    queue.part.close()
    await asyncio.sleep(0)
