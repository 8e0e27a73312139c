"""Leadership moves to the preferred broker, one step at a time, and not again and again."""

from __future__ import annotations

from itertools import pairwise

from georelay.ids import BrokerId, GroupId
from region.multiraft.balancer_core import (
    DRAIN_INTERVAL_MS,
    PAIR_INTERVAL_MS,
    RETRY_MS,
    SETTLE_MS,
    BalancerCore,
    LeaderMove,
    LedGroup,
)

ME, OTHER, THIRD = BrokerId(1001), BrokerId(1002), BrokerId(1003)
NOBODY: frozenset[BrokerId] = frozenset()
MS = 1_000_000
SETTLED_NS = SETTLE_MS * MS


def led(
    number: int = 1,
    *preferred: BrokerId,
    healthy: frozenset[BrokerId] = frozenset({OTHER, THIRD}),
) -> LedGroup:
    return LedGroup(group_id=GroupId(number), preferred=preferred or (OTHER, ME, THIRD), healthy=healthy)


def move(number: int, to: BrokerId) -> LeaderMove:
    return LeaderMove(group_id=GroupId(number), to=to)


def core() -> BalancerCore:
    return BalancerCore(me=ME, now_ns=0)


def test_nothing_moves_before_the_broker_has_settled() -> None:
    balancer = core()
    assert balancer.plan(SETTLED_NS - 1, [led()], NOBODY) == []
    assert balancer.plan(SETTLED_NS, [led()], NOBODY) == [move(1, OTHER)]


def test_one_hand_over_per_interval_and_pair() -> None:
    balancer = core()
    groups = [led(1), led(2), led(3, THIRD, ME)]
    assert balancer.plan(SETTLED_NS, groups, NOBODY) == [move(1, OTHER), move(3, THIRD)]
    assert balancer.plan(SETTLED_NS + PAIR_INTERVAL_MS * MS - 1, groups[1:2], NOBODY) == []
    assert balancer.plan(SETTLED_NS + PAIR_INTERVAL_MS * MS, groups[1:2], NOBODY) == [move(2, OTHER)]


def test_the_first_healthy_voter_is_preferred_and_the_own_place_ends_the_search() -> None:
    balancer = core()
    assert balancer.plan(SETTLED_NS, [led(1, ME, OTHER)], NOBODY) == []
    assert balancer.plan(SETTLED_NS, [led(2, OTHER, ME, healthy=frozenset({THIRD}))], NOBODY) == []
    assert balancer.plan(SETTLED_NS, [led(3, OTHER, THIRD, ME, healthy=frozenset({THIRD}))], NOBODY) == [move(3, THIRD)]


def test_a_hand_over_that_fails_is_tried_later_and_later() -> None:
    balancer = core()
    at_ms, tries = SETTLE_MS, []
    for _ in range(80):
        if balancer.plan(at_ms * MS, [led()], NOBODY):
            tries.append(at_ms)
        at_ms += RETRY_MS // 2
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert gaps == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS, 8 * RETRY_MS, 16 * RETRY_MS]


def test_a_hand_over_that_worked_is_forgotten() -> None:
    balancer = core()
    balancer.plan(SETTLED_NS, [led()], NOBODY)
    balancer.plan(SETTLED_NS + MS, [], NOBODY)  # somebody else leads it
    assert balancer.plan(SETTLED_NS + PAIR_INTERVAL_MS * MS, [led()], NOBODY) == [move(1, OTHER)]


def test_a_draining_broker_gives_everything_away_at_once_and_quickly() -> None:
    balancer = core()
    groups = [led(1, ME, OTHER), led(2, ME, OTHER)]
    draining = frozenset({ME})
    assert balancer.plan(0, groups, draining) == [move(1, OTHER)]
    assert balancer.plan(DRAIN_INTERVAL_MS * MS, groups[1:], draining) == [move(2, OTHER)]


def test_a_draining_broker_gets_nothing() -> None:
    balancer = core()
    assert balancer.plan(SETTLED_NS, [led(1, OTHER, ME)], frozenset({OTHER})) == []
    assert balancer.plan(0, [led(2, ME)], frozenset({ME, OTHER})) == [move(2, THIRD)]
