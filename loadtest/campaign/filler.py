"""Fills a topic as fast as the region takes it (confluent-kafka, idempotent)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, Producer

from loadtest.campaign.mesh import CampaignFailed

FILL_SECONDS_MAX: Final = 600
POLL_EVERY: Final = 1_000


async def fill(
    brokers: Sequence[str], topic: str, partitions: int, count: int, value: Callable[[int], bytes], **settings: Any
) -> float:
    """Publish `count` values, evenly over the partitions; return the seconds. Raises CampaignFailed.

    Args:
        value: of a number. settings: of librdkafka, _ or dots between words.
    """
    return await asyncio.to_thread(_fill, brokers, topic, partitions, count, value, settings)


def _fill(
    brokers: Sequence[str],
    topic: str,
    partitions: int,
    count: int,
    value: Callable[[int], bytes],
    settings: Mapping[str, Any],
) -> float:
    refused: list[str] = []

    def delivered(error: KafkaError | None, _: Any) -> None:
        if error is not None:
            refused.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": ",".join(brokers),
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 20,
            "log_level": 0,
            **{name.replace("_", "."): number for name, number in settings.items()},
        }
    )
    began = time.monotonic()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value(number), partition=number % partitions, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
        if number % POLL_EVERY == 0:
            producer.poll(0)
    left = producer.flush(FILL_SECONDS_MAX)
    if left or refused:
        raise CampaignFailed(f"{topic} could not be filled: {left} records open, refused: {refused[:1]}")
    return time.monotonic() - began
