"""One broker with all its parts: topics come and go under load, and a failed disk ends every promise."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from georelay.errors import DiskFull, GeorelayError, Unavailable
from georelay.ids import BrokerId, GroupId, RegionNumber, StreamKey
from georelay.wire.batch import RecordDraft, build_batch
from mesh.replication.ports import Answer
from mesh.replication.publish import Publish
from region.app import Broker
from region.broker import housekeeping
from region.broker.mesh_port import MeshPort, RemoteStreamsOverLinks
from region.config import BrokerConfig
from region.controller.effects import GroupDropped
from region.controller.topic import Homes, TopicSpec
from region.controller.topology import RegionInfo
from region.log.errors import LogCorrupt


def publish(broker: Any, topic: str = "orders", value: bytes = b"v") -> asyncio.Future[Any]:
    raw = bytearray(build_batch([RecordDraft(value)], timestamps_ms=1))
    published = broker.cluster.publish(topic, 0, Publish.built(raw, received_ns=1, entry_region=1, lane="test"))
    assert isinstance(published, asyncio.Future)
    return published


async def create(broker: Any, until: Any, topic: str = "orders") -> Any:
    await broker.cluster.create_topic(TopicSpec(name=topic, homes=Homes.ONE, home="us"))
    return await until(lambda: (stream := broker.cluster.stream(topic, 0)) and stream.is_leader and stream)


async def test_a_topic_that_is_deleted_under_load_takes_nothing_else_with_it(broker: Any, until: Any) -> None:
    for round_number in range(3):
        stream = await create(broker, until)
        folder = broker.core.directory.group_path(stream.group_id)
        assert (await publish(broker)).base_offset == 0  # made again, it is another stream
        waiting = [publish(broker) for _ in range(20)]
        await broker.cluster.delete_topic("orders")
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(not isinstance(outcome, BaseException) or isinstance(outcome, GeorelayError) for outcome in outcomes)
        await until(lambda: not broker.core.groups.busy)
        assert not folder.exists(), round_number
    assert not broker.failed.done()


async def test_the_files_of_a_dropped_group_stay_until_its_last_write_has_ended(
    broker: Any, until: Any, disk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await create(broker, until)
    await publish(broker)
    folder = broker.core.directory.group_path(stream.group_id)
    disk.flowing.clear()
    waiting = publish(broker)
    broker.core.host._turn()
    monkeypatch.setattr(broker.core.groups, "_placement", lambda _: None)
    broker.core.groups.note(GroupDropped(group_id=stream.group_id, key=stream.key))
    broker.core.groups.settle()
    try:
        for _ in range(20):
            await asyncio.sleep(0)
        assert folder.exists()
        assert broker.core.groups.busy
    finally:
        disk.flowing.set()
    await until(lambda: not broker.core.groups.busy)
    assert not folder.exists()
    assert not broker.failed.done()
    with pytest.raises(GeorelayError):
        await waiting


async def test_after_a_failed_sync_nothing_is_acknowledged_and_the_broker_ends(
    broker: Any, until: Any, disk: Any
) -> None:
    await create(broker, until)
    await publish(broker)
    disk.fails = True
    lost = publish(broker)
    async with asyncio.timeout(10):
        reason = await broker.failed
    assert "Input/output error" in reason
    with pytest.raises(GeorelayError) as failed:
        async with asyncio.timeout(5):
            await lost
    assert failed.value.outcome.value == "unknown"
    disk.fails = False  # the disk seems to work again: it is not believed
    with pytest.raises(GeorelayError):
        async with asyncio.timeout(5):
            await publish(broker)
    assert not broker.cluster.stream("orders", 0).is_leader


async def test_a_damaged_replica_is_refused_and_the_rest_of_the_broker_serves(
    broker: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(group: int) -> None:
        raise LogCorrupt(broker.core.directory.group_path(group), 7, "flipped")

    with monkeypatch.context() as patched:
        patched.setattr(broker.core.directory, "open_group", damaged)
        await broker.cluster.create_topic(TopicSpec(name="damaged", homes=Homes.ONE, home="us"))
        await until(lambda: broker.core.groups.refused)
    assert broker.cluster.stream("damaged", 0) is None
    with pytest.raises(GeorelayError):
        publish(broker, "damaged")
    await create(broker, until)
    assert (await publish(broker)).base_offset == 0
    assert not broker.failed.done()


async def test_the_views_of_a_broker_agree(broker: Any, until: Any) -> None:
    stream = await create(broker, until)
    await publish(broker)
    cluster = broker.cluster
    assert (cluster.leader_of("orders", 0), cluster.replicas_of("orders", 0)) == (1001, (1001,))
    assert (cluster.epoch_of("orders", 0), cluster.epoch_of("orders", 1)) == (1, -1)
    assert (cluster.controller_id, [row.id for row in cluster.brokers()]) == (1001, [1001])
    (row,) = cluster.snapshot()
    assert (row.topic, row.origin, row.high_watermark, row.is_home) == ("orders", "us", 1, True)
    (shown,) = cluster.status()["streams"]
    assert (shown["leader"], shown["high_watermark"], shown["lag_records"]) == (1001, 1, 0)
    assert cluster.stream_of(stream.key) is stream


async def test_regions_that_control_named_later_go_by_their_names_and_who_has_left_is_told(
    broker: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await create(broker, until)
    state = broker.core.controller.state
    grown = RegionInfo(number=RegionNumber(4), name="sa", brokers=())
    left = RegionInfo(number=RegionNumber(5), name="ap", brokers=(), removed=True)
    known = replace(state.topology, regions=(*state.topology.regions, grown, left))
    monkeypatch.setattr(type(state), "topology", property(lambda _state: known))
    await broker.cluster.create_topic(TopicSpec(name="visits", homes=Homes.EVERY))
    shown = []
    for region in (grown, left):
        monkeypatch.setattr(stream, "home", region.number)
        (row,) = [row for row in broker.cluster.status()["streams"] if row["topic"] == "orders"]
        shown.append((row["home"], row["home_left"]))
    assert shown == [("sa", False), ("ap", True)]
    assert set(broker.cluster.stream_names("visits")) >= {"us.visits", "sa.visits", "ap.visits"}


async def test_the_home_epoch_is_the_same_where_no_replica_is_hosted(broker: Any, until: Any) -> None:
    stream = await create(broker, until)
    del broker.core.streams[stream.group_id]
    try:
        assert broker.cluster.epoch_of("orders", 0) == 1
    finally:
        broker.core.streams[stream.group_id] = stream


async def test_metadata_changes_its_number_when_topics_or_brokers_change(broker: Any, until: Any) -> None:
    cluster = broker.cluster
    before = cluster.metadata_epoch
    await create(broker, until)
    after = cluster.metadata_epoch
    broker.core.host.leaders.lost(1001)
    assert before < after < cluster.metadata_epoch


async def test_publishing_to_what_does_not_exist_says_what_is_missing(broker: Any, until: Any) -> None:
    with pytest.raises(GeorelayError, match="topic 'nothing'"):
        publish(broker, "nothing")


async def test_a_publish_while_the_leader_is_unknown_is_retriable_and_not_stored(broker: Any, until: Any) -> None:
    stream = await create(broker, until)
    stream.close()
    with pytest.raises(GeorelayError) as refused:
        publish(broker)
    assert (refused.value.code, refused.value.outcome.value) == ("NOT_LEADER", "not_stored")


async def test_a_stopped_broker_starts_again_with_everything_it_acknowledged(
    tmp_path: Any, make_config: Any, until: Any
) -> None:
    for started in range(3):
        broker = Broker(BrokerConfig.model_validate(make_config()))
        await broker.start()
        await until(broker.cluster.ready)
        if not started:
            await create(broker, until)
        stream = await until(lambda: broker.cluster.stream("orders", 0))  # noqa: B023
        await until(lambda: stream.is_leader)  # noqa: B023
        assert (await publish(broker)).base_offset == started
        await broker.stop()


async def test_reads_for_other_brokers_refuse_bad_bodies_with_one_line(broker: Any, until: Any) -> None:
    stream = await create(broker, until)
    await publish(broker)
    port = MeshPort(controller=broker.core.controller, streams=broker.core.streams)
    good = {
        "topic_id": stream.key.topic_id.hex(),
        "origin": 0,
        "partition": 0,
        "offset": 0,
        "max_bytes": 100,
        "wait_ms": 0,
    }
    answer = await port.handle("stream.read", good, from_broker=BrokerId(1002))
    assert (answer.body["high_watermark"], len(answer.attachment) > 128) == (1, True)
    wrong: dict[str, Any] = {
        "topic_id": "zz",
        "origin": None,
        "partition": [],
        "offset": float("inf"),
        "max_bytes": "many",
        "wait_ms": float("nan"),
    }
    for name, value in wrong.items():
        for body in ({**good, name: value}, {key: row for key, row in good.items() if key != name}):
            with pytest.raises(GeorelayError) as refused:
                await port.handle("stream.read", body, from_broker=BrokerId(1002))
            assert (refused.value.code, "\n" in str(refused.value)) == ("BAD_REQUEST", False)
    for other in ({"partition": 9}, {"origin": 7}, {"topic_id": "00"}):
        with pytest.raises(GeorelayError) as refused:
            await port.handle("stream.read", {**good, **other}, from_broker=BrokerId(1002))
        assert refused.value.code == "UNKNOWN_TOPIC"
    with pytest.raises(GeorelayError) as refused:
        await port.handle("stream.read", {**good, "offset": 10**30}, from_broker=BrokerId(1002))
    assert refused.value.code == "OFFSET_OUT_OF_RANGE"
    with pytest.raises(GeorelayError, match="unknown"):
        await port.handle("x" * 1000, {}, from_broker=BrokerId(1002))


async def test_garbage_instead_of_records_from_another_broker_is_retriable() -> None:
    body = {"log_start": 0, "high_watermark": 1}

    class Links:
        answer = Answer()

        async def request(self, *_: Any, **__: Any) -> Answer:
            return self.answer

    links = Links()
    remote = RemoteStreamsOverLinks(region=RegionNumber(1))
    remote.use(links)  # type: ignore[arg-type]
    for answer in (
        Answer(body=body, attachment=b"\0\0"),
        Answer(body=body, attachment=b"\0\0\0\4abcd"),
        Answer(body=body, attachment=bytes(4)),
        Answer(body={}),
        Answer(body={"log_start": None, "high_watermark": 1}),
    ):
        links.answer = answer
        with pytest.raises(Unavailable):
            await remote.read(
                StreamKey(bytes(16), RegionNumber(0), 0), BrokerId(1002), offset=0, max_bytes=1, wait_ms=0
            )


async def test_what_is_left_of_a_group_that_nobody_wants_here_is_removed(
    tmp_path: Path, make_config: Callable[[], dict[str, Any]], until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "ORPHANS_AFTER_S", 0.05)
    config = BrokerConfig.model_validate(make_config())
    first = Broker(config)
    await first.start()
    await until(first.cluster.ready)
    stream = await create(first, until)
    kept = first.core.directory.group_path(stream.group_id)
    orphan = first.core.directory.group_path((await create(first, until, "gone")).group_id)
    await first.cluster.delete_topic("gone")
    await until(lambda: not first.core.groups.busy)
    await first.stop()
    unknown = first.core.directory.group_path(GroupId(77))  # the controller cannot have had it, so it may be wrong
    for folder in (orphan, unknown):
        shutil.copytree(kept, folder)
    again = Broker(config)
    await again.start()
    try:
        await until(lambda: not orphan.exists())
        assert kept.exists()
        assert unknown.exists()
        assert not again.failed.done()
    finally:
        await again.stop()


async def test_a_broker_without_room_refuses_publishes_and_takes_them_again_when_there_is_room(
    broker: Any, until: Any
) -> None:
    await create(broker, until)
    await publish(broker)
    space = broker.core.disk_space
    space.reserve_bytes = 1 << 60
    space.check()
    with pytest.raises(DiskFull):
        publish(broker)
    space.reserve_bytes = 1
    space.check()
    assert (await publish(broker)).base_offset == 1
