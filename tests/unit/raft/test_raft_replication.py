"""How entries travel, and when they count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from georelay.errors import Busy, NotLeader
from georelay.ids import BrokerId, Term
from region.raft.core import (
    Append,
    AppendResponse,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    InvariantViolated,
    RaftConfig,
    RaftLog,
    RaftNode,
    Role,
    TimeoutNow,
    VoteResponse,
)

A, B, C = BrokerId(1), BrokerId(2), BrokerId(3)


def accepted(from_: int, index: int, *, term: int = 1, to: int = 1) -> AppendResponse:
    return AppendResponse(from_=BrokerId(from_), to=BrokerId(to), term=Term(term), index=index)


def test_a_proposal_is_applied_everywhere(led: Any) -> None:
    led.propose("a", "b")
    led.settle()
    assert [led.data(i) for i in (1, 2, 3)] == [["a", "b"]] * 3


def test_proposals_of_one_turn_share_one_append_per_follower(led: Any) -> None:
    led.propose("a")
    led.propose("b")
    led.pump()
    assert [[e.data for e in m.entries] for m in led.mail(Append)] == [["a", "b"]] * 2


def test_the_leader_sends_before_its_own_disk_has_synced(led: Any) -> None:
    led.propose("a")
    led.pump()
    assert led.members[1].pending and len(led.mail(Append)) == 2


def test_the_leader_counts_itself_only_after_its_sync(led: Any) -> None:
    led.hold_disks = {1, 3}
    led.propose("a")
    led.settle()
    assert led.node(1).commit_index == 1, "durable on broker 2 only"
    led.flush(1)
    assert led.node(1).commit_index == 2


def test_two_followers_commit_without_the_leaders_disk_but_nobody_applies_before_its_leader_can(led: Any) -> None:
    led.hold_disks = {1}
    led.propose("a")
    led.settle()
    assert led.node(1).commit_index == 2 and led.data(1) == led.data(2) == led.data(3) == []
    led.flush(1)
    assert led.data(1) == ["a"]


def test_a_follower_acknowledges_only_after_its_sync(led: Any) -> None:
    led.hold_disks = {2}
    led.propose("a")
    led.settle()
    assert not [m for m in led.sent if isinstance(m, AppendResponse) and m.from_ == B and m.index == 2]
    led.flush(2)
    assert led.mail(AppendResponse, from_=B, index=2)


def test_an_append_of_entries_still_in_flight_to_the_disk_is_not_acknowledged_early(led: Any) -> None:
    led.hold_disks = {2}
    led.propose("a")
    led.pump()
    again = led.mail(Append, to=B)[0]
    led.settle()
    led.node(2).step(again)
    led.pump()
    assert not led.mail(AppendResponse, from_=B)
    led.flush(2, 1)
    assert [m.index for m in led.mail(AppendResponse, from_=B)] == [2]


def test_an_answer_that_needs_no_disk_leaves_at_once(led: Any) -> None:
    led.hold_disks = {2}
    led.node(2).step(Heartbeat(from_=A, to=B, term=Term(1), commit=1))
    led.pump()
    assert led.mail(HeartbeatResponse) and not led.members[2].pending


def test_the_commit_index_travels_with_the_next_append_or_alone_once(led: Any) -> None:
    led.forging = True
    led.propose("a")
    led.pump()
    led.flush(1)
    led.drop_mail()
    led.node(1).step(accepted(2, 2))
    led.pump()
    assert [(m.to, m.commit, m.prev_index, len(m.entries)) for m in led.mail(Append)] == [(B, 2, 2, 0), (C, 2, 2, 0)]
    led.drop_mail()
    led.node(1).step(accepted(3, 2))
    led.pump()
    assert not led.network, "both know already"


def test_where_nobody_waits_at_followers_no_commit_index_travels_alone(cluster_class: Any) -> None:
    cluster = cluster_class(3, tells_commits=False)
    cluster.elect(1)
    cluster.forging = True
    cluster.propose("a")
    cluster.pump()
    cluster.flush(1)
    cluster.drop_mail()
    cluster.node(1).step(accepted(2, 2))
    cluster.pump()
    assert cluster.node(1).commit_index == 2 and not cluster.network
    assert (cluster.node(1).heartbeat_commit(B), cluster.node(1).heartbeat_commit(C)) == (2, 1), "what each one holds"
    cluster.node(1).step(accepted(3, 2))
    cluster.pump()
    assert cluster.node(1).heartbeat_commit(C) == 2 and not cluster.network
    cluster.propose("b")
    cluster.pump()
    assert [(m.to, m.commit, len(m.entries)) for m in cluster.mail(Append)] == [(B, 2, 1), (C, 2, 1)]


def test_where_nobody_waits_at_followers_news_of_one_is_looked_at_only_if_it_lacks_entries_or_shall_lead(
    cluster_class: Any,
) -> None:
    cluster = cluster_class(3, tells_commits=False)
    cluster.elect(1)
    cluster.forging = True
    cluster.propose("a", "b")
    cluster.pump()
    node, last = cluster.node(1), cluster.node(1).last_index
    node.step(accepted(2, last))
    assert not node.has_ready()
    assert node.transfer_leadership(C)
    cluster.pump()
    cluster.drop_mail()
    node.step(accepted(3, last - 1))
    cluster.pump()
    assert not cluster.network
    node.step(accepted(3, last))
    cluster.pump()
    assert [(type(message), message.to) for message in cluster.network] == [(TimeoutNow, C)]


def test_a_lone_commit_index_is_not_answered_by_who_holds_its_entries(led: Any) -> None:
    node = led.node(2)
    last = node.last_index
    node.step(Append(from_=A, to=B, term=Term(1), prev_index=last, prev_term=Term(1), commit=last, quiet=True))
    led.pump()
    assert not led.mail(AppendResponse)
    assert node.commit_index == last


def test_a_lone_commit_index_that_does_not_match_is_refused_aloud(led: Any) -> None:
    node = led.node(2)
    beyond = node.last_index + 5
    node.step(Append(from_=A, to=B, term=Term(1), prev_index=beyond, prev_term=Term(1), commit=beyond, quiet=True))
    led.pump()
    assert [answer.rejected for answer in led.mail(AppendResponse)] == [True]


def test_a_commit_index_does_not_travel_alone_when_entries_follow(led: Any) -> None:
    led.forging = True
    led.propose("a")
    led.pump()
    led.flush(1)
    led.drop_mail()
    led.node(1).step(accepted(2, 2))
    led.propose("b")
    led.pump()
    assert [(m.to, m.commit, len(m.entries)) for m in led.mail(Append)] == [(B, 2, 1), (C, 2, 1)]


def test_an_entry_of_an_old_term_is_not_committed_by_counting(cluster_class: Any, stored: Callable[..., Any]) -> None:
    """Figure 8 of the Raft paper: index 2 of term 2 reaches a majority under the leader of term 4."""
    disks = {1: stored(1, 2, term=3), 2: stored(1, term=3), 3: stored(1, term=3)}
    cluster = cluster_class(3, disks=disks, append_message_bytes_max=100)

    def lost(message: Any) -> bool:  # index 3 gets through only as the first probe, which is refused
        answered = any(isinstance(m, AppendResponse) and m.from_ == message.to for m in cluster.sent)
        return isinstance(message, Append) and answered and any(entry.index == 3 for entry in message.entries)

    cluster.lost = lost
    leader = cluster.elect(1)
    assert leader.term == 4 and [len(cluster.members[i].disk.entries) for i in (1, 2, 3)] == [3, 2, 2]
    assert leader.commit_index == 0
    cluster.lost = lambda m: False
    for peer in (2, 3):
        leader.step(HeartbeatResponse(from_=BrokerId(peer), to=A, term=Term(4)))
    cluster.settle()
    assert leader.commit_index == 3


def test_a_follower_that_lost_what_it_acknowledged_is_not_asked_in_a_hot_loop(led: Any) -> None:
    led.node(1).report_unreachable(B)
    led.propose("a")
    led.pump()
    lost = AppendResponse(from_=B, to=A, term=Term(1), index=1, rejected=True)
    led.drop_mail()
    led.node(1).step(lost)
    led.pump()
    assert not led.mail(Append, to=B)


def test_a_follower_commits_no_further_than_the_append_proves(cluster_class: Any, stored: Callable[..., Any]) -> None:
    """Its entries above may still be of a leader that lost."""
    cluster = cluster_class(3, disks={2: stored(1, 1, 1)})
    cluster.node(2).step(Append(from_=A, to=B, term=Term(2), prev_index=1, prev_term=Term(1), commit=3))
    cluster.pump()
    assert cluster.node(2).commit_index == 1


def test_acknowledgements_that_wait_for_one_sync_become_the_highest(led: Any) -> None:
    led.hold_disks = {2}
    for text in "ab":
        led.propose(text)
        led.pump()
    first, second = led.mail(Append, to=B)
    for message in (first, second, first):
        led.node(2).step(message)
    led.pump()
    led.flush(2)
    assert max(m.index for m in led.mail(AppendResponse, from_=B)) == 3
    assert len(led.mail(AppendResponse, from_=B)) == 2, "one of them for the late duplicate"


def test_a_late_duplicate_without_a_conflict_truncates_nothing(led: Any) -> None:
    led.propose("a")
    led.pump()
    late = led.mail(Append, to=B)[0]
    led.settle()
    led.hold_disks = {1, 3}
    led.propose("b", "c")
    led.settle()
    epoch = led.node(2).log.log_epoch
    led.node(2).step(late)
    led.settle()
    assert (led.node(2).last_index, led.node(2).log.log_epoch) == (4, epoch)


def test_a_conflict_replaces_the_tail(cluster_class: Any, stored: Callable[..., Any]) -> None:
    cluster = cluster_class(3, disks={1: stored(1, 3, 3), 2: stored(1, 2, 2, 2, 2, term=3), 3: stored(1, term=3)})
    cluster.elect(1)
    assert [e.term for e in cluster.members[2].disk.entries] == [1, 3, 3, 4]
    assert cluster.node(2).log.log_epoch == 1
    assert cluster.data(2) == ["1@1", "2@3", "3@3"]


def test_conflict_hints_skip_whole_terms(cluster_class: Any, stored: Callable[..., Any]) -> None:
    mine = stored(*[1] * 10, *[4] * 100, term=5)
    other = stored(*[1] * 10, *[2] * 50, *[3] * 50, term=5)
    cluster = cluster_class(2, disks={1: mine, 2: other})
    cluster.elect(1)
    refused = [m for m in cluster.sent if isinstance(m, AppendResponse) and m.rejected]
    assert [(m.index, m.hint_index, m.hint_term) for m in refused] == [(110, 110, 3)]
    assert cluster.members[1].disk.entries == cluster.members[2].disk.entries


def test_a_follower_with_a_short_log_is_found_in_one_round(cluster_class: Any, stored: Callable[..., Any]) -> None:
    cluster = cluster_class(2, disks={1: stored(*[1] * 50, *[2] * 50), 2: stored(*[1] * 3, term=2)})
    cluster.elect(1)
    assert len([m for m in cluster.sent if isinstance(m, AppendResponse) and m.rejected]) == 1
    assert cluster.data(2)[:100] == cluster.data(1)[:100]


def test_truncating_below_the_commit_index_stops_the_group(led: Any, item: Any) -> None:
    led.propose("a")
    led.settle()
    forged = Append(
        from_=A, to=B, term=Term(2), prev_index=1, prev_term=Term(1), commit=2, entries=[item(Term(2), 2, "x")]
    )
    with pytest.raises(InvariantViolated, match="replaces 2, committed up to 2"):
        led.node(2).step(forged)
    other: Append[Any] = Append(from_=A, to=C, term=Term(2), prev_index=2, prev_term=Term(2), commit=2)
    with pytest.raises(InvariantViolated, match="at committed index 2"):
        led.node(3).step(other)


def test_a_heartbeat_that_counts_on_lost_entries_stops_the_group(led: Any) -> None:
    with pytest.raises(InvariantViolated, match="entries were lost"):
        led.node(2).step(Heartbeat(from_=A, to=B, term=Term(1), commit=7))


def test_a_heartbeat_commit_never_exceeds_what_the_follower_holds(led: Any) -> None:
    led.hold_disks = {3}
    led.propose("a")
    led.settle()
    assert (led.node(1).heartbeat_commit(B), led.node(1).heartbeat_commit(C), led.node(2).heartbeat_commit(C)) == (
        2,
        1,
        0,
    )


def test_an_acknowledgement_beyond_the_log_or_of_a_stranger_is_ignored(led: Any) -> None:
    led.forging = True
    led.propose("a")
    led.node(1).step(accepted(2, 99))
    led.node(1).step(accepted(9, 2))
    led.node(1).step(accepted(3, 99))
    assert led.node(1).commit_index == 1


def test_a_stable_tag_is_ignored_when_the_entry_was_replaced_meanwhile(cluster: Any, item: Any) -> None:
    """A, B, A: index 2 is written, truncated and written anew while the first write is on its way."""
    node = cluster.node(3)

    def append(term: int, prev: tuple[int, int], *terms: int) -> None:
        entries = [item(Term(t), prev[0] + i, f"{t}") for i, t in enumerate(terms, 1)]
        leader = BrokerId(1 if term != 2 else 2)
        node.step(
            Append(
                from_=leader,
                to=C,
                term=Term(term),
                prev_index=prev[0],
                prev_term=Term(prev[1]),
                commit=0,
                entries=entries,
            )
        )
        cluster.pump()

    append(1, (0, 0), 1, 1)
    append(2, (1, 1), 2)
    append(3, (1, 1), 3)
    writes = cluster.members[3].pending
    assert [(w.truncate_from, [e.term for e in w.entries]) for w in writes] == [(None, [1, 1]), (2, [2]), (2, [3])]
    cluster.flush(3, 2)
    assert node.log.stable_index == 0, "old tags say nothing about the log of term 3"
    cluster.flush(3, 1)
    assert node.log.stable_index == 2, "the last tag attests all of it again"


def test_a_truncation_alone_makes_older_tags_stale(cluster: Any, item: Any) -> None:
    node = cluster.node(3)
    node.step(
        Append(from_=A, to=C, term=Term(1), prev_index=0, prev_term=Term(0), commit=0, entries=[item(Term(1), 1)])
    )
    cluster.pump()
    cluster.flush(3)
    node.step(
        Append(from_=B, to=C, term=Term(3), prev_index=1, prev_term=Term(1), commit=0, entries=[item(Term(2), 2)])
    )
    cluster.pump()
    stale = cluster.members[3].pending[-1]
    node.step(
        Append(from_=B, to=C, term=Term(3), prev_index=1, prev_term=Term(1), commit=0, entries=[item(Term(3), 2)])
    )
    cluster.pump()
    node.written(stale)
    assert stale.term == node.term and node.log.stable_index == 1


def test_a_new_term_attests_the_older_writes_again(led: Any) -> None:
    led.hold_disks = {2}
    led.propose("a")
    led.settle()
    led.node(2).step(Heartbeat(from_=C, to=B, term=Term(5), commit=0))
    led.pump()
    led.flush(2, 1)
    assert led.node(2).log.stable_index == 1
    led.flush(2)
    assert led.node(2).log.stable_index == 2


def test_a_commit_index_that_came_before_the_entries_were_stable_is_used_later(led: Any) -> None:
    led.hold_disks = {2}
    led.propose("a")
    led.settle()
    assert led.node(2).commit_index == 2 and led.data(2) == []
    led.flush(2)
    assert led.data(2) == ["a"]


def test_only_a_leader_takes_proposals_and_others_name_it(led: Any) -> None:
    with pytest.raises(NotLeader) as refused:
        led.propose("a", at=2)
    assert refused.value.leader == 1
    assert led.node(2).last_index == 1


def test_too_many_uncommitted_bytes_make_a_proposal_busy(cluster_class: Any) -> None:
    cluster = cluster_class(3, uncommitted_bytes_max=300)
    cluster.elect(1)
    cluster.propose("huge", size=1000)
    with pytest.raises(Busy, match="1000 bytes are not committed yet, the limit is 300"):
        cluster.propose("a")
    cluster.settle()
    cluster.propose("a", "b", "c")
    with pytest.raises(Busy):
        cluster.node(1).admit(1)
    cluster.settle()
    assert cluster.data(3) == ["huge", "a", "b", "c"] and cluster.node(1).uncommitted_bytes == 0


def test_an_entry_sealed_in_another_term_or_place_is_our_bug(led: Any, item: Any) -> None:
    with pytest.raises(InvariantViolated, match="sealed in term 9"):
        led.node(1).propose([item(Term(9), 2)])
    with pytest.raises(InvariantViolated, match="cannot follow"):
        led.node(1).propose([item(Term(1), 3)])
    assert led.node(1).last_index == 1


def test_leadership_is_handed_over_within_the_lease(led: Any) -> None:
    assert led.node(1).transfer_leadership(B)
    led.settle()
    assert led.roles() == {1: "follower", 2: "leader", 3: "follower"} and led.node(3).term == 2


def test_the_successor_is_told_to_lead_only_once_it_holds_everything(led: Any) -> None:
    led.hold_disks = {2}
    led.propose("a")
    led.settle()
    led.node(1).transfer_leadership(B)
    led.settle()
    assert not [m for m in led.sent if isinstance(m, TimeoutNow)] and led.node(1).transferee == B
    led.flush(2)
    led.hold_disks = set()
    led.settle()
    assert led.node(2).is_leader and len([m for m in led.sent if isinstance(m, TimeoutNow)]) == 1


def test_proposals_wait_while_leadership_is_handed_over(led: Any) -> None:
    led.isolate(2)
    led.node(1).transfer_leadership(B)
    with pytest.raises(Busy, match="handed over to broker 2"):
        led.propose("a")
    for _ in range(10):
        assert led.node(1).touch_peer(C, Term(1))
        led.tick(1, 1)
    assert led.node(1).transferee == 0
    led.propose("a")
    led.settle()
    assert led.data(3) == ["a"]


def test_leadership_is_not_handed_to_oneself_nor_to_a_learner(cluster_class: Any) -> None:
    cluster = cluster_class(3, learners=[4])
    cluster.elect(1)
    assert not cluster.node(1).transfer_leadership(A)
    assert not cluster.node(1).transfer_leadership(BrokerId(4))
    assert not cluster.node(2).transfer_leadership(C)


def test_a_learner_gets_the_log_and_is_not_counted(cluster_class: Any) -> None:
    cluster = cluster_class(3, learners=[4, 5])
    cluster.elect(1)
    cluster.hold_disks = {2, 3}
    cluster.propose("a")
    cluster.settle()
    assert cluster.node(1).commit_index == 1
    cluster.hold_disks = set()
    cluster.settle()
    assert cluster.data(4) == ["a"]


def test_the_core_beats_by_itself_when_the_host_does_not(cluster_class: Any) -> None:
    cluster = cluster_class(3, heartbeat_ticks=2)
    cluster.elect(1)
    for _ in range(10):
        cluster.tick(1, 1)
    assert len(cluster.mail(Heartbeat, to=B)) == 5
    cluster.settle()
    assert cluster.node(1).is_leader


def test_a_follower_below_the_log_start_is_left_alone_until_it_catches_up(cluster_class: Any, item: Any) -> None:
    tail = [item(Term(1), i) for i in range(5, 9)]
    log = RaftLog(first_index=5, term_runs=[(5, Term(1))], last_index=8, tail=tail)
    random_source = cluster_class(1).node(1)._rng
    node = RaftNode(RaftConfig(id=A, voters=(A, B)), log, HardState(Term(1), A), random_source, lambda t, i: item(t, i))
    node.campaign()
    node.step(VoteResponse(from_=B, to=A, term=Term(2), granted=True, pre=True))
    write = node.ready().write
    assert write is not None
    node.written(write)
    node.step(VoteResponse(from_=B, to=A, term=Term(2), granted=True))
    assert node.role is Role.LEADER
    (probe,) = node.ready().messages
    node.step(AppendResponse(from_=B, to=A, term=Term(2), index=probe.prev_index, rejected=True))  # type: ignore[union-attr]
    assert not node.ready().messages, "what it needs is gone"
    node.step(HeartbeatResponse(from_=B, to=A, term=Term(2)))
    assert not node.ready().messages
    node.step(AppendResponse(from_=B, to=A, term=Term(2), index=6))
    (append,) = node.ready().messages
    assert isinstance(append, Append) and append.entries[0].index == 7


def test_a_restarted_group_serves_its_old_entries_again(led: Any) -> None:
    led.propose(*"abcdefgh")
    led.settle()
    for member in (1, 2, 3):
        led.crash(member)
    led.drop_mail()
    for member in (1, 2, 3):
        led.restart(member)
    led.elect(3)
    assert led.data(1) == list("abcdefgh") == led.data(3)


def test_entries_that_were_not_durable_are_gone_after_a_crash_and_never_acknowledged(led: Any) -> None:
    led.hold_disks = {1, 2, 3}
    led.propose("a")
    led.settle()
    for member in (1, 2, 3):
        led.crash(member)
        led.restart(member)
    led.hold_disks = set()
    led.drop_mail()
    led.elect(2)
    assert led.data(2) == []
