"""What the coordinators of one broker count: plain integers that only grow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GroupCounters:
    """All coordinators of a broker together."""

    generations: int = 0  # rebalances whose outcome was stored
    offsets_committed: int = 0
    offsets_expired: int = 0
    room_refusals: int = 0  # new groups and what groups would have kept more, for which there was no room
    groups_dropped: int = 0  # empty and without offsets
