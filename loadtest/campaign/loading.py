"""Foreign producers on a mesh while something is done to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from loadtest.campaign.mesh import ForeignProducer, Reachable


@asynccontextmanager
async def loading(
    mesh: Reachable,
    topic: str,
    *,
    entries: Sequence[str],
    directory: Path,
    per_second: float,
    seconds: float,
    partitions: int = 1,
) -> AsyncIterator[list[ForeignProducer]]:
    """Run one producer in each region of `entries`; ready once each was answered. Raises CampaignFailed.

    Args:
        per_second: records of each producer. seconds: how long at most.
    """
    producers = [ForeignProducer(f"{topic}-{region}-{row + 1}", directory) for row, region in enumerate(entries)]
    try:
        for region, producer in zip(entries, producers, strict=True):
            brokers = mesh.endpoints["regions"][region]["kafka"]
            await producer.start(brokers, topic, per_second=per_second, seconds=seconds, partitions=partitions)
        for producer in producers:
            await producer.wait_for_acknowledgement()
        yield producers
    finally:
        for producer in producers:
            await producer.stop()
