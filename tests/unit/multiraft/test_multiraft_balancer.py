"""The balancer of a running broker moves its leaderships to the preferred voter, and away when it is drained."""

from __future__ import annotations

import time
from typing import Any

import pytest

from georelay.ids import BrokerId, GroupId
from region.multiraft.balancer import LeaderBalancer
from region.multiraft.balancer_core import SETTLE_MS
from tests.conditions import until

GROUP = GroupId(1)


class SkewedClock:
    """The real clock, and what a test adds to it."""

    def __init__(self) -> None:
        self.added_ns = 0

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() + self.added_ns

    def wall_ns(self) -> int:
        return time.time_ns()


@pytest.mark.parametrize("drains", [False, True], ids=["balances", "drains"])
async def test_leadership_goes_where_it_should_be(memory_region: Any, drains: bool) -> None:
    brokers = await memory_region.add(3)
    for broker in brokers:
        await broker.open(GROUP, tuple(memory_region.brokers))
    first = await until(lambda: memory_region.leader(GROUP))
    wanted = next(broker for broker in brokers if broker is not first)
    order = tuple(broker.me for broker in brokers if broker is not wanted)
    preferred = {GROUP: (first.me, wanted.me) if drains else (wanted.me, *order)}
    draining: frozenset[BrokerId] = frozenset({first.me}) if drains else frozenset()
    clock = SkewedClock()
    balancers = [
        LeaderBalancer(broker.host, clock=clock, preferred=lambda: preferred, draining=lambda: draining, interval_ms=5)
        for broker in brokers
    ]
    for balancer in balancers:
        balancer.start()
    if not drains:
        clock.added_ns = SETTLE_MS * 1_000_000
    await until(lambda: memory_region.leader(GROUP) is wanted)
    for balancer in balancers:
        balancer.stop()
