"""Small rules of the Raft core, one by one: each of these was once changed without any other test noticing."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

from georelay.errors import Busy, NotLeader
from georelay.ids import BrokerId, Term
from region.raft.core import (
    Append,
    AppendResponse,
    Fetch,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    InvariantViolated,
    Membership,
    RaftConfig,
    RaftLog,
    RaftNode,
    ReadState,
    Role,
    Snapshot,
    SnapshotPoint,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
)
from region.raft.core.leadership import Leadership
from region.raft.core.memberships import MembershipLog
from region.raft.core.progress import InflightWindow, Progress, ProgressState
from region.raft.core.reads import READS_OPEN_MAX, LeaderReads
from region.raft.core.types import NO_BROKER

A, B, C, D = (BrokerId(n) for n in (1, 2, 3, 4))
STATE = HardState(Term(1), A)


def filled(item: Any, *terms: int) -> RaftLog[Any]:
    """Return a log of these terms, durable."""
    log: RaftLog[Any] = RaftLog()
    log.append([item(Term(term), index) for index, term in enumerate(terms, 1)])
    log.take_unwritten()
    log.made_stable(len(terms))
    return log


def accepted(index: int, *, to: BrokerId = A, rejected: bool = False) -> AppendResponse:
    return AppendResponse(from_=B, to=to, term=Term(1), index=index, rejected=rejected)


# -- what is in flight ------------------------------------------------------------------------------------------


def test_the_bytes_in_flight_are_those_sent_and_not_acknowledged() -> None:
    window = InflightWindow(messages_max=10, bytes_max=100)
    for last_index, size_bytes in ((1, 50), (2, 40), (3, 9)):
        window.add(last_index, size_bytes)
    assert not window.full  # 99 bytes
    window.add(4, 1)
    assert window.full
    window.free_to(2)
    assert not window.full  # 10 bytes
    window.add(5, 89)
    assert not window.full
    window.add(6, 1)
    assert window.full
    window.clear()
    window.add(7, 99)
    assert not window.full


def follower(*, next_index: int = 5) -> Progress:
    return Progress(next_index=next_index, window=InflightWindow(messages_max=9, bytes_max=999))


def test_a_new_follower_was_not_heard_and_is_owed_nothing() -> None:
    found = follower()
    assert (found.recent_active, found.nudged, found.snapshot_again, found.silent_checks) == (False, False, False, 0)
    assert found.view(0) == (ProgressState.PROBE, 0, 5, False, False)


def test_an_acknowledgement_beyond_what_was_sent_moves_the_next_entry_behind_it() -> None:
    found = follower()
    assert found.accepted(4, log_first_index=1) and found.state is ProgressState.REPLICATE
    assert found.accepted(5, log_first_index=1)
    assert (found.match, found.next) == (5, 6)
    assert found.accepted(7, log_first_index=1)
    assert (found.match, found.next) == (7, 8)
    assert not found.accepted(7, log_first_index=1) and not found.accepted(6, log_first_index=1)
    assert (found.match, found.next) == (7, 8)


def test_an_acknowledgement_ends_bulk_fetching_only_through_its_end() -> None:
    found = follower()
    found.become_bulk()
    assert not found.accepted(6, log_first_index=1)
    assert (found.state, found.match, found.next) == (ProgressState.BULK, 6, 7)


def test_a_follower_below_the_log_waits_for_its_snapshot_and_leaves_at_the_first_entry() -> None:
    for index, state in ((8, ProgressState.SNAPSHOT), (9, ProgressState.REPLICATE)):
        found = follower()
        found.become_snapshot(object())  # type: ignore[arg-type]
        assert found.accepted(index, log_first_index=10)
        assert found.state is state and found.next == index + 1


def test_a_rejection_is_answered_with_the_entry_after_the_hint() -> None:
    found = follower(next_index=9)
    assert found.rejected(8, probe_index=3)
    assert found.next == 4
    assert not found.rejected(8, probe_index=1), "not what is asked now"
    found.accepted(3, log_first_index=1)
    assert not found.rejected(3, probe_index=0) and not found.rejected(2, probe_index=0)
    assert (found.match, found.next) == (3, 4)


def test_an_answer_from_before_a_new_start_is_no_news() -> None:
    found = follower()
    found.match = 4
    assert not found.accepted(3, log_first_index=1)
    assert (found.state, found.match) == (ProgressState.PROBE, 4)


def test_a_hint_below_what_is_known_to_match_is_not_followed() -> None:
    found = follower(next_index=9)
    found.match = 5
    assert found.rejected(8, probe_index=2)
    assert found.next == 6


# -- what a leader knows of its followers -----------------------------------------------------------------------


def leadership(item: Any, *terms: int, **settings: Any) -> Leadership[Any]:
    config = RaftConfig(id=A, voters=(A, B, C), **settings)
    made = Leadership(config, Membership(voters=(A, B, C)), filled(item, *terms), Term(3))
    made.due = False
    return made


def test_the_voter_that_holds_the_most_is_the_successor(item: Any) -> None:
    led = leadership(item, 1, 1, 1)
    led.peers[B].match, led.peers[C].match = 2, 3
    assert led.successor() == C
    led.peers[B].match = 4
    assert led.successor() == B
    led.peers[B].repairing = True
    assert led.successor() == C
    led.peers[C].repairing = True
    assert led.successor() == NO_BROKER


def test_answers_to_heartbeats_alone_keep_a_leader(item: Any) -> None:
    led = leadership(item, 1)
    assert not led.quorum_heard()
    led.heartbeat_answered(B)
    assert led.quorum_heard()
    assert not led.quorum_heard(), "each check needs a sign of life of its own"


def test_a_stranger_is_told_of_no_commit(item: Any) -> None:
    led = leadership(item, 1, 1)
    led.peers[B].match = 1
    assert (led.heartbeat_commit(B, 2), led.heartbeat_commit(D, 2)) == (1, 0)


def test_a_cold_read_is_asked_for_in_the_leaders_term_up_to_its_end(item: Any) -> None:
    led = leadership(item, *[1] * 6)
    led._log.evict(4)
    led.peers[B].accepted(0, log_first_index=1)
    led.peers[B].next = 2
    led.send(0, [])
    assert [(f.to, f.term, f.lo, f.hi) for f in led.fetches] == [(B, 3, 2, 7)]


@pytest.mark.parametrize("indexes", [(1, 2), (3, 4), (2, 4), (2, 3, 4, 5, 6, 7), (2, 2)])
def test_cold_entries_that_were_not_asked_for_stop_the_group(item: Any, indexes: tuple[int, ...]) -> None:
    led = leadership(item, *[1] * 6)
    led._log.evict(4)
    led.peers[B].accepted(0, log_first_index=1)
    led.peers[B].next = 2
    led.send(0, [])
    with pytest.raises(InvariantViolated, match=rf"got \[{indexes[0]}, {indexes[-1]}\]"):
        led.fetched(led.fetches[0], [item(Term(1), index) for index in indexes], 0, [])


def test_a_snapshot_that_touches_the_log_is_sent_and_an_older_one_is_asked_for_again(item: Any) -> None:
    for index, sent in ((3, False), (4, True), (6, True)):
        led = leadership(item, *[1] * 6)
        led._log.advance_start(5)
        led._want_snapshot(B, led.peers[B])
        out: list[Any] = []
        point = SnapshotPoint(index=index, term=Term(1), membership=Membership(voters=(A, B, C)), data=b"")
        led.snapshot_fetched(led.snapshot_requests[0], point, 6, out)
        assert [type(message) for message in out] == [Snapshot] * sent
        assert led.peers[B].snapshot_again is not sent


def test_a_snapshot_beyond_the_commit_index_stops_the_group(item: Any) -> None:
    led = leadership(item, *[1] * 6)
    led._want_snapshot(B, led.peers[B])
    point = SnapshotPoint(index=6, term=Term(1), membership=Membership(voters=(A, B, C)), data=b"")
    with pytest.raises(InvariantViolated, match="a snapshot of index 6, committed up to 5"):
        led.snapshot_fetched(led.snapshot_requests[0], point, 5, [])


def test_a_commit_is_told_once_what_the_follower_holds_lets_it_use_it(item: Any) -> None:
    led = leadership(item, 3, 3, 3)
    led.peers[B].accepted(0, log_first_index=1)
    led.peers[B].next, led.peers[B].sent_commit = 4, 0
    out: list[Any] = []
    led.send(3, out)
    led.send(3, out)
    assert [(m.to, m.commit, m.quiet) for m in out if m.to == B] == [(B, 3, False)]


# -- elections and answers --------------------------------------------------------------------------------------


def test_a_pre_vote_for_our_own_term_is_refused_by_who_has_a_leader(led: Any) -> None:
    for _ in range(100):
        led.node(2)._ticks.now += 1  # it has not heard its leader for long
    request = VoteRequest(from_=C, to=B, term=Term(1), last_index=99, last_term=Term(1), pre=True)
    led.node(2).step(request)
    led.pump()
    assert [answer.granted for answer in led.mail(VoteResponse, from_=B)] == [False]


def test_who_grants_a_vote_gives_the_candidate_a_whole_election_timeout(cluster: Any) -> None:
    node = cluster.node(2)
    node.tick(node._deadline - 1)
    node.step(VoteRequest(from_=A, to=B, term=Term(1), last_index=0, last_term=Term(0)))
    assert node.vote == A and node._elapsed == 0
    node.tick(1)
    cluster.pump()
    assert node.role.value == "follower"


def test_a_host_that_beats_by_itself_gets_no_heartbeats_from_ticks(cluster_class: Any) -> None:
    cluster = cluster_class(3, heartbeat_ticks=0)
    cluster.elect(1)
    cluster.tick(cluster.node(1)._config.election_ticks - 1, 1)
    assert cluster.mail(Heartbeat) == []
    for peer in (B, C):
        cluster.node(1).step(HeartbeatResponse(from_=peer, to=A, term=Term(1)))
    cluster.tick(1, 1)
    assert cluster.mail(Heartbeat) == [] and cluster.node(1).is_leader


def test_a_host_looks_once_at_a_node_that_has_forgotten_its_leader(led: Any) -> None:
    node = led.node(2)
    assert node.forget_leader(A) and node.has_ready()
    node.ready()
    assert node.leader_id == NO_BROKER and not node.has_ready()
    assert not node.forget_leader(A) and not node.has_ready()


def test_who_sent_old_entries_or_an_old_snapshot_hears_where_we_are(led: Any) -> None:
    led.propose("a", "b", "c")
    led.settle()
    led.compact(2, 4)
    node, commit = led.node(2), led.node(2).commit_index
    node.step(Append(from_=A, to=B, term=Term(1), prev_index=1, prev_term=Term(1), commit=1))
    node.step(
        Snapshot(
            from_=A,
            to=B,
            term=Term(1),
            index=2,
            snapshot_term=Term(1),
            membership=Membership(voters=(A, B, C)),
            data=b"",
        )
    )
    led.pump()
    assert [(m.to, m.index, m.rejected) for m in led.mail(AppendResponse, from_=B)] == [(A, commit, False)] * 2


def test_reads_lost_by_one_step_down_after_another_are_all_told(led: Any) -> None:
    node = led.node(1)
    node.read_index(7)
    node._reads_lost.append(6)
    node.step(Heartbeat(from_=C, to=A, term=Term(9), commit=0))
    assert sorted(node.ready().reads_lost) == [6, 7]


def test_a_candidate_knows_no_leader_at_any_stage(cluster: Any) -> None:
    node = cluster.node(1)
    node.campaign()
    assert (node.role.value, node.leader_id) == ("pre_candidate", NO_BROKER)
    cluster.pump()
    node.step(VoteResponse(from_=B, to=A, term=Term(1), granted=True, pre=True))
    assert (node.role.value, node.leader_id) == ("candidate", NO_BROKER)


def test_a_leader_that_stops_leading_knows_none_and_says_so(led: Any) -> None:
    node = led.node(1)
    node.step_down()
    assert node.leader_id == NO_BROKER
    with pytest.raises(NotLeader) as caught:
        node.read_index(1)
    assert caught.value.leader == -1
    with pytest.raises(NotLeader) as caught:
        node.propose([])
    assert caught.value.leader == -1
    with pytest.raises(NotLeader) as caught:
        led.node(2).read_index(1)
    assert caught.value.leader == A


def test_exactly_the_bytes_allowed_may_be_uncommitted(cluster_class: Any) -> None:
    cluster = cluster_class(3, uncommitted_bytes_max=300)
    cluster.elect(1)
    cluster.propose("a", size=100)
    node = cluster.node(1)
    node.admit(200)
    with pytest.raises(Busy):
        node.admit(201)


def test_what_was_applied_already_may_be_said_again_and_nothing_older(led: Any) -> None:
    node = led.node(1)
    assert node.applied_index == 1
    node.applied_to(1)
    for wrong in (0, 2):
        with pytest.raises(InvariantViolated, match=f"applied {wrong}, but 1 was, and 1 handed out"):
            node.applied_to(wrong)


def test_a_membership_just_below_a_cut_stays_in_force() -> None:
    one, two, three = (Membership(voters=(A,)), Membership(voters=(A, B)), Membership(voters=(A, B, C)))
    kept = MembershipLog(one, [(5, two), (6, three)])
    kept.truncate_from(6)
    assert (kept.current, kept.index) == (two, 5)
    kept.truncate_from(5)
    assert (kept.current, kept.index) == (one, 0)
    with pytest.raises(InvariantViolated, match="a membership at 0 cannot follow the one at 0"):
        kept.append(0, two)


def test_memberships_below_the_log_are_forgotten_and_the_one_in_force_there_is_kept() -> None:
    kept = MembershipLog(Membership(voters=(A,)), [(5, Membership(voters=(A, B)))])
    kept.forget_below(4)
    assert kept.at(4) == Membership(voters=(A,))
    kept.forget_below(5)
    assert kept.at(5) == kept.at(0) == Membership(voters=(A, B)), "what was before is gone"


def test_answered_reads_make_room_for_as_many_new_ones() -> None:
    reads = LeaderReads()
    for context in range(READS_OPEN_MAX):
        reads.ask(context)
    with pytest.raises(Busy):
        reads.ask(0)
    number = reads.begin(1)
    reads.answered(B, number)
    assert len(reads.confirmed(Membership(voters=(A, B, C)), A)) == READS_OPEN_MAX
    for context in range(READS_OPEN_MAX):
        reads.ask(context)
    with pytest.raises(Busy):
        reads.ask(0)


def test_a_single_voter_answers_each_of_its_reads(cluster_class: Any) -> None:
    cluster = cluster_class(1)
    cluster.node(1).campaign()
    cluster.settle()
    node = cluster.node(1)
    node._read_states.append(ReadState(1, 1))
    node.read_index(2)
    assert [state.context for state in node.ready().read_states] == [1, 2]


def test_a_follower_that_is_probed_anew_was_told_of_no_commit() -> None:
    found = follower()
    found.accepted(4, log_first_index=1)
    found.sent_commit, found.probe_sent = 4, True
    found.become_probe()
    assert (found.sent_commit, found.probe_sent, found.next) == (0, False, 5)


def test_a_replaced_disk_counts_for_nothing_until_it_says_what_it_holds(item: Any) -> None:
    led = leadership(item, 1, 1, 1)
    led.distrust(D)
    for match in (0, 3):
        found = led.peers[B]
        found.match, found.repairing = match, False
        led.distrust(B)
        assert (found.match, found.repairing, found.state, found.next) == (0, True, ProgressState.PROBE, 1)
    found.probe_sent = True
    led.distrust(B)
    assert found.probe_sent, "what it is asked already is enough"
    found.match = 2
    led.distrust(B)
    assert found.match == 0 and not found.probe_sent


def test_a_repairing_follower_that_holds_what_we_count_on_is_probed_after_its_hint(item: Any) -> None:
    led = leadership(item, *[1] * 8)
    found = led.peers[B]
    found.match, found.repairing = 2, True
    answer = AppendResponse(
        from_=B, to=A, term=Term(3), index=8, rejected=True, repairing=True, hint_index=5, hint_term=Term(1)
    )
    led.append_answered(answer)
    assert (found.match, found.next, found.repairing) == (2, 6, True)


def test_a_hint_without_a_term_is_taken_as_it_is(item: Any) -> None:
    led = leadership(item, *[1] * 8)
    answer = AppendResponse(from_=B, to=A, term=Term(3), index=8, rejected=True, hint_index=5, hint_term=Term(0))
    led.append_answered(answer)
    assert led.peers[B].next == 6


def test_a_membership_names_a_broker_above_an_index_only_when_it_stands_above_it() -> None:
    kept = MembershipLog(Membership(voters=(A,)), [(5, Membership(voters=(A, B)))])
    assert [kept.names_above(B, index) for index in (-1, 4, 5, 6)] == [True, True, False, False]
    assert [kept.names_above(A, index) for index in (-1, 0, 5)] == [True, True, False]
    assert not kept.names_above(C, -1)


def test_only_a_leader_steps_down_or_distrusts(led: Any) -> None:
    follower_node = led.node(2)
    before = (follower_node.role, follower_node.term, follower_node.leader_id)
    follower_node.step_down()
    follower_node.distrust(C)
    assert (follower_node.role, follower_node.term, follower_node.leader_id) == before
    assert not follower_node.has_ready()


def test_what_storage_answers_to_a_leader_that_is_none_any_more_is_dropped(item: Any, led: Any) -> None:
    node = led.node(2)
    node.entries_fetched(Fetch(A, Term(1), 1, 2, 100), [item(Term(1), 1)])
    node.snapshot_fetched(SnapshotRequest(A, Term(1)), None)
    assert not node.has_ready() and not node.begin_bulk(A)
    node.end_bulk(A)
    assert not node.has_ready()


def test_asking_for_the_same_hand_over_again_gives_it_no_more_time(led: Any) -> None:
    node = led.node(1)
    node.tick(node._config.election_ticks // 2)
    assert node.transfer_leadership(B) and node._elapsed == 0
    node.tick(1)
    assert node.transfer_leadership(B) and node._elapsed == 1
    assert node.transfer_leadership(C) and node._elapsed == 0


def test_a_leader_that_was_removed_stops_and_knows_no_leader_but_its_successor(led: Any) -> None:
    node = led.node(1)
    led.change((2, 3))
    led.settle()
    assert not node.is_leader and node.leader_id in (NO_BROKER, B, C)


# -- what is shown, and where a replica begins ------------------------------------------------------------------


def test_a_host_looks_once_at_every_change_of_role_term_or_leader(cluster: Any) -> None:
    node = cluster.node(1)
    assert not node.has_ready()
    changes = (
        (node.campaign, (), (Role.PRE_CANDIDATE, Term(0), NO_BROKER)),
        (
            node.step,
            (VoteResponse(from_=B, to=A, term=Term(1), granted=True, pre=True),),
            (Role.CANDIDATE, Term(1), NO_BROKER),
        ),
        (node.step, (Heartbeat(from_=C, to=A, term=Term(4), commit=0),), (Role.FOLLOWER, Term(4), C)),
    )
    for change, arguments, shown in changes:
        change(*arguments)
        assert node.has_ready()
        node.ready()
        assert (node.role, node.term, node.leader_id) == shown and not node.has_ready()


def test_a_replica_begins_with_everything_below_its_log_committed(stored: Any, cluster_class: Any) -> None:
    disk = stored(1, 1, 1)
    disk.compact(
        SnapshotPoint(index=2, term=Term(1), membership=Membership(voters=(A,)), data=pickle.dumps(disk.entries[:2]))
    )
    node = cluster_class(1, disks={1: disk}).node(1)
    assert (node.commit_index, node.applied_index, node.log.first_index, node.last_index) == (2, 2, 3, 3)


def test_who_voted_just_before_an_uncommitted_change_may_lead_and_nobody_from_before_that() -> None:
    kept = MembershipLog(Membership(voters=(C,)), [(3, Membership(voters=(A, B))), (5, Membership(voters=(B, D)))])
    assert [kept.may_lead(broker, 4) for broker in (A, B, C, D)] == [True, True, False, True]
    assert [kept.may_lead(broker, 5) for broker in (A, B, C, D)] == [False, True, False, True]


@pytest.mark.parametrize("field", ["voters", "learners", "outgoing"])
def test_a_broker_twice_in_a_list_is_named_with_the_list(field: str) -> None:
    lists: dict[str, Any] = {"voters": (A,), field: (B, B)}
    with pytest.raises(ValueError, match=rf"\b{field}\b"):
        Membership(**lists)


def test_two_ticks_are_enough_for_an_election_and_one_is_not() -> None:
    assert RaftConfig(id=A, voters=(A,), election_ticks=2, heartbeat_ticks=1).election_ticks == 2
    for ticks, beat in ((1, 0), (2, 2), (2, -1)):
        with pytest.raises(ValueError, match="ticks"):
            RaftConfig(id=A, voters=(A,), election_ticks=ticks, heartbeat_ticks=beat)


def test_a_replica_without_a_state_of_its_machine_begins_before_its_first_entry(item: Any) -> None:
    log: RaftLog[Any] = RaftLog(first_index=3, term_runs=[(2, Term(1))])
    node = RaftNode(RaftConfig(id=A, voters=(A,)), log, HardState(Term(1)), random.Random(1), item)
    assert (node.commit_index, node.applied_index, node.last_index) == (2, 2, 2)
