"""What all readers together unfold: bounded, in turn, and nobody holds what others wait for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.limits import DECOMPRESSED_BATCH_BYTES_MAX, MIB
from georelay.wire.batch import Compression, build_batch
from region.api.unfolding import CHUNK_RECORDS, record_chunks
from region.api.unfolding_memory import UnfoldingMemory

BATCH = DECOMPRESSED_BATCH_BYTES_MAX


class Entry:
    def __init__(self, count: int, size_bytes: int = 1_000) -> None:
        rows = [(bytes(size_bytes), None, ()) for _ in range(count)]
        self.payload = build_batch(rows, timestamps_ms=1, compression=Compression.GZIP)


async def test_readers_beyond_the_budget_wait_and_are_served_in_their_order() -> None:
    memory = UnfoldingMemory(2 * BATCH)
    held = [await memory.take(BATCH, lambda: None) for _ in range(2)]
    order: list[int] = []

    async def take(number: int, size_bytes: int) -> None:
        await memory.take(size_bytes, lambda: None)
        order.append(number)

    tasks = [asyncio.ensure_future(take(number, size)) for number, size in enumerate((BATCH, 1, 1))]
    await asyncio.sleep(0)
    assert (order, memory.waits, memory.used_bytes) == ([], 3, 2 * BATCH)
    memory.shrink(held[0], BATCH // 2)  # room for the small ones only: they do not pass the large one
    await asyncio.sleep(0)
    assert order == []
    memory.give(held[0])
    await asyncio.sleep(0)
    assert order == [0]
    memory.give(held[1])
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2] and memory.used_bytes == BATCH + 2


async def test_who_goes_while_waiting_leaves_its_turn_to_the_next() -> None:
    memory = UnfoldingMemory(BATCH)
    held = await memory.take(BATCH // 2, lambda: None)
    large = asyncio.ensure_future(memory.take(BATCH, lambda: None))
    small = asyncio.ensure_future(memory.take(1, lambda: None))
    await asyncio.sleep(0)
    large.cancel()
    await asyncio.wait_for(small, 1)
    memory.give(held)
    memory.give(held)
    assert memory.used_bytes == 1


async def test_a_batch_takes_what_it_unfolds_to_while_it_is_read_and_nothing_afterwards() -> None:
    memory = UnfoldingMemory(2 * BATCH)
    entry: Any = Entry(CHUNK_RECORDS + 1)
    chunks = record_chunks(entry, memory)
    assert len(await anext(chunks)) == CHUNK_RECORDS
    assert MIB // 2 < memory.used_bytes < 2 * MIB
    assert len(await anext(chunks)) == 1
    with pytest.raises(StopAsyncIteration):
        await anext(chunks)
    assert memory.used_bytes == 0


async def test_a_reader_that_stops_in_the_middle_gives_everything_back() -> None:
    memory = UnfoldingMemory(2 * BATCH)
    entry: Any = Entry(CHUNK_RECORDS + 1)
    chunks = record_chunks(entry, memory)
    await anext(chunks)
    await chunks.aclose()
    assert memory.used_bytes == 0


async def test_a_slow_reader_loses_its_batch_to_those_who_wait_and_still_gets_every_record() -> None:
    memory = UnfoldingMemory(BATCH, idle_s=0.0)
    entry: Any = Entry(2 * CHUNK_RECORDS + 5)
    slow = record_chunks(entry, memory)
    offsets = [record.offset for record in await anext(slow)]
    others = [record_chunks(entry, memory) for _ in range(3)]
    firsts = await asyncio.wait_for(asyncio.gather(*(anext(other) for other in others)), 10)
    assert all(len(first) == CHUNK_RECORDS for first in firsts)
    assert memory.dropped >= 1 and memory.used_bytes <= BATCH
    async for chunk in slow:
        offsets += [record.offset for record in chunk]
    assert offsets == list(range(2 * CHUNK_RECORDS + 5))
    for other in others:
        await other.aclose()
    assert memory.used_bytes == 0


async def test_a_reader_that_works_is_not_interrupted() -> None:
    memory = UnfoldingMemory(BATCH, idle_s=0.0)
    held = await memory.take(BATCH, lambda: pytest.fail("taken from who works"))
    waiting = asyncio.ensure_future(memory.take(1, lambda: None))
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert not waiting.done()
    memory.give(held)
    await waiting
