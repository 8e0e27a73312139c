"""Expiry at the leader: offsets that nobody has used for long, offsets of deleted topics, groups without anything.

Rule 1: a sweep looks at a few groups in each turn of the event loop.
Rule 2: what goes is named in a command; every replica forgets the same.
Rule 3: a topic that is not known here is not deleted: only its tombstone says so.
Rule 4: an empty group that could not be stored as such is stored first: until then nothing says when it lost its last
member, and offsets would seem older than they may be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from georelay.wire.api import ErrorCode
from region.coordination.log import CoordinatorLog, TimerHandle
from region.groups.commands_core import DeleteOffsets, StoreGroup
from region.groups.group_core import GroupState

if TYPE_CHECKING:
    from georelay.ids import StreamKey
    from region.groups.part import GroupsPart, LiveGroup
    from region.groups.state_core import StoredGroup

GROUPS_PER_TURN: Final = 100
KEYS_PER_COMMAND: Final = 5_000


class Sweep:
    """Looks through the groups of a part again and again, while it is started."""

    def __init__(self, part: GroupsPart, coordinator: CoordinatorLog) -> None:
        self._part = part
        self._log = coordinator
        self._left: list[str] = []
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        """Begin with the first sweep in one period."""
        self._timer = self._log.call_later(self._part.settings.sweep_s, self._begin)

    def stop(self) -> None:
        """Sweep no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._left = [live.group.group_id for live in self._part.groups()]
        self._go_on()

    def _go_on(self) -> None:
        turn, self._left = self._left[:GROUPS_PER_TURN], self._left[GROUPS_PER_TURN:]
        for group_id in turn:
            live = self._part.live(group_id)
            if live is not None and not live.proposing:
                self._look_at(live)
        if self._left:
            self._timer = self._log.call_later(0, self._go_on)
        else:
            self._timer = self._log.call_later(self._part.settings.sweep_s, self._begin)

    def _look_at(self, live: LiveGroup) -> None:
        stored = self._part.stored(live.group.group_id)
        has_no_members = live.group.state is GroupState.EMPTY
        is_empty = has_no_members and not live.group.members.pending
        if has_no_members and stored is not None and stored.record is not None and stored.record.members:
            self._part.propose(live, StoreGroup(record=live.group.record()), _ignore)
        elif is_empty and (stored is None or not stored.offsets):
            self._part.counters.groups_dropped += 1
            self._part.drop(live, _ignore)
        elif stored is not None:
            keys = self._expired(live, stored)[:KEYS_PER_COMMAND]
            if keys:
                self._part.counters.offsets_expired += len(keys)
                self._part.propose(live, DeleteOffsets(group_id=live.group.group_id, keys=tuple(keys)), _ignore)

    def _expired(self, live: LiveGroup, stored: StoredGroup) -> list[StreamKey]:
        offsets = stored.offsets
        expired = offsets.expired(
            now_us=self._log.now_us(),
            retention_us=self._part.settings.offsets_retention_ms * 1000,
            empty_since_us=stored.empty_since_us,
            is_used=self._usage(live),
        )
        is_deleted = self._part.names.is_deleted
        gone = [key for key in offsets.committed if is_deleted(key.topic_id) and not offsets.is_unstable(key)]
        return list(dict.fromkeys([*expired, *gone]))

    def _usage(self, live: LiveGroup) -> Callable[[StreamKey], bool]:
        """Return which offsets do not expire: all of a group that is about to decide who reads what."""
        if live.group.state in (GroupState.EMPTY, GroupState.STABLE):
            return self._part.usage_of(live.group)
        return _everything


def _everything(_: StreamKey) -> bool:
    return True


def _ignore(_: ErrorCode) -> None:
    """Leave it to the next sweep."""
