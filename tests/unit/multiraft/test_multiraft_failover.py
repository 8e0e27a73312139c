"""What a broker says and does the moment the connection to a leader is reset."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from georelay.ids import GroupId
from region.multiraft.peers import Lane

GROUP = GroupId(1)
SECONDS_MAX = 10


async def test_a_leader_whose_connection_was_reset_is_hidden_at_once(start_region: Any) -> None:
    brokers = await start_region(3, 1)
    deadline = time.monotonic() + SECONDS_MAX
    while not all(broker.host.leaders.leader(GROUP) > 0 for broker in brokers):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    leader = brokers[0].host.leaders.leader(GROUP)
    follower = next(broker for broker in brokers if broker.me != leader)
    while not follower.host.is_alive(leader):  # who told of the leader may have been somebody else
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    before = follower.host.liveness_version
    follower.host.peer_lost(leader, Lane.CONTROL)
    assert follower.host.leaders.leader(GROUP) == -1
    assert not follower.host.is_alive(leader)
    assert follower.host.liveness_version > before  # answers cached for clients are stale
