"""Who could lead a group instead of this broker, and giving the leadership to the one that could soonest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from georelay.clock import Clock
from georelay.ids import BrokerId, GroupId, Term
from region.multiraft.group import Group
from region.raft.core import ProgressState
from region.raft.core.types import NO_BROKER

log = structlog.get_logger()

HEIR_BEHIND_ENTRIES_MAX: Final = 1_024
LAST_HAND_OVER_MS_MAX: Final = 1_000
LAST_HAND_OVER_LOOK_S: Final = 0.005


def heirs_of(group: Group, is_alive: Callable[[BrokerId], bool]) -> dict[BrokerId, int]:
    """Return the voters that could lead at once, alive, replicating and near the end, with how far they are."""
    heirs = {}
    for voter in group.membership.voters:
        progress = group.node.progress(voter)
        if progress is None or progress.repairing or not is_alive(voter):
            continue
        near = progress.match + HEIR_BEHIND_ENTRIES_MAX >= group.node.last_index
        if near and progress.state is ProgressState.REPLICATE:
            heirs[voter] = progress.match
    return heirs


def hand_over(group: Group, is_alive: Callable[[BrokerId], bool]) -> bool:
    """Give the leadership away; False when there is nobody, or it is under way, or not held."""
    if not group.node.is_leader or group.node.transferee:
        return False
    heirs = heirs_of(group, is_alive)
    if not heirs:
        return False
    return group.transfer_leadership(max(heirs, key=lambda heir: (heirs[heir], -heir)))


async def hand_all_over(groups: Iterable[Group], is_alive: Callable[[BrokerId], bool], *, clock: Clock) -> None:
    """Give every leadership away before this broker stops, and wait until it is taken, for a second at most.

    Who was elected a moment ago has no heir yet and is asked again, and so is one whose heir did not stand for
    election in time; another broker may hand a group to this one meanwhile. A group that comes back is kept: where all
    brokers stop, leadership would go round between them.
    """
    offered, given_in = list(groups), dict[GroupId, Term]()
    until_ns = clock.monotonic_ns() + LAST_HAND_OVER_MS_MAX * 1_000_000
    while True:
        for group in offered:
            if _is_ours_to_give(group, given_in) and hand_over(group, is_alive):
                given_in[group.group_id] = group.node.term
        left = sum(_is_left(group, given_in, is_alive) for group in offered)
        if not left or clock.monotonic_ns() >= until_ns:
            break
        # What ends a group's leadership tells nobody: it may be any message of any of them.
        await asyncio.sleep(LAST_HAND_OVER_LOOK_S)
    if given_in:
        log.info("leadership.given_up", groups=len(given_in), not_taken=left)


def _is_ours_to_give(group: Group, given_in: Mapping[GroupId, Term]) -> bool:
    """Return whether this broker leads, and not because somebody gave the group back."""
    return group.node.is_leader and given_in.get(group.group_id, group.node.term) == group.node.term


def _is_left(group: Group, given_in: Mapping[GroupId, Term], is_alive: Callable[[BrokerId], bool]) -> bool:
    """Return whether waiting may help the group to another leader."""
    node = group.node
    if node.is_leader:
        may_lead = (voter for voter in group.membership.voters if node.progress(voter) and is_alive(voter))
        return _is_ours_to_give(group, given_in) and any(may_lead)
    return group.group_id in given_in and node.leader_id == NO_BROKER  # the heir asks for votes, ours among them
