"""A follower that takes over stored, committed segments instead of Appends."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.ids import BrokerId, Term
from region.raft.core import Append, AppendResponse, Heartbeat, HeartbeatResponse, InvariantViolated, Membership

A, B, C = BrokerId(1), BrokerId(2), BrokerId(3)


@pytest.fixture
def behind(led: Any) -> Any:
    """3 holds index 1 of 11."""
    led.isolate(3)
    led.propose(*"abcdefghij")
    led.settle()
    led.heal()
    led.drop_mail()
    return led


def wake(cluster: Any) -> None:
    cluster.node(1).step(HeartbeatResponse(from_=C, to=A, term=Term(1)))
    cluster.pump()


def test_a_follower_adopts_segments_and_goes_on_with_appends(behind: Any) -> None:
    assert behind.node(1).begin_bulk(C)
    wake(behind)
    assert not behind.mail(Append, to=C), "nothing is sent meanwhile"
    behind.bulk(2, 3, 6)
    node = behind.node(3)
    assert (node.commit_index, node.applied_index, node.last_index, node.log.stable_index) == (6, 6, 6, 6)
    behind.settle()
    view = behind.node(1).progress(C)
    assert (view.state.value, view.match) == ("bulk", 6), "the leader knows, and still sends nothing"
    behind.bulk(1, 3, 8)
    behind.settle()
    behind.node(1).end_bulk(C)
    behind.settle()
    assert behind.data(3) == list("abcdefghij")
    behind.node(1).end_bulk(C)


def test_a_segment_is_adopted_only_at_the_durable_end_of_a_follower(behind: Any) -> None:
    node = behind.node(3)
    assert node.can_adopt(2, Term(1)) and not node.can_adopt(3, Term(1)) and not node.can_adopt(1, Term(1))
    assert not node.can_adopt(2, Term(2)), "its leader may never have had what was committed later"
    with pytest.raises(InvariantViolated, match="adopts"):
        node.adopt(5, [(2, Term(1))], term=Term(2))
    with pytest.raises(InvariantViolated, match="adopts"):
        node.adopt(5, [], term=Term(1))
    assert not behind.node(1).can_adopt(12, Term(1)), "a leader"
    behind.hold_disks = {3}
    wake(behind)
    behind.settle()
    assert not node.can_adopt(12, Term(1)) and not node.can_adopt(2, Term(1))
    node.forget_leader(A)
    node.campaign()
    assert not node.can_adopt(12, Term(1)), "a candidate"


@pytest.mark.parametrize("runs", [[(2, 2), (4, 1)], [(2, 1), (9, 2)], [(2, 1), (2, 2)]])
def test_segments_whose_terms_do_not_continue_the_log_are_refused(behind: Any, runs: list[tuple[int, int]]) -> None:
    with pytest.raises(InvariantViolated, match="do not follow"):
        behind.node(3).adopt(6, [(start, Term(term)) for start, term in runs], term=Term(1))
    behind.node(3).observe_term(Term(3))
    behind.pump()
    behind.flush(3)
    assert behind.node(3).last_index == 1


def test_adopted_terms_and_memberships_are_those_of_the_segments(cluster_class: Any, stored: Any) -> None:
    cluster = cluster_class(3, disks={1: stored(1, 1, 2, 2), 2: stored(1, 1, 2, 2), 3: stored(1, term=2)})
    cluster.isolate(3)
    cluster.elect(1)
    cluster.join(4)
    cluster.change([1, 2, 3], [4])
    cluster.settle()
    cluster.node(3).observe_term(Term(1))
    assert cluster.node(3).term == 2, "a passed term is ignored"
    cluster.bulk(1, 3, 6)
    log = cluster.node(3).log
    assert [log.term(i) for i in range(8)] == [0, 1, 1, 2, 2, 3, 3, None]
    assert cluster.node(3).membership == Membership(voters=(A, B, C), learners=(BrokerId(4),))
    assert cluster.node(3).membership_index == 6 and cluster.node(3).term == 3


def test_what_a_newer_leader_committed_is_not_acknowledged_to_an_older_one(
    cluster_class: Any, stored: Any, item: Any
) -> None:
    """1 leads term 5 cut off, with an entry 2 of its own; 2 of term 6 has committed another entry 2, of term 4.

    If 3 took that over in term 5 and said so to 1, then 1 would commit its own entry 2.
    """
    cluster = cluster_class(3, disks={1: stored(4), 2: stored(4, 4), 3: stored(4)})
    node = cluster.node(3)
    node.step(Heartbeat(from_=A, to=C, term=Term(5), commit=0))
    cluster.pump()
    cluster.flush(3)
    assert node.leader_id == A and not node.can_adopt(2, Term(6))
    with pytest.raises(InvariantViolated, match="of term 6"):
        node.adopt(2, [(2, Term(4))], term=Term(6))
    node.observe_term(Term(6))
    cluster.pump()
    cluster.flush(3)
    cluster.drop_mail()
    cluster.members[3].disk.entries.append(item(Term(4), 2, "2@4"))
    cluster.members[3].applied = [*cluster.members[3].disk.entries]
    node.adopt(2, [(2, Term(4))], term=Term(6))
    own = item(Term(5), 2, "never")
    node.step(Append(from_=A, to=C, term=Term(5), prev_index=1, prev_term=Term(4), commit=0, entries=[own]))
    cluster.pump()
    assert [(type(m), m.term) for m in cluster.network] == [(HeartbeatResponse, 6)]


def test_observing_a_newer_term_ends_the_leadership_and_is_stored(led: Any) -> None:
    led.node(1).observe_term(Term(7))
    led.pump()
    led.flush(1)
    assert not led.node(1).is_leader and led.members[1].disk.hard_state == (7, 0)


def test_bulk_is_for_known_followers_that_need_no_snapshot(behind: Any) -> None:
    assert not behind.node(1).begin_bulk(BrokerId(9)) and not behind.node(2).begin_bulk(C)
    behind.node(1).end_bulk(BrokerId(9))
    behind.node(2).end_bulk(C)
    behind.node(1).report_unreachable(C)
    behind.compact(1, 9)
    wake(behind)
    behind.hold_snapshots = True
    behind.lost = lambda m: True
    behind.settle()
    behind.node(1)._leadership.peers[C].next = 2
    wake(behind)
    behind.node(1)._leadership.due = True
    behind.pump()
    assert behind.node(1).progress(C).state.value == "snapshot" and not behind.node(1).begin_bulk(C)


def test_late_answers_do_not_end_the_bulk_but_a_broken_connection_does(behind: Any) -> None:
    assert behind.node(1).begin_bulk(C)
    behind.node(1).step(AppendResponse(from_=C, to=A, term=Term(1), index=1))
    before = behind.node(1).progress(C)
    behind.node(1).step(AppendResponse(from_=C, to=A, term=Term(1), index=before.next - 1, rejected=True))
    assert behind.node(1).progress(C) == before and before.state.value == "bulk"
    behind.node(1).step(AppendResponse(from_=C, to=A, term=Term(1), index=1, repairing=True))
    assert behind.node(1).progress(C).state.value == "bulk", "it fetches what it lost"
    behind.node(1).report_unreachable(C)
    assert behind.node(1).progress(C).state.value == "probe"


def test_a_bulk_without_progress_ends_by_itself(behind: Any) -> None:
    assert behind.node(1).begin_bulk(C)
    for _ in range(29):
        for _ in range(10):
            behind.node(1).touch_peer(B, Term(1))
            behind.tick(1, 1)
    assert behind.node(1).progress(C).state.value == "bulk"
    behind.node(1).step(AppendResponse(from_=C, to=A, term=Term(1), index=3))
    for turn in range(30):
        assert behind.node(1).progress(C).state.value == "bulk", turn
        for _ in range(10):
            behind.node(1).touch_peer(B, Term(1))
            behind.tick(1, 1)
    assert behind.node(1).progress(C).state.value == "probe"


def test_appends_that_arrive_first_make_the_segment_useless_but_harm_nothing(behind: Any) -> None:
    wake(behind)
    behind.settle()
    assert behind.data(3) == list("abcdefghij") and not behind.node(3).can_adopt(2, Term(1))
