"""Reads that see everything acknowledged before them."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.errors import Busy, NotLeader
from georelay.ids import BrokerId, Term
from region.raft.core import (
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    ReadIndexAnswer,
    ReadIndexCheck,
    ReadState,
)
from region.raft.core.reads import READS_OPEN_MAX

A, B, C = BrokerId(1), BrokerId(2), BrokerId(3)


def answer(from_: int, context: int, *, term: int = 1) -> ReadIndexAnswer:
    return ReadIndexAnswer(from_=BrokerId(from_), to=A, term=Term(term), context=context)


def test_a_read_gets_the_commit_index_once_a_quorum_has_confirmed_the_leader(led: Any) -> None:
    led.propose("a")
    led.settle()
    led.node(1).read_index(7)
    led.pump()
    assert led.read_states[1] == [] and [(m.to, m.context) for m in led.mail(ReadIndexCheck)] == [(B, 1), (C, 1)]
    led.settle()
    assert led.read_states[1] == [ReadState(7, 2)]


def test_reads_of_one_turn_share_one_round(led: Any) -> None:
    for context in (1, 2, 3):
        led.node(1).read_index(context)
    led.pump()
    assert len(led.mail(ReadIndexCheck)) == 2
    led.settle()
    assert [state.context for state in led.read_states[1]] == [1, 2, 3]


def test_a_single_voter_answers_at_once(cluster_class: Any) -> None:
    cluster = cluster_class(1, learners=[2])
    cluster.elect(1)
    cluster.node(1).read_index(5)
    assert cluster.node(1).has_ready()
    ready = cluster.node(1).ready()
    assert ready.read_states == [ReadState(5, 1)] and not ready.messages
    assert not cluster.node(1).has_ready()


def test_a_read_waits_until_an_entry_of_the_own_term_is_committed(led: Any) -> None:
    led.lost = lambda m: isinstance(m, AppendResponse)
    led.elect(2)
    node = led.node(2)
    node.read_index(1)
    assert not node.has_ready(), "parked, not asked"
    led.settle()
    assert not led.mail(ReadIndexCheck) and led.read_states[2] == []
    led.lost = lambda m: False
    node.step(HeartbeatResponse(from_=A, to=B, term=Term(2)))
    led.settle()
    assert led.read_states[2] == [ReadState(1, 2)], "the noop of its term at least"


def test_reads_end_with_the_leadership(led: Any) -> None:
    led.isolate(1)
    led.node(1).read_index(1)
    led.pump()
    led.node(1).read_index(2)
    led.node(1).step(Heartbeat(from_=B, to=A, term=Term(2), commit=0))
    led.pump()
    assert led.reads_lost[1] == [1, 2] and led.read_states[1] == []
    with pytest.raises(NotLeader) as refused:
        led.node(1).read_index(3)
    assert refused.value.leader == B


def test_a_leader_that_was_deposed_without_knowing_confirms_no_read(led: Any) -> None:
    led.isolate(1)
    led.elect(2)
    led.propose("x", at=2)
    led.settle()
    led.heal()
    led.node(1).read_index(1)
    led.settle()
    assert led.read_states[1] == [] and led.reads_lost[1] == [1]


def test_strangers_learners_and_answers_of_earlier_rounds_confirm_nothing(cluster_class: Any) -> None:
    cluster = cluster_class(3, learners=[4])
    cluster.elect(1)
    node = cluster.node(1)
    node.read_index(1)
    cluster.pump()
    node.read_index(2)
    cluster.pump()
    cluster.drop_mail()
    for message in (answer(4, 2), answer(9, 2), answer(2, 1), answer(3, 99)):
        node.step(message)
    cluster.pump()
    assert cluster.read_states[1] == [ReadState(1, 1)]
    node.step(answer(3, 2))
    node.step(answer(3, 1))
    cluster.pump()
    assert cluster.read_states[1] == [ReadState(1, 1), ReadState(2, 1)]
    cluster.node(2).step(ReadIndexAnswer(from_=C, to=B, term=Term(1), context=1))


def test_an_answer_to_a_later_round_confirms_the_rounds_before(led: Any) -> None:
    node = led.node(1)
    for context in (1, 2):
        node.read_index(context)
        led.pump()
    led.drop_mail()
    node.step(answer(2, 2))
    led.pump()
    assert [state.context for state in led.read_states[1]] == [1, 2]


def test_a_late_answer_to_an_earlier_round_takes_nothing_back(cluster_class: Any) -> None:
    cluster = cluster_class(5)
    node = cluster.elect(1)
    for context in (1, 2):
        node.read_index(context)
        cluster.pump()
    cluster.drop_mail()
    for voter, number in ((2, 2), (2, 1), (3, 2)):
        node.step(answer(voter, number))
    cluster.pump()
    assert [state.context for state in cluster.read_states[1]] == [1, 2]


def test_a_lost_question_is_asked_again_with_the_next_tick(led: Any) -> None:
    led.node(1).read_index(1)
    led.pump()
    led.drop_mail()
    led.tick(1, 1)
    assert [m.context for m in led.mail(ReadIndexCheck)] == [1, 1]
    led.settle()
    led.tick(1, 1)
    assert led.read_states[1] == [ReadState(1, 1)] and not led.mail(ReadIndexCheck), "and not once it is answered"


def test_a_question_is_a_sign_of_life_and_one_of_a_passed_term_is_told_the_newer(led: Any) -> None:
    led.tick(9, 2)
    led.node(2).step(ReadIndexCheck(from_=A, to=B, term=Term(1), context=1))
    led.pump()
    led.tick(9, 2)
    assert led.roles()[2] == "follower"
    led.drop_mail()
    led.node(2).step(ReadIndexCheck(from_=C, to=B, term=Term(4), context=1))
    led.pump()
    assert led.node(2).leader_id == C and not led.mail(ReadIndexAnswer), "the term is not durable yet"
    led.flush(2)
    assert [(m.to, m.term) for m in led.mail(ReadIndexAnswer)] == [(C, 4)]
    led.drop_mail()
    led.node(2).step(ReadIndexCheck(from_=A, to=B, term=Term(1), context=2))
    led.pump()
    assert [(type(m), m.term) for m in led.network] == [(HeartbeatResponse, 4)]


def test_during_a_joint_change_both_majorities_confirm(led: Any) -> None:
    led.join(4, 5)
    led.lost = lambda m: isinstance(m, AppendResponse) and m.from_ in (4, 5)
    led.change([1, 4, 5])
    led.settle()
    led.node(1).read_index(1)
    led.pump()
    assert {m.to for m in led.mail(ReadIndexCheck)} == {2, 3, 4, 5}
    led.drop_mail()
    for voter in (2, 3):
        led.node(1).step(answer(voter, 1))
    led.pump()
    assert led.read_states[1] == []
    led.node(1).step(answer(4, 1))
    led.pump()
    assert led.read_states[1] == [ReadState(1, 1)]


def test_open_reads_are_bounded(led: Any) -> None:
    for context in range(READS_OPEN_MAX):
        led.node(1).read_index(context)
    with pytest.raises(Busy, match=f"{READS_OPEN_MAX} reads"):
        led.node(1).read_index(0)
    led.settle()
    led.node(1).read_index(0)
    led.settle()
    assert len(led.read_states[1]) == READS_OPEN_MAX + 1
