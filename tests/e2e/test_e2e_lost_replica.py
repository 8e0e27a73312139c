"""A replica that its living broker cannot use any more is made anew, by the region itself, and nothing is lost.

Three real brokers of one region. One of them is stopped and one group's log and mark are damaged, so that nobody can
tell what it had promised; or its group meets a broken invariant while it runs. Nobody does anything about it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from structlog.testing import capture_logs

from georelay.errors import GeorelayError
from georelay.ids import GroupId
from loadtest.history.operation import Operation
from region.app import Broker
from region.controller.assignment import Assignment
from region.controller.topic import TopicSpec
from region.log.filesystem import OsFileSystem
from region.log.flushed_marks import MARKS_NAME, decode_marks
from region.log.segment_reader import read_group

if TYPE_CHECKING:
    from tests.e2e.conftest import RegionBed

TOPIC: Final = "orders"
WHOLE_SECONDS_MAX: Final = 60
MARK_ROW_BYTES: Final = 32


class LossyRegion:
    """Three brokers in this process; each can be stopped, damaged and started again."""

    def __init__(self, bed: RegionBed) -> None:
        self.bed = bed
        self.sends: list[Operation] = []
        self.running = [False] * 3
        self.group_id = GroupId(0)

    def directory(self, number: int) -> Path:
        return Path(self.bed.config(number).data_dir)

    def folder(self, number: int) -> Path:
        return self.directory(number) / "groups" / str(self.group_id)

    async def stop(self, number: int) -> None:
        self.running[number] = False
        await self.bed.brokers[number].stop()

    async def start(self, number: int) -> None:
        broker = Broker(self.bed.config(number), file_system=OsFileSystem())
        await broker.start()
        self.bed.brokers[number : number + 1] = [broker]
        self.running[number] = True

    async def stop_all(self) -> None:
        for number, runs in enumerate(self.running):
            if runs:
                await self.stop(number)

    async def publish(self, name: str, count: int) -> None:
        await self.bed.publish(name, range(count), self.sends)

    async def number_of(self, *, leads: bool) -> int:
        leader = self.bed.brokers.index(await self.bed.leader())
        return leader if leads else (leader + 1) % 3

    def assignment(self, number: int) -> Assignment:
        found = self.bed.brokers[number].core.controller.state.group(self.group_id)
        assert found is not None
        return found

    def is_whole(self) -> bool:
        ends = set()
        for number, broker in enumerate(self.bed.brokers):
            group, placed = broker.core.host.groups.get(self.group_id), self.assignment(number)
            if group is None or group.stopped or broker.core.groups.refused:
                return False
            if not placed.is_settled or len(placed.voters) < 3:
                return False
            ends.add((group.disk.durable_index, group.node.commit_index))
        return len(ends) == 1

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WHOLE_SECONDS_MAX):
            while not condition():
                await asyncio.sleep(0.02)

    def damage(self, number: int) -> None:
        """Flip a bit of the first header of the group's active segment, and one of its flushed mark."""
        flip(max(self.folder(number).glob("*.log")), 9)
        marks = self.directory(number) / MARKS_NAME
        row, _ = decode_marks(marks.read_bytes(), marks)[0][self.group_id]
        flip(marks, row * MARK_ROW_BYTES + 9)

    async def assert_nothing_lost(self) -> None:
        verdict = await self.bed.judged(self.sends)
        assert verdict.is_valid, verdict.describe()
        await self.stop_all()
        logs = [[entry.frame for entry in read_group(self.folder(number))] for number in range(3)]
        common = min(map(len, logs))  # who stopped last may have led alone, and noted that
        assert common >= max(map(len, logs)) - 3
        assert logs[0][:common] == logs[1][:common] == logs[2][:common]


def flip(path: Path, position: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 4
    path.write_bytes(raw)


@asynccontextmanager
async def lossy_region(bed: RegionBed) -> AsyncIterator[LossyRegion]:
    region = LossyRegion(bed)
    try:
        for number in range(3):
            await region.start(number)
        await region.until(lambda: all(broker.cluster.ready() for broker in bed.brokers))
        async with asyncio.timeout(WHOLE_SECONDS_MAX):
            while True:
                with contextlib.suppress(GeorelayError):  # a new region changes its leaders
                    await bed.brokers[0].cluster.create_topic(TopicSpec(name=TOPIC, partitions=1))
                    break
                await asyncio.sleep(0.1)
        stream = (await bed.leader()).cluster.stream(TOPIC, 0)
        assert stream is not None
        region.group_id = stream.group_id
        await region.publish("before", 80)
        await region.until(region.is_whole)
        yield region
    finally:
        await region.stop_all()


@pytest.mark.parametrize("leads", [pytest.param(False, marks=pytest.mark.slow), True], ids=["follower", "leader"])
async def test_a_log_damaged_beyond_repair_is_made_anew_by_the_region_itself(
    region_bed: RegionBed, leads: bool
) -> None:
    async with lossy_region(region_bed) as region:
        wounded = await region.number_of(leads=leads)
        await region.stop(wounded)
        region.damage(wounded)
        await region.publish("meanwhile", 40)
        with capture_logs() as events:
            await region.start(wounded)
            await region.publish("after", 40)
            await region.until(lambda: "replica.given_up" in {str(event["event"]) for event in events})
            await region.until(region.is_whole)
        names = [str(event["event"]) for event in events]
        assert names.count("group.refused") == names.count("replica.given_up") == 1
        assert region.assignment(wounded).joins_after(region_bed.brokers[wounded].config.broker_id) > 0
        await region.publish("whole", 10)
        await region.until(region.is_whole)
        await region.assert_nothing_lost()
        assert [path.name for path in (region.directory(wounded) / "damaged").iterdir()] == [str(region.group_id)]


@pytest.mark.parametrize("leads", [pytest.param(False, marks=pytest.mark.slow), True], ids=["follower", "leader"])
async def test_a_replica_that_stopped_in_a_running_broker_is_made_anew_by_the_region_itself(
    region_bed: RegionBed, leads: bool
) -> None:
    async with lossy_region(region_bed) as region:
        wounded = await region.number_of(leads=leads)
        host = region_bed.brokers[wounded].core.host
        with capture_logs() as events:
            host.stop_group(host.groups[region.group_id], "an invariant broke")
            await region.until(lambda: "replica.given_up" in {str(event["event"]) for event in events})
            await region.publish("after", 40)
            await region.until(region.is_whole)
        await region.assert_nothing_lost()
