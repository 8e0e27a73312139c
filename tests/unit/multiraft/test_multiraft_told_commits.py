"""What is committed is told to followers at once where somebody waits there, else by the next beat."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from georelay.ids import BrokerId, GroupId
from region.multiraft.transport import FrameKind, Lane
from region.raft.core import Append
from region.raft.wire import decode_message

GROUP = GroupId(7)
VOTERS = (BrokerId(1001), BrokerId(1002), BrokerId(1003))


class Traffic:
    """Counts the Appends that wires carry for nothing but a commit index, by that index."""

    def __init__(self, wires: Any) -> None:
        self.lone_commits: Counter[int] = Counter()
        self._carry: Callable[..., None] = wires.carry
        wires.carry = self.carry

    def carry(self, sender: BrokerId, to: BrokerId, lane: Lane, kind: FrameKind, body: bytes) -> None:
        if kind is FrameKind.RAFT:
            message = decode_message(memoryview(body))[1]
            if isinstance(message, Append) and message.quiet:
                self.lone_commits[message.commit] += 1
        self._carry(sender, to, lane, kind, body)


async def opened(region: Any) -> tuple[Any, list[Any]]:
    """Return the leader of a group of three, and its followers, which hold the same committed records."""
    brokers = await region.add(3)
    for broker in brokers:
        await broker.open(GROUP, VOTERS)
    await region.until(lambda: region.leader(GROUP) is not None)
    leader = region.leader(GROUP)
    followers = [broker for broker in brokers if broker is not leader]
    leader.publish(GROUP, b"first")
    await region.until(lambda: all(broker.machines[GROUP].committed == [b"first"] for broker in brokers))
    return leader, followers


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def serves_at_leaders_only(ledger_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_class, "serves_at_followers", False)


@pytest.mark.usefixtures("serves_at_leaders_only")
async def test_records_cost_no_commit_notices_and_followers_learn_of_the_last_one_by_a_beat(memory_region: Any) -> None:
    leader, followers = await opened(memory_region)
    traffic = Traffic(memory_region.wires)
    values = [b"%d" % number for number in range(20)]
    for value in values:
        leader.publish(GROUP, value)
        await memory_region.until(lambda value=value: leader.machines[GROUP].committed[-1] == value)
    await memory_region.until(lambda: all(it.machines[GROUP].committed == [b"first", *values] for it in followers))
    assert not traffic.lone_commits


@pytest.mark.usefixtures("serves_at_leaders_only")
async def test_a_follower_that_acknowledges_late_is_told_by_the_beat_after_that(memory_region: Any) -> None:
    leader, (fast, slow) = await opened(memory_region)
    slow.flusher.held = True
    leader.publish(GROUP, b"second")
    await memory_region.until(lambda: fast.machines[GROUP].committed == [b"first", b"second"])
    assert slow.machines[GROUP].committed == [b"first"]
    slow.flusher.held = False
    slow.flusher.flush()
    await memory_region.until(lambda: slow.machines[GROUP].committed == [b"first", b"second"])


async def test_where_somebody_waits_at_followers_they_are_told_without_a_beat(memory_region: Any) -> None:
    leader, followers = await opened(memory_region)
    traffic = Traffic(memory_region.wires)
    for broker in (leader, *followers):
        broker.host.beats.tick = lambda *, silent: None  # no beat leaves any more, nor what answers one: it nudges
        broker.host.tick_ms = 60_000  # and nobody is elected for want of them: a new leader's first entry tells, too
    await turns(5)  # what was on its way has arrived
    index = leader.publish(GROUP, b"second")
    await memory_region.until(lambda: all(broker.machines[GROUP].committed[-1] == b"second" for broker in followers))
    assert 1 <= traffic.lone_commits[index] <= len(followers)
