"""Consume, transform, produce, exactly once: `python transfer.py URL SOURCE TARGET GROUP COUNT`."""

from __future__ import annotations

import asyncio
import sys

import georelay


async def main(url: str, source: str, target: str, group: str, count: str) -> None:
    """Copy `count` records in upper case; records and positions become visible together or not at all."""
    done = 0
    async with (
        georelay.connect(url) as mesh,
        mesh.producer(transactional_id=f"transfer-{group}") as producer,
        mesh.consumer([source], group=group, start=georelay.Start.EARLIEST) as consumer,
    ):
        while done < int(count):
            records = await consumer.get_many(max_records=int(count) - done)
            if not records:
                continue
            async with producer.transaction() as transaction:
                for record in records:
                    await producer.send(target, (record.value or b"").upper(), key=record.key)
                await transaction.commit_positions(consumer)
            done += len(records)
    print(f"transferred {done}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
