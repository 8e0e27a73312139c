"""A steady load by the SDK, beside something else that is measured."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from typing import Any

import georelay

LOOK_S = 0.01


async def publish(connection: Any, topic: str, records_per_s: int, seconds: float = math.inf) -> int:
    """Publish at a rate for so long; return how many records that were."""
    published, began = 0, time.monotonic()
    async with connection.producer() as producer:
        while (elapsed := time.monotonic() - began) < seconds:
            while published < elapsed * records_per_s:
                await producer.send(topic, b"x" * 100)
                published += 1
            await asyncio.sleep(LOOK_S)
        await producer.flush()
    return published


async def consume(connection: Any, topic: str, delivered: Counter[str] | None = None, name: str = "") -> None:
    """Read everything until cancelled, and count it under a name."""
    delivered = Counter() if delivered is None else delivered
    async with connection.consumer([topic], start=georelay.Start.EARLIEST) as consumer:
        async for _ in consumer:
            delivered[name] += 1
