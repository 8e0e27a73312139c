"""Streams of three regions over real links while their home moves: planned, forced, and back again."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.errors import BadRequest, GeorelayError, NotHome, NotLeader
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from georelay.wire.batch import RecordDraft, build_batch
from mesh.listening.addresses_core import Source
from mesh.replication.mesh_links import MeshLinks
from mesh.replication.ports import Answer, Published
from mesh.replication.publish import Publish
from mesh.replication.settings import BrokerAddress, LinkSettings, MeshIdentity
from tests.conditions import until

_BENCHES = Path(__file__).parents[1] / "topics" / "conftest.py"


def benches() -> Any:
    spec = importlib.util.spec_from_file_location("topics_benches_broker", _BENCHES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Region:
    """One region with one broker: a stream that commits on the next turn of the loop, and links to the others."""

    def __init__(self, number: int, path: Path, executor: ThreadPoolExecutor) -> None:
        self.number = RegionNumber(number)
        self.bench = benches().MovingBench(path, executor, region=number, home=1)
        self.bench.clock = SystemClock()
        self.links: Any = None
        self.port = 0
        self.is_up = True
        self.bench.stream.on_leadership = self._roles
        propose = self.bench.log.propose

        def propose_and_commit(drafts: Any) -> Any:
            entries = propose(drafts)
            asyncio.get_running_loop().call_soon(self._commit)
            return entries

        self.bench.log.propose = propose_and_commit

    @property
    def stream(self) -> Any:
        return self.bench.stream

    def _commit(self) -> None:
        if self.is_up:
            self.bench.store()

    def _roles(self, stream: Any) -> None:
        if stream.is_leader and stream.is_mirroring:
            self.links.mirror_started(stream)
        else:
            self.links.mirror_stopped(stream.key)

    async def start(self, others: list[Region]) -> None:
        brokers: dict[RegionNumber, list[BrokerAddress]] = {}
        self.links = MeshLinks(
            identity=MeshIdentity(
                mesh_id="m",
                region=f"r{self.number}",
                region_number=self.number,
                broker_id=BrokerId(self.number * 1000 + 1),
            ),
            brokers=brokers,
            directory=self,
            publisher=self,
            requests=self,
            clock=SystemClock(),
            settings=LinkSettings(keepalive_ms=100, dead_after_ms=600, redial_ms=50),
        )
        self.port = await self.links.start("127.0.0.1:0")
        for other in others:
            for one, two in ((self, other), (other, self)):
                address = BrokerAddress(broker_id=BrokerId(two.number * 1000 + 1), address=f"127.0.0.1:{two.port}")
                one.links.know_brokers(two.number, [address], Source.CONFIGURATION)

    def lead(self) -> None:
        self.bench.log.lead()
        self.bench.store()

    def committed_log(self, key: StreamKey) -> Any:
        return self.stream if self.stream.is_home or self.stream.was_home else None

    def leader_of(self, key: StreamKey) -> int:
        return int(self.number) * 1000 + 1

    def publish_forwarded(
        self, key: StreamKey, batch: bytes, *, received_ns: int, entry_region: int, **_: Any
    ) -> asyncio.Future[Published]:
        stored: asyncio.Future[Published] = self.stream.publish(
            Publish.built(batch, received_ns=received_ns, entry_region=entry_region)
        )
        return stored

    async def handle(self, method: str, body: Any, *, from_broker: BrokerId) -> Answer:
        raise BadRequest(method)

    async def records(self) -> list[bytes]:
        held: list[bytes] = await self.bench.records()
        return held

    async def stop(self) -> None:
        self.is_up = False
        await self.links.stop()
        self.bench.close()


class Mesh:
    """Three regions; control is the test."""

    def __init__(self, regions: list[Region]) -> None:
        self.regions = regions
        self.row: Any = None

    def __getitem__(self, number: int) -> Region:
        return self.regions[number - 1]

    def move(self, home: int, epoch: int, start: int, *, digest: bytes, tell: tuple[int, ...] = (1, 2, 3)) -> None:
        self.row = self[1].bench.row(home, epoch, start, digest=digest, before=self.row)
        for number in tell:
            self[number].stream.follow_home(self.row)

    def tell(self, number: int) -> None:
        self[number].stream.follow_home(self.row)

    async def publish(self, number: int, *values: bytes, home: int | None = None) -> None:
        """Publish at a region that forwards to `home`, one record after the other."""
        for value in values:
            raw = build_batch([RecordDraft(value)], timestamps_ms=1)
            async with asyncio.timeout(5):
                await self[number].links.forward(
                    self[number].stream.key,
                    Publish.built(raw, received_ns=1, entry_region=number, lane="lane"),
                    region=RegionNumber(home or self[number].stream.home),
                )

    async def equal(self, *values: bytes, within: tuple[int, ...] = (1, 2, 3)) -> None:
        async with asyncio.timeout(5):
            while any([await self[number].records() != list(values) for number in within]):
                await asyncio.sleep(0.01)
        ends = {self[number].stream.applied_end.digest for number in within}
        assert len(ends) == 1


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    executor = ThreadPoolExecutor(1)
    regions = [Region(number, tmp_path, executor) for number in (1, 2, 3)]
    for place, region in enumerate(regions):
        await region.start(regions[:place])
    for region in regions:
        region.lead()
    yield Mesh(regions)
    for region in regions:
        await region.stop()
    executor.shutdown()


async def test_a_planned_move_loses_nothing_and_every_region_follows(mesh: Mesh) -> None:
    await mesh.publish(3, b"0", b"1", home=1)
    end = await mesh[1].stream.seal(epoch=Epoch(1), new_epoch=Epoch(2), move_id="m")
    mesh.move(2, 2, end.offset, digest=end.digest)
    await mesh.publish(3, b"2")
    await mesh.publish(1, b"3")
    await mesh.equal(b"0", b"1", b"2", b"3")
    assert [region.stream.epoch for region in mesh.regions] == [2, 2, 2]
    assert not any(region.stream.orphans() for region in mesh.regions)


async def test_the_new_home_fetches_the_end_of_the_sealed_epoch_from_the_old_one(mesh: Mesh) -> None:
    await mesh.publish(3, b"0", home=1)
    await mesh.equal(b"0")
    mesh[2].links.mirror_stopped(mesh[2].stream.key)  # it falls behind
    await mesh.publish(3, b"1", b"2", home=1)
    end = await mesh[1].stream.seal(epoch=Epoch(1), new_epoch=Epoch(2), move_id="m")
    assert mesh[2].stream.next_offset == 1
    mesh.move(2, 2, end.offset, digest=end.digest)
    with pytest.raises(NotLeader):
        mesh[2].bench.publish()
    await mesh.publish(3, b"3")
    await mesh.equal(b"0", b"1", b"2", b"3")


async def test_a_publisher_with_a_stale_view_reaches_the_new_home_by_the_old_ones_answer(mesh: Mesh) -> None:
    await mesh.publish(3, b"0", home=1)
    end = await mesh[1].stream.seal(epoch=Epoch(1), new_epoch=Epoch(2), move_id="m")
    mesh.move(2, 2, end.offset, digest=end.digest, tell=(1, 2))
    await mesh.publish(3, b"1", b"2", home=1)
    mesh.tell(3)
    await mesh.equal(b"0", b"1", b"2")


async def test_a_forced_move_keeps_what_was_agreed_and_the_old_home_comes_back_without_a_rebuild(mesh: Mesh) -> None:
    await mesh.publish(3, b"0", b"1", home=1)
    await mesh.equal(b"0", b"1")
    for number in (2, 3):
        mesh[number].links.mirror_stopped(mesh[number].stream.key)  # the home is cut off
    await mesh.publish(2, b"lost 2", b"lost 3", home=1)  # acknowledged by the home alone
    table = ((Epoch(1), Offset(0)),)
    ends = [await mesh[number].stream.promise(new_epoch=Epoch(2), table=table) for number in (2, 3)]
    assert [end.offset for end in ends] == [2, 2]
    mesh.move(3, 2, 2, digest=ends[1].digest, tell=(2, 3))
    await mesh.publish(2, b"2", b"3", b"4")
    await mesh.equal(b"0", b"1", b"2", b"3", b"4", within=(2, 3))
    mesh.tell(1)  # it returns
    await mesh.equal(b"0", b"1", b"2", b"3", b"4")
    (branch,) = mesh[1].stream.orphans()
    entries = await mesh[1].stream.read_orphans(branch, branch.first, 1 << 20)
    assert [entry.base_offset for entry in entries] == [2, 3]
    # And it becomes home again.
    end = await mesh[3].stream.seal(epoch=Epoch(2), new_epoch=Epoch(3), move_id="back")
    mesh.move(1, 3, end.offset, digest=end.digest)
    await mesh.publish(2, b"5")
    await mesh.equal(b"0", b"1", b"2", b"3", b"4", b"5")
    assert mesh[1].stream.epoch_table() == [(1, 0), (2, 2), (3, 5)]


async def test_a_mirror_that_promised_takes_nothing_of_the_old_home_and_catches_up_at_the_new_one(mesh: Mesh) -> None:
    await mesh.publish(3, b"0", home=1)
    await mesh.equal(b"0")
    mesh[2].links.mirror_stopped(mesh[2].stream.key)
    await mesh.publish(3, b"1", home=1)
    await mesh.equal(b"0", b"1", within=(1, 3))
    table = ((Epoch(1), Offset(0)),)
    ends = [await mesh[number].stream.promise(new_epoch=Epoch(2), table=table) for number in (2, 3)]
    assert [end.offset for end in ends] == [1, 2]
    mesh[2].stream.on_leadership(mesh[2].stream)  # it asks the old home again, which does not know better
    mesh[1].bench.publish(b"lost")
    await asyncio.sleep(0.3)
    assert (mesh[2].stream.next_offset, mesh[3].stream.next_offset) == (1, 2)
    mesh.move(3, 2, 2, digest=ends[1].digest)
    await mesh.publish(2, b"2")
    await mesh.equal(b"0", b"1", b"2")
    assert [branch.records for branch in mesh[1].stream.orphans()] == [1]


async def test_an_old_home_that_does_not_know_yet_refuses_once_it_does(mesh: Mesh) -> None:
    await mesh.publish(3, b"0", home=1)
    await mesh.equal(b"0")
    end = await mesh[2].stream.promise(new_epoch=Epoch(2), table=((Epoch(1), Offset(0)),))
    mesh.move(2, 2, 1, digest=end.digest, tell=(2, 3))
    mesh[1].bench.publish(b"lost")
    await until(lambda: mesh[1].stream.high_watermark == 2)
    mesh.tell(1)
    with pytest.raises(NotHome) as refused:
        mesh[1].bench.publish()
    assert refused.value.home == 2
    await until(lambda: mesh[1].stream.epoch == 2)
    assert isinstance(refused.value, GeorelayError)
    await mesh.equal(b"0")
