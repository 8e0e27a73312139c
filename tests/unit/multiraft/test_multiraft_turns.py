"""A turn is taken for what the core wants done; what it only has to know costs none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from georelay.ids import BrokerId, GroupId

GROUP = GroupId(7)
VOTERS = (BrokerId(1001), BrokerId(1002), BrokerId(1003))


class Turns:
    """Counts the turns of a broker's host."""

    def __init__(self, broker: Any) -> None:
        self.count = 0
        self._turn: Callable[[], None] = broker.host._turn
        broker.host._turn = self.turn

    def turn(self) -> None:
        self.count += 1
        self._turn()


async def test_an_acknowledgement_that_commits_nothing_costs_no_turn_and_is_known_all_the_same(
    memory_region: Any, ledger_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_class, "serves_at_followers", False)
    brokers = await memory_region.add(3)
    for broker in brokers:
        await broker.open(GROUP, VOTERS)
    await memory_region.until(lambda: memory_region.leader(GROUP) is not None)
    leader = memory_region.leader(GROUP)
    _, slow = [broker for broker in brokers if broker is not leader]
    leader.publish(GROUP, b"first")
    await memory_region.until(lambda: all(broker.machines[GROUP].committed == [b"first"] for broker in brokers))
    leader.host.beats.tick = lambda *, silent: None  # no beat, and no answer to one, comes in between
    slow.flusher.held = True
    leader.publish(GROUP, b"second")
    await memory_region.until(lambda: leader.machines[GROUP].committed == [b"first", b"second"])
    led = leader.host.groups[GROUP]
    assert led.catch_up_of(slow.me).match < led.node.last_index
    turns = Turns(leader)
    slow.flusher.held = False
    slow.flusher.flush()
    await memory_region.until(lambda: led.catch_up_of(slow.me).match == led.node.last_index)
    assert turns.count == 0
    assert GROUP in leader.host.beats._stirred, "the next beat tells the follower what is committed"
