"""Who leads, and who may say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from georelay.ids import BrokerId, GroupId, Term
from region.raft.core import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InvariantViolated,
    Pulse,
    Role,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

A, B, C = BrokerId(1), BrokerId(2), BrokerId(3)


def ask(to: int, term: int, *, from_: int = 2, last: tuple[int, int] = (99, 99), **flags: bool) -> VoteRequest:
    return VoteRequest(
        from_=BrokerId(from_), to=BrokerId(to), term=Term(term), last_index=last[0], last_term=Term(last[1]), **flags
    )


def answer(to: int, from_: int, term: int, granted: bool, *, pre: bool = False) -> VoteResponse:
    return VoteResponse(from_=BrokerId(from_), to=BrokerId(to), term=Term(term), granted=granted, pre=pre)


def test_a_timeout_elects_a_leader_whose_noop_commits(cluster: Any) -> None:
    cluster.tick(20, 1)
    cluster.settle()
    assert cluster.roles() == {1: "leader", 2: "follower", 3: "follower"}
    cluster.settle()
    assert [cluster.node(i).commit_index for i in (1, 2, 3)] == [1, 1, 1]


def test_a_single_voter_elects_itself_and_commits_alone(cluster_class: Any) -> None:
    cluster = cluster_class(1)
    cluster.tick(20)
    assert cluster.node(1).role is Role.CANDIDATE, "its own vote is not durable yet"
    cluster.settle()
    cluster.propose("x")
    cluster.settle()
    assert cluster.data(1) == ["x"]


def test_election_timeouts_are_spread_over_one_to_two_times_the_setting(cluster_class: Any) -> None:
    fired = set()
    for seed in range(200):
        cluster = cluster_class(3, seed=seed)
        ticks = 0
        while cluster.node(1).role is Role.FOLLOWER:
            cluster.node(1).tick()
            ticks += 1
        fired.add(ticks)
    assert fired == set(range(10, 20))


def test_a_pre_vote_changes_no_term_and_no_vote(cluster: Any) -> None:
    cluster.node(1).step(ask(1, 8, pre=True))
    cluster.pump()
    assert (cluster.node(1).term, cluster.node(1).vote) == (0, 0)
    assert cluster.mail(VoteResponse, granted=True, pre=True, term=8)
    assert not cluster.members[1].pending, "a pre-vote needs no disk"


def test_a_member_that_was_cut_off_comes_back_without_raising_its_term(led: Any) -> None:
    led.isolate(3)
    led.tick(100, 3)
    led.settle()
    assert led.node(3).term == 1
    led.heal()
    led.node(3).campaign()
    led.settle()
    assert led.node(1).is_leader and led.node(1).term == 1


def test_who_hears_a_leader_refuses_pre_votes_and_votes(led: Any) -> None:
    led.node(3).step(ask(3, 2, pre=True))
    led.node(3).step(ask(3, 2))
    led.pump()
    assert led.mail(VoteResponse, granted=False, pre=True)
    assert led.node(3).term == 1 and not led.mail(VoteResponse, pre=False)


def test_who_has_not_heard_its_leader_for_an_election_timeout_grants_pre_votes(led: Any) -> None:
    led.tick(9, 3)
    led.node(3).step(ask(3, 2, pre=True))
    led.node(3).tick()
    led.node(3).step(ask(3, 2, pre=True))
    led.pump()
    assert [m.granted for m in led.mail(VoteResponse, from_=3)] == [False, True]


def test_an_unchanged_heartbeat_keeps_the_lease(led: Any) -> None:
    led.tick(9, 3)
    assert led.node(3).touch_leader(A, Term(1))
    led.tick(9, 3)
    led.node(3).step(ask(3, 2, pre=True))
    led.pump()
    assert led.mail(VoteResponse, granted=False, pre=True)


def test_a_touch_of_another_term_or_leader_needs_the_slow_path(led: Any) -> None:
    assert not led.node(3).touch_leader(A, Term(2))
    assert not led.node(3).touch_leader(B, Term(1))
    assert not led.node(1).touch_leader(A, Term(1))


def test_two_members_cut_from_each_other_do_not_trade_the_leadership(led: Any) -> None:
    led.cut |= {(1, 2), (2, 1)}
    for _ in range(100):
        assert led.node(3).touch_leader(A, Term(1))
        assert led.node(1).touch_peer(C, Term(1))
        led.tick()
        led.settle()
    assert led.leaders == {1: 1} and led.node(1).is_leader


def test_forgetting_a_dead_leader_makes_votes_possible_at_once(led: Any) -> None:
    led.crash(1)
    assert led.node(2).forget_leader(A) and led.node(3).forget_leader(A)
    led.node(2).campaign()
    led.settle()
    assert led.node(2).is_leader


def test_forgetting_somebody_who_does_not_lead_changes_nothing(led: Any) -> None:
    assert not led.node(2).forget_leader(C)
    assert not led.node(1).forget_leader(A)
    assert led.node(2).leader_id == A


def test_a_vote_is_answered_only_after_it_is_durable(cluster: Any) -> None:
    cluster.node(1).step(ask(1, 1))
    cluster.pump()
    assert not cluster.network
    cluster.flush(1)
    assert cluster.mail(VoteResponse, granted=True)


def test_votes_are_asked_for_only_after_the_own_vote_is_durable(cluster: Any) -> None:
    cluster.hold_disks = {1}
    cluster.node(1).campaign()
    cluster.settle()
    assert cluster.node(1).role is Role.CANDIDATE and cluster.members[1].pending
    assert not [m for m in cluster.sent if isinstance(m, VoteRequest) and not m.pre]
    cluster.flush(1)
    assert len(cluster.mail(VoteRequest, pre=False)) == 2


def test_a_candidate_does_not_count_its_own_vote_before_it_is_durable(cluster: Any) -> None:
    cluster.hold_disks = {1}
    cluster.node(1).campaign()
    cluster.settle()
    cluster.node(1).step(answer(1, 2, 1, True))
    assert cluster.node(1).role is Role.CANDIDATE
    cluster.flush(1)
    assert cluster.node(1).role is Role.LEADER


def test_the_sync_of_an_earlier_write_does_not_make_the_own_vote_durable(led: Any) -> None:
    led.hold_disks = {2}
    led.propose("x")
    led.settle()
    led.node(2).forget_leader(A)
    led.node(2).campaign()
    led.node(2).step(answer(2, 3, 2, True, pre=True))
    led.pump()
    led.node(2).step(answer(2, 3, 2, True))
    led.flush(2, 1)
    assert led.node(2).role is Role.CANDIDATE
    led.flush(2)
    assert led.node(2).role is Role.LEADER


def test_a_vote_survives_a_crash(cluster: Any) -> None:
    cluster.node(1).step(ask(1, 1, from_=2))
    cluster.pump()
    cluster.flush(1)
    cluster.crash(1)
    cluster.restart(1)
    cluster.drop_mail()
    cluster.node(1).step(ask(1, 1, from_=3))
    cluster.pump()
    assert [m.granted for m in cluster.mail(VoteResponse)] == [False]


def test_a_vote_in_a_term_that_was_known_before_is_durable_too(cluster: Any) -> None:
    cluster.node(1).step(answer(1, 2, 4, False))
    cluster.pump()
    cluster.flush(1)
    assert cluster.members[1].disk.hard_state == (4, 0)
    cluster.node(1).step(ask(1, 4))
    cluster.pump()
    assert not cluster.network
    cluster.flush(1)
    assert cluster.members[1].disk.hard_state == (4, 2) and cluster.mail(VoteResponse, granted=True)


def test_the_same_candidate_gets_the_same_vote_again(cluster: Any) -> None:
    for _ in range(2):
        cluster.node(1).step(ask(1, 1))
        cluster.settle()
    assert [m.granted for m in cluster.sent if isinstance(m, VoteResponse)] == [True, True]


def test_a_vote_is_not_given_twice_in_a_term_after_stepping_down(cluster_class: Any) -> None:
    cluster = cluster_class(3)
    cluster.elect(1)
    cluster.isolate(1)
    cluster.tick(10, 1)
    cluster.tick(10, 1)
    assert cluster.node(1).role is not Role.LEADER and cluster.node(1).vote == A
    cluster.heal()
    cluster.drop_mail()
    cluster.node(1).step(ask(1, 1, from_=3))
    cluster.settle()
    assert not [m for m in cluster.sent if isinstance(m, VoteResponse) and m.from_ == 1 and m.granted and not m.pre]


def test_a_vote_is_not_given_twice_in_a_term_after_a_transfer(led: Any) -> None:
    led.leader.transfer_leadership(B)
    led.settle()
    assert led.node(2).is_leader and led.node(1).vote == B
    led.node(1).forget_leader(B)
    led.node(1).step(ask(1, 2, from_=3, force=True))
    led.settle()
    assert not [m for m in led.sent if isinstance(m, VoteResponse) and m.to == C and m.granted]


def test_one_voter_is_counted_once_however_often_it_answers(cluster_class: Any) -> None:
    cluster = cluster_class(5)
    cluster.hold_disks = {2, 3, 4, 5}
    cluster.node(1).campaign()
    for _ in range(5):
        cluster.node(1).step(answer(1, 2, 1, True, pre=True))
    assert cluster.node(1).role is Role.PRE_CANDIDATE
    cluster.node(1).step(answer(1, 3, 1, True, pre=True))
    cluster.pump()
    cluster.flush(1)
    for _ in range(5):
        cluster.node(1).step(answer(1, 2, 1, True))
    assert cluster.node(1).role is Role.CANDIDATE


def test_the_vote_of_a_stranger_is_not_counted(cluster: Any) -> None:
    cluster.node(1).campaign()
    cluster.node(1).step(answer(1, 9, 1, True, pre=True))
    assert cluster.node(1).role is Role.PRE_CANDIDATE


def test_a_pre_vote_is_no_vote(cluster: Any) -> None:
    cluster.hold_disks = {2, 3}
    cluster.node(1).campaign()
    cluster.node(1).step(answer(1, 2, 1, True, pre=True))
    cluster.settle()
    assert cluster.node(1).role is Role.CANDIDATE
    cluster.node(1).step(answer(1, 3, 2, True, pre=True))
    cluster.node(1).step(answer(1, 3, 1, True, pre=True))
    assert cluster.node(1).role is Role.CANDIDATE


def test_a_candidate_refused_by_a_quorum_follows_again(cluster: Any) -> None:
    cluster.node(1).campaign()
    for voter in (2, 3):
        cluster.node(1).step(answer(1, voter, 0, False, pre=True))
    assert cluster.node(1).role is Role.FOLLOWER and cluster.node(1).term == 0


@pytest.mark.parametrize(
    ("last", "granted"), [((9, 2), True), ((3, 3), True), ((4, 3), True), ((2, 3), False), ((9, 2), False)]
)
def test_a_vote_goes_only_to_a_log_that_is_as_new(
    cluster_class: Any, stored: Callable[..., Any], last: tuple[int, int], granted: bool
) -> None:
    mine = stored(1, 1, 2) if last == (9, 2) and granted else stored(1, 1, 3)
    cluster = cluster_class(3, disks={1: mine})
    cluster.node(1).step(ask(1, 4, last=last))
    cluster.settle()
    assert [m.granted for m in cluster.sent if isinstance(m, VoteResponse)] == [granted]


def test_a_leader_without_a_quorum_steps_down_in_its_term(led: Any) -> None:
    led.isolate(1)
    led.tick(20, 1)
    assert led.node(1).role is not Role.LEADER and led.node(1).leader_id == 0 and led.node(1).term == 1


def test_a_leader_that_hears_a_quorum_stays(led: Any) -> None:
    for _ in range(5):
        led.tick(10, 1)
        assert led.node(1).touch_peer(B, Term(1))
    assert led.node(1).is_leader


def test_the_deposed_leader_learns_of_the_new_term_from_its_own_heartbeat(led: Any) -> None:
    led.isolate(1)
    led.tick(30, 2)
    led.tick(10, 3)
    led.node(2).campaign()
    led.settle()
    assert led.leaders[2] == 2 and led.node(1).is_leader
    led.heal()
    led.node(2).step(Heartbeat(from_=A, to=B, term=Term(1), commit=1))
    led.settle()
    assert led.node(1).role is Role.FOLLOWER and led.node(1).term == 2


def test_a_candidate_of_a_passed_term_is_told_the_newer_one(led: Any) -> None:
    led.elect(2)
    led.drop_mail()
    led.node(2).step(ask(2, 1, from_=3))
    led.pump()
    assert [(m.term, m.granted) for m in led.mail(VoteResponse)] == [(2, False)]


def test_answers_without_a_term_or_of_a_passed_one_are_ignored(led: Any) -> None:
    led.elect(2)
    led.hold_disks = {1, 3}
    led.propose("x")
    led.settle()
    for term in (0, 1):
        for peer in (A, C):
            led.node(2).step(AppendResponse(from_=peer, to=B, term=Term(term), index=led.node(2).last_index))
            led.node(2).step(HeartbeatResponse(from_=peer, to=B, term=Term(term)))
    assert led.node(2).commit_index == led.node(2).last_index - 1 and led.node(2).is_leader


def test_messages_for_somebody_else_are_ignored(led: Any) -> None:
    led.node(1).step(ask(2, 9, from_=3, force=True))
    assert led.node(1).term == 1


def test_a_second_leader_in_one_term_stops_the_group(led: Any) -> None:
    with pytest.raises(InvariantViolated, match="both lead term 1"):
        led.node(3).step(Heartbeat(from_=B, to=C, term=Term(1), commit=0))
    with pytest.raises(InvariantViolated, match="both lead term 1"):
        led.node(1).step(Append(from_=B, to=A, term=Term(1), prev_index=0, prev_term=Term(0), commit=0))
    with pytest.raises(InvariantViolated, match="also leads"):
        led.node(1).step(TimeoutNow(from_=B, to=A, term=Term(1)))


def test_a_leader_that_steps_down_follows_in_its_term_and_keeps_its_vote(led: Any) -> None:
    led.node(1).read_index(1)
    led.node(1).step_down()
    led.node(2).step_down()
    led.pump()
    assert led.roles() == {1: "follower", 2: "follower", 3: "follower"} and led.reads_lost[1] == [1]
    assert (led.node(1).term, led.node(1).vote, led.node(1).leader_id) == (1, A, 0)
    led.elect(2)


def test_a_voter_says_that_it_hears_its_leader_until_an_election_timeout_and_a_learner_never_does(
    cluster_class: Any,
) -> None:
    cluster = cluster_class(3, learners=[4])
    assert not cluster.node(2).hears_leader
    cluster.elect(1)
    cluster.settle()
    assert [cluster.node(member).hears_leader for member in (1, 2, 3, 4)] == [True, True, True, False]
    assert cluster.node(4).leader_id == 1
    cluster.isolate(1)
    cluster.tick(10, 2)
    assert [cluster.node(member).hears_leader for member in (2, 3)] == [False, True]


def test_a_learner_never_campaigns(cluster_class: Any) -> None:
    cluster = cluster_class(3, learners=[4])
    cluster.tick(100, 4)
    cluster.node(4).campaign()
    cluster.node(4).step(TimeoutNow(from_=A, to=BrokerId(4), term=Term(1)))
    cluster.settle()
    assert cluster.node(4).role is Role.FOLLOWER


def test_a_joint_group_needs_a_majority_of_both_halves(cluster_class: Any) -> None:
    cluster = cluster_class([1, 2, 3], outgoing=[1, 4, 5])
    cluster.isolate(4)
    cluster.isolate(5)
    cluster.node(1).campaign()
    cluster.settle()
    assert cluster.node(1).role is Role.PRE_CANDIDATE, "2 and 3 said yes, 4 and 5 nothing"
    cluster.heal()
    cluster.elect(1)
    assert cluster.members[1].applied[0].term == 1


def test_a_broker_elected_by_votes_for_a_log_it_lost_is_impossible(cluster: Any) -> None:
    """The request for a vote leaves only after the log that it boasts of is durable."""
    cluster.elect(3)
    cluster.hold_disks = {1}
    cluster.propose("x")
    cluster.settle()
    cluster.crash(3)
    cluster.node(2).forget_leader(C)
    cluster.node(1).forget_leader(C)
    cluster.node(1).campaign()
    cluster.settle()
    assert not [m for m in cluster.sent if isinstance(m, VoteRequest) and not m.pre and m.from_ == A]
    cluster.crash(1)
    cluster.restart(1)
    assert cluster.node(1).last_index == 1 and cluster.node(1).term == 1


def test_ticks_that_the_host_moves_reach_a_member_when_it_looks(cluster: Any) -> None:
    node = cluster.node(2)
    node._ticks.now += node.ticks_left - 1
    node.look_at_time()
    assert node.ticks_left == 1 and not node.has_ready()
    node._ticks.now += 1
    node.look_at_time()
    assert node.has_ready()  # it asks for pre-votes
    assert node.ticks_left >= node._config.election_ticks


def test_a_leader_is_asking_while_a_read_waits_for_its_quorum(led: Any) -> None:
    node = led.node(1)
    assert not node.is_asking
    node.read_index(1)
    led.lost = lambda m: True
    led.pump()  # the question is lost
    assert node.is_asking
    node.look_at_time()
    assert node.has_ready()  # it asks again


def test_beats_of_a_pulse_keep_a_follower_as_heartbeats_do(led: Any) -> None:
    node = led.node(2)
    pulse = Pulse(node._ticks)
    pulse.carry(node, GroupId(1))
    for _ in range(50):
        node.tick()
        pulse.beat()
    assert node.leader_id == A and node.hears_leader and node.ticks_left == node._deadline
    for _ in range(node._deadline):
        assert node.leader_id == A
        node.tick()
    assert node.leader_id == 0 and pulse.apart == {1} and not pulse.carries(node)


def test_a_follower_leaves_the_pulse_of_its_leader_with_the_term_and_is_reached_by_it_no_more(led: Any) -> None:
    node = led.node(2)
    pulse = Pulse(node._ticks)
    pulse.carry(node, GroupId(1))
    node.step(VoteRequest(from_=C, to=B, term=Term(2), last_index=9, last_term=Term(1), force=True))
    assert not pulse.carries(node) and pulse.apart == {1}
    left = node.ticks_left
    node._ticks.now += 3
    pulse.beat()
    assert node.ticks_left == left - 3


def test_a_follower_whose_answers_are_a_pulse_counts_for_the_quorum_of_its_leader_while_it_beats(led: Any) -> None:
    leader = led.node(1)
    pulse = Pulse(leader._ticks)
    assert leader.touch_peer(B, Term(1), pulse)
    for _ in range(30):
        leader.tick()
        pulse.beat()
    assert leader.is_leader and leader.progress(B).recent_active and not leader.progress(C).recent_active
    leader.tick(10)
    assert leader.is_leader  # it was heard since the check before
    leader.tick(10)
    assert not leader.is_leader


def test_a_leader_that_ignores_a_pulse_has_heard_what_came_before(led: Any) -> None:
    leader = led.node(1)
    pulse = Pulse(leader._ticks)
    assert leader.touch_peer(B, Term(1), pulse)
    leader.tick(10)
    pulse.beat()
    leader.ignore_pulse(B)
    assert leader.progress(B).recent_active
    leader.tick(10)
    pulse.beat()
    assert not leader.progress(B).recent_active
