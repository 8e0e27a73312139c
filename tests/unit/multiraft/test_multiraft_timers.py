"""A tick visits the groups whose time it is, as a tick of each of them would; the others cost nothing."""

from __future__ import annotations

import random
from typing import Any

from georelay.ids import GroupId
from region.multiraft.group import ELECTION_TICKS
from region.multiraft.timers import Timers
from region.raft.core import Ticks


class Timed:
    """A group whose timer is set anew when it fires, and by whoever says so."""

    def __init__(self, number: int, ticks: Ticks, rng: random.Random) -> None:
        self.group_id, self._ticks, self._rng = GroupId(number), ticks, rng
        self.node: Any = self
        self.stopped = self.adopting = self.is_asking = False
        self.looks: list[int] = []
        self.fired: list[int] = []
        self.visits = 0
        self.reset()

    def reset(self, ahead: int | None = None) -> None:
        self.due = self._ticks.now + (
            self._rng.randrange(ELECTION_TICKS, 2 * ELECTION_TICKS) if ahead is None else ahead
        )

    @property
    def ticks_left(self) -> int:
        self.visits += 1
        return self.due - self._ticks.now

    def look_at_time(self) -> None:
        self.looks.append(self._ticks.now)
        if self.due <= self._ticks.now:
            self.fired.append(self._ticks.now)
            self.reset()


class Timing:
    def __init__(self, count: int, seed: int = 1) -> None:
        self.ticks, self.rng = Ticks(), random.Random(seed)
        self.timers = Timers(self.ticks)
        self.groups = [Timed(number, self.ticks, self.rng) for number in range(count)]
        for group in self.groups:
            self.timers.opened(group)  # type: ignore[arg-type]

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.ticks.now += 1
            for group in self.timers.take():
                group.node.look_at_time()


def test_every_timer_fires_in_its_tick_also_when_it_is_set_anew_meanwhile() -> None:
    for seed in range(20):
        timing = Timing(7, seed)
        due: dict[int, list[int]] = {group.group_id: [] for group in timing.groups}
        for _ in range(300):
            for group in timing.groups:
                if timing.rng.random() < 0.05:  # a new role, or a sign of life
                    group.reset()
                if group.due == timing.ticks.now + 1:
                    due[group.group_id].append(group.due)
            timing.tick()
        assert {group.group_id: group.fired for group in timing.groups} == due


def test_a_group_whose_leader_beats_is_visited_once_in_an_election_timeout() -> None:
    timing = Timing(50)
    for _ in range(10 * ELECTION_TICKS):
        for group in timing.groups:
            group.reset()
        timing.tick()
    assert all(not group.looks for group in timing.groups)
    assert max(group.visits for group in timing.groups) <= 2 * 10 + 2


def test_a_group_that_asks_looks_in_every_tick_until_it_is_answered() -> None:
    timing = Timing(2)
    asking = timing.groups[0]
    asking.is_asking = True
    timing.timers.asking(asking)  # type: ignore[arg-type]
    timing.tick(3)
    assert asking.looks == [1, 2, 3] and not timing.groups[1].looks
    asking.is_asking = False
    timing.tick(3)
    assert asking.looks == [1, 2, 3]


def test_a_stopped_group_looks_no_more() -> None:
    timing = Timing(1)
    (group,) = timing.groups
    group.is_asking = group.stopped = True
    timing.timers.asking(group)  # type: ignore[arg-type]
    timing.tick(40)
    assert not group.looks


def test_a_group_that_adopts_segments_looks_at_its_time_as_soon_as_that_has_ended() -> None:
    timing = Timing(1)
    (group,) = timing.groups
    group.adopting = True
    timing.tick(40)
    assert not group.looks
    group.adopting = False
    timing.tick()
    assert group.looks == [41]
