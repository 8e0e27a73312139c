"""Which groups look at their time in a tick: of a broker's thousands nearly none, and the others cost nothing.

Rule: a group is looked at when its timer is due, or ELECTION_TICKS after it was looked at if that is sooner. No timer
of the core is set to less, so one that was set anew meanwhile is not due before that look: nobody has to tell.
"""

from __future__ import annotations

from georelay.ids import GroupId
from region.multiraft.group import ELECTION_TICKS, Group
from region.raft.core import Ticks


class Timers:
    """The groups of one broker by the tick of their next look.

    Args:
        ticks: the host's; it moves them one by one, with one `take` each.
    """

    def __init__(self, ticks: Ticks) -> None:
        self._ticks = ticks
        self._slots: list[list[Group]] = [[] for _ in range(ELECTION_TICKS)]
        self._asking: dict[GroupId, Group] = {}

    def opened(self, group: Group) -> None:
        """Look at a group from now on, until it has stopped."""
        self._put(group)

    def asking(self, group: Group) -> None:
        """Look at a group in every tick, while a question of its leader is not answered."""
        self._asking[group.group_id] = group

    def _put(self, group: Group) -> None:
        ahead = min(max(group.node.ticks_left, 1), ELECTION_TICKS)
        self._slots[(self._ticks.now + ahead) % ELECTION_TICKS].append(group)

    def take(self) -> list[Group]:
        """Return the groups that have to look at their time in the tick that has just begun."""
        slot = self._ticks.now % ELECTION_TICKS
        looked_at, self._slots[slot] = self._slots[slot], []
        due = {}
        for group in looked_at:
            if group.stopped:
                continue
            if group.node.ticks_left <= 0 and not group.adopting:
                due[group.group_id] = group
                self._slots[slot].append(group)  # its timer begins anew
            else:
                self._put(group)
        for group_id, group in list(self._asking.items()):
            if group.stopped or not group.node.is_asking:
                del self._asking[group_id]
            elif not group.adopting:
                due[group_id] = group
        return list(due.values())
