"""A host that was suspended: its monotonic clock stood still, and control's leader may have given its homes away."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator

import pytest

from georelay.clock import ElapsedClock, SystemClock, elapsed_of
from georelay.errors import OutcomeUnknown
from georelay.fields import JsonObject
from georelay.ids import BrokerId, Epoch, Offset, RaftIndex, RegionNumber
from mesh.home.lease_core import HELD_MS, LEASE_MS
from region.controller.home_book import BEFORE_ALL
from region.homes.leader import HomeLeader
from region.homes.lease_keeper import LeaseKeeper
from region.homes.part import HomesPart
from region.kafka.ports import Published
from region.topics.commit_waiters import CommitWaiters

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
SUSPENDED_S = 60


class Host:
    """Clocks of a host that can be suspended."""

    def __init__(self) -> None:
        self.awake_ns = 10 * NS_PER_S
        self.asleep_ns = 0

    def wall_ns(self) -> int:
        return self.elapsed_ns()

    def monotonic_ns(self) -> int:
        return self.awake_ns

    def elapsed_ns(self) -> int:
        return self.awake_ns + self.asleep_ns

    def suspend(self, seconds: int) -> None:
        self.asleep_ns += seconds * NS_PER_S


class Control:
    """Answers every renewal at once, while it can be reached."""

    is_leader = False

    def __init__(self) -> None:
        self.is_reached = True

    async def call(self, method: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        del method, body, timeout_s
        if not self.is_reached:
            await asyncio.Event().wait()
        return {}

    async def propose(self, part: str, command: JsonObject) -> JsonObject:
        raise AssertionError((part, command))


@pytest.fixture
async def held() -> AsyncIterator[tuple[LeaseKeeper, Host]]:
    """A broker that holds a lease, and then reaches control no more."""
    host, control = Host(), Control()
    keeper = LeaseKeeper(
        control=control, clock=host, is_needed=lambda: True, is_there=lambda: True, known=lambda: BEFORE_ALL
    )
    running = asyncio.create_task(keeper.run())
    async with asyncio.timeout(5):
        while not keeper.holds():
            await asyncio.sleep(0)
    control.is_reached = False
    yield keeper, host
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_broker_that_slept_for_a_minute_holds_no_lease_and_knows_that_it_is_cut_off(
    held: tuple[LeaseKeeper, Host],
) -> None:
    keeper, host = held
    assert keeper.holds() and not keeper.is_isolated()
    host.suspend(SUSPENDED_S)
    assert not keeper.holds()
    assert keeper.left_ms == 0
    assert keeper.is_isolated()


async def test_what_is_committed_after_the_sleep_is_not_acknowledged(held: tuple[LeaseKeeper, Host]) -> None:
    keeper, host = held
    waiters = CommitWaiters()
    answer = Published(epoch=Epoch(1), base_offset=Offset(0), append_us=1, log_start=Offset(0))
    before = waiters.add(RaftIndex(1), answer, committed=RaftIndex(0), needs_lease=True)
    after = waiters.add(RaftIndex(2), answer, committed=RaftIndex(0), needs_lease=True)
    waiters.committed(RaftIndex(1), has_lease=keeper.holds())
    host.suspend(SUSPENDED_S)
    waiters.committed(RaftIndex(2), has_lease=keeper.holds())
    assert before.result() == answer
    with pytest.raises(OutcomeUnknown, match="lease"):
        after.result()


async def test_the_answer_to_a_renewal_that_was_sent_before_the_sleep_gives_nothing() -> None:
    host, control = Host(), Control()
    asked, answered = asyncio.Event(), asyncio.Event()

    async def call(method: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        del method, body, timeout_s
        asked.set()
        await answered.wait()
        return {}

    control.call = call  # type: ignore[method-assign]
    keeper = LeaseKeeper(
        control=control, clock=host, is_needed=lambda: True, is_there=lambda: True, known=lambda: BEFORE_ALL
    )
    running = asyncio.create_task(keeper.run())
    async with asyncio.timeout(5):
        await asked.wait()
    host.suspend(SUSPENDED_S)
    answered.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not keeper.holds()
    running.cancel()


class Topics:
    """No topic; implements what HomeLeader needs beside it."""

    is_leader = True

    def __getattr__(self, name: str) -> object:
        raise AssertionError(name)


async def test_controls_leader_counts_its_own_sleep_as_brokers_do() -> None:
    host, nobody = Host(), Topics()
    leader = HomeLeader(
        part=HomesPart(nobody), topics=nobody, control=nobody, confirm=nobody, ask=nobody, own_region=RegionNumber(1),  # type: ignore[arg-type]
        regions=lambda: (), voters=lambda: 3, clock=host, rng=random.Random(1),
    )  # fmt: skip
    leader.leases.elected(host.elapsed_ns())
    leader.leases.granted(BrokerId(1001), now_ns=host.elapsed_ns())
    assert not leader.lease_is_over(RegionNumber(1))
    host.suspend(LEASE_MS // 1_000)
    assert leader.lease_is_over(RegionNumber(1))


def test_the_clock_of_a_process_counts_suspensions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def clock_gettime_ns(which: int) -> int:
        asked.append(which)
        return 42

    monkeypatch.setattr(time, "clock_gettime_ns", clock_gettime_ns)
    clock = SystemClock()
    assert isinstance(clock, ElapsedClock)
    assert elapsed_of(clock)() == 42
    assert asked == [time.CLOCK_BOOTTIME]


def test_a_clock_that_cannot_say_is_taken_at_its_monotonic_word() -> None:
    class Plain:
        def wall_ns(self) -> int:
            return 1

        def monotonic_ns(self) -> int:
            return HELD_MS * NS_PER_MS

    assert elapsed_of(Plain())() == HELD_MS * NS_PER_MS
