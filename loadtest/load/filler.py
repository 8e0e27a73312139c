"""Fills a topic as fast as the region takes it (confluent-kafka, idempotent)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, Producer

from loadtest.campaign.mesh import CampaignFailed

FILL_S: Final = 600
POLL_EVERY: Final = 1_000


def fill(
    brokers: Sequence[str], topic: str, partitions: int, *, count: int, size: int, settings: Mapping[str, str]
) -> None:
    """Publish `count` records of `size` bytes that nothing compresses, evenly over the partitions (CampaignFailed).

    Args:
        settings: of librdkafka.
    """
    refused: list[str] = []

    def delivered(error: KafkaError | None, _: Any) -> None:
        if error is not None:
            refused.append(str(error))

    fixed: Mapping[str, Any] = {"enable.idempotence": True, "acks": "all", "linger.ms": 20, "log_level": 0}
    room = {"batch.size": 900_000, "queue.buffering.max.kbytes": 65_536}
    producer = Producer({"bootstrap.servers": ",".join(brokers), **fixed, **room, **settings})
    for number in range(count):
        while True:
            try:
                producer.produce(topic, os.urandom(size), partition=number % partitions, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if number % POLL_EVERY == 0:
            producer.poll(0)
    left = producer.flush(FILL_S)
    if left or refused:
        raise CampaignFailed(f"{topic} could not be filled: {left} records open, refused: {refused[:1]}")
