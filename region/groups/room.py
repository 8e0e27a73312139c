"""Room for groups at the leader of a coordinator: what it lets in before it proposes anything.

Rule 1: groups and bytes are shared as region.coordination.shares_core says. What belongs to a group counts for the
        principal that the group is of, whoever commits it.
Rule 2: what is on its way into the log counts as if it was there.
Rule 3: an end of a transaction that comes to a group which is not there is nobody's. Such groups are let in while half
        of the room is free; the next sweep drops them.
Rule 4: a refusal is counted, and said in the log once in SAID_NS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from georelay.wire.api import ErrorCode
from region.coordination.shares_core import Room, Shares
from region.groups.counters import GroupCounters
from region.groups.settings import GROUPS_PER_COORDINATOR_MAX, STATE_BYTES_MAX
from region.groups.state_core import GroupsState, StoredGroup

log = structlog.get_logger()

SAID_NS: Final = 10_000_000_000
END_OF_TRANSACTION: Final = "end of a transaction"  # no principal: whose end comes to a group that is not there


class GroupRoom:
    """Counts the groups that are served, and what is on its way."""

    def __init__(self, state: GroupsState, counters: GroupCounters, monotonic_ns: Callable[[], int]) -> None:
        self.groups = Shares(GROUPS_PER_COORDINATOR_MAX)
        self._state = state
        self._counters = counters
        self._monotonic_ns = monotonic_ns
        self._on_its_way = Shares(STATE_BYTES_MAX)
        self._said_ns: int | None = None

    def has_group(self, principal: str, group_id: str) -> bool:
        """Return whether a principal may have one group more."""
        room = self.groups.look(principal, 1)
        if room is Room.FREE:
            room = self._look(principal, StoredGroup(group_id).size_bytes)
        if principal == END_OF_TRANSACTION and 2 * self._used_bytes > self._state.shares.room:
            room = Room.OWN_SHARE_FULL
        return self._noted(room, principal, group_id) is Room.FREE

    def refusal(self, principal: str, group_id: str, growth_bytes: int) -> ErrorCode:
        """Return why a group may not grow, NONE when it may.

        POLICY_VIOLATION where the share of its principal is full: clients take it for final. Where there is no room for
        anybody it is INVALID_COMMIT_OFFSET_SIZE.
        """
        room = self._noted(self._look(principal, growth_bytes), principal, group_id)
        if room is Room.FREE:
            return ErrorCode.NONE
        return ErrorCode.POLICY_VIOLATION if room is Room.OWN_SHARE_FULL else ErrorCode.INVALID_COMMIT_OFFSET_SIZE

    def propose(self, principal: str, growth_bytes: int) -> Callable[[], None]:
        """Count growth that is on its way; call what is returned when it is applied or lost."""
        growth_bytes = max(growth_bytes, 0)
        self._on_its_way.add(principal, growth_bytes)
        return lambda: self._on_its_way.add(principal, -growth_bytes)

    @property
    def _used_bytes(self) -> int:
        return self._state.size_bytes + self._on_its_way.used

    def _look(self, principal: str, growth_bytes: int) -> Room:
        return self._state.shares.look(principal, growth_bytes, on_its_way=self._on_its_way)

    def _noted(self, room: Room, principal: str, group_id: str) -> Room:
        if room is Room.FREE:
            return room
        self._counters.room_refusals += 1
        now_ns = self._monotonic_ns()
        if self._said_ns is None or now_ns - self._said_ns >= SAID_NS:
            self._said_ns = now_ns
            log.warning(
                "group.refused",
                group=group_id,
                principal=principal,
                why=room.value,
                groups=self.groups.used,
                bytes=self._state.size_bytes,
                own_groups=self.groups.held_by(principal),
                own_bytes=self._state.shares.held_by(principal),
            )
        return room
