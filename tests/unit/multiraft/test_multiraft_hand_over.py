"""A broker that stops gives its leaderships away, again where the heir did not take them."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.ids import GroupId
from region.multiraft.hand_over import hand_all_over
from region.raft.core import RaftNode, TimeoutNow
from tests.conditions import until

GROUP = GroupId(1)


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
