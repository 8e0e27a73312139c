"""All groups of one region with the sums that placement needs, kept in step by `put` and `pop` alone."""

from __future__ import annotations

from collections.abc import Iterator

from georelay.ids import BrokerId, GroupId, StreamKey
from region.controller.assignment import Assignment
from region.controller.placement_core import ReplicaLoad


class GroupTable:
    """Groups by stream and by id; data groups only.

    Invariants: 1 a stream has at most one group   2 ids ascend from 1 and are never given out twice.
    """

    def __init__(self) -> None:
        self.next_id = 1
        self.load = ReplicaLoad()
        self._by_key: dict[StreamKey, Assignment] = {}
        self._keys: dict[GroupId, StreamKey] = {}
        self._concerned: dict[BrokerId, int] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def __iter__(self) -> Iterator[Assignment]:
        """Return all groups, in order of their ids."""
        return iter(self._by_key.values())

    def of_key(self, key: StreamKey) -> Assignment | None:
        """Return the group of a stream."""
        return self._by_key.get(key)

    def of_id(self, group_id: GroupId) -> Assignment | None:
        """Return the group with that id."""
        key = self._keys.get(group_id)
        return None if key is None else self._by_key[key]

    def take_id(self) -> GroupId:
        """Return an id that was never given out."""
        self.next_id += 1
        return GroupId(self.next_id - 1)

    def is_concerned(self, broker: BrokerId) -> bool:
        """Return whether any group has the broker as a member, wants it, or has to get rid of it."""
        return self._concerned.get(broker, 0) > 0

    def put(self, assignment: Assignment) -> None:
        """Enter a group, or its next version."""
        self._count(self._by_key.get(assignment.key), -1)
        self._by_key[assignment.key] = assignment
        self._keys[assignment.group_id] = assignment.key
        self._count(assignment, 1)

    def pop(self, key: StreamKey) -> Assignment | None:
        """Take a group out; return it."""
        gone = self._by_key.pop(key, None)
        self._count(gone, -1)
        if gone is not None:
            del self._keys[gone.group_id]
        return gone

    def _count(self, assignment: Assignment | None, step: int) -> None:
        if assignment is None:
            return
        (self.load.take if step > 0 else self.load.release)(assignment.target)
        for broker in assignment.concerned:
            self._concerned[broker] = self._concerned.get(broker, 0) + step
