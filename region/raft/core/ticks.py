"""Raft's time, in ticks, and signs of life that reach many groups without a visit to each of them.

A broker has one `Ticks` for all its groups: time passes for all of them by one addition, and a group looks at it when
its timer is due. A `Pulse` is what one connection to a peer tells of life: members that hear their leader, or a
follower, by nothing but its beats ride on it and read from it when they were last heard, until something of them
changes.
"""

from __future__ import annotations

from typing import Protocol

from georelay.ids import GroupId


class Ticks:
    """The tick that it is now; moved by the host."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0


class Rider(Protocol):
    """A member that follows a leader whose beats have been the same for a while."""

    def ride(self, pulse: Pulse) -> None:
        """Take what `pulse` says for a heartbeat of the leader, until `Pulse.left` was called."""

    def get_off(self) -> None:
        """Ride no longer; calls `Pulse.left`."""


class Pulse:
    """When the peer of one connection was last heard by its beats, and the groups to which that says too little.

    Args:
        ticks: of the host.

    Attributes:
        at: tick of the newest beat, or answer to one; -1 before the first.
        apart: groups to which each beat has to be told one by one.
    """

    __slots__ = ("_riders", "_ticks", "apart", "at")

    def __init__(self, ticks: Ticks) -> None:
        self._ticks = ticks
        self._riders: dict[Rider, GroupId] = {}
        self.at = -1
        self.apart: set[GroupId] = set()

    def beat(self) -> None:
        """Note a sign of life, for all that ride."""
        self.at = self._ticks.now

    def carry(self, rider: Rider, group_id: GroupId) -> None:
        """Let a member ride from now on."""
        rider.ride(self)
        self._riders[rider] = group_id
        self.apart.discard(group_id)

    def left(self, rider: Rider) -> None:
        """Note that a member rides no longer: its group is told apart again."""
        group_id = self._riders.pop(rider, None)
        if group_id is not None:
            self.apart.add(group_id)

    def carries(self, rider: Rider) -> bool:
        """Return whether that member rides on this pulse."""
        return rider in self._riders

    def riders(self) -> list[Rider]:
        """Return who rides now."""
        return list(self._riders)
