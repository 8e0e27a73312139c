"""Who could lead a group instead of this broker, and giving the leadership to the one that could soonest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from georelay.ids import BrokerId
from region.multiraft.group import Group
from region.raft.core import ProgressState

HEIR_BEHIND_ENTRIES_MAX: Final = 1_024


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
