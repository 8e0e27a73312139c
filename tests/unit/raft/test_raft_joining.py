"""A replica that joins with an empty disk: it helps nobody to lead before the group took it in, in its present life."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.ids import BrokerId, Term
from region.raft.core import AppendResponse, Heartbeat, Role, VoteRequest, VoteResponse

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


@pytest.fixture
def replaced(led: Any) -> Any:
    """1 leads 1, 2, 3 with five entries; an early membership names 3, whose disk is then lost and replaced."""
    led.join(4)
    led.propose("a")
    led.change([1, 2, 3], learners=[4])
    led.settle()
    led.change([1, 2, 3])
    led.settle()
    led.propose("b")
    led.settle()
    led.crash(3)
    led.change([1, 2])
    led.settle()
    return led


def ask(node: Any, *, pre: bool) -> VoteResponse | None:
    """Return how broker 3 answers a candidate whose log is as long as any; None: it says nothing."""
    request = VoteRequest(from_=TWO, to=THREE, term=Term(9), last_index=99, last_term=Term(8), pre=pre, force=not pre)
    node.step(request)
    while node.has_ready():
        ready = node.ready()
        answers = [m for m in ready.messages if isinstance(m, VoteResponse)]
        if ready.write is not None:
            node.written(ready.write)
            answers += [m for m in ready.write.responses if isinstance(m, VoteResponse)]
        if answers:
            return answers[0]
    return None


def grants(node: Any, *, pre: bool) -> bool:
    """Return whether broker 3 helps that candidate; it has to say something."""
    answer = ask(node, pre=pre)
    assert answer is not None
    return answer.granted


def test_an_empty_disk_gives_no_vote(cluster: Any) -> None:
    cluster.join(3, joins_after=0)
    assert not grants(cluster.node(3), pre=False)


@pytest.mark.parametrize("pre", [True, False])
def test_an_empty_disk_that_knows_a_term_gives_no_vote(cluster: Any, pre: bool) -> None:
    cluster.join(3, joins_after=0)
    cluster.node(3).step(VoteRequest(from_=ONE, to=THREE, term=Term(2), last_index=9, last_term=Term(1)))
    assert not grants(cluster.node(3), pre=pre)


def test_who_knows_no_term_yet_does_not_refuse_a_pre_vote_aloud(cluster: Any) -> None:
    # The refusal would carry term 0, which no peer takes: it would close the connection of all groups.
    cluster.join(3, joins_after=0)
    assert ask(cluster.node(3), pre=True) is None


@pytest.mark.parametrize("pre", [True, False])
def test_a_replica_that_was_there_from_the_start_does(cluster: Any, pre: bool) -> None:
    assert grants(cluster.node(3), pre=pre)


def test_a_membership_of_its_former_life_is_not_enough(replaced: Any) -> None:
    left_at = replaced.node(1).membership_index
    replaced.down.discard(3)
    replaced.join(3, joins_after=left_at)
    node = replaced.node(3)
    former = [(index, m) for index, m in replaced.members[1].disk.memberships() if 3 in m.members()]
    assert former, "the log names broker 3 before it left"
    for index, membership in former:
        node._enter_membership(index, membership)
    assert not grants(node, pre=False)
    node.campaign()
    assert node.role is Role.FOLLOWER


def test_taken_in_again_it_votes_and_is_counted(replaced: Any) -> None:
    left_at = replaced.node(1).membership_index
    replaced.down.discard(3)
    replaced.join(3, joins_after=left_at)
    replaced.change([1, 2], learners=[3])
    replaced.settle()
    assert replaced.node(3).named_above(left_at)
    replaced.change([1, 2, 3])
    replaced.settle()
    assert not replaced.node(1).progress(THREE).repairing
    assert grants(replaced.node(3), pre=False)


def test_while_it_has_not_joined_its_answers_say_that_it_does_not_count(replaced: Any) -> None:
    replaced.down.discard(3)
    replaced.join(3, joins_after=1 << 62)
    replaced.change([1, 2], learners=[3])
    replaced.settle()
    leader = replaced.node(1)
    assert leader.progress(THREE).repairing
    replaced.node(3).joins_after = 0  # it is written down now
    replaced.tick(3, 1)
    replaced.propose("c")
    replaced.settle()
    assert not leader.progress(THREE).repairing


def test_a_follower_whose_disk_was_replaced_counts_for_nothing_at_once(led: Any) -> None:
    led.propose("a")
    led.settle()
    leader = led.node(1)
    assert leader.progress(THREE).match > 0
    leader.distrust(THREE)
    assert (leader.progress(THREE).match, leader.progress(THREE).repairing) == (0, True)
    led.isolate(2)
    led.isolate(3)
    led.propose("b")
    led.settle()
    assert led.data(1)[-1] == "a"


def test_a_leader_that_counts_on_its_former_life_does_not_stop_it(cluster: Any) -> None:
    cluster.join(3, joins_after=0)
    node = cluster.node(3)
    node.step(Heartbeat(from_=ONE, to=THREE, term=Term(1), commit=5))
    ready = node.ready()
    assert ready.write is not None
    (answer,) = [each for each in ready.write.responses if isinstance(each, AppendResponse)]
    assert (answer.rejected, answer.repairing, node.commit_index) == (True, True, 0)
