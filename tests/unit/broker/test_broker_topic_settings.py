"""Settings of a topic reach the log: what compact keeps, whose time records have."""

from __future__ import annotations

import asyncio
from typing import Any

from georelay.wire.batch import RecordDraft, build_batch, iterate_records, validate
from mesh.replication.publish import Publish
from region.app import Broker
from region.config import BrokerConfig
from region.controller.topic import TopicSpec


async def publish(broker: Any, value: bytes) -> Any:
    raw = bytearray(build_batch([RecordDraft(value)], timestamps_ms=1))
    header = validate(raw, from_client=True)
    return await broker.cluster.publish("state", 0, Publish(header, raw, 1, 1, lane="test"))


async def made(broker: Any, until: Any, **settings: str) -> Any:
    spec = TopicSpec(name="state", home="us").with_settings({k.replace("_", "."): v for k, v in settings.items()})
    await broker.cluster.create_topic(spec)
    return await until(lambda: (stream := broker.cluster.stream("state", 0)) and stream.is_leader and stream)


async def test_retention_of_a_compact_topic_deletes_nothing_until_the_policy_is_delete(broker: Any, until: Any) -> None:
    stream = await made(broker, until, cleanup_policy="compact,delete", retention_bytes="1", segment_bytes="16384")
    for _ in range(3):
        await publish(broker, b"x" * 17_000)  # each batch fills a segment
    await until(lambda: len(stream.disk.sealed_segments()) >= 2)
    await broker.core.housekeeping.retention.tick()
    assert stream.log_start == 0
    await broker.cluster.alter_topic("state", {"cleanup.policy": "delete"})
    await broker.core.housekeeping.retention.tick()
    assert stream.log_start > 0


async def test_records_get_the_time_of_their_append_while_the_topic_says_so(broker: Any, until: Any) -> None:
    stream = await made(broker, until, message_timestamp_type="LogAppendTime")
    stored = await publish(broker, b"a")
    await broker.cluster.alter_topic("state", {"message.timestamp.type": "CreateTime"})
    await asyncio.gather(publish(broker, b"b"))
    stamped, plain = stream.read(0, 1 << 20)
    assert [row.timestamp_ms for row in iterate_records(stamped.payload)] == [stored.append_us // 1000]
    assert stamped.header().max_timestamp_ms == stored.append_us // 1000
    assert [row.timestamp_ms for row in iterate_records(plain.payload)] == [1]


async def test_the_defaults_of_new_topics_are_the_configurations(make_config: Any, until: Any) -> None:
    config = make_config() | {"num_partitions": 5, "default_replication_factor": 1}
    broker = Broker(BrokerConfig.model_validate(config))
    await broker.start()
    try:
        await until(broker.cluster.ready)
        judged = broker.cluster.check_topic(TopicSpec(name="orders"))
        assert (judged.partitions, judged.replication_factor) == (5, 1)
        assert (await broker.cluster.ensure_topic("orders")).partitions == 5
    finally:
        await broker.stop()
