"""Who belongs to the group: the memberships in the log, and how one follows another.

Rule 1: the newest membership in the log is in force from the moment it is appended, committed or not, and is gone
when it is truncated (Raft paper, section 6). Everything that counts, counts by it. In force only once applied
would be unsafe here: the commit index is not stored, so a restarted group could elect by a passed membership.
Rule 2: at most one of them is not committed. Together with the leader's own first entry being committed, any two
memberships that can be in force at once have no two disjoint majorities (Ongaro's thesis, section 4.1, and his
note of 2015 on single-server changes).
Rule 3: a change of one voter is made at once. A larger one goes through a joint membership, in which both the old
and the new voters must agree; the leader leaves it as soon as it is committed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from georelay.ids import BrokerId
from region.raft.core.roles import InvariantViolated
from region.raft.core.types import Membership


class MembershipLog:
    """The memberships that entries of the log have put in force, oldest first, and the one before them.

    Args:
        base: in force before the first of `entries`.
        entries: (index, membership), rising; not below the index from which the log's entries are known.
    """

    __slots__ = ("_indexes", "_memberships")

    def __init__(self, base: Membership, entries: Sequence[tuple[int, Membership]] = ()) -> None:
        self._indexes = [0]
        self._memberships = [base]
        for index, membership in entries:
            self.append(index, membership)

    @property
    def current(self) -> Membership:
        """Return the membership in force."""
        return self._memberships[-1]

    @property
    def index(self) -> int:
        """Return the entry that put it in force; 0 for the founders'."""
        return self._indexes[-1]

    def may_lead(self, broker: BrokerId, commit: int) -> bool:
        """Return whether `broker` may campaign when it knows everything up to `commit` to be committed.

        Voters may. So may who voted before a change that may not be committed: its log can be the only one that is
        new enough to be elected, and no voter of the new membership may have that entry yet. It is not counted,
        and steps down when the change is committed (Ongaro's thesis, section 4.2.2).
        """
        before = self._memberships[-2:-1] if self._indexes[-1] > commit else []
        return any(membership.votes(broker) for membership in (self.current, *before))

    def names_above(self, broker: BrokerId, index: int) -> bool:
        """Return whether a membership that is known, and was put in force above `index`, has `broker` in it."""
        return any(
            at > index and broker in membership.members()
            for at, membership in zip(self._indexes, self._memberships, strict=True)
        )

    def at(self, index: int) -> Membership:
        """Return the membership in force after entry `index`, which is not below the last `forget_below`."""
        return self._memberships[max(bisect_right(self._indexes, index) - 1, 0)]

    def append(self, index: int, membership: Membership) -> None:
        """Put `membership` in force."""
        if index <= self._indexes[-1]:
            raise InvariantViolated(f"a membership at {index} cannot follow the one at {self._indexes[-1]}")
        self._indexes.append(index)
        self._memberships.append(membership)

    def truncate_from(self, index: int) -> None:
        """Undo every membership at `index` or above."""
        keep = max(bisect_right(self._indexes, index - 1), 1)
        del self._indexes[keep:]
        del self._memberships[keep:]

    def reset(self, index: int, membership: Membership) -> None:
        """Start anew after entry `index`, where `membership` is in force."""
        self._indexes = [index]
        self._memberships = [membership]

    def forget_below(self, index: int) -> None:
        """Forget what was in force before entry `index`."""
        drop = bisect_right(self._indexes, index) - 1
        if drop > 0:
            del self._indexes[:drop]
            del self._memberships[:drop]


def next_membership(
    now: Membership, *, voters: tuple[BrokerId, ...], learners: tuple[BrokerId, ...]
) -> Membership | None:
    """Return what to put in force on the way from `now`, which is not joint, to `voters` and `learners`.

    Returns:
        None when they are in force already; a joint membership when more than one voter changes.

    Raises:
        ValueError: no voter, a broker twice, or a voter that is a learner too.
    """
    if not voters:
        raise ValueError("a Raft group needs at least one voter")
    wanted = Membership(voters=voters, learners=learners)
    changed = set(voters) ^ set(now.voters)
    if not changed and set(learners) == set(now.learners):
        return None
    return wanted if len(changed) <= 1 else Membership(voters=voters, learners=learners, outgoing=now.voters)


def left(joint: Membership) -> Membership:
    """Return the membership after a joint one: the old voters have nothing more to say."""
    return Membership(voters=joint.voters, learners=joint.learners)
