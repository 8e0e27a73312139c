"""The SDK's producer against a broker's native API: batches, order, outcomes, retries, memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import georelay
from georelay import NewRecord, publish_stream
from georelay.errors import (
    BadRequest,
    NotLeader,
    OutcomeUnknown,
    OutOfOrderSequence,
    PolicyViolation,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnknownTopic,
)
from georelay.wire.batch import iterate_records, parse_header
from georelay.wire.compression import Compression
from region.controller.topic import Homes

pytestmark = pytest.mark.timeout(40)


def values(cluster: Any, partition: int = 0) -> list[bytes | None]:
    """Return every stored value of a partition of "orders", in order."""
    stream = cluster.stream("orders", partition)
    return [record.value for entry in stream.entries for record in iterate_records(entry.payload)]


async def test_a_record_is_stored_and_its_place_is_told(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders", 3)
    async with georelay.connect(broker.address) as mesh, mesh.producer() as producer:
        assert mesh.region == "us"
        stored = await producer.publish("orders", b"v", key=b"k", headers=[("h", b"1")], timestamp_ms=5)
    assert (stored.topic, stored.offset, stored.epoch, stored.regions) == ("orders", 0, 1, ("us",))
    (entry,) = cluster.stream("orders", stored.partition).entries
    (record,) = iterate_records(entry.payload)
    assert (record.key, record.value, record.headers, record.timestamp_ms) == (b"k", b"v", (("h", b"1"),), 5)


async def test_records_keep_their_order_and_travel_together(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    async with georelay.connect(broker.address) as mesh, mesh.producer() as producer:
        futures = [await producer.send("orders", b"%d" % number) for number in range(500)]
        await producer.flush()
    assert values(cluster) == [b"%d" % number for number in range(500)]
    assert [future.result().offset for future in futures] == list(range(500))
    assert len(cluster.stream("orders", 0).entries) < 20


async def test_a_key_goes_where_kafka_clients_send_it_and_a_partition_can_be_named(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders", 7)
    async with georelay.connect(broker.address) as mesh, mesh.producer() as producer:
        by_key = {(await producer.publish("orders", b"v", key=b"customer")).partition for _ in range(3)}
        assert len(by_key) == 1
        assert (await producer.publish("orders", b"v", partition=5)).partition == 5
        with pytest.raises(UnknownTopic, match=r"0\.\.6, not 7"):
            await producer.send("orders", b"v", partition=7)


async def test_records_without_a_key_reach_every_partition(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders", 3)
    async with georelay.connect(broker.address) as mesh, mesh.producer() as producer:
        for _ in range(60):
            await producer.send("orders", bytes(1_000))
    assert all(values(cluster, partition) for partition in range(3))


async def test_a_resend_after_an_unknown_outcome_stores_once_and_keeps_the_order(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.auto_commit = False
    async with georelay.connect(broker.address) as mesh, mesh.producer() as producer:
        first = await producer.send("orders", b"1")
        while not stream.entries:
            await asyncio.sleep(0.001)
        second = await producer.send("orders", b"2")
        stream.auto_commit = True
        stream.fail_pending(OutcomeUnknown("the leader changed"))
        assert ((await first).offset, (await second).offset) == (0, 1)
        assert producer.counters.batches_failed == 1
    assert values(cluster) == [b"1", b"2"]


async def test_leader_changes_are_ridden_out_in_order(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    cluster.publish_errors += [NotLeader(), Unavailable("no leader"), NotLeader()]
    async with georelay.connect(broker.address) as mesh, mesh.producer() as producer:
        futures = [await producer.send("orders", b"%d" % number) for number in range(3)]
        assert [(await future).offset for future in futures] == [0, 1, 2]
    assert values(cluster) == [b"0", b"1", b"2"]


async def test_a_stream_that_forgot_the_producer_is_given_another_id_and_nothing_is_lost(
    broker: Any, cluster: Any
) -> None:
    cluster.add_topic("orders")
    async with georelay.connect(broker.address) as mesh, mesh.producer() as producer:
        await producer.publish("orders", b"1")
        cluster.publish_errors.append(OutOfOrderSequence("unknown producer"))
        await producer.publish("orders", b"2")
    assert values(cluster) == [b"1", b"2"]
    ids = [parse_header(entry.payload).producer_id for entry in cluster.stream("orders", 0).entries]
    assert len(set(ids)) == 2


async def test_a_refusal_reaches_the_record_and_later_records_go_on(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    cluster.publish_errors.append(PolicyViolation("not here"))
    async with georelay.connect(broker.address) as mesh, mesh.producer() as producer:
        with pytest.raises(PolicyViolation, match="not here"):
            await producer.publish("orders", b"1")
        assert (await producer.publish("orders", b"2")).offset == 0
        assert producer.counters.records_failed == 1


async def test_a_geo_level_that_brokers_do_not_give_is_refused_never_lowered(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    cluster.publish_errors.append(PolicyViolation("geo:5: the topic is in 3 regions"))
    async with (
        georelay.connect(broker.address) as mesh,
        mesh.producer(durability=georelay.Durability.geo(5)) as producer,
    ):
        with pytest.raises(PolicyViolation, match="geo:5"):
            await producer.publish("orders", b"1")
    assert values(cluster) == []
    with pytest.raises(BadRequest):
        georelay.Durability.geo(1)


async def test_a_record_that_reached_its_level_names_the_regions(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    durability = georelay.Durability.MAJORITY
    async with (
        georelay.connect(broker.address) as mesh,
        mesh.producer(durability=durability, deadline_s=0.7) as producer,
    ):
        stored = await producer.publish("orders", b"1")
    assert (stored.offset, len(stored.regions), stored.durability.regions) == (0, 3, 3)
    assert [(level.durability, level.deadline_ms) for level in cluster.levels] == [(durability, 700)]


async def test_a_record_that_is_pending_is_no_success_is_not_sent_again_and_can_be_resolved(
    broker: Any, cluster: Any
) -> None:
    cluster.add_topic("orders")
    cluster.regions_reached = 1
    durability = georelay.Durability.geo(2)
    async with georelay.connect(broker.address) as mesh, mesh.producer(durability=durability) as producer:
        first, second = [await producer.send("orders", value) for value in (b"1", b"2")]
        for offset, future in enumerate((first, second)):
            with pytest.raises(georelay.DurabilityPending) as pending:
                await future
            assert (pending.value.topic, pending.value.partition) == ("orders", 0)
            assert (pending.value.epoch, pending.value.offset) == (1, offset)
            assert pending.value.outcome is georelay.Outcome.PENDING
        assert values(cluster) == [b"1", b"2"]
        asked: dict[str, Any] = {"epoch": 1, "offset": 0, "durability": durability}
        assert not (await mesh.resolve("orders", 0, **asked)).is_reached
        cluster.regions_reached = 2
        resolved = await mesh.resolve("orders", 0, **asked)
        assert (resolved.is_reached, resolved.durability, resolved.is_lost) == (True, durability, False)
        assert (await mesh.resolve("orders", 0, epoch=9, offset=0, durability=durability)).is_lost


@pytest.mark.parametrize("text", ["region", "geo:2", "geo:64", "geo:majority", "geo:all"])
def test_a_durability_is_written_as_it_is_read(text: str) -> None:
    assert str(georelay.Durability.parse(text)) == text


@pytest.mark.parametrize("text", ["", "geo", "geo:1", "geo:65", "geo:-1", "GEO:2", "geo: 2", "all"])
def test_a_durability_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        georelay.Durability.parse(text)


def test_majority_and_all_are_counted_where_the_regions_are_known() -> None:
    majority, everywhere = georelay.Durability.MAJORITY, georelay.Durability.ALL
    assert [majority.regions_of(count) for count in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]
    assert [everywhere.regions_of(count) for count in (1, 2, 3)] == [1, 2, 3]
    assert georelay.Durability.geo(3).regions_of(2) == 3  # more than there are: refused, never cut


async def test_a_broker_that_restarts_is_found_again_and_nothing_is_stored_twice(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    async with georelay.connect(broker.address) as mesh, mesh.producer() as producer:
        await producer.publish("orders", b"1")
        stream.auto_commit = False
        waiting = await producer.send("orders", b"2")  # appended, and the answer is lost with the broker
        while len(stream.entries) < 2:
            await asyncio.sleep(0.001)
        await broker.stop()
        stream.auto_commit = True
        stream.commit()
        later = await producer.send("orders", b"3")
        await broker.start()
        assert ((await waiting).offset, (await later).offset) == (1, 2)
    assert values(cluster) == [b"1", b"2", b"3"]


async def test_a_broker_that_does_not_answer_is_given_up(
    broker: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_stream, "PATIENCE_S", 0.0)
    monkeypatch.setattr(publish_stream, "WATCH_S", 0.02)
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.auto_commit = False
    async with georelay.connect(broker.address) as mesh, mesh.producer(request_timeout_s=0.1) as producer:
        future = await producer.send("orders", b"1")
        while producer.counters.batches_failed == 0:
            await asyncio.sleep(0.01)
        stream.auto_commit = True
        stream.commit()
        assert (await future).offset == 0
    assert values(cluster) == [b"1"]


async def test_what_may_be_stored_in_one_region_is_never_sent_to_the_stream_of_another(
    broker: Any, cluster: Any
) -> None:
    cluster.add_topic("clicks", homes=Homes.EVERY)
    stream = cluster.stream("clicks", 0)
    stream.auto_commit = False
    async with georelay.connect(broker.address) as mesh, mesh.producer() as producer:
        waiting = await producer.send("clicks", b"1")
        while not stream.entries:
            await asyncio.sleep(0.001)
        await broker.stop()  # the answer is lost, and what comes back is another region
        cluster.region = "eu"
        stream.auto_commit = True
        await broker.start()
        with pytest.raises(OutcomeUnknown, match="another stream"):
            await waiting
        assert (await producer.publish("clicks", b"2")).offset == 1
    assert len(stream.entries) == 2


async def test_send_waits_while_the_buffer_is_full(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.auto_commit = False
    async with georelay.connect(broker.address) as mesh, mesh.producer(buffer_bytes=3_000) as producer:
        await producer.send("orders", bytes(2_500))
        sending = asyncio.ensure_future(producer.send("orders", bytes(2_500)))
        done, _ = await asyncio.wait((sending,), timeout=0.1)
        assert not done
        stream.auto_commit = True
        stream.commit()
        await (await sending)
    assert len(values(cluster)) == 2


async def test_what_cannot_be_sent_is_refused_at_once(broker: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    async with georelay.connect(broker.address) as mesh, mesh.producer() as producer:
        with pytest.raises(TooLarge):
            await producer.send("orders", bytes(9 << 20))
        with pytest.raises(TooLarge, match="do not fit a batch"):
            await producer.send_many("orders", [NewRecord(bytes(200_000)), NewRecord(bytes(200_000))])
        with pytest.raises(BadRequest):
            await producer.send_many("orders", [])
        with pytest.raises(BadRequest, match="transactional_id"):
            producer.transaction()
    with pytest.raises(BadRequest, match="closed"):
        await producer.send("orders", b"late")


@pytest.mark.parametrize("codec", list(Compression))
async def test_batches_of_every_codec_arrive(broker: Any, cluster: Any, codec: Compression) -> None:
    cluster.add_topic("orders")
    async with georelay.connect(broker.address) as mesh, mesh.producer(compression=codec) as producer:
        await producer.send_many("orders", [NewRecord(b"x" * 1_000) for _ in range(10)])
    (entry,) = cluster.stream("orders", 0).entries
    assert parse_header(entry.payload).compression is codec
    assert values(cluster) == [b"x" * 1_000] * 10


async def test_a_topic_that_does_not_exist_is_created_or_refused(broker: Any, cluster: Any) -> None:
    async with georelay.connect(broker.address) as mesh, mesh.producer() as producer:
        assert (await producer.publish("fresh", b"v")).offset == 0
        cluster.auto_create_topics = False
        with pytest.raises(UnknownTopic):
            await producer.send("other", b"v")


async def test_credentials_are_sent_and_wrong_ones_are_an_error(broker: Any, cluster: Any, credentials: Any) -> None:
    cluster.add_topic("orders")
    credentials.users["ann"] = "secret"
    async with georelay.connect(broker.address, user=("ann", "secret")) as mesh, mesh.producer() as producer:
        await producer.publish("orders", b"1")
    with pytest.raises(Unauthenticated):
        await georelay.connect(broker.address, user=("ann", "wrong")).__aenter__()


async def test_a_mesh_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = georelay.connect("127.0.0.1:1")
    with pytest.raises(Unavailable):
        await mesh._region.locate(timeout_s=0.5)
    await mesh.close()
