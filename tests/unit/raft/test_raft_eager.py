"""Sending in every input instead of once per ready(), and what is handed out to be applied at once."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.ids import BrokerId, Term
from region.raft.core import Append, AppendResponse, RaftConfig

A, B, C = BrokerId(1), BrokerId(2), BrokerId(3)


@pytest.fixture
def eager(cluster_class: Any) -> Any:
    cluster = cluster_class(3, eager=True)
    cluster.elect(1)
    return cluster


def test_each_proposal_is_one_append_per_follower(eager: Any) -> None:
    eager.propose("a")
    eager.propose("b")
    eager.propose("c")
    messages = eager.node(1).ready().messages
    assert [(m.to, m.prev_index, [e.data for e in m.entries]) for m in messages] == [
        (B, 1, ["a"]),
        (C, 1, ["a"]),
        (B, 2, ["b"]),
        (C, 2, ["b"]),
        (B, 3, ["c"]),
        (C, 3, ["c"]),
    ]


def test_the_commit_index_is_told_at_once(eager: Any) -> None:
    eager.forging = True
    eager.propose("a")
    eager.propose("b")
    eager.pump()
    eager.flush(1)
    eager.drop_mail()
    node = eager.node(1)
    node.step(AppendResponse(from_=B, to=A, term=Term(1), index=2))
    node.step(AppendResponse(from_=B, to=A, term=Term(1), index=3))
    messages = node.ready().messages
    assert [(m.to, m.commit, len(m.entries)) for m in messages] == [(B, 2, 0), (C, 2, 0), (B, 3, 0), (C, 3, 0)]


def test_one_step_of_the_story_is_the_same_in_both_ways(cluster_class: Any) -> None:
    logs = []
    for eager in (True, False):
        cluster = cluster_class(3, eager=eager)
        cluster.elect(1)
        for text in "abc":
            cluster.propose(text)
            cluster.settle()
        logs.append([cluster.members[i].applied for i in (1, 2, 3)])
    assert logs[0] == logs[1]


def test_an_own_sync_that_commits_is_told_at_once(eager: Any) -> None:
    eager.hold_disks = {1}
    eager.propose("a")
    eager.pump()
    eager.node(1).step(AppendResponse(from_=B, to=A, term=Term(1), index=2))
    (write,) = eager.members[1].pending
    eager.members[1].disk.store(write)
    eager.members[2].disk.store(eager_write(eager, 2))
    eager.members[1].pending.clear()
    eager.drop_mail()
    eager.node(1).written(write.tag)
    eager.propose("b", at=1)
    messages = eager.node(1).ready().messages
    assert [(m.to, m.commit, len(m.entries)) for m in messages] == [(B, 2, 0), (C, 2, 0), (B, 2, 1), (C, 2, 1)]


def eager_write(cluster: Any, member: int) -> Any:
    """Let a member take its Append, and return the write that it waits for."""
    for message in cluster.mail(Append, to=BrokerId(member)):
        cluster.node(member).step(message)
    write = cluster.node(member).ready().write
    cluster.node(member).written(write.tag)
    return write


def test_a_membership_travels_in_an_append_of_its_own(eager: Any) -> None:
    eager.join(4)
    eager.change([1, 2, 3], [4])
    eager.propose("a")
    messages = eager.node(1).ready().messages
    assert [(m.to, len(m.entries)) for m in messages] == [(B, 1), (C, 1), (4, 0), (B, 1), (C, 1)]


def test_what_is_handed_out_to_be_applied_is_bounded(cluster_class: Any) -> None:
    cluster = cluster_class(1, apply_bytes_max=250)
    cluster.elect(1)
    cluster.propose(*"abcde")
    cluster.propose("huge", size=1000)
    cluster.propose("f")
    node = cluster.node(1)
    write = node.ready().write
    cluster.members[1].disk.store(write)
    node.written(write.tag)
    ranges = []
    while node.has_ready():
        found = node.ready().committed
        ranges.append(found)
    assert ranges == [(2, 4), (4, 6), (6, 7), (7, 8), (8, 9)]


def test_entries_that_are_not_in_memory_are_handed_out_as_one(cluster_class: Any, stored: Any) -> None:
    cluster = cluster_class(1, disks={1: stored(*[1] * 9)}, apply_bytes_max=200)
    ranges = []
    node = cluster.node(1)
    node.campaign()
    while node.has_ready():
        ready = node.ready()
        if ready.write is not None:
            node.written(ready.write.tag)
        if ready.committed is not None:
            ranges.append(ready.committed)
    assert ranges == [(1, 9), (9, 11)], "the last three of nine are in memory"


def test_the_bound_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        RaftConfig(id=A, voters=(A,), apply_bytes_max=0)
