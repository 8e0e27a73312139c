"""A follower that needs what the leader has dropped gets the state instead; logs that start later than at 1."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.ids import BrokerId, Term
from region.raft.core import (
    Append,
    AppendResponse,
    HardState,
    HeartbeatResponse,
    InvariantViolated,
    Membership,
    RaftConfig,
    RaftLog,
    RaftNode,
    Snapshot,
    SnapshotPoint,
    SnapshotRequest,
)

A, B, C = BrokerId(1), BrokerId(2), BrokerId(3)


@pytest.fixture
def behind(led: Any) -> Any:
    """3 holds index 1, the leader's log starts at 9 of 11."""
    led.isolate(3)
    led.propose(*"abcdefghij")
    led.settle()
    led.node(1).report_unreachable(C)
    led.compact(1, 9)
    led.heal()
    led.drop_mail()
    return led


def wake(cluster: Any, peer: int = 3) -> None:
    leader = cluster.leader
    leader.step(HeartbeatResponse(from_=BrokerId(peer), to=leader.id, term=leader.term))
    cluster.pump()


def snapshot(cluster: Any, index: int = 5, *, term: int = 1, to: int = 3, leader_term: int = 1) -> Snapshot:
    point = cluster.point(1, index)
    return Snapshot(
        from_=A,
        to=BrokerId(to),
        term=Term(leader_term),
        index=index,
        snapshot_term=Term(term),
        membership=point.membership,
        data=point.data,
    )


def test_a_follower_below_the_log_start_gets_the_state_and_then_the_log(behind: Any) -> None:
    wake(behind)
    behind.settle()
    assert behind.data(3) == list("abcdefghij")
    assert behind.members[3].disk.snapshot.index == 8 and behind.node(3).log.first_index == 9
    assert [m.index for m in behind.sent if isinstance(m, Snapshot)] == [8]
    behind.propose("k")
    behind.settle()
    assert behind.data(3)[-1] == "k"


def test_a_snapshot_is_acknowledged_after_its_write_and_nothing_is_handed_out_below_it(behind: Any) -> None:
    behind.hold_disks = {3}
    wake(behind)
    behind.settle()
    node = behind.node(3)
    assert (node.commit_index, node.applied_index, node.last_index, node.log.stable_index) == (8, 8, 8, 0)
    write = behind.members[3].pending[-1]
    assert write.install is not None and (write.truncate_from, write.entries) == (None, [])
    assert not behind.mail(AppendResponse, from_=C, rejected=False)
    behind.flush(3)
    assert [m.index for m in behind.mail(AppendResponse, from_=C)] == [8]


def test_a_crash_before_the_snapshot_is_durable_leaves_the_old_log(behind: Any) -> None:
    behind.hold_disks = {3}
    wake(behind)
    behind.settle()
    behind.crash(3)
    behind.restart(3)
    assert (behind.node(3).log.first_index, behind.node(3).last_index) == (1, 1)
    behind.hold_disks = set()
    behind.node(1).report_unreachable(C)
    wake(behind)
    behind.settle()
    assert behind.data(3) == list("abcdefghij")


def test_a_restart_after_a_snapshot_goes_on_from_it(behind: Any) -> None:
    wake(behind)
    behind.settle()
    behind.crash(3)
    behind.restart(3)
    assert behind.node(3).commit_index == 8 and behind.data(3) == list("abcdefg")
    behind.elect(3)
    assert behind.data(3) == list("abcdefghij")


@pytest.mark.parametrize("index", [3, 5])
def test_a_snapshot_at_or_below_the_commit_changes_nothing(led: Any, index: int) -> None:
    led.propose(*"abcd")
    led.settle()
    led.drop_mail()
    led.node(3).step(snapshot(led, index))
    led.pump()
    assert led.node(3).log.first_index == 1 and led.data(3) == list("abcd")
    assert [(m.index, m.rejected) for m in led.mail(AppendResponse)] == [(5, False)], "what it holds is told"


def test_a_snapshot_whose_entry_is_in_the_log_only_commits_it(led: Any) -> None:
    led.lost = lambda m: isinstance(m, Append) and m.to == C and m.commit > 1
    led.propose(*"abcd")
    led.settle()
    assert led.node(3).commit_index == 1 and led.node(3).last_index == 5
    led.node(3).step(snapshot(led, 3))
    led.pump()
    assert (led.node(3).log.first_index, led.node(3).commit_index, led.node(3).last_index) == (1, 3, 5)
    assert led.data(3) == ["a", "b"]


def test_a_snapshot_replaces_a_log_that_conflicts_with_it(cluster_class: Any, stored: Any) -> None:
    cluster = cluster_class(3, disks={1: stored(1, 2, 2), 2: stored(1, 2, 2), 3: stored(1, 1, 1, 1, 1)})
    cluster.isolate(3)
    cluster.elect(1)
    cluster.node(3).step(snapshot(cluster, 3, term=2, leader_term=3))
    cluster.pump()
    cluster.flush(3)
    assert (cluster.node(3).last_index, cluster.members[3].disk.entries) == (3, [])
    assert cluster.data(3) == ["1@1", "2@2", "3@2"]


def test_what_was_in_flight_to_the_disk_before_a_snapshot_says_nothing_about_the_log_after_it(behind: Any) -> None:
    behind.hold_disks = {3}
    old = Append(
        from_=A,
        to=C,
        term=Term(1),
        prev_index=1,
        prev_term=Term(1),
        commit=1,
        entries=behind.members[2].disk.entries[1:3],
    )
    behind.node(3).step(old)
    behind.pump()
    wake(behind)
    behind.settle()
    assert behind.node(3).last_index == 8
    behind.flush(3, 1)
    assert behind.node(3).log.stable_index == 0
    behind.flush(3)
    assert behind.node(3).log.stable_index == 8


def test_a_snapshot_brings_the_membership_of_its_place(behind: Any) -> None:
    behind.join(4)
    behind.change([1, 2, 3], [4])
    behind.propose("k")
    behind.settle()
    behind.compact(1, behind.node(1).commit_index)
    assert behind.node(1).membership_at(12).learners == (4,) and behind.members[1].disk.start == 12
    wake(behind, 3)
    behind.settle()
    node = behind.node(3)
    assert node.membership == Membership(voters=(A, B, C), learners=(BrokerId(4),)) and node.membership_index == 12
    behind.crash(3)
    behind.restart(3)
    assert behind.node(3).membership == node.membership


def test_a_snapshot_undoes_memberships_above_it_that_were_never_committed(
    cluster_class: Any, stored: Any, item: Any
) -> None:
    disk = stored(1, 1, 1, 1)
    lost = Membership(voters=(A, B, C), learners=(BrokerId(9),))
    disk.entries.append(item(Term(1), 5, members=lost))
    cluster = cluster_class(3, disks={1: stored(1, 2, 2), 2: stored(1, 2, 2), 3: disk})
    assert cluster.node(3).membership == lost
    cluster.isolate(3)
    cluster.elect(1)
    cluster.node(3).step(snapshot(cluster, 3, term=2, leader_term=3))
    cluster.pump()
    assert cluster.node(3).membership == Membership(voters=(A, B, C)) and cluster.node(3).membership_index == 3
    assert cluster.node(3).membership_at(3) == Membership(voters=(A, B, C))


def test_a_snapshot_of_a_newer_term_is_followed_and_one_of_a_passed_term_refused(led: Any) -> None:
    led.propose(*"abcd")
    led.settle()
    led.drop_mail()
    newer = snapshot(led, 5, leader_term=4, to=3)
    led.node(3).step(newer)
    led.pump()
    led.flush(3)
    assert led.node(3).term == 4 and led.node(3).leader_id == A
    led.drop_mail()
    led.node(3).step(snapshot(led, 5, leader_term=3, to=3))
    led.pump()
    assert [(m.term, type(m)) for m in led.network] == [(4, HeartbeatResponse)]


def test_a_snapshot_comes_only_when_the_probe_has_reached_the_dropped_entries_and_once(behind: Any) -> None:
    behind.hold_snapshots = True
    wake(behind)
    behind.settle()
    assert behind.snapshot_requests == [(1, SnapshotRequest(C, Term(1)))]
    assert behind.node(1).progress(C).state.value == "snapshot"
    for _ in range(5):
        wake(behind)
    behind.tick(9, 1)
    assert len(behind.snapshot_requests) == 1 and not behind.mail(Append, to=C)
    behind.answer_snapshots()
    behind.pump()
    assert len(behind.mail(Snapshot)) == 1
    assert behind.node(1).progress(C).next == 9
    for _ in range(5):
        wake(behind)
    assert len(behind.mail(Snapshot)) == 1 and not behind.snapshot_requests and not behind.mail(Append, to=C)


def test_without_a_snapshot_at_hand_the_leader_asks_again_at_the_next_sign_of_life(behind: Any) -> None:
    behind.hold_snapshots = True
    wake(behind)
    behind.settle()
    (_, request), behind.snapshot_requests = behind.snapshot_requests[0], []
    behind.node(1).snapshot_fetched(request, None)
    behind.pump()
    assert not behind.snapshot_requests
    wake(behind)
    assert len(behind.snapshot_requests) == 1
    behind.answer_snapshots()
    behind.pump()
    wake(behind)
    assert not behind.snapshot_requests and len(behind.mail(Snapshot)) == 1


def let_time_pass(cluster: Any, timeouts: int = 1) -> None:
    for _ in range(10 * timeouts):
        cluster.node(1).touch_peer(B, Term(1))
        cluster.tick(1, 1)


def test_a_slow_answer_of_the_host_is_not_asked_for_twice(behind: Any) -> None:
    behind.hold_snapshots = True
    wake(behind)
    behind.settle()
    let_time_pass(behind, 5)
    wake(behind)
    assert len(behind.snapshot_requests) == 1
    (_, request) = behind.snapshot_requests[0]
    behind.answer_snapshots()
    let_time_pass(behind)
    behind.node(1).snapshot_fetched(request, behind.members[1].disk.snapshot)
    behind.pump()
    assert len(behind.mail(Snapshot)) == 1, "and its answer counts once"


def test_the_time_for_a_snapshot_counts_from_when_it_was_sent(behind: Any) -> None:
    behind.hold_snapshots = True
    wake(behind)
    behind.settle()
    let_time_pass(behind)
    behind.answer_snapshots()
    let_time_pass(behind)
    wake(behind)
    assert not behind.snapshot_requests
    let_time_pass(behind)
    wake(behind)
    assert len(behind.snapshot_requests) == 1


def test_a_snapshot_below_the_log_start_is_asked_for_again(behind: Any) -> None:
    behind.hold_snapshots = True
    wake(behind)
    behind.settle()
    (_, request), behind.snapshot_requests = behind.snapshot_requests[0], []
    old = SnapshotPoint(index=4, term=Term(1), membership=behind.node(1).membership, data=b"")
    behind.node(1).snapshot_fetched(request, old)
    behind.pump()
    assert not behind.mail(Snapshot)
    wake(behind)
    assert len(behind.snapshot_requests) == 1


def test_a_snapshot_beyond_the_commit_is_the_hosts_bug(behind: Any) -> None:
    behind.hold_snapshots = True
    wake(behind)
    behind.settle()
    (_, request) = behind.snapshot_requests[0]
    early = SnapshotPoint(index=99, term=Term(1), membership=behind.node(1).membership, data=b"")
    with pytest.raises(InvariantViolated, match="committed up to 11"):
        behind.node(1).snapshot_fetched(request, early)


def test_a_lost_snapshot_is_sent_again_after_a_while(behind: Any) -> None:
    behind.lost = lambda m: isinstance(m, Snapshot)
    wake(behind)
    behind.settle()
    behind.lost = lambda m: False
    for sent in (1, 2):
        let_time_pass(behind)
        wake(behind)
        assert len([m for m in behind.sent if isinstance(m, Snapshot)]) == sent
    behind.settle()
    assert behind.data(3) == list("abcdefghij")


def test_an_unreachable_follower_gets_its_snapshot_again_only_when_it_is_heard(behind: Any) -> None:
    behind.lost = lambda m: isinstance(m, Snapshot)
    wake(behind)
    behind.settle()
    behind.node(1).report_unreachable(C)
    behind.pump()
    behind.node(1).report_unreachable(BrokerId(9))
    assert len([m for m in behind.sent if isinstance(m, Snapshot)]) == 1
    wake(behind)
    assert len([m for m in behind.sent if isinstance(m, Snapshot)]) == 2


def test_an_answer_to_a_request_that_is_passed_changes_nothing(behind: Any) -> None:
    behind.hold_snapshots = True
    wake(behind)
    behind.settle()
    (_, request) = behind.snapshot_requests[0]
    point = behind.members[1].disk.snapshot
    behind.node(1).step(AppendResponse(from_=C, to=A, term=Term(1), index=9))
    assert behind.node(1).progress(C).state.value == "replicate"
    behind.node(1).snapshot_fetched(request, point)
    behind.node(1).snapshot_fetched(request, point)
    behind.node(1).snapshot_fetched(SnapshotRequest(BrokerId(9), Term(1)), point)
    behind.node(2).snapshot_fetched(request, point)
    behind.pump()
    assert not behind.mail(Snapshot)


def test_a_replicating_follower_whose_next_entry_is_dropped_gets_a_snapshot(led: Any) -> None:
    led.lost = lambda m: m.to == C and isinstance(m, Append)
    led.forging = True
    led.propose(*"abcd")
    led.settle()
    leadership = led.node(1)._leadership
    leadership.peers[C].next = 3
    led.compact(1, 4)
    led.lost = lambda m: False
    led.propose("e")
    led.settle()
    assert led.data(3) == list("abcde")


def test_cold_entries_that_were_dropped_while_they_were_read_are_not_sent(led: Any) -> None:
    led.propose(*"abcdefgh")
    led.settle()
    node = led.node(1)
    node.log.evict(8)
    progress = node._leadership.peers[C]
    progress.next = 3
    progress.match = 2
    node._leadership.due = True
    (fetch,) = node.ready().fetches
    entries = led.members[1].disk.range(fetch.lo, fetch.hi)
    led.compact(1, 6)
    node.entries_fetched(fetch, entries)
    ready = node.ready()
    assert not [m for m in ready.messages if isinstance(m, Append) and m.to == C]
    assert [r.to for r in ready.snapshot_requests] == [C]


def test_the_log_start_moves_only_over_what_is_applied(led: Any) -> None:
    led.propose(*"abcd")
    led.settle()
    led.hold_disks = {1, 2, 3}
    led.propose("e")
    led.pump()
    with pytest.raises(InvariantViolated, match="cannot start at 6, applied up to 5"):
        led.node(1).advance_start(6)
    led.node(1).advance_start(5)
    led.node(1).advance_start(2)
    log = led.node(1).log
    assert (log.first_index, log.tail_first, [log.term(i) for i in range(3, 8)]) == (5, 5, [None, 1, 1, 1, None])


def test_a_log_that_starts_later_answers_an_older_append_with_what_it_has_committed(behind: Any) -> None:
    wake(behind)
    behind.settle()
    behind.drop_mail()
    behind.node(3).step(Append(from_=A, to=C, term=Term(1), prev_index=3, prev_term=Term(1), commit=3))
    behind.pump()
    assert [(m.index, m.rejected) for m in behind.mail(AppendResponse)] == [(11, False)]


def test_a_member_that_joins_late_gets_state_membership_and_log(led: Any) -> None:
    led.propose(*"abcdefgh")
    led.settle()
    led.compact(1, 7)
    led.join(4)
    led.change([1, 2, 3], [4])
    led.settle()
    wake(led, 4)
    led.settle()
    assert led.data(4) == list("abcdefgh") and led.node(4).membership.learners == (4,)


def test_memberships_below_the_log_start_are_forgotten_and_the_one_in_force_there_is_kept(led: Any) -> None:
    led.join(4, 5)
    for learners in ([4], [5], []):
        led.change([1, 2, 3], learners)
        led.settle()
    led.propose("a")
    led.settle()
    node = led.node(1)
    led.compact(1, 4)
    assert [node.membership_at(i).learners for i in (3, 4, 5)] == [(5,), (), ()]
    assert node._memberships._indexes == [3, 4]


def test_an_acknowledgement_that_ends_below_the_log_start_does_not_end_the_snapshot(behind: Any) -> None:
    behind.hold_snapshots = True
    wake(behind)
    behind.settle()
    behind.node(1).step(AppendResponse(from_=C, to=A, term=Term(1), index=4))
    view = behind.node(1).progress(C)
    assert (view.state.value, view.match) == ("snapshot", 4)
    behind.pump()
    assert not behind.mail(Append, to=C)


def test_a_state_that_was_applied_must_be_inside_the_log(led: Any) -> None:
    log = RaftLog[Any](first_index=5, term_runs=[(4, Term(1))], last_index=4)
    config = RaftConfig(id=A, voters=(A,))
    rng: Any = led.node(1)._rng
    for wrong in (3, 5):
        with pytest.raises(InvariantViolated, match="applied"):
            RaftNode(config, log, HardState(Term(1)), rng, lambda t, i: None, applied_index=wrong)


def test_only_what_was_handed_out_can_have_been_applied(behind: Any) -> None:
    wake(behind)
    behind.settle()
    for wrong in (5, 99):
        with pytest.raises(InvariantViolated, match="handed out"):
            behind.node(3).applied_to(wrong)


def test_the_log_start_never_passes_what_is_durable(item: Any) -> None:
    log = RaftLog[Any]()
    log.append([item(Term(1), 1), item(Term(1), 2)])
    with pytest.raises(InvariantViolated, match="durable up to 0"):
        log.advance_start(2)


def test_an_answer_from_before_the_probe_started_over_changes_nothing(led: Any) -> None:
    led.propose(*"abc")
    led.settle()
    node = led.node(1)
    node.report_unreachable(C)
    node.step(AppendResponse(from_=C, to=A, term=Term(1), index=2))
    assert node.progress(C).state.value == "probe"
    node.step(AppendResponse(from_=C, to=A, term=Term(1), index=4))
    assert node.progress(C).state.value == "replicate"


def test_a_heartbeat_of_a_stranger_changes_nothing(led: Any) -> None:
    led.node(1).step(HeartbeatResponse(from_=BrokerId(9), to=A, term=Term(1)))
    assert not led.node(1).has_ready()
