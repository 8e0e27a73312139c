"""The SDK's consumer by positions, against a broker's native API: order, seeks, losses, divergence, memory."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import georelay
import georelay.consumer as consumer_module
from georelay import Place, Position, PositionLost, Since, Start, consumed
from georelay.errors import BadRequest, CorruptRecordBatch, UnknownTopic
from region.controller.topic import Homes

pytestmark = pytest.mark.timeout(40)


async def take(consumer: Any, count: int) -> list[bytes]:
    return [(await anext(consumer)).value for _ in range(count)]


async def test_records_come_in_order_with_everything_they_have(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    async with georelay.connect(broker.address) as mesh, mesh.producer() as producer:
        for number in range(3):
            await producer.publish("orders", b"%d" % number, key=b"k", headers=[("h", None)], timestamp_ms=number)
        async with mesh.consumer(["orders"], start=Start.EARLIEST) as consumer:
            records = [await anext(consumer) for _ in range(3)]
    assert [(record.offset, record.value, record.timestamp_ms) for record in records] == [
        (0, b"0", 0),
        (1, b"1", 1),
        (2, b"2", 2),
    ]
    assert (records[0].place, records[0].key, records[0].epoch) == (Place("orders", 0), b"k", 1)
    assert records[0].headers == (("h", None),)


async def test_latest_begins_at_the_end_and_since_at_a_time(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.add(b"old")
    stream.now_us += 1_000_000
    async with georelay.connect(broker.address) as mesh:
        async with mesh.consumer(["orders"]) as consumer:
            assert await consumer.until_assigned() == [Place("orders", 0)]
            stream.add(b"new")
            assert await take(consumer, 1) == [b"new"]
        async with mesh.consumer(["orders"], start=Since(stream.now_us)) as consumer:
            assert await take(consumer, 1) == [b"new"]


async def test_a_position_is_after_what_was_done_and_reading_goes_on_there(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    cluster.stream("orders", 0).add(b"a", b"b", b"c")
    async with georelay.connect(broker.address) as mesh:
        async with mesh.consumer(["orders"], start=Start.EARLIEST) as consumer:
            assert await take(consumer, 2) == [b"a", b"b"]
            position = consumer.positions()[Place("orders", 0)]
            assert position == Position(1, 1)  # b is in our hands
        async with mesh.consumer(positions={("orders", 0): position}) as consumer:
            assert await take(consumer, 2) == [b"b", b"c"]


async def test_reading_goes_on_after_the_broker_was_gone(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.add(b"a")
    async with (
        georelay.connect(broker.address) as mesh,
        mesh.consumer(["orders"], start=Start.EARLIEST) as consumer,
    ):
        assert await take(consumer, 1) == [b"a"]
        await broker.stop()
        stream.add(b"b")
        await broker.start()
        assert await take(consumer, 1) == [b"b"]


async def test_a_diverged_position_is_an_error_and_a_seek_goes_on(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.add(b"a", b"b", b"c")
    stream.epoch_ends = {4: (3, 1)}
    async with (
        georelay.connect(broker.address) as mesh,
        mesh.consumer(positions={("orders", 0): Position(2, epoch=4)}) as consumer,
    ):
        with pytest.raises(PositionLost) as caught:
            await anext(consumer)
        lost = caught.value
        assert (lost.diverged, lost.offset, lost.epoch) == (True, 1, 3)
        await consumer.seek({lost.place: Position(lost.offset)})
        assert await take(consumer, 2) == [b"b", b"c"]


async def test_a_position_below_the_log_start_is_an_error_never_a_reset(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.add(b"a", b"b")
    stream.log_start = 1
    async with (
        georelay.connect(broker.address) as mesh,
        mesh.consumer(positions={("orders", 0): Position(0)}) as consumer,
    ):
        with pytest.raises(PositionLost) as caught:
            await anext(consumer)
        assert (caught.value.diverged, caught.value.log_start) == (False, 1)
        await consumer.seek({("orders", 0): Start.EARLIEST})
        assert await take(consumer, 1) == [b"b"]


async def test_a_seek_drops_what_was_on_its_way(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    cluster.stream("orders", 0).add(*(b"%d" % number for number in range(100)))
    async with (
        georelay.connect(broker.address) as mesh,
        mesh.consumer(["orders"], start=Start.EARLIEST) as consumer,
    ):
        assert await take(consumer, 2) == [b"0", b"1"]
        await consumer.seek({("orders", 0): Position(50)})
        assert await take(consumer, 2) == [b"50", b"51"]
        await consumer.seek({("orders", 0): Position(7)})
        await consumer.seek({("orders", 0): Position(90)})
        assert await take(consumer, 1) == [b"90"]


async def test_a_paused_partition_gives_nothing_and_loses_nothing(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders", 2)
    async with (
        georelay.connect(broker.address) as mesh,
        mesh.consumer(["orders"], start=Start.EARLIEST) as consumer,
    ):
        await consumer.until_assigned()
        cluster.stream("orders", 0).add(b"first")
        assert await take(consumer, 1) == [b"first"]
        await consumer.pause([("orders", 0)])
        cluster.stream("orders", 0).add(b"second")
        cluster.stream("orders", 1).add(b"other")
        assert await take(consumer, 1) == [b"other"]
        assert await consumer.get_many(timeout_s=0.1) == []
        await consumer.resume([("orders", 0)])
        assert await take(consumer, 1) == [b"second"]


async def test_a_topic_of_every_region_is_read_from_all_its_streams(broker: Any, cluster: Any) -> None:
    cluster.add_topic("clicks", homes=Homes.EVERY)
    for region in ("us", "eu"):
        cluster.add_topic(f"{region}.clicks", homes=Homes.EVERY, mirror_of="clicks")
        cluster.stream(f"{region}.clicks", 0).add(region.encode())
    async with (
        georelay.connect(broker.address) as mesh,
        mesh.consumer(["clicks"], start=Start.EARLIEST) as consumer,
    ):
        records = [await anext(consumer) for _ in range(2)]
    assert {(record.stream, record.value) for record in records} == {("us.clicks", b"us"), ("eu.clicks", b"eu")}


async def test_a_batch_with_a_wrong_checksum_is_never_handed_out(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.add(b"intact")
    payload = bytearray(stream.entries[0].payload)
    payload[-3] ^= 0xFF

    class Damaged:
        """The entry as a disk gave it back."""

        def __init__(self, entry: Any) -> None:
            self.payload = memoryview(payload)
            self.base_offset, self.record_count, self.header = entry.base_offset, entry.record_count, entry.header
            self.next_offset = entry.next_offset

    stream.entries[0] = Damaged(stream.entries[0])
    async with (
        georelay.connect(broker.address) as mesh,
        mesh.consumer(["orders"], start=Start.EARLIEST) as consumer,
    ):
        with pytest.raises(CorruptRecordBatch, match="checksum"):
            await anext(consumer)


async def test_many_records_arrive_at_once_and_their_end_is_done_with_the_next_call(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    cluster.stream("orders", 0).add(*(b"%d" % number for number in range(10)))
    async with (
        georelay.connect(broker.address) as mesh,
        mesh.consumer(["orders"], start=Start.EARLIEST) as consumer,
    ):
        assert [record.offset for record in await consumer.get_many(max_records=4)] == [0, 1, 2, 3]
        assert consumer.lag() == {Place("orders", 0): 6}
        assert len(await consumer.get_many()) == 6
        assert consumer.positions()[Place("orders", 0)] == Position(4, 1)
        assert await consumer.get_many(timeout_s=0.05) == []
        assert consumer.positions()[Place("orders", 0)] == Position(10, 1)


async def test_more_than_the_buffer_flows_through_it(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    for number in range(40):
        cluster.stream("orders", 0).add(b"%d" % number * 20_000)
    async with (
        georelay.connect(broker.address) as mesh,
        mesh.consumer(["orders"], start=Start.EARLIEST, buffer_bytes=64 << 10) as consumer,
    ):
        assert [(await anext(consumer)).offset for _ in range(40)] == list(range(40))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"topics": ["a"], "group": "g", "start": Since(1)},
        {"group": "g", "positions": {("a", 0): Position(0)}},
    ],
)
async def test_settings_that_do_not_fit_are_refused(broker: Any, settings: dict[str, Any]) -> None:
    async with georelay.connect(broker.address) as mesh:
        with pytest.raises(BadRequest):
            mesh.consumer(**settings)


async def test_a_topic_that_does_not_exist_ends_the_consumer_with_its_error(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("georelay.consumer.UNKNOWN_TOPIC_S", 0.0)
    async with georelay.connect(broker.address) as mesh:
        async with mesh.consumer(["nowhere"]) as consumer:
            with pytest.raises(UnknownTopic):
                await anext(consumer)
        async with mesh.consumer(["nowhere"]) as consumer:
            with pytest.raises(BadRequest, match="in no group"):
                await consumer.commit()


async def test_administration_has_topics_and_offsets(broker: Any, cluster: Any) -> None:
    async with georelay.connect(broker.address) as mesh:
        assert (await mesh.admin.create_topic("orders", partitions=2)).partitions == 2
        assert [topic.name for topic in await mesh.admin.list_topics()] == ["orders"]
        cluster.stream("orders", 1).add(b"a")
        found = await mesh.admin.offsets([("orders", 0), ("orders", 1)])
        assert [found[Place("orders", number)].high_watermark for number in (0, 1)] == [0, 1]
        assert (await mesh.admin.describe_topic("orders")).details[1].high_watermark == 1
        await mesh.admin.delete_topic("orders")
        with pytest.raises(UnknownTopic):
            await mesh.admin.describe_topic("orders")


async def test_closing_ends_every_task(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    before = len(asyncio.all_tasks())
    async with georelay.connect(broker.address) as mesh, mesh.consumer(["orders"]) as consumer:
        await consumer.until_assigned()
    async with asyncio.timeout(5):
        while len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0.01)


def unfold_slowly(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let records be unfolded in a thread, as those of large deliveries are, and only once the event is set."""
    go_on, unfold = threading.Event(), consumed.unfold

    def held(delivery: Any, first: int) -> Any:
        assert go_on.wait(20)
        return unfold(delivery, first)

    monkeypatch.setattr(consumer_module, "DECODE_ON_LOOP_BYTES", 0)
    monkeypatch.setattr(consumer_module, "unfold", held)
    return go_on


async def test_what_is_being_unfolded_when_the_time_is_over_is_not_lost(
    broker: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = unfold_slowly(monkeypatch)
    cluster.add_topic("orders")
    cluster.stream("orders", 0).add(b"a", b"b")
    async with (
        georelay.connect(broker.address) as mesh,
        mesh.consumer(["orders"], start=Start.EARLIEST) as consumer,
    ):
        await consumer.until_assigned()
        asyncio.get_running_loop().call_later(0.2, go_on.set)
        found: list[bytes | None] = []
        async with asyncio.timeout(10):
            while len(found) < 2:
                found += [record.value for record in await consumer.get_many(timeout_s=0.05)]
    assert found == [b"a", b"b"]


async def test_what_is_being_unfolded_when_the_application_gives_up_waiting_is_not_lost(
    broker: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = unfold_slowly(monkeypatch)
    cluster.add_topic("orders")
    cluster.stream("orders", 0).add(b"a", b"b")
    async with (
        georelay.connect(broker.address) as mesh,
        mesh.consumer(["orders"], start=Start.EARLIEST) as consumer,
    ):
        await consumer.until_assigned()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(consumer), 0.2)
        go_on.set()
        async with asyncio.timeout(10):
            assert await take(consumer, 2) == [b"a", b"b"]
