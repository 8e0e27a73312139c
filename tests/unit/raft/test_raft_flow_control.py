"""How much is in flight to a follower, and how cold entries and lost frames are made up for."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.ids import BrokerId, Term
from region.raft.core import (
    Append,
    AppendResponse,
    HeartbeatResponse,
    InvariantViolated,
)

A, B, C = BrokerId(1), BrokerId(2), BrokerId(3)


def accepted(from_: int, index: int, *, term: int = 1, to: int = 1) -> AppendResponse:
    return AppendResponse(from_=BrokerId(from_), to=BrokerId(to), term=Term(term), index=index)


def test_appends_are_cut_to_their_size_and_a_larger_entry_travels_alone(cluster_class: Any) -> None:
    cluster = cluster_class(3, append_message_bytes_max=250)
    cluster.elect(1)
    cluster.propose("a", "b", "c")
    cluster.propose("big", size=1000)
    cluster.propose("d")
    cluster.pump()
    assert [[e.data for e in m.entries] for m in cluster.mail(Append, to=B)] == [["a", "b"], ["c"], ["big"], ["d"]]


@pytest.mark.parametrize("tells_commits", [True, False])
@pytest.mark.parametrize("limit", [{"inflight_messages_max": 2}, {"inflight_bytes_max": 200}])
def test_the_window_bounds_messages_and_bytes_in_flight(
    cluster_class: Any, limit: dict[str, int], tells_commits: bool
) -> None:
    cluster = cluster_class(3, append_message_bytes_max=100, tells_commits=tells_commits, **limit)
    cluster.forging = True
    cluster.elect(1)
    cluster.propose("a", "b", "c", "d")
    cluster.pump()
    assert [m.entries[0].data for m in cluster.mail(Append, to=B)] == ["a", "b"]
    cluster.node(1).step(accepted(2, 2))
    cluster.pump()
    assert [m.entries[0].data for m in cluster.mail(Append, to=B)] == ["a", "b", "c"]


def test_a_full_window_is_probed_with_an_empty_append_after_a_heartbeat(cluster_class: Any) -> None:
    cluster = cluster_class(3, append_message_bytes_max=100, inflight_messages_max=2)
    cluster.elect(1)
    cluster.propose("a", "b", "c", "d")
    cluster.pump()
    cluster.drop_mail()
    assert not cluster.node(1).touch_peer(B, Term(1)), "behind: the slow path is needed"
    cluster.node(1).step(HeartbeatResponse(from_=B, to=A, term=Term(1)))
    cluster.pump()
    assert [(m.to, m.prev_index, len(m.entries)) for m in cluster.mail(Append)] == [(B, 3, 0)]
    cluster.settle()
    assert cluster.data(2)[:4] == ["a", "b", "c", "d"], "its refusal made the leader start over"


def test_lost_appends_are_found_by_the_next_heartbeat(led: Any) -> None:
    led.propose("a")
    led.pump()
    led.drop_mail()
    for peer in (B, C):
        led.node(1).step(HeartbeatResponse(from_=peer, to=A, term=Term(1)))
    led.settle()
    assert led.data(2) == ["a"] == led.data(3)


def test_an_unreachable_follower_is_probed_with_one_append_at_a_time(led: Any) -> None:
    led.node(1).report_unreachable(B)
    led.propose("a")
    led.pump()
    led.propose("b")
    led.pump()
    assert [[e.data for e in m.entries] for m in led.mail(Append, to=B)] == [["a"]]
    assert [[e.data for e in m.entries] for m in led.mail(Append, to=C)] == [["a"], ["b"]]


def test_a_touch_is_enough_for_a_follower_that_holds_everything(led: Any) -> None:
    assert led.node(1).touch_peer(B, Term(1))
    assert not led.node(1).touch_peer(B, Term(2))
    assert not led.node(1).touch_peer(BrokerId(9), Term(1))
    assert not led.node(2).touch_peer(A, Term(1))
    led.pump()
    assert not led.network


def test_cold_entries_are_asked_from_the_host_and_sent_when_they_come(led: Any) -> None:
    led.isolate(3)
    led.propose(*"abcdef")
    led.settle()
    leader = led.node(1)
    leader.log.evict(6)
    led.heal()
    leader.report_unreachable(C)
    leader.step(HeartbeatResponse(from_=C, to=A, term=Term(1)))
    probe = leader.ready().messages
    assert [(m.to, m.prev_index, len(m.entries)) for m in probe] == [(C, 1, 0)], (
        "no cold read before the place is known"
    )
    leader.step(accepted(3, 1))
    ready = leader.ready()
    (fetch,) = ready.fetches
    assert (fetch.to, fetch.lo, fetch.hi) == (C, 2, 8) and not ready.messages
    leader.step(HeartbeatResponse(from_=C, to=A, term=Term(1)))
    assert not leader.ready().fetches, "one read at a time"
    leader.entries_fetched(fetch, led.members[1].disk.entries[1:4])
    ready = leader.ready()
    assert [e.data for e in ready.messages[0].entries] == ["a", "b", "c"]
    assert [f.lo for f in ready.fetches] == [5]
    leader.entries_fetched(ready.fetches[0], led.members[1].disk.entries[4:7])
    led.pump()
    led._send(ready.messages)
    led.settle()
    leader.step(HeartbeatResponse(from_=C, to=A, term=Term(1)))
    led.settle()
    assert led.data(3) == list("abcdef")


def test_a_failed_cold_read_is_asked_again_after_the_next_heartbeat(led: Any) -> None:
    led.isolate(3)
    led.propose(*"abcdef")
    led.settle()
    leader = led.node(1)
    leader.log.evict(7)
    leader.report_unreachable(C)
    leader.step(accepted(3, 1))
    (fetch,) = leader.ready().fetches
    leader.entries_fetched(fetch, [])
    assert not leader.has_ready()
    leader.step(HeartbeatResponse(from_=C, to=A, term=Term(1)))
    assert [f.lo for f in leader.ready().fetches] == [2]


def test_the_answer_to_a_cold_read_of_an_earlier_place_is_dropped(led: Any) -> None:
    led.isolate(3)
    led.propose(*"abcdef")
    led.settle()
    leader = led.node(1)
    leader.log.evict(7)
    leader.report_unreachable(C)
    leader.step(accepted(3, 1))
    (fetch,) = leader.ready().fetches
    leader.report_unreachable(C)
    leader.entries_fetched(fetch, led.members[1].disk.entries[1:4])
    assert not leader.ready().messages


def test_a_wrong_answer_to_a_cold_read_stops_the_group(led: Any) -> None:
    led.isolate(3)
    led.propose(*"abcdef")
    led.settle()
    leader = led.node(1)
    leader.log.evict(7)
    leader.report_unreachable(C)
    leader.step(accepted(3, 1))
    (fetch,) = leader.ready().fetches
    with pytest.raises(InvariantViolated, match="asked for"):
        leader.entries_fetched(fetch, led.members[1].disk.entries[2:4])
