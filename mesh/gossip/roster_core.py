"""Members that are known, and the order in which they are probed. Pure.

Rule 1: probes go round robin over a shuffled list: every member is probed once in n intervals, never a lucky one not.
Rule 2: a new member enters at a random place, so that it is not probed by everybody at once.
Rule 3: the list is shuffled anew at each end; there, members gone for longer than `forget_after_s` are forgotten.
Rule 4: at most `members_max` members: a key holder could invent as many as it likes.

Source: Das, Gupta, Motivala, "SWIM" (2002), section 4.3 (round-robin probe target selection).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from mesh.gossip.member import Member
from mesh.gossip.randomness import Randomness

MEMBERS_MAX: Final = 4096


class Roster:
    """Members by name.

    Args:
        own_name: is never probed nor picked.
        rng: shuffles and picks.
        forget_after_s: `Timing.gossip_to_dead_s`.
        members_max: bound.
    """

    def __init__(
        self, *, own_name: str, rng: Randomness, forget_after_s: float, members_max: int = MEMBERS_MAX
    ) -> None:
        self._own_name = own_name
        self._rng = rng
        self._forget_after_s = forget_after_s
        self._members_max = members_max
        self._members: dict[str, Member] = {}
        self._order: list[str] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._members)

    def get(self, name: str) -> Member | None:
        """Return a member, None if unknown."""
        return self._members.get(name)

    def values(self) -> Sequence[Member]:
        """Return everybody, us and the dead included."""
        return list(self._members.values())

    @property
    def is_full(self) -> bool:
        """Return whether no further member is taken."""
        return len(self._members) >= self._members_max

    def put(self, member: Member) -> None:
        """Add or replace a member; new ones enter the probe order at a random place."""
        if member.name not in self._members:
            order = self._order
            order.append(member.name)
            place = self._rng.randrange(len(order))
            order[place], order[-1] = order[-1], order[place]
        self._members[member.name] = member

    def next_probe(self, now: float) -> Member | None:
        """Return the next member to probe, None if there is none."""
        for _ in range(2):  # the rest of this round, then one whole round
            while self._next < len(self._order):
                member = self._members[self._order[self._next]]
                self._next += 1
                if member.name != self._own_name and not member.is_gone:
                    return member
            self._new_round(now)
        return None

    def pick(self, count: int, wanted: Callable[[Member], bool]) -> list[Member]:
        """Return up to `count` different members that are `wanted`, never ourselves, at random."""
        found = [member for member in self._members.values() if member.name != self._own_name and wanted(member)]
        return found if len(found) <= count else self._rng.sample(found, count)

    def _new_round(self, now: float) -> None:
        for name, member in list(self._members.items()):
            if member.is_gone and now - member.changed_at > self._forget_after_s and name != self._own_name:
                del self._members[name]
        self._order = list(self._members)
        self._rng.shuffle(self._order)
        self._next = 0
