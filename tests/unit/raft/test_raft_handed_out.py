"""How much of what is committed is handed out to be applied at once."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.ids import BrokerId
from region.raft.core import RaftConfig

A = BrokerId(1)


def test_what_is_handed_out_to_be_applied_is_bounded(cluster_class: Any) -> None:
    cluster = cluster_class(1, apply_bytes_max=250)
    cluster.elect(1)
    cluster.propose(*"abcde")
    cluster.propose("huge", size=1000)
    cluster.propose("f")
    node = cluster.node(1)
    write = node.ready().write
    cluster.members[1].disk.store(write)
    node.written(write)
    ranges = []
    while node.has_ready():
        ready = node.ready()
        ranges.append((ready.committed, ready.more))
    assert ranges == [((2, 4), True), ((4, 6), True), ((6, 7), True), ((7, 8), True), ((8, 9), False)]


def test_entries_that_are_not_in_memory_are_handed_out_as_one(cluster_class: Any, stored: Any) -> None:
    cluster = cluster_class(1, disks={1: stored(*[1] * 9)}, apply_bytes_max=200)
    ranges = []
    node = cluster.node(1)
    node.campaign()
    while node.has_ready():
        ready = node.ready()
        if ready.write is not None:
            node.written(ready.write)
        if ready.committed is not None:
            ranges.append(ready.committed)
    assert ranges == [(1, 9), (9, 11)], "the last three of nine are in memory"


def test_the_bound_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        RaftConfig(id=A, voters=(A,), apply_bytes_max=0)
