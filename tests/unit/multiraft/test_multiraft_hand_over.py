"""A broker that stops gives its leaderships away, again where the heir did not take them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.ids import GroupId
from region.multiraft.hand_over import hand_all_over
from region.raft.core import RaftNode, TimeoutNow

GROUP = GroupId(1)


async def until(condition: Callable[[], Any], seconds: float = 10) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        await asyncio.sleep(0.002)
    raise AssertionError("the condition did not come true in time")


async def test_a_group_whose_heir_did_not_stand_for_election_is_offered_again(
    memory_region: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = await memory_region.add(3)
    for broker in brokers:
        await broker.open(GROUP, tuple(memory_region.brokers))
    leader = await until(lambda: memory_region.leader(GROUP))
    deaf, told = 1, RaftNode._on_timeout_now

    def take(node: RaftNode[Any], message: TimeoutNow) -> None:
        nonlocal deaf
        if deaf:
            deaf -= 1
        else:
            told(node, message)

    monkeypatch.setattr(RaftNode, "_on_timeout_now", take)
    host = leader.host
    await hand_all_over(list(host.groups.values()), host.is_alive, clock=SystemClock())
    assert deaf == 0
    heir = await until(lambda: memory_region.leader(GROUP))
    assert heir is not leader
