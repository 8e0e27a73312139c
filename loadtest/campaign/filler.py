"""Fills a topic with bytes that do not compress, as fast as the region takes them (confluent-kafka, idempotent)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, Producer

from loadtest.campaign.mesh import CampaignFailed

VALUE_BYTES: Final = 64 * 1024
TIMEOUT_SECONDS: Final = 120


async def fill(brokers: Sequence[str], topic: str, partitions: int, size_bytes: int) -> float:
    """Publish `size_bytes` in all, evenly over the partitions; return the seconds. Raises CampaignFailed."""
    return await asyncio.to_thread(_fill, brokers, topic, partitions, size_bytes)


def _fill(brokers: Sequence[str], topic: str, partitions: int, size_bytes: int) -> float:
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
            "batch.size": 900_000,
            "queue.buffering.max.kbytes": 65_536,
            "message.timeout.ms": TIMEOUT_SECONDS * 1000,
            "log_level": 0,
        }
    )
    began = time.monotonic()
    for number in range(size_bytes // VALUE_BYTES):
        while True:
            try:
                producer.produce(topic, os.urandom(VALUE_BYTES), partition=number % partitions, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(TIMEOUT_SECONDS)
    if left or refused:
        raise CampaignFailed(f"{topic} could not be filled: {left} records open, refused: {refused[:1]}")
    return time.monotonic() - began
