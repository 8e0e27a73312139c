"""A beat that says nothing new still reaches every group that follows its sender, and no other."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from georelay.ids import BrokerId, GroupId, RaftIndex, Term
from region.multiraft.beats import Beats
from region.multiraft.heartbeat import Beat, BeatReceiver, decode_ack, decode_beat, encode_ack, encode_beat
from region.multiraft.transport import FrameKind

LEADER, OTHER = BrokerId(1001), BrokerId(1002)
CONNECTION = object()


class FollowingNode:
    def __init__(self) -> None:
        self.leader_id, self.term, self.touched, self.asked = LEADER, Term(1), 0, 0
        self.settled = True

    def touch_leader(self, peer: BrokerId, term: Term) -> bool:
        if (peer, term) != (self.leader_id, self.term):
            return False
        self.touched += 1
        return True

    def touch_peer(self, _: BrokerId, __: Term) -> bool:
        return self.settled

    def has_ready(self) -> bool:
        self.asked += 1
        return True


class FollowingGroup:
    def __init__(self) -> None:
        self.node = FollowingNode()
        self.stopped = False
        self.unsafe: frozenset[BrokerId] = frozenset()
        self.steps: list[tuple[BrokerId, Term, RaftIndex]] = []
        self.answers = 0

    def step_heartbeat(self, peer: BrokerId, term: Term, commit: RaftIndex) -> None:
        self.steps.append((peer, term, commit))

    def step_heartbeat_answer(self, _: BrokerId, __: Term) -> None:
        self.answers += 1


class Owner:
    """What beats need of a host, with groups whose every step is counted; sends into a list."""

    def __init__(self, count: int) -> None:
        self.groups: dict[GroupId, Any] = {GroupId(n): FollowingGroup() for n in range(1, count + 1)}
        self.leaders: Any = None
        self.transport: Any = self
        self.dirty: list[Any] = []
        self.exceptions: list[GroupId] = []
        self.bodies: list[bytes] = []

    def guard(self, _: Any, action: Callable[..., None], *arguments: object) -> None:
        action(*arguments)

    def mark_dirty(self, group: Any) -> None:
        self.dirty.append(group)

    def send(self, _: BrokerId, __: object, kind: FrameKind, parts: Any) -> bool:
        if kind is FrameKind.BEAT_ACK:
            self.exceptions = decode_ack(parts[0])[1]
        self.bodies.append(parts[0])
        return True


class LedGroup:
    """A group that this broker leads; counts how often a beat looks at it."""

    def __init__(self, group_id: int) -> None:
        self.group_id, self.commit, self.looks = GroupId(group_id), RaftIndex(5), 0
        self.stopped = False
        self.node: Any = self
        self.is_leader = True

    def beat_rows(self, rows: dict[BrokerId, list[tuple[GroupId, Term, RaftIndex]]]) -> None:
        self.looks += 1
        for of_peer in rows.values():
            of_peer.append((self.group_id, Term(1), self.commit))


class Leading:
    """Beats of a leader of three groups, and what its follower was told of them."""

    def __init__(self) -> None:
        self.owner = Owner(0)
        self.groups = [LedGroup(number) for number in (1, 2, 3)]
        self.owner.groups = {group.group_id: group for group in self.groups}
        self.beats = Beats(self.owner, Random(1))
        self.connect()

    def connect(self) -> None:
        self.beats.connected(OTHER)
        self.follower = BeatReceiver()

    def beat(self) -> dict[GroupId, RaftIndex]:
        self.beats.tick(silent=False)
        self.follower.follow(decode_beat(self.owner.bodies[-1]))
        return {group: commit for group, (_, commit) in self.follower.told.items()}

    def looks(self) -> list[int]:
        return [group.looks for group in self.groups]


class Beating:
    """One connection from the leader."""

    def __init__(self, count: int) -> None:
        self.owner = Owner(count)
        self.beats = Beats(self.owner, Random(1))
        self.sequence = 0

    def tell(self, *changed: tuple[int, int, int], removed: tuple[int, ...] = ()) -> list[GroupId]:
        """Take a beat; return the groups that its answer excepts."""
        self.sequence += 1
        rows = [(GroupId(group), Term(term), RaftIndex(commit)) for group, term, commit in changed]
        body = encode_beat(Beat(self.sequence, rows, [GroupId(group) for group in removed]))
        self.beats.beat_received(LEADER, memoryview(body), CONNECTION)
        return self.owner.exceptions

    def touched(self) -> list[int]:
        return [group.node.touched for group in self.owner.groups.values()]


def test_a_row_is_stepped_once_and_then_only_touched() -> None:
    beating = Beating(2)
    assert beating.tell((1, 1, 5), (2, 1, 6)) == [1, 2]
    for _ in range(3):
        assert beating.tell() == []
    assert beating.touched() == [3, 3]
    assert [group.steps for group in beating.owner.groups.values()] == [[(LEADER, 1, 5)], [(LEADER, 1, 6)]]


def test_a_changed_row_is_stepped_again_and_the_others_are_touched() -> None:
    beating = Beating(2)
    beating.tell((1, 1, 5), (2, 1, 6))
    beating.tell()
    assert beating.tell((2, 1, 7)) == [2]
    assert beating.touched() == [2, 1] and beating.owner.groups[GroupId(2)].steps[-1] == (LEADER, 1, 7)


def test_a_removed_row_is_not_touched_any_more() -> None:
    beating = Beating(2)
    beating.tell((1, 1, 5), (2, 1, 6))
    beating.tell()
    assert beating.tell(removed=(1,)) == []
    beating.tell()
    assert beating.touched() == [1, 3]


def test_a_group_with_a_newer_term_answers_the_passed_leader_itself() -> None:
    beating = Beating(2)
    beating.tell((1, 1, 5), (2, 1, 6))
    beating.tell()
    beating.owner.groups[GroupId(1)].node.term = Term(2)
    assert beating.tell() == [1] and beating.tell() == [1]
    assert len(beating.owner.groups[GroupId(1)].steps) == 3 and beating.touched() == [1, 3]


def test_a_group_that_stopped_or_distrusts_the_sender_is_excepted() -> None:
    beating = Beating(3)
    beating.tell((1, 1, 5), (2, 1, 6), (3, 1, 6))
    beating.tell()
    beating.owner.groups[GroupId(1)].stopped = True
    beating.owner.groups[GroupId(2)].unsafe = frozenset({LEADER})
    beating.owner.groups[GroupId(3)].unsafe = frozenset({OTHER})
    assert beating.tell() == [1, 2]
    assert beating.touched() == [1, 1, 2]


def test_a_group_that_was_opened_again_is_the_one_that_is_touched() -> None:
    beating = Beating(1)
    beating.tell((1, 1, 5))
    beating.tell()
    old, new = beating.owner.groups[GroupId(1)], FollowingGroup()
    old.stopped = True
    del beating.owner.groups[GroupId(1)]
    assert beating.tell() == [1]
    beating.owner.groups[GroupId(1)] = new
    assert beating.tell() == []
    beating.tell()
    assert (old.node.touched, new.node.touched) == (1, 2)


def test_a_settled_follower_costs_its_leader_no_look_at_the_group() -> None:
    beating = Beating(2)
    leader = beating.beats
    leader.connected(OTHER)
    sent = leader.senders[OTHER].next_beat([(GroupId(1), Term(1), RaftIndex(5)), (GroupId(2), Term(1), RaftIndex(5))])
    beating.owner.groups[GroupId(2)].node.settled = False
    leader.beat_answered(OTHER, memoryview(encode_ack(sent.sequence, [])))
    assert [(group.answers, group.node.asked) for group in beating.owner.groups.values()] == [(0, 0), (1, 1)]
    assert beating.owner.dirty == [beating.owner.groups[GroupId(2)]]


def test_a_beat_looks_at_no_group_in_which_nothing_happened() -> None:
    leading = Leading()
    told = leading.beat()
    assert told == {1: 5, 2: 5, 3: 5} and leading.looks() == [1, 1, 1]
    leading.groups[1].commit = RaftIndex(6)
    leading.beats.stirred(GroupId(2))
    assert leading.beat() == {1: 5, 2: 6, 3: 5} and leading.beat() == {1: 5, 2: 6, 3: 5}
    assert leading.looks() == [1, 2, 1]


def test_a_group_that_is_gone_or_led_by_another_is_told_no_more() -> None:
    leading = Leading()
    leading.beat()
    del leading.owner.groups[GroupId(1)]
    leading.groups[2].is_leader = False
    for group in (1, 3):
        leading.beats.stirred(GroupId(group))
    assert leading.beat() == {2: 5}


def test_a_new_connection_is_told_of_every_group() -> None:
    leading = Leading()
    leading.beat()
    leading.connect()
    assert leading.beat() == {1: 5, 2: 5, 3: 5}
