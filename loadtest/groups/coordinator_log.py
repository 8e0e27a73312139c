"""Generations of a group, read from the log of its coordinator as any Kafka client could."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any, Final

from georelay.client.stream_reader import EARLIEST, StreamReader
from georelay.wire.consumer_protocol import decode_assignment
from georelay.wire.murmur2 import partition_for_key
from loadtest.groups.verdict_core import Generation

INTERNAL_TOPIC: Final = "__georelay_coordinators"
COORDINATORS: Final = 8
GROUPS_KEY: Final = bytes([1])
READ_SECONDS_MAX: Final = 30


async def read_generations(brokers: Sequence[str], group: str, topic: str) -> list[Generation]:
    """Return every generation of a group that was stored, in order (TimeoutError: the log cannot be read)."""
    partition = partition_for_key(group.encode(), COORDINATORS)
    reader = StreamReader(
        brokers=list(brokers), topic=INTERNAL_TOPIC, partition=partition, offset=EARLIEST, max_wait_ms=100
    )
    committed: dict[int, int] = {}
    generations: list[Generation] = []
    try:
        async with asyncio.timeout(READ_SECONDS_MAX):
            async for batch in reader.batches():
                for record in batch.records:
                    if record.key == GROUPS_KEY:
                        _follow(
                            json.loads(record.value or b"{}"), record.timestamp_ms, group, topic, committed, generations
                        )
                if reader.offset >= batch.high_watermark:
                    return generations
    finally:
        reader.close()
    return generations


def _follow(
    command: dict[str, Any],
    at_ms: int,
    group: str,
    topic: str,
    committed: dict[int, int],
    generations: list[Generation],
) -> None:
    if command["group"] != group:
        return
    if command["kind"] == "commit":
        for _, _, partition, offset, *_ in command["offsets"]:
            committed[partition] = offset
    elif command["kind"] == "store":
        record = command["record"]
        assigned = {
            member["id"]: frozenset(_partitions(base64.b64decode(member["assignment"]), topic))
            for member in record["members"]
        }
        generations.append(
            Generation(number=record["generation"], stored_ms=at_ms, assigned=assigned, committed=dict(committed))
        )


def _partitions(assignment: bytes, topic: str) -> tuple[int, ...]:
    return decode_assignment(assignment).get(topic, ()) if assignment else ()
