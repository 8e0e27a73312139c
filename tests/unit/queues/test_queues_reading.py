"""A queue reads ahead in pieces: however many records a batch has, others have their turn, and no more is open."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.wire.batch import Compression, build_batch
from region.api.unfolding_memory import PROCESS_MEMORY
from region.queues import index_core
from region.queues.index_core import QueueIndex
from region.queues.limits import TAKEN_IN_PER_TURN_MAX

OPEN_MAX = 700


class Turns:
    """Counts the records that queues take in, by turn of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = [0]
        self.open_max = 0
        plain = QueueIndex.add

        def add(index: QueueIndex, record: Any, now_us: int) -> None:
            plain(index, record, now_us)
            self.taken[-1] += 1
            self.open_max = max(self.open_max, index.open_in(0))

        monkeypatch.setattr(QueueIndex, "add", add)
        self._next()

    def _next(self) -> None:
        self.taken.append(0)
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def end(self) -> None:
        self._handle.cancel()


@pytest.fixture
async def turns(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(index_core, "OPEN_PER_PARTITION_MAX", OPEN_MAX)
    counted = Turns(monkeypatch)
    yield counted
    counted.end()


def append_many(scene: Any, count: int, compression: Compression) -> None:
    rows = [(b"%d" % at, None, ()) for at in range(count)]
    raw = build_batch(rows, timestamps_ms=1, compression=compression)
    scene.cluster.append("orders", 0, raw, count)


async def consume(scene: Any, texts: Any, count: int, queue: str = "q") -> list[str]:
    """Receive and acknowledge until so many records came."""
    found: list[str] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            rows = await scene.receive(count=200, wait_ms=30_000, queue=queue)
            found += texts(rows)
            await scene.call("acknowledge", queue=queue, leases=[row["lease"] for row in rows])
    return found


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
async def test_of_a_batch_with_very_many_records_a_queue_takes_in_what_there_is_room_for_and_all_in_the_end(
    scene: Any, texts: Any, turns: Turns, compression: Compression
) -> None:
    await scene.make()
    append_many(scene, 3_000, compression)
    assert await consume(scene, texts, 3_000) == [str(at) for at in range(3_000)]
    assert turns.open_max <= OPEN_MAX
    assert sum(turns.taken) == 3_000


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
async def test_all_queues_of_a_broker_together_take_in_so_many_records_in_one_turn_of_its_loop(
    scene: Any, texts: Any, turns: Turns, compression: Compression
) -> None:
    await scene.make()
    await scene.call("create", queue="second", topic="orders")
    append_many(scene, 1_000, compression)
    await asyncio.gather(consume(scene, texts, 1_000), consume(scene, texts, 1_000, queue="second"))
    assert max(turns.taken) <= TAKEN_IN_PER_TURN_MAX


async def test_what_waits_unfolded_for_room_counts_in_the_budget_until_the_queue_is_closed(
    scene: Any, texts: Any, turns: Turns
) -> None:
    await scene.make()
    append_many(scene, 3_000, Compression.ZSTD)
    await consume(scene, texts, 200)
    assert PROCESS_MEMORY.used_bytes > 0
    await scene.call("delete")
    async with asyncio.timeout(5):
        while PROCESS_MEMORY.used_bytes:
            await asyncio.sleep(0)


async def test_a_record_far_inside_a_batch_is_read_again_without_holding_the_others(
    scene: Any, texts: Any, turns: Turns
) -> None:
    await scene.make(visibility_timeout_ms=1_000)
    append_many(scene, 3_000, Compression.ZSTD)
    await consume(scene, texts, 600)
    first = await scene.receive(count=1, wait_ms=30_000)
    await scene.pass_s(2)  # its lease is over: it is read from the log again
    second = await scene.receive(count=1, wait_ms=30_000)
    assert texts(first) == texts(second) == ["600"]
