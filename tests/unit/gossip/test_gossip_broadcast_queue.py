"""Which rumours go into a packet, how often, and which go for good."""

from __future__ import annotations

import pytest

from mesh.gossip.broadcast_queue_core import BroadcastQueue


def take(queue: BroadcastQueue, *, members: int = 9, limit: int = 1000, bodies_max: int = 127) -> list[bytes]:
    return queue.take(members=members, overhead_bytes=2, limit_bytes=limit, bodies_max=bodies_max)


def test_the_least_told_go_first_then_the_longest_then_the_newest() -> None:
    queue = BroadcastQueue(retransmit_mult=4)
    queue.push(b"told")
    assert take(queue) == [b"told"]
    for body in (b"old", b"new", b"longer"):
        queue.push(body)
    assert take(queue) == [b"longer", b"new", b"old", b"told"]


def test_what_does_not_fit_is_passed_over_for_what_does() -> None:
    queue = BroadcastQueue(retransmit_mult=1)
    queue.push(b"x" * 50)
    queue.push(b"y" * 10)
    assert take(queue, limit=51) == [b"y" * 10]
    assert take(queue, limit=52) == [b"x" * 50]
    assert take(queue, limit=0) == []


@pytest.mark.parametrize(("members", "sends"), [(1, 4), (9, 4), (10, 8), (99, 8), (100, 12)])
def test_a_rumour_goes_after_its_number_of_sends(members: int, sends: int) -> None:
    queue = BroadcastQueue(retransmit_mult=4)
    ticket = queue.push(b"rumour")
    for _ in range(sends):
        assert queue.is_pending(ticket)
        assert take(queue, members=members) == [b"rumour"]
    assert take(queue, members=members) == []
    assert queue.finished() == [ticket]
    assert queue.finished() == []


def test_a_newer_rumour_about_the_same_member_replaces_the_older() -> None:
    queue = BroadcastQueue(retransmit_mult=4)
    old = queue.push(b"suspect", key="a")
    queue.push(b"other", key="b")
    new = queue.push(b"alive", key="a")
    assert queue.finished() == [old]
    assert sorted(take(queue)) == [b"alive", b"other"]
    assert queue.is_pending(new) and not queue.is_pending(old)


def test_a_full_queue_drops_the_most_told() -> None:
    queue = BroadcastQueue(retransmit_mult=4, entries_max=3)
    told = queue.push(b"a")
    take(queue)
    for body in (b"b", b"c", b"d"):
        queue.push(body)
    assert len(queue) == 3
    assert not queue.is_pending(told)
    assert queue.dropped == 1


def test_pruning_keeps_the_least_told() -> None:
    queue = BroadcastQueue(retransmit_mult=4)
    queue.push(b"told")
    take(queue)
    queue.push(b"fresh")
    assert queue.prune(1) == 1
    assert take(queue) == [b"fresh"]
    queue.clear()
    assert len(queue) == 0


def test_a_packet_has_a_most_number_of_rumours() -> None:
    queue = BroadcastQueue(retransmit_mult=4)
    for number in range(5):
        queue.push(bytes([number]))
    assert len(take(queue, bodies_max=3)) == 3
