"""A broker whose disk lags is not buried, keeps its heartbeats, and gives its leaderships away."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from georelay.ids import GroupId
from region.multiraft import host as host_module
from region.multiraft.disk_watch import DiskPace, DiskWatch
from region.multiraft.transport import FrameKind
from region.multiraft.watchdog import Watchdog
from tests.conditions import until

GROUP = GroupId(1)
MS = 1_000_000


async def founded(region: Any, **settings: Any) -> Any:
    brokers: list[Any] = await region.add(3, **settings)
    for broker in brokers:
        await broker.open(GROUP, tuple(region.brokers))
    return brokers, await until(lambda: region.leader(GROUP))


class SkewedClock:
    """The real clock, and what a test adds to it."""

    def __init__(self) -> None:
        self.added_ns = 0

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() + self.added_ns

    def wall_ns(self) -> int:
        return time.time_ns()


async def test_over_its_budget_a_broker_reads_no_appends_but_hears_heartbeats(memory_region: Any) -> None:
    brokers, leader = await founded(memory_region, unflushed_bytes_max=2_000)
    slow = next(broker for broker in brokers if broker is not leader)
    slow.flusher.held = True
    written = 0
    while not slow.host.appends_paused and written < 1_000:
        leader.publish(GROUP, bytes(100))
        written += 1
        await asyncio.sleep(0)
    unflushed = slow.host.unflushed_bytes
    assert slow.transport.appends_paused
    for _ in range(50):
        leader.publish(GROUP, bytes(100))
    slow.transport.kinds.clear()
    await until(lambda: FrameKind.BEAT_ACK in slow.transport.kinds)
    assert (slow.host.unflushed_bytes, slow.host.is_alive(leader.me)) == (unflushed, True)
    assert memory_region.leader(GROUP) is leader
    slow.flusher.held = False
    slow.flusher.flush()
    await until(lambda: len(slow.machines[GROUP].committed) == written + 50)
    assert not slow.transport.appends_paused


async def test_a_leader_whose_disk_is_slow_hands_over(memory_region: Any) -> None:
    clock = SkewedClock()
    brokers, leader = await founded(memory_region, clock=clock)
    leader.flusher.held = True
    leader.publish(GROUP, b"late")
    await asyncio.sleep(0)
    clock.added_ns = 600 * MS
    await until(lambda: memory_region.leader(GROUP) not in (None, leader))
    leader.flusher.held = False
    leader.flusher.flush()
    await until(lambda: all(broker.machines[GROUP].committed == [b"late"] for broker in brokers))


async def test_a_leader_whose_disk_hangs_falls_silent_and_steps_down(memory_region: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(host_module, "HAND_OVER_TICKS", 1 << 30)  # the other way out
    clock = SkewedClock()
    _, leader = await founded(memory_region, clock=clock)
    leader.flusher.held = True
    leader.publish(GROUP, b"late")
    await asyncio.sleep(0)
    clock.added_ns = 1_500 * MS
    await until(lambda: memory_region.leader(GROUP) not in (None, leader))
    assert not leader.host.groups[GROUP].node.is_leader
    leader.flusher.held = False
    leader.flusher.flush()
    await until(lambda: not leader.host.silent)


async def test_while_the_disk_is_full_entries_are_dropped_and_the_leader_is_heard(memory_region: Any) -> None:
    brokers, leader = await founded(memory_region)
    full = next(broker for broker in brokers if broker is not leader)
    full.host._admits_entries = lambda: False
    index = leader.publish(GROUP, b"x")
    await until(lambda: leader.machines[GROUP].applied_index >= index)
    assert full.host.groups[GROUP].node.last_index < index
    full.host._admits_entries = lambda: True
    await until(lambda: full.machines[GROUP].committed == [b"x"])
    assert memory_region.leader(GROUP) is leader


async def test_a_long_turn_is_cut_and_finished_in_the_next_one(memory_region: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(host_module, "TURN_MS", 0.0)
    (broker,) = await memory_region.add(1)
    groups = [GroupId(row + 1) for row in range(5)]
    for group in groups:
        await broker.open(group, (broker.me,))
    await until(lambda: all(broker.machines[group].leads for group in groups))
    for group in groups:
        broker.publish(group, b"v")
    await until(lambda: all(broker.machines[group].committed == [b"v"] for group in groups))


def test_the_pace_of_a_disk_is_the_age_of_its_oldest_write() -> None:
    watch = DiskWatch(unflushed_bytes_max=100, hung_ms=1_200)
    assert watch.pace(0) is DiskPace.FINE
    watch.submitted(10, 0)
    watch.submitted(10, 900 * MS)
    assert [watch.pace(at * MS) for at in (500, 501, 1_200, 1_201)] == [
        DiskPace.FINE,
        DiskPace.SLOW,
        DiskPace.SLOW,
        DiskPace.HUNG,
    ]
    watch.durable(1)
    assert watch.pace(1_201 * MS) is DiskPace.FINE
    watch.durable(1)
    assert watch.unflushed_bytes == 0


def test_pressure_ends_only_at_half_the_budget() -> None:
    watch = DiskWatch(unflushed_bytes_max=100, hung_ms=1_000)
    for _ in range(3):
        watch.submitted(40, 0)
    assert watch.overfull
    watch.durable(1)
    assert watch.overfull  # 80 bytes: still over the half
    watch.durable(1)
    assert not watch.overfull


def test_short_elections_do_not_make_a_disk_hang_sooner() -> None:
    watch = DiskWatch(unflushed_bytes_max=100, hung_ms=10)
    watch.submitted(1, 0)
    assert watch.pace(900 * MS) is DiskPace.SLOW


async def test_the_watchdog_counts_what_held_the_loop_for_more_than_5_ms() -> None:
    clock = SkewedClock()
    watchdog = Watchdog(clock=clock, every_ms=1)
    watchdog.start()
    clock.added_ns += 7_500 * MS
    await until(lambda: watchdog.stalls)
    watchdog.stop()
    assert watchdog.stall_ms_max >= 7_499


async def test_a_watchdog_that_never_looks_costs_nothing() -> None:
    watchdog = Watchdog(clock=SkewedClock(), every_ms=0)
    watchdog.start()
    assert watchdog._timer is None
    watchdog.stop()
