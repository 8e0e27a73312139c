"""A broker whose disk lost entries that it had acknowledged: harmless until it holds them again."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.ids import BrokerId, Term
from region.raft.core import AppendResponse, Heartbeat, HeartbeatResponse, LastId, Role, TimeoutNow, VoteRequest

A, B, C = BrokerId(1), BrokerId(2), BrokerId(3)


@pytest.fixture
def repairing(led: Any) -> Any:
    """1 leads with 6 entries; 3 held them all and comes back with 2."""
    led.propose(*"abcde")
    led.settle()
    led.crash(3)
    led.members[3].disk.cut(2)
    led.drop_mail()
    led.restart(3)
    led.isolate(3)
    return led


def back(cluster: Any) -> None:
    """The repaired broker is reachable again, and heard."""
    cluster.heal()
    leader = cluster.leader
    leader.report_unreachable(C)
    leader.step(HeartbeatResponse(from_=C, to=leader.id, term=leader.term))
    cluster.pump()


def ask(last: tuple[int, int], *, term: int = 2, pre: bool = False) -> VoteRequest:
    return VoteRequest(
        from_=B, to=C, term=Term(term), last_index=last[1], last_term=Term(last[0]), pre=pre, force=not pre
    )


def test_a_broker_that_lost_nothing_that_it_needs_is_not_under_repair(repairing: Any, item: Any) -> None:
    assert repairing.node(3).repairing and not repairing.node(1).repairing
    repairing.members[3].disk.lost = LastId(Term(1), 2)
    repairing.members[3].restart()
    assert not repairing.node(3).repairing


def test_a_broker_under_repair_is_not_electable(repairing: Any) -> None:
    node = repairing.node(3)
    node.campaign()
    repairing.tick(100, 3)
    node.step(TimeoutNow(from_=A, to=C, term=Term(1)))
    repairing.pump()
    assert node.role is Role.FOLLOWER and node.term == 1 and not repairing.mail(VoteRequest)


@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize(("last", "granted"), [((1, 2), False), ((1, 5), False), ((1, 6), True), ((2, 3), True)])
def test_it_votes_only_for_who_may_hold_what_it_lost(
    repairing: Any, last: tuple[int, int], granted: bool, pre: bool
) -> None:
    repairing.heal()
    repairing.node(3).step(ask(last, pre=pre))
    repairing.pump()
    repairing.flush(3)
    (answer,) = [m for m in repairing.network if m.from_ == C]
    assert answer.granted is granted


def test_without_that_rule_a_committed_entry_could_be_lost(led: Any) -> None:
    """`x` is on 1 and 3. 3 loses it and 1 goes down: 2 must not be elected by 3."""
    led.isolate(2)
    led.propose("x")
    led.settle()
    assert led.data(1) == ["x"]
    led.crash(1)
    led.crash(3)
    led.members[3].disk.cut(1)
    led.restart(3)
    led.heal()
    led.node(2).forget_leader(A)
    led.node(2).campaign()
    led.settle()
    assert not led.node(2).is_leader
    led.restart(1)
    led.elect(1)
    led.propose("y")
    led.settle()
    assert led.data(2) == ["x", "y"] == led.data(3)


def test_the_leader_takes_the_match_back_and_counts_nothing_before_the_repair_is_over(repairing: Any) -> None:
    repairing.hold_disks = {2, 3}
    repairing.propose("f")
    back(repairing)
    repairing.settle()
    view = repairing.node(1).progress(C)
    assert view.repairing and view.match == 2
    repairing.flush(3, 1)
    repairing.settle()
    assert repairing.node(1).commit_index == 7 and not repairing.node(1).progress(C).repairing
    assert not repairing.node(3).repairing


def test_acknowledgements_of_a_part_are_not_counted(repairing: Any) -> None:
    repairing.hold_disks = {2}
    repairing.forging = True
    repairing.propose("f")
    repairing.pump()
    node = repairing.node(1)
    repairing.flush(1)
    node.step(AppendResponse(from_=C, to=A, term=Term(1), index=7, repairing=True))
    assert node.commit_index == 6 and node.progress(C).match == 7
    node.step(AppendResponse(from_=C, to=A, term=Term(1), index=7))
    assert node.commit_index == 7


def test_the_answer_that_completes_the_repair_says_so(repairing: Any) -> None:
    back(repairing)
    repairing.settle()
    answers = [m for m in repairing.sent if isinstance(m, AppendResponse) and m.from_ == C][-2:]
    assert [(m.index, m.rejected, m.repairing) for m in answers] == [(6, True, True), (6, False, False)]
    assert not repairing.node(3).repairing and repairing.node(1).progress(C).match == 6


def test_answers_on_the_way_carry_the_mark(cluster_class: Any) -> None:
    cluster = cluster_class(3, append_message_bytes_max=100, inflight_messages_max=1)
    cluster.elect(1)
    cluster.propose(*"abcde")
    cluster.settle()
    cluster.crash(3)
    cluster.members[3].disk.cut(2)
    cluster.restart(3)
    seen = len(cluster.sent)
    back(cluster)
    cluster.settle()
    answers = [m for m in cluster.sent[seen:] if isinstance(m, AppendResponse) and m.from_ == C and not m.rejected]
    assert [(m.index, m.repairing) for m in answers] == [(3, True), (4, True), (5, True), (6, False)]


def test_it_is_electable_again_after_the_repair(repairing: Any) -> None:
    back(repairing)
    repairing.settle()
    repairing.elect(3)
    assert repairing.data(3) == list("abcde")


def test_the_repair_is_over_only_when_the_entries_are_durable(repairing: Any) -> None:
    repairing.hold_disks = {3}
    back(repairing)
    repairing.settle()
    assert repairing.node(3).last_index == 6 and repairing.node(3).repairing
    repairing.flush(3)
    assert not repairing.node(3).repairing


def test_a_heartbeat_that_counts_on_what_was_lost_is_answered_with_the_truth(repairing: Any) -> None:
    repairing.heal()
    repairing.drop_mail()
    repairing.node(3).step(Heartbeat(from_=A, to=C, term=Term(1), commit=6))
    repairing.pump()
    (refused,) = repairing.mail(AppendResponse)
    assert (refused.index, refused.rejected, refused.hint_index, refused.repairing) == (6, True, 2, True)
    assert repairing.node(3).commit_index == 0
    repairing.settle()
    assert repairing.data(3) == list("abcde")


def test_a_second_loss_takes_the_match_back_again(repairing: Any) -> None:
    node = repairing.node(1)
    node.step(AppendResponse(from_=C, to=A, term=Term(1), index=5, repairing=True))
    assert node.progress(C).match == 5
    node.step(
        AppendResponse(
            from_=C, to=A, term=Term(1), index=5, rejected=True, hint_index=1, hint_term=Term(1), repairing=True
        )
    )
    assert (node.progress(C).match, node.progress(C).state.value) == (1, "probe")


def test_leadership_is_not_handed_to_a_broker_under_repair(repairing: Any) -> None:
    node = repairing.node(1)
    node.step(AppendResponse(from_=C, to=A, term=Term(1), index=2, repairing=True))
    assert not node.transfer_leadership(C)
    assert node.transfer_leadership(B)


def test_a_handover_waits_while_its_target_is_under_repair(repairing: Any) -> None:
    repairing.lost = lambda m: isinstance(m, TimeoutNow)
    node = repairing.node(1)
    repairing.propose("f")
    node.transfer_leadership(C)
    repairing.pump()
    node.step(AppendResponse(from_=C, to=A, term=Term(1), index=7, repairing=True))
    repairing.pump()
    assert node.progress(C).match == 7 and not [m for m in repairing.sent if isinstance(m, TimeoutNow)]


def test_a_snapshot_that_covers_what_was_lost_ends_the_repair(repairing: Any) -> None:
    repairing.propose(*"fgh")
    repairing.settle()
    repairing.compact(1, 8)
    back(repairing)
    repairing.settle()
    assert not repairing.node(3).repairing and repairing.data(3) == list("abcdefgh")
    assert not repairing.node(1).progress(C).repairing


def test_a_snapshot_below_what_was_lost_does_not_end_the_repair(repairing: Any) -> None:
    repairing.compact(1, 5)
    repairing.hold_disks = {3}
    back(repairing)
    repairing.settle()
    repairing.flush(3)
    assert repairing.members[3].disk.snapshot.index == 4 and repairing.node(3).repairing
    repairing.hold_disks = set()
    repairing.settle()
    assert not repairing.node(3).repairing and repairing.data(3) == list("abcde")


def test_segments_end_the_repair_too(repairing: Any) -> None:
    repairing.node(1).step(AppendResponse(from_=C, to=A, term=Term(1), index=2, repairing=True))
    assert repairing.node(1).begin_bulk(C)
    repairing.heal()
    repairing.bulk(1, 3, 5)
    repairing.settle()
    assert repairing.node(3).repairing
    repairing.bulk(1, 3, 6)
    repairing.settle()
    assert not repairing.node(3).repairing
