"""Writes on their way to the disk: who does the flush, in which order, behind which frames."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from georelay.clock import SystemClock
from georelay.ids import GroupId
from region.log.flusher import GroupWrite
from region.multiraft.disk_watch import DiskWatch
from region.multiraft.write_queue import WriteQueue
from tests.unit.multiraft.conftest import MemoryRegion


class Disk:
    """A flusher that notes who was asked for what; its thread answers when the test says so."""

    def __init__(self) -> None:
        self.is_quick = self.fits = True
        self.in_thread: list[GroupWrite] = []
        self.on_loop: list[list[GroupWrite]] = []

    def submit(self, write: GroupWrite) -> None:
        self.in_thread.append(write)

    def fits_on_loop(self, writes: Sequence[GroupWrite]) -> bool:
        return self.fits

    def flush_on_loop(self, writes: Sequence[GroupWrite]) -> list[object]:
        self.on_loop.append(list(writes))
        return [write.token for write in writes]


class Bench:
    def __init__(self) -> None:
        self.disk = Disk()
        self.durable: list[int] = []
        self.queue = WriteQueue(
            flusher=self.disk,
            clock=SystemClock(),
            watch=DiskWatch(unflushed_bytes_max=1 << 20, hung_ms=1_000),
            written=lambda *_: None,
            guard=lambda *_: None,
            paused=lambda _: None,
        )

    def submit(self, number: int) -> None:
        token = partial(self.durable.append, number)
        self.queue.submit(GroupWrite(group_id=GroupId(number), log=None, token=token))

    def thread_is_done(self) -> None:
        done, self.disk.in_thread = self.disk.in_thread, []
        self.queue.durable([write.token for write in done])


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_writes_of_a_turn_are_flushed_together_behind_its_frames(bench: Bench) -> None:
    bench.submit(1)
    asyncio.get_running_loop().call_soon(bench.submit, 2)  # as a frame that is written with the next turn
    await turns(1)
    assert bench.disk.on_loop == [] and bench.durable == []
    await turns()
    assert bench.durable == [1, 2] and len(bench.disk.on_loop) == 1


async def test_nothing_overtakes_what_the_thread_has(bench: Bench) -> None:
    bench.disk.is_quick = False
    bench.submit(1)
    bench.disk.is_quick = True
    bench.submit(2)
    await turns()
    assert bench.disk.on_loop == [] and bench.durable == []
    bench.thread_is_done()
    bench.submit(3)
    await turns()
    assert bench.durable == [1, 2, 3] and len(bench.disk.on_loop) == 1


async def test_what_does_not_suit_the_loop_goes_to_the_thread_in_order(bench: Bench) -> None:
    bench.submit(1)
    bench.disk.fits = bench.disk.is_quick = False
    bench.submit(2)  # behind 1, wherever that goes
    await turns()
    bench.submit(3)
    bench.thread_is_done()
    assert bench.durable == [1, 2, 3] and bench.disk.on_loop == []


async def test_at_the_end_the_thread_gets_what_waits_and_the_loop_does_nothing_any_more(bench: Bench) -> None:
    bench.submit(1)
    bench.queue.hand_over()
    await turns()
    assert bench.disk.on_loop == []
    bench.thread_is_done()
    assert bench.durable == [1]


async def test_a_failed_disk_answers_nothing_and_is_asked_no_more_on_the_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.disk, "flush_on_loop", lambda _writes: [])
    bench.submit(1)
    await turns()
    bench.submit(2)
    await turns()
    assert bench.durable == [] and len(bench.disk.in_thread) == 1


async def test_what_waits_for_the_loop_is_the_threads_when_a_broker_has_stopped(memory_region: MemoryRegion) -> None:
    (broker,) = await memory_region.add(1)
    broker.flusher.is_quick = True
    broker.flusher.held = True  # the thread does it later
    durable: list[int] = []
    broker.host._writes.submit(GroupWrite(group_id=GroupId(1), log=None, token=partial(durable.append, 1)))
    await broker.host.stop()
    broker.flusher.held = False
    broker.flusher.flush()
    assert durable == [1]
