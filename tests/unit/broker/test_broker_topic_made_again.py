"""A topic that is deleted and made again under an idempotent producer: librdkafka goes on, and is not stopped."""

from __future__ import annotations

import asyncio
from typing import Any

from confluent_kafka import Producer

from region.controller.topic import Homes, TopicSpec

RECORDS = 5


async def test_an_idempotent_producer_goes_on_in_a_topic_that_was_made_again(broker: Any, until: Any) -> None:
    async def create() -> None:
        await broker.cluster.create_topic(TopicSpec(name="orders", homes=Homes.ONE, home="us"))
        await until(lambda: (stream := broker.cluster.stream("orders", 0)) and stream.is_leader)

    delivered: list[tuple[str, int]] = []

    def produce() -> None:
        for number in range(RECORDS):
            producer.produce(
                "orders",
                str(number),
                partition=0,
                on_delivery=lambda error, record: delivered.append(
                    (str(error or ""), -1 if record is None else record.offset())
                ),
            )
        producer.flush(20)

    producer = Producer(
        {
            "bootstrap.servers": broker.config.listen.kafka,
            "enable.idempotence": True,
            "batch.num.messages": 1,
            "linger.ms": 0,
            "message.timeout.ms": 15_000,
            "log_level": 0,
        }
    )
    for _ in range(2):
        await create()
        delivered.clear()
        await asyncio.to_thread(produce)
        assert delivered == [("", offset) for offset in range(RECORDS)]
        await broker.cluster.delete_topic("orders")
