"""Publish ten records and read them back: `python publish_and_read.py URL TOPIC`."""

from __future__ import annotations

import asyncio
import sys

import georelay


async def main(url: str, topic: str) -> None:
    """Print where each record is stored, then what is read."""
    async with georelay.connect(url) as mesh:
        async with mesh.producer(linger_ms=5) as producer:
            deliveries = [await producer.send(topic, b"order %d" % number, key=b"k") for number in range(10)]
            for delivery in deliveries:
                stored = await delivery
                print(f"stored {stored.partition}/{stored.offset} in {', '.join(stored.regions)}")
        async with mesh.consumer([topic], start=georelay.Start.EARLIEST) as consumer:
            for _ in range(10):
                record = await anext(consumer)
                print(f"read {record.partition}/{record.offset} {(record.value or b'').decode()}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
