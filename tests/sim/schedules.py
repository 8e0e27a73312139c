"""Scripted troubles: chains of events that chance would take a million seeds to line up.

A schedule is a generator that yields how many ms to wait for its next step. It only does what the other faults do too
(block paths, slow disks, hand over), so it may be part of any world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from georelay.ids import BrokerId, GroupId
from tests.sim.clockwork import NS_PER_MS

if TYPE_CHECKING:
    from random import Random

    from tests.sim.broker_world import BrokerWorld

Schedule = Callable[["BrokerWorld", "Random"], Iterator[int]]
STEP_MS: Final = 50
LEADER_WAIT_MS: Final = 3_000


def play(world: BrokerWorld, schedule: Iterator[int]) -> None:
    """Do the next step of a schedule, and all that follow in their time."""
    delay_ms = None if world.healing else next(schedule, None)
    if delay_ms is not None:
        world.clockwork.after(delay_ms * NS_PER_MS, play, world, schedule)


def begin(world: BrokerWorld, name: str, rng: Random) -> None:
    """Start a schedule by its name."""
    world.mark(f"schedule.{name}")
    play(world, SCHEDULES[name](world, rng))


def _leader(world: BrokerWorld, group_id: GroupId) -> Any:
    """Return the newest leader's group, None while there is none."""
    found = [
        group
        for life in world.lives.values()
        if life.host is not None and (group := life.host.groups.get(group_id)) is not None
        if group.node.is_leader and not group.stopped
    ]
    return max(found, key=lambda group: int(group.node.term), default=None)


def _draw(world: BrokerWorld, rng: Random) -> tuple[GroupId, BrokerId, BrokerId, list[BrokerId]] | None:
    """Return (group, its leader, a follower, all others of their region)."""
    groups = sorted({group for life in world.lives.values() for group in life.streams})
    group_id = rng.choice(groups) if groups else GroupId(0)
    group = _leader(world, group_id)
    if group is None:
        return None
    leader: BrokerId = group.me
    voters = [broker for broker in group.membership.voters if broker != leader]
    if len(voters) < 2:
        return None
    follower = rng.choice(voters)
    return group_id, leader, follower, [broker for broker in voters if broker != follower]


def _part(world: BrokerWorld, side: list[BrokerId], other: list[BrokerId], *, blocked: bool) -> None:
    for one in side:
        for another in other:
            world.network.path(one, another).blocked = blocked
            world.network.path(another, one).blocked = blocked
    if not blocked:
        world.network.resume_all()


def stale_write(world: BrokerWorld, rng: Random) -> Iterator[int]:
    """A follower's disk is still writing a leader's entries when another leader replaces them.

    Leader and follower are cut off together; the follower's sync takes longer than it takes the others to elect.
    Then the follower is on the others' side, and takes entries for the same indexes.
    """
    drawn = _draw(world, rng)
    if drawn is None:
        return
    group_id, leader, follower, others = drawn
    world.note("schedule", "stale write", group_id, leader, follower)
    _part(world, [leader, follower], others, blocked=True)
    yield rng.randrange(50, 200)
    disk = world.disks[follower]
    disk.sync_us = rng.randrange(1_000_000, 2_500_000)
    for _ in range(LEADER_WAIT_MS // STEP_MS):
        yield STEP_MS
        group = _leader(world, group_id)
        if group is not None and group.me in others:
            break
    _part(world, [leader], [follower], blocked=True)
    _part(world, [follower], others, blocked=False)
    yield rng.randrange(1_000, 2_500)
    disk.sync_us = 200
    _part(world, [leader], [follower, *others], blocked=False)


def late_acknowledgement(world: BrokerWorld, rng: Random) -> Iterator[int]:
    """An acknowledgement travels so long that its leader has lost its office, its entries, and leads again.

    Leader and follower are cut off together, and what the follower answers is held on its way; then the follower is
    alone. The others elect; the former leader follows them, is handed the leadership, and hears the old answer.
    """
    drawn = _draw(world, rng)
    if drawn is None:
        return
    group_id, leader, follower, others = drawn
    world.note("schedule", "late acknowledgement", group_id, leader, follower)
    _part(world, [leader, follower], others, blocked=True)
    world.network.block(follower, leader)
    yield rng.randrange(60, 250)
    world.network.block(leader, follower)
    for _ in range(LEADER_WAIT_MS // STEP_MS):
        yield STEP_MS
        group = _leader(world, group_id)
        if group is not None and group.me in others:
            break
    yield rng.randrange(50, 400)
    _part(world, [leader], others, blocked=False)
    for _ in range(LEADER_WAIT_MS // STEP_MS):
        yield STEP_MS
        group = _leader(world, group_id)
        if group is None:
            continue
        if group.me == leader and group.node.term > 0 and group.serves_as_leader:
            break
        group.transfer_leadership(leader)
    world.network.path(follower, leader).blocked = False
    world.network.resume_all()
    yield rng.randrange(200, 600)
    _part(world, [follower], [leader, *others], blocked=False)


SCHEDULES: Final[dict[str, Schedule]] = {
    "stale_write": stale_write,
    "late_acknowledgement": late_acknowledgement,
}
