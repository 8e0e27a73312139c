"""The host drives real groups over real sockets and disks."""

from __future__ import annotations

import asyncio
from typing import Any

from georelay.ids import GroupId, Offset
from georelay.wire.batch import RecordDraft, build_batch
from mesh.replication.publish import Publish
from tests.conditions import until

GROUP = GroupId(1)


def leader(brokers: list[Any], group: GroupId = GROUP) -> Any:
    return next((broker for broker in brokers if broker.streams[group].is_leader), None)


def batch(value: bytes, count: int = 1) -> bytearray:
    return bytearray(build_batch([RecordDraft(value)] * count, timestamps_ms=1))


async def publish(broker: Any, value: bytes, group: GroupId = GROUP) -> int:
    raw = batch(value)
    published = await broker.streams[group].publish(Publish.built(raw, received_ns=1, entry_region=1))
    return int(published.base_offset)


async def test_a_single_broker_elects_itself_and_commits(start_region: Any) -> None:
    brokers = await start_region(1, 1)
    await until(lambda: leader(brokers))
    assert [await publish(brokers[0], b"a"), await publish(brokers[0], b"b")] == [0, 1]


async def test_three_brokers_agree_on_one_leader_and_hold_the_same_bytes(start_region: Any) -> None:
    brokers = await start_region(3, 1)
    first = await until(lambda: leader(brokers))
    offsets = [await publish(first, b"%d" % row) for row in range(50)]
    assert offsets == list(range(50))
    await until(lambda: all(broker.streams[GROUP].high_watermark == 50 for broker in brokers))
    payloads = [
        [bytes(entry.payload) for entry in broker.streams[GROUP].read(Offset(0), 1 << 20)] for broker in brokers
    ]
    assert payloads[0] == payloads[1] == payloads[2]
    assert len({broker.streams[GROUP].end.digest for broker in brokers}) == 1


async def test_every_group_of_many_gets_a_leader_that_stays(start_region: Any) -> None:
    brokers = await start_region(3, 20)
    groups = [GroupId(row + 1) for row in range(20)]
    await until(lambda: all(leader(brokers, group) for group in groups))
    terms = {group: brokers[0].host.groups[group].node.term for group in groups}
    await asyncio.sleep(0.5)  # five times the longest election timeout of this fixture
    assert {group: brokers[0].host.groups[group].node.term for group in groups} == terms


async def test_records_survive_the_loss_of_the_leader(start_region: Any) -> None:
    brokers = await start_region(3, 1)
    first = await until(lambda: leader(brokers))
    for row in range(10):
        await publish(first, b"%d" % row)
    brokers.remove(first)
    await first.stop()
    second = await until(lambda: leader(brokers))
    assert await publish(second, b"next") == 10


async def test_a_restarted_region_has_everything_it_acknowledged(start_region: Any) -> None:
    brokers = await start_region(3, 1)
    first = await until(lambda: leader(brokers))
    for row in range(10):
        await publish(first, b"%d" % row)
    for broker in brokers:
        await broker.stop()
    for broker in brokers:
        await broker.start([GROUP])
    again = await until(lambda: leader(brokers))
    assert again.streams[GROUP].high_watermark == 10
    entries = await again.streams[GROUP].read_cold(Offset(0), 1 << 20)
    assert [entry.base_offset for entry in entries] == list(range(10))
    assert await publish(again, b"more") == 10


async def test_a_lagging_broker_catches_up_from_disk_when_it_returns(start_region: Any) -> None:
    brokers = await start_region(3, 1)
    first = await until(lambda: leader(brokers))
    absent = next(broker for broker in brokers if broker is not first)
    await absent.stop()
    group = first.host.groups[GROUP]
    for row in range(30):
        await publish(first, b"%d" % row)
    group.node.log.evict(group.node.applied_index)  # only the disk has them now
    await absent.start([GROUP])
    await until(lambda: absent.streams[GROUP].high_watermark == 30)
