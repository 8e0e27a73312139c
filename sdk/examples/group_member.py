"""A member of a consumer group that commits what it has done: `python group_member.py URL TOPIC GROUP COUNT`."""

from __future__ import annotations

import asyncio
import sys

import georelay


async def main(url: str, topic: str, group: str, count: str) -> None:
    """Work until this member has done `count` records."""
    done = 0
    async with (
        georelay.connect(url) as mesh,
        mesh.consumer(
            [topic],
            group=group,
            start=georelay.Start.EARLIEST,
            on_assigned=lambda places: print("assigned", [place.partition for place in places]),
            on_revoked=lambda places: print("revoked", [place.partition for place in places]),
        ) as consumer,
    ):
        while done < int(count):
            records = await consumer.get_many(max_records=int(count) - done)
            done += len(records)
            if records:
                await consumer.commit()
    print(f"done {done}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
