"""Brokers that come, go and lose their disks under load: nothing is lost, nothing doubled, every replica is the same.

Real brokers in this process, a foreign idempotent producer beside it. The short form of
the campaigns `grow-shrink` and `replace-disk`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from georelay.ids import CONTROLLER_GROUP, BrokerId, GroupId, RegionNumber, broker_id
from georelay.wire.batch import iterate_records, split_batches
from loadtest.history.checker_core import check
from loadtest.history.history_file import HistoryWriter, read_history
from loadtest.history.operation import Kind
from loadtest.load.engine_values import name_of
from region.app import Broker
from region.config import BrokerConfig
from region.controller.topic import TopicSpec
from region.log.segment_reader import read_group, valid_branch
from tests.e2e.foreign_producer import ForeignProducer, key_of, read_region
from tests.free_ports import free_ports

TOPIC: Final = "orders"
REGION: Final = "us"
TICK_MS: Final = 20  # elections within half a second
SETTLE_SECONDS_MAX: Final = 15
RECORDS_PER_SECOND: Final = 300
PORT_NAMES: Final = ("kafka", "grpc", "peers", "link", "admin")


class GrowingRegion:
    """Brokers of one region on this event loop, started one by one; each lists itself and broker 1."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.brokers: dict[int, Broker] = {}
        self._listen: dict[int, dict[str, str]] = {}

    def listen(self, number: int) -> dict[str, str]:
        if number not in self._listen:
            self._listen[number] = {
                name: f"127.0.0.1:{port}" for name, port in zip(PORT_NAMES, free_ports(len(PORT_NAMES)), strict=True)
            }
        return self._listen[number]

    def data_dir(self, number: int) -> Path:
        return self.directory / f"{REGION}-{number}"

    def _config(self, number: int, listed: Iterable[int]) -> BrokerConfig:
        rows = [{"number": row, **{name: self.listen(row)[name] for name in ("peers", "link")}} for row in listed]
        return BrokerConfig.model_validate(
            {
                "mesh_id": "bed",
                "region": REGION,
                "broker": number,
                "data_dir": self.data_dir(number),
                "definitions_home": REGION,
                "listen": self.listen(number),
                "regions": [{"name": REGION, "number": 1, "brokers": rows}],
                "tick_ms": TICK_MS,
                "auto_join": True,
            }
        )

    async def start(self, number: int, *, listed: Iterable[int]) -> Broker:
        broker = self.brokers[number] = Broker(self._config(number, listed))
        await broker.start()
        return broker

    async def stop(self, number: int) -> None:
        await self.brokers.pop(number).stop()

    def any(self) -> Broker:
        return next(iter(self.brokers.values()))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(SETTLE_SECONDS_MAX):
            while not holds():
                for broker in self.brokers.values():
                    assert not broker.failed.done(), broker.failed.result()
                await asyncio.sleep(0.02)

    def group_id(self) -> GroupId:
        rows = self.any().core.controller.assignments_status(TOPIC)
        return GroupId(rows[0]["group"])

    def leader(self, group_id: GroupId) -> int:
        """Return the number of the broker that leads a group."""
        leads = [number for number, b in self.brokers.items() if b.core.host.groups[group_id].serves_as_leader]
        assert len(leads) == 1, leads
        return leads[0]

    def members(self, group_id: GroupId) -> tuple[set[int], set[int]]:
        """Return (voters, learners) as the leader of the group has them committed; empty sets without one."""
        for broker in self.brokers.values():
            group = broker.core.host.groups.get(group_id)
            if group is not None and group.serves_as_leader and group.membership_committed:
                membership = group.membership
                if not membership.outgoing:
                    return _numbers(membership.voters), _numbers(membership.learners)
        return set(), set()

    def is_settled(self, voters: set[int]) -> bool:
        """Return whether the topic and the controller have these voters, and every one has all that is committed."""
        group_id = self.group_id()
        for group in (group_id, CONTROLLER_GROUP):
            if self.members(group)[0] != voters:
                return False
        rows = self.any().core.controller.assignments_status()
        return all(row["settled"] for row in rows) and self._is_even(group_id, voters)

    def is_drained(self, number: int) -> bool:
        """Return whether every other broker knows that a broker holds nothing any more."""
        others = [broker for each, broker in self.brokers.items() if each != number]
        states = [
            row["state"]
            for other in others
            for row in other.core.controller.brokers_status()
            if row["id"] == _id(number)
        ]
        return states == ["drained"] * len(others)

    def _is_even(self, group_id: GroupId, voters: set[int]) -> bool:
        ends = {
            group.applied_index
            for number in voters
            if (group := self.brokers[number].core.host.groups.get(group_id)) is not None
        }
        return len(ends) <= len(voters) and max(ends) - min(ends) < RECORDS_PER_SECOND


def _numbers(brokers: Iterable[BrokerId]) -> set[int]:
    return {broker % 1000 for broker in brokers}


def _id(number: int) -> BrokerId:
    return broker_id(RegionNumber(1), number)


@pytest.fixture
async def region(tmp_path: Path) -> AsyncIterator[GrowingRegion]:
    region = GrowingRegion(tmp_path)
    yield region
    for number in list(region.brokers):
        await region.stop(number)


@asynccontextmanager
async def _load(region: GrowingRegion) -> AsyncIterator[ForeignProducer]:
    producer = ForeignProducer("load", region.directory)
    brokers = [region.listen(number)["kafka"] for number in region.brokers]
    await producer.start(brokers, TOPIC, per_second=RECORDS_PER_SECOND, seconds=60)
    try:
        await producer.wait_for_acknowledgement()
        yield producer
    finally:
        await producer.stop()


async def _judge(region: GrowingRegion, producer: ForeignProducer, replicas: set[int]) -> dict[str, Any]:
    """End the load, read the region and every replica from the first record on, and judge the whole history."""
    producer.end_sending()
    counts = await producer.finish()
    assert counts["acked"] == counts["sent"] > 0, counts
    writer = HistoryWriter(region.directory / "complete.history", "complete")
    kafka = [region.listen(number)["kafka"] for number in region.brokers]
    end = await read_region(writer, kafka, TOPIC, 0, site="kafka")
    group_id = region.group_id()
    await region.until(
        lambda: all(region.brokers[row].core.streams[group_id].high_watermark == end for row in replicas)
    )
    for number in replicas:
        folder = region.data_dir(number) / "groups" / str(group_id)
        assert _read_replica(writer, folder, site=f"{REGION}-{number}", below=end) == end
    writer.close()
    verdict = check(read_history([producer.history, region.directory / "complete.history"]))
    assert verdict.is_valid, verdict.describe()
    return counts


def _read_replica(writer: HistoryWriter, folder: Path, *, site: str, below: int) -> int:
    """Record the records below an offset in a replica's files as a complete read; return the offset behind them."""
    position = 0
    for entry in valid_branch(read_group(folder)):
        if entry.next_offset > below:
            break
        records = [
            (record.offset, name_of(record.value or b""))
            for batch in split_batches(entry.payload)
            for record in iterate_records(batch)
        ]
        number = writer.invoke(Kind.FETCH, key_of(TOPIC, 0), site=site, position=position, final=True)
        writer.fetched(number, records)
        position = entry.next_offset
    return position


async def test_a_region_grows_from_one_broker_to_three_and_one_leaves_under_load(region: GrowingRegion) -> None:
    await region.start(1, listed=[1])
    await region.until(region.any().cluster.ready)
    await region.any().cluster.create_topic(TopicSpec(name=TOPIC, partitions=1))
    async with _load(region) as producer:
        await region.start(2, listed=[1, 2])
        await region.start(3, listed=[1, 3])
        await region.until(lambda: region.is_settled({1, 2, 3}))
        await region.brokers[2].cluster.drain_broker(_id(1))
        await region.until(lambda: region.is_settled({2, 3}) and region.is_drained(1))
        await region.brokers[2].cluster.remove_broker(_id(1))
        await region.stop(1)
        await _judge(region, producer, {2, 3})


@pytest.mark.slow
async def test_a_broker_that_lost_its_disk_is_replaced_by_itself_under_load(region: GrowingRegion) -> None:
    for number in (1, 2, 3):
        await region.start(number, listed=[1, 2, 3])
    await region.until(lambda: all(broker.cluster.ready() for broker in region.brokers.values()))
    await region.any().cluster.create_topic(TopicSpec(name=TOPIC, partitions=1))
    async with _load(region) as producer:
        await region.until(lambda: region.is_settled({1, 2, 3}))
        lost = region.leader(region.group_id())
        disk = region.brokers[lost].core.directory.disk_id
        await region.stop(lost)
        shutil.rmtree(region.data_dir(lost))
        broker = await region.start(lost, listed=[1, 2, 3])
        assert broker.core.directory.disk_id != disk
        state = region.any().core.controller.state
        await region.until(lambda: state.disk_of(_id(lost)) == broker.core.directory.disk_id)
        await region.until(lambda: region.is_settled({1, 2, 3}))
        await _judge(region, producer, {1, 2, 3})
