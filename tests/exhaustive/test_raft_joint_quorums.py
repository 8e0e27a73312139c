"""Every membership of up to four brokers, and every step from one to the next, counted by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, product

from georelay.ids import BrokerId
from region.raft.core import Membership
from region.raft.core.memberships import left, next_membership
from region.raft.core.quorum import is_quorum, quorum_index

BROKERS = tuple(map(BrokerId, (1, 2, 3, 4)))
Group = frozenset[BrokerId]


def subsets(of: tuple[BrokerId, ...] = BROKERS) -> list[tuple[BrokerId, ...]]:
    return list(chain.from_iterable(combinations(of, size) for size in range(len(of) + 1)))


def every_membership() -> Iterator[Membership]:
    for voters in subsets()[1:]:
        for outgoing in subsets():
            yield Membership(voters=voters, outgoing=outgoing)


def majorities(voters: tuple[BrokerId, ...]) -> set[Group]:
    return {frozenset(group) for group in subsets() if 2 * len(set(group) & set(voters)) > len(voters)}


def quorums(membership: Membership) -> set[Group]:
    """All groups of brokers that may elect and commit."""
    found = majorities(membership.voters)
    return found & majorities(membership.outgoing) if membership.outgoing else found


def test_a_quorum_is_a_majority_of_each_half() -> None:
    for membership in every_membership():
        allowed = quorums(membership)
        for group in subsets():
            assert is_quorum(membership, group.__contains__) == (frozenset(group) in allowed)


def test_the_quorum_index_is_the_highest_that_a_quorum_has_reached() -> None:
    for membership in every_membership():
        allowed = quorums(membership)
        for indexes in product(range(4), repeat=len(BROKERS)):
            match = dict(zip(BROKERS, indexes, strict=True))
            holders = [frozenset(broker for broker in BROKERS if match[broker] >= index) for index in range(4)]
            reached = [index for index in range(4) if holders[index] in allowed]
            assert quorum_index(membership, match.__getitem__) == max(reached)


def meet(one: Membership, other: Membership) -> bool:
    return all(a & b for a in quorums(one) for b in quorums(other))


def test_any_two_memberships_that_can_be_in_force_at_once_share_a_voter_in_all_quorums() -> None:
    """One after the other: the change, and for a joint one its end. That is what makes a change safe."""
    steps = 0
    for old, new in product(subsets()[1:], repeat=2):
        now = Membership(voters=old)
        step = next_membership(now, voters=new, learners=())
        if step is None:
            assert set(old) == set(new)
            continue
        steps += 1
        assert meet(now, step), (now, step)
        assert bool(step.outgoing) == (len(set(old) ^ set(new)) > 1)
        if step.outgoing:
            assert meet(step, left(step)), step
        assert left(step) == Membership(voters=new)
    assert steps == 15 * 14


def test_larger_changes_at_once_would_not_be_safe() -> None:
    """The joint step is not there for nothing: some pair of memberships two voters apart has disjoint quorums."""
    one, other = Membership(voters=BROKERS[:2]), Membership(voters=BROKERS[2:])
    assert not meet(one, other)
    assert not meet(Membership(voters=BROKERS[:1]), Membership(voters=BROKERS[:3]))
