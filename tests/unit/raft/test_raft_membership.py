"""Who belongs to the group, from when on, and what a leader does about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from georelay.errors import Busy, NotLeader
from georelay.ids import BrokerId, Term
from region.raft.core import (
    Append,
    AppendResponse,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    InvariantViolated,
    Membership,
    RaftConfig,
    RaftLog,
    RaftNode,
    Role,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from region.raft.core.memberships import MembershipLog

A, B, C, D, E = (BrokerId(i) for i in range(1, 6))


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, brokers))


def test_a_learner_is_added_gets_the_log_and_becomes_a_voter(led: Any) -> None:
    led.propose("a")
    led.settle()
    led.join(4)
    led.change([1, 2, 3], [4])
    led.settle()
    assert led.data(4) == ["a"] and led.node(4).membership.learners == (D,)
    led.change([1, 2, 3, 4])
    led.settle()
    assert [m.node.membership for m in led.members.values()] == [Membership(voters=ids(1, 2, 3, 4))] * 4


def test_a_membership_is_in_force_as_soon_as_it_is_appended(led: Any) -> None:
    led.join(4)
    index = led.change([1, 2, 3, 4])
    node = led.node(1)
    assert (index, node.membership.voters, node.membership_index) == (2, ids(1, 2, 3, 4), 2)
    assert not node.membership_committed
    assert node.membership_at(1).voters == ids(1, 2, 3) and node.membership_at(2).voters == ids(1, 2, 3, 4)
    led.pump()
    led.deliver_one()
    assert led.node(2).membership.voters == ids(1, 2, 3, 4) and not led.node(2).membership_committed
    led.settle()
    assert node.membership_committed


def test_the_entry_that_adds_a_voter_needs_the_new_majority(led: Any) -> None:
    led.join(4, 5)
    led.change([1, 2, 3, 4])
    led.hold_disks = {3, 4}
    led.settle()
    assert led.node(1).commit_index == 1, "two of four"
    led.hold_disks = {3}
    led.settle()
    assert led.node(1).commit_index == 2


def test_who_is_removed_is_not_counted_any_more(led: Any) -> None:
    led.forging = True
    led.change([1, 2])
    led.pump()
    led.flush(1)
    assert led.node(1).progress(C) is None and led.node(1).peers == (B,)
    led.node(1).step(AppendResponse(from_=C, to=A, term=Term(1), index=2))
    assert led.node(1).commit_index == 1
    led.node(1).step(AppendResponse(from_=B, to=A, term=Term(1), index=2))
    assert led.node(1).commit_index == 2


def test_a_truncation_undoes_the_membership(cluster_class: Any) -> None:
    cluster = cluster_class(3)
    cluster.elect(1)
    cluster.join(4)
    cluster.isolate(1)
    cluster.change([1, 2, 3, 4], at=1)
    cluster.propose("lost", at=1)
    cluster.settle()
    assert cluster.node(1).membership_index == 2
    cluster.elect(2)
    cluster.propose("kept", at=2)
    cluster.settle()
    cluster.heal()
    cluster.node(1).step(Heartbeat(from_=B, to=A, term=Term(2), commit=0))
    cluster.node(2).report_unreachable(A)
    cluster.propose("more", at=2)
    cluster.settle()
    assert cluster.node(1).membership == Membership(voters=ids(1, 2, 3)) and cluster.node(1).membership_index == 0
    assert cluster.data(1) == ["kept", "more"]


def test_a_restarted_member_follows_the_membership_of_its_log_before_it_knows_the_commit(led: Any) -> None:
    led.change([1, 2])
    led.settle()
    led.crash(1)
    led.restart(1)
    assert led.node(1).membership.voters == ids(1, 2) and led.node(1).commit_index == 0
    led.elect(1)
    assert led.node(1).membership_committed


def test_one_change_at_a_time(led: Any) -> None:
    led.join(4, 5)
    led.change([1, 2, 3, 4])
    with pytest.raises(Busy, match="membership of entry 2 is not settled"):
        led.change([1, 2, 3, 4, 5])
    led.settle()
    led.change([1, 2, 3, 4, 5])
    led.settle()
    assert led.node(5).membership.voters == ids(1, 2, 3, 4, 5)


def test_no_change_before_an_entry_of_the_own_term_is_committed(led: Any) -> None:
    """Otherwise two leaders could commit by memberships without a common voter (the note of 2015)."""
    led.lost = lambda m: isinstance(m, AppendResponse)
    led.elect(3)
    assert led.node(3).commit_index == 1
    with pytest.raises(Busy, match="nothing of term 2"):
        led.change([2, 3], at=3)
    led.lost = lambda m: False
    led.node(3).step(HeartbeatResponse(from_=B, to=C, term=Term(2)))
    led.settle()
    led.change([2, 3], at=3)
    led.settle()
    assert led.node(2).membership.voters == ids(2, 3)


def test_no_change_while_leadership_is_handed_over_nor_by_a_follower(led: Any) -> None:
    led.isolate(2)
    led.node(1).transfer_leadership(B)
    with pytest.raises(Busy, match="handed over"):
        led.change([1, 3], at=1)
    with pytest.raises(NotLeader) as refused:
        led.change([1, 3], at=3)
    assert refused.value.leader == 1


def test_a_change_that_makes_no_sense_is_refused_and_one_that_changes_nothing_appends_nothing(led: Any) -> None:
    with pytest.raises(ValueError, match="at least one voter"):
        led.change([])
    with pytest.raises(ValueError, match="must not vote"):
        led.change([1, 2], [2])
    assert led.change([3, 1, 2]) == 0 and led.node(1).last_index == 1


def test_several_voters_change_through_a_joint_membership_that_the_leader_leaves(led: Any) -> None:
    led.join(4, 5)
    led.change([1, 4, 5])
    assert led.node(1).membership == Membership(voters=ids(1, 4, 5), outgoing=ids(1, 2, 3))
    led.settle()
    for member in (1, 4, 5):
        assert led.node(member).membership == Membership(voters=ids(1, 4, 5))
    assert [entry.members for entry in led.members[4].applied if entry.members] == [
        Membership(voters=ids(1, 4, 5), outgoing=ids(1, 2, 3)),
        Membership(voters=ids(1, 4, 5)),
    ]


@pytest.mark.parametrize("silent", [{2, 3}, {4, 5}])
def test_a_joint_membership_is_committed_by_both_majorities_only(led: Any, silent: set[int]) -> None:
    led.join(4, 5)
    led.hold_disks = silent
    led.change([1, 4, 5])
    led.propose("a")
    led.settle()
    assert led.node(1).commit_index == 1
    led.hold_disks = silent - {max(silent)}
    led.settle()
    assert led.node(1).membership == Membership(voters=ids(1, 4, 5)), "left as soon as one more of them has it"


def test_the_leaving_entry_needs_only_the_new_voters(led: Any) -> None:
    led.join(4, 5)
    led.change([1, 4, 5])
    led.lost = lambda m: isinstance(m, Append) and m.to in (2, 3) and any(e.index > 2 for e in m.entries)
    led.settle()
    assert led.node(1).commit_index == 3 and led.node(1).membership == Membership(voters=ids(1, 4, 5))


def test_a_new_leader_leaves_the_joint_membership_that_another_began(led: Any) -> None:
    led.join(4, 5)
    led.change([1, 4, 5])
    led.lost = lambda m: isinstance(m, AppendResponse) and not m.rejected and m.index >= 2
    led.settle()
    assert led.node(1).commit_index == 1 and led.node(4).membership.outgoing
    led.crash(1)
    led.lost = lambda m: False
    led.elect(4)
    assert led.node(4).membership == Membership(voters=ids(1, 4, 5)) and led.node(4).membership_committed
    assert led.node(5).membership == Membership(voters=ids(1, 4, 5))


def test_a_joint_change_takes_no_other_change_and_the_election_needs_both_halves(led: Any) -> None:
    led.join(4, 5)
    led.hold_disks = {4, 5}
    led.change([1, 4, 5])
    led.settle()
    with pytest.raises(Busy):
        led.change([1, 2, 3])
    led.isolate(4)
    led.isolate(5)
    led.node(2).forget_leader(A)
    led.node(3).forget_leader(A)
    led.node(2).campaign()
    led.settle()
    assert led.node(2).role is Role.PRE_CANDIDATE, "1 hears itself, 3 said yes; of 1, 4, 5 nobody"


def test_a_demoted_voter_becomes_a_learner_once_the_joint_change_is_left(led: Any) -> None:
    led.join(4)
    led.change([1, 2, 4], [3])
    joint = led.node(1).membership
    assert joint == Membership(voters=ids(1, 2, 4), learners=(C,), outgoing=ids(1, 2, 3)) and joint.votes(C)
    assert joint.members() == ids(1, 2, 4, 3)
    led.settle()
    assert led.node(3).membership == Membership(voters=ids(1, 2, 4), learners=(C,))
    led.propose("a")
    led.settle()
    assert led.data(3) == ["a"]


def test_a_leader_that_is_removed_steps_down_once_that_is_committed_and_names_the_best_voter(led: Any) -> None:
    led.hold_disks = {3}
    led.change([2, 3])
    led.propose("a")
    led.settle()
    assert led.node(1).is_leader and led.node(1).commit_index == 1, "3 has not got it"
    led.flush(3)
    led.hold_disks = set()
    led.settle()
    assert led.node(1).role is Role.FOLLOWER and len([m for m in led.sent if isinstance(m, TimeoutNow)]) == 1
    assert {i for i in (2, 3) if led.node(i).is_leader}
    led.propose("b")
    led.settle()
    assert led.data(2) == ["a", "b"] == led.data(3)


def test_a_leader_that_is_removed_does_not_count_itself(led: Any) -> None:
    led.change([2, 3])
    led.hold_disks = {2, 3}
    led.settle()
    assert led.node(1).commit_index == 1, "durable on the leader only"
    led.flush(2)
    led.settle()
    assert led.node(1).commit_index == 1, "the leader is no voter, so 2 is half of them"
    led.flush(3)
    led.settle()
    assert 2 in led.committed


def test_the_successor_is_the_voter_that_holds_the_most_not_one_under_repair(cluster_class: Any) -> None:
    cluster = cluster_class(4)
    node = cluster.elect(1)
    cluster.forging = True
    cluster.change([2, 3, 4])
    cluster.propose("a", "b")
    cluster.pump()
    cluster.drop_mail()
    node.step(AppendResponse(from_=B, to=A, term=Term(1), index=4, repairing=True))
    node.step(AppendResponse(from_=C, to=A, term=Term(1), index=2))
    assert node.commit_index == 1, "2 is not counted now"
    node.step(AppendResponse(from_=D, to=A, term=Term(1), index=3))
    cluster.pump()
    assert [m.to for m in cluster.mail(TimeoutNow)] == [D] and not node.is_leader


def test_a_leader_that_is_removed_tells_the_commit_before_it_goes(led: Any) -> None:
    led.change([2, 3])
    led.lost = lambda m: isinstance(m, TimeoutNow)
    led.settle()
    assert not led.node(1).is_leader and led.node(2).commit_index == 2 == led.node(3).commit_index


def test_a_leader_that_is_demoted_steps_down_and_goes_on_as_a_learner(led: Any) -> None:
    led.join(4)
    led.change([2, 3, 4], [1])
    led.settle()
    led.propose("a")
    led.settle()
    assert led.data(1) == ["a"] and led.node(1).role is Role.FOLLOWER and not led.node(1).membership.votes(A)
    led.tick(50, 1)
    assert led.node(1).role is Role.FOLLOWER


def test_a_deposed_leader_that_was_removed_meanwhile_never_campaigns_once_it_knows(led: Any) -> None:
    led.isolate(1)
    led.propose("lost", at=1)
    led.elect(2)
    led.change([2, 3], [1], at=2)
    led.settle()
    led.heal()
    led.node(2).step(Heartbeat(from_=A, to=B, term=Term(1), commit=0))
    led.settle()
    assert led.node(1).role is Role.FOLLOWER
    led.propose("b")
    led.node(2).step(HeartbeatResponse(from_=A, to=B, term=Term(2)))
    led.settle()
    assert not led.node(1).membership.votes(A) and led.data(1) == ["b"]
    led.drop_mail()
    led.node(1).forget_leader(B)
    led.node(1).campaign()
    led.tick(100, 1)
    led.node(1).step(TimeoutNow(from_=B, to=A, term=Term(2)))
    led.pump()
    assert not led.mail(VoteRequest) and led.node(1).role is Role.FOLLOWER


def test_who_is_removed_by_an_entry_that_only_it_holds_can_still_lead_the_group_through(led: Any) -> None:
    """Otherwise the group is without a leader for ever: 2 and 3 have older logs, so 1 does not vote for them."""
    led.join(4)
    led.change([4])
    led.lost = lambda m: isinstance(m, Append) and any(entry.index > 2 for entry in m.entries)
    led.settle()
    assert led.node(1).membership == Membership(voters=(D,)) and not led.node(1).membership_committed
    led.crash(1)
    led.restart(1)
    led.lost = lambda m: False
    for member in (2, 4):
        led.node(member).forget_leader(A)
        led.node(member).campaign()
        led.settle()
    assert not led.node(2).is_leader and not led.node(4).is_leader
    led.node(1).campaign()
    led.settle()
    assert led.node(4).is_leader and led.node(4).membership == Membership(voters=(D,))
    assert led.node(1).role is Role.FOLLOWER
    led.tick(100, 1)
    assert led.node(1).role is Role.FOLLOWER, "now it knows that it is gone"


def test_who_was_removed_and_does_not_know_disturbs_nobody(led: Any) -> None:
    led.isolate(3)
    led.change([1, 2])
    led.settle()
    led.heal()
    led.tick(40, 3)
    led.settle()
    assert led.node(1).is_leader and led.node(1).term == 1 and led.node(3).term == 1


def test_a_broker_that_knows_no_group_follows_and_votes_but_never_campaigns(cluster_class: Any) -> None:
    cluster = cluster_class(1)
    cluster.join(2)
    cluster.tick(100, 2)
    cluster.node(2).campaign()
    cluster.node(2).step(TimeoutNow(from_=A, to=B, term=Term(1)))
    cluster.pump()
    assert not cluster.mail(VoteRequest) and cluster.node(2).membership == Membership(voters=())
    cluster.node(2).step(VoteRequest(from_=C, to=B, term=Term(2), last_index=0, last_term=Term(0), force=True))
    cluster.pump()
    cluster.flush(2)
    assert [(m.to, m.granted) for m in cluster.mail(VoteResponse)] == [(C, True)]


def test_a_group_grows_from_one_to_five_and_shrinks_again(cluster_class: Any) -> None:
    cluster = cluster_class(1)
    cluster.elect(1)
    for number in (2, 3, 4, 5):
        cluster.join(number)
        cluster.change(range(1, number), [number])
        cluster.settle()
        cluster.change(range(1, number + 1))
        cluster.propose(f"{number} joined")
        cluster.settle()
    assert cluster.data(5) == [f"{n} joined" for n in (2, 3, 4, 5)]
    cluster.change([5])
    cluster.settle()
    cluster.propose("alone")
    cluster.settle()
    assert cluster.leader.id == 5 and cluster.data(5)[-1] == "alone"


def test_a_new_voter_that_was_not_heard_yet_does_not_depose_the_leader(cluster_class: Any) -> None:
    cluster = cluster_class(1)
    cluster.elect(1)
    cluster.join(2)
    cluster.tick(9, 1)
    cluster.change([1, 2])
    cluster.tick(1, 1)
    assert cluster.node(1).is_leader
    cluster.tick(10, 1)
    assert not cluster.node(1).is_leader, "now it had its time"


def test_a_transfer_to_a_voter_that_is_removed_ends(led: Any) -> None:
    assert not led.node(1).transfer_leadership(D)
    led.join(4)
    led.change([1, 2, 4])
    led.pump()
    assert not led.node(1).transfer_leadership(C), "it votes only until the change is left"
    led.isolate(4)
    assert led.node(1).transfer_leadership(D)
    node = led.node(1)
    node._leadership.change(Membership(voters=ids(1, 2)))
    assert node.transferee == 0


def test_a_commit_that_leaves_a_joint_membership_does_not_wait_for_the_handover(led: Any) -> None:
    led.join(4, 5)
    led.change([1, 4, 5])
    led.lost = lambda m: isinstance(m, TimeoutNow)
    assert led.node(1).transfer_leadership(BrokerId(4))
    led.settle()
    assert led.node(1).membership == Membership(voters=ids(1, 4, 5))


def lone(item: Any, **hooks: Any) -> RaftNode[Any]:
    rng: Any = type("Rng", (), {"randrange": staticmethod(lambda start, stop: start)})()
    return RaftNode(RaftConfig(id=A, voters=ids(1)), RaftLog(), HardState(), rng, lambda t, i: item(t, i), **hooks)


def led_alone(item: Any, **hooks: Any) -> RaftNode[Any]:
    node = lone(item, **hooks)
    node.campaign()
    while node.has_ready():
        write = node.ready().write
        if write is not None:
            node.written(write)
    assert node.is_leader and node.commit_index == 1
    return node


def test_a_host_that_makes_no_membership_entries_cannot_change_the_members(item: Any) -> None:
    node = led_alone(item)
    with pytest.raises(InvariantViolated, match="makes no entry"):
        node.propose_membership(voters=ids(1, 2), learners=())
    assert node.last_index == 1


@pytest.mark.parametrize(
    ("membership_of", "reason"),
    [(None, "does not support"), (lambda entry: Membership(voters=(), outgoing=(A,)), "cannot be read")],
)
def test_a_membership_that_cannot_be_read_stops_the_group(
    item: Any, membership_of: Callable[[Any], Membership] | None, reason: str
) -> None:
    node = lone(item, membership_of=membership_of)
    entry = item(Term(1), 1, members=Membership(voters=ids(2)))
    with pytest.raises(InvariantViolated, match=reason):
        node.step(Append(from_=B, to=A, term=Term(1), prev_index=0, prev_term=Term(0), commit=0, entries=[entry]))


def test_a_membership_is_not_proposed_as_an_ordinary_entry(led: Any, item: Any) -> None:
    with pytest.raises(InvariantViolated, match="propose_membership"):
        led.node(1).propose([item(Term(1), 2, members=Membership(voters=ids(1)))])


def test_memberships_recovered_in_the_wrong_order_are_refused(item: Any) -> None:
    with pytest.raises(InvariantViolated, match="cannot follow"):
        lone(item, memberships=[(5, Membership(voters=ids(1))), (5, Membership(voters=ids(2)))])


def test_a_follower_knows_no_progress_and_a_leader_knows_that_of_its_peers(led: Any) -> None:
    assert led.node(2).progress(A) is None and led.node(1).progress(A) is None
    view = led.node(1).progress(B)
    assert (view.state.value, view.match, view.next, view.recent_active, view.repairing) == (
        "replicate",
        1,
        2,
        True,
        False,
    )


@pytest.mark.parametrize("voters", [(1, 4, 5), (2, 3)])
def test_a_commit_below_the_membership_settles_nothing(led: Any, voters: tuple[int, ...]) -> None:
    led.join(4, 5)
    led.forging = True
    led.propose("a")
    led.change(voters)
    led.pump()
    led.flush(1)
    for voter in (2, 3, 4, 5):
        led.node(1).step(AppendResponse(from_=BrokerId(voter), to=A, term=Term(1), index=2))
    assert led.node(1).commit_index == 2 and led.node(1).is_leader
    assert led.node(1).membership_index == 3, "neither left nor obeyed yet"


def test_the_memberships_of_a_log_that_was_reset_are_gone() -> None:
    one, two, three = (Membership(voters=ids(*range(1, n + 1))) for n in (1, 2, 3))
    log = MembershipLog(one, [(5, two), (8, three)])
    assert [log.at(i) for i in (4, 5, 7, 8, 9)] == [one, two, two, three, three]
    log.reset(6, two)
    assert [log.at(i) for i in (6, 7, 8)] == [two, two, two] and log.index == 6
    log.append(7, three)
    log.truncate_from(7)
    assert log.current == two and log.index == 6


def test_a_leader_that_leaves_tells_no_more_of_what_is_committed_than_its_own_disk_has(led: Any) -> None:
    led.hold_disks = {1}
    led.propose("a")
    led.change([2, 3])
    led.settle()
    stable = led.node(1).log.stable_index
    assert led.leader.id != A and led.data(2) == ["a"]
    assert max(m.commit for m in led.sent if isinstance(m, Append) and m.from_ == A) == stable
