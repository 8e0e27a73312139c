"""Majorities against counting by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from georelay.ids import BrokerId
from region.raft.core import Membership
from region.raft.core.quorum import Outcome, Poll, is_quorum, quorum_index

IDS = st.lists(st.integers(1, 9).map(BrokerId), min_size=1, max_size=7, unique=True).map(tuple)
MEMBERSHIPS = st.builds(Membership, voters=IDS, outgoing=st.one_of(st.just(()), IDS))


def halves(membership: Membership) -> list[tuple[BrokerId, ...]]:
    return [half for half in (membership.voters, membership.outgoing) if half]


@given(membership=MEMBERSHIPS, match=st.dictionaries(st.integers(1, 9).map(BrokerId), st.integers(0, 9)))
def test_the_quorum_index_is_the_highest_that_both_majorities_hold(
    membership: Membership, match: dict[BrokerId, int]
) -> None:
    def holds(index: int) -> bool:
        return all(2 * sum(match.get(v, 0) >= index for v in half) > len(half) for half in halves(membership))

    expected = max(index for index in range(10) if holds(index))
    assert quorum_index(membership, lambda voter: match.get(voter, 0)) == expected


@given(membership=MEMBERSHIPS, answers=st.lists(st.tuples(st.integers(1, 9).map(BrokerId), st.booleans()), max_size=20))
def test_a_poll_counts_the_first_answer_of_each_voter(
    membership: Membership, answers: list[tuple[BrokerId, bool]]
) -> None:
    poll = Poll(membership)
    first: dict[BrokerId, bool] = {}
    for voter, granted in answers:
        first.setdefault(voter, granted)
        yes = all(2 * sum(first.get(v) is True for v in half) > len(half) for half in halves(membership))
        no = any(2 * sum(first.get(v) is not False for v in half) <= len(half) for half in halves(membership))
        assert poll.record(voter, granted) is (Outcome.WON if yes else Outcome.LOST if no else Outcome.OPEN)


@given(membership=MEMBERSHIPS, one=st.sets(st.integers(1, 9)), other=st.sets(st.integers(1, 9)))
def test_two_quorums_always_share_a_voter(membership: Membership, one: set[int], other: set[int]) -> None:
    if is_quorum(membership, one.__contains__) and is_quorum(membership, other.__contains__):
        assert one & other
