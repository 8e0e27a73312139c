"""A beat that says nothing new still reaches every group that follows its sender, and no other."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

from georelay.ids import BrokerId, GroupId, RaftIndex, Term
from region.multiraft.beats import Beats
from region.multiraft.heartbeat import Beat, BeatReceiver, decode_ack, decode_beat, encode_ack, encode_beat
from region.multiraft.transport import FrameKind
from region.raft.core import Pulse, Ticks

LEADER, OTHER = BrokerId(1001), BrokerId(1002)
CONNECTION = object()


class FollowingNode:
    """Counts the beats that reached it, by a touch or as a rider of a pulse, and how often it was visited."""

    def __init__(self, ticks: Ticks) -> None:
        self.leader_id, self.term, self.visits, self.asked = LEADER, Term(1), 0, 0
        self.settled, self.is_leader = True, False
        self.reached: set[int] = set()  # ticks
        self.pulse: Pulse | None = None
        self.answered: Pulse | None = None
        self._ticks = ticks

    def touch_leader(self, peer: BrokerId, term: Term) -> bool:
        self.visits += 1
        if (peer, term) != (self.leader_id, self.term):
            return False
        self.reached.add(self._ticks.now)
        return True

    def ride(self, pulse: Pulse) -> None:
        self.get_off()
        self.pulse = pulse

    def get_off(self) -> None:
        pulse, self.pulse = self.pulse, None
        if pulse is not None:
            pulse.left(self)

    def enter(self, term: Term) -> None:
        self.get_off()
        self.term = term

    def look(self) -> None:
        if self.pulse is not None and self.pulse.at == self._ticks.now:
            self.reached.add(self.pulse.at)

    def touch_peer(self, _: BrokerId, __: Term, pulse: Pulse) -> bool:
        self.visits += 1
        self.answered = pulse if self.settled else None
        return self.settled

    def ignore_pulse(self, _: BrokerId) -> None:
        self.answered = None

    def has_ready(self) -> bool:
        self.asked += 1
        return True


class FollowingGroup:
    def __init__(self, ticks: Ticks) -> None:
        self.node = FollowingNode(ticks)
        self.stopped = False
        self.unsafe: frozenset[BrokerId] = frozenset()
        self.steps: list[tuple[BrokerId, Term, RaftIndex]] = []
        self.answers = 0

    def stop(self) -> None:
        self.stopped = True
        self.node.get_off()

    def distrust(self, peer: BrokerId) -> None:
        self.unsafe = frozenset({peer})
        self.node.get_off()

    def step_heartbeat(self, peer: BrokerId, term: Term, commit: RaftIndex) -> None:
        self.steps.append((peer, term, commit))

    def step_heartbeat_answer(self, _: BrokerId, __: Term) -> None:
        self.answers += 1


class Owner:
    """What beats need of a host, with groups whose every step is counted; sends into a list."""

    def __init__(self, count: int) -> None:
        self.ticks = Ticks()
        self.groups: dict[GroupId, Any] = {GroupId(n): FollowingGroup(self.ticks) for n in range(1, count + 1)}
        self.leaders: Any = None
        self.transport: Any = self
        self.dirty: list[Any] = []
        self.exceptions: list[GroupId] = []
        self.bodies: list[bytes] = []

    def guard(self, _: Any, action: Callable[..., None], *arguments: object) -> None:
        action(*arguments)

    def mark_dirty(self, group: Any) -> None:
        self.dirty.append(group)

    def mark_if_ready(self, group: Any) -> None:
        assert group.node.has_ready()
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
        self.beats = Beats(self.owner, Random(1), self.owner.ticks)
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
        self.beats = Beats(self.owner, Random(1), self.owner.ticks)
        self.sequence = 0

    def tell(self, *changed: tuple[int, int, int], removed: tuple[int, ...] = ()) -> list[GroupId]:
        """Take a beat; return the groups that its answer excepts."""
        self.sequence += 1
        self.owner.ticks.now += 1
        rows = [(GroupId(group), Term(term), RaftIndex(commit)) for group, term, commit in changed]
        body = encode_beat(Beat(self.sequence, rows, [GroupId(group) for group in removed]))
        self.beats.beat_received(LEADER, memoryview(body), CONNECTION)
        for group in self.owner.groups.values():
            group.node.look()
        return self.owner.exceptions

    def reached(self) -> list[int]:
        return [len(group.node.reached) for group in self.owner.groups.values()]

    def visits(self) -> list[int]:
        return [group.node.visits for group in self.owner.groups.values()]


def test_a_row_is_stepped_once_visited_once_and_then_reached_by_every_beat_without_a_visit() -> None:
    beating = Beating(2)
    assert beating.tell((1, 1, 5), (2, 1, 6)) == [1, 2]
    for _ in range(3):
        assert beating.tell() == []
    assert beating.reached() == [3, 3] and beating.visits() == [1, 1]
    assert [group.steps for group in beating.owner.groups.values()] == [[(LEADER, 1, 5)], [(LEADER, 1, 6)]]


def test_a_changed_row_is_stepped_again_and_the_others_are_touched() -> None:
    beating = Beating(2)
    beating.tell((1, 1, 5), (2, 1, 6))
    beating.tell()
    assert beating.tell((2, 1, 7)) == [2]
    assert beating.reached() == [2, 1] and beating.owner.groups[GroupId(2)].steps[-1] == (LEADER, 1, 7)


def test_a_removed_row_is_not_touched_any_more() -> None:
    beating = Beating(2)
    beating.tell((1, 1, 5), (2, 1, 6))
    beating.tell()
    assert beating.tell(removed=(1,)) == []
    beating.tell()
    assert beating.reached() == [1, 3]


def test_a_group_with_a_newer_term_answers_the_passed_leader_itself() -> None:
    beating = Beating(2)
    beating.tell((1, 1, 5), (2, 1, 6))
    beating.tell()
    beating.owner.groups[GroupId(1)].node.enter(Term(2))
    assert beating.tell() == [1] and beating.tell() == [1]
    assert len(beating.owner.groups[GroupId(1)].steps) == 3 and beating.reached() == [1, 3]


def test_a_group_that_stopped_or_distrusts_the_sender_is_excepted() -> None:
    beating = Beating(3)
    beating.tell((1, 1, 5), (2, 1, 6), (3, 1, 6))
    beating.tell()
    beating.owner.groups[GroupId(1)].stop()
    beating.owner.groups[GroupId(2)].distrust(LEADER)
    beating.owner.groups[GroupId(3)].distrust(OTHER)
    assert beating.tell() == [1, 2]
    assert beating.reached() == [1, 1, 2]


def test_a_group_that_was_opened_again_is_the_one_that_is_touched() -> None:
    beating = Beating(1)
    beating.tell((1, 1, 5))
    beating.tell()
    old, new = beating.owner.groups[GroupId(1)], FollowingGroup(beating.owner.ticks)
    old.stop()
    del beating.owner.groups[GroupId(1)]
    assert beating.tell() == [1]
    beating.owner.groups[GroupId(1)] = new
    assert beating.tell() == []
    beating.tell()
    assert (len(old.node.reached), len(new.node.reached)) == (1, 2)


class Asking:
    """A leader of two groups, whose beats the other broker answers."""

    def __init__(self) -> None:
        self.leading = Beating(2)
        self.beats, self.owner = self.leading.beats, self.leading.owner
        self.beats.connected(OTHER)
        self.one, self.two = self.owner.groups.values()
        for group in (self.one, self.two):
            group.node.is_leader = True
        self.one.beat_rows = lambda rows: rows[OTHER].append((GroupId(1), Term(1), RaftIndex(5)))
        self.two.beat_rows = lambda rows: rows[OTHER].append((GroupId(2), Term(1), RaftIndex(5)))

    def beat(self, *exceptions: int) -> None:
        self.owner.ticks.now += 1
        self.beats.tick(silent=False)
        sequence = self.beats.senders[OTHER]._sequence
        self.beats.beat_answered(OTHER, memoryview(encode_ack(sequence, [GroupId(group) for group in exceptions])))

    def visits(self) -> tuple[int, int]:
        return self.one.node.visits, self.two.node.visits


def test_a_settled_follower_costs_its_leader_no_visit_of_the_group_and_is_heard() -> None:
    asking = Asking()
    asking.two.node.settled = False
    for _ in range(3):
        asking.beat()
    assert asking.visits() == (1, 3) and asking.one.node.answered.at == asking.owner.ticks.now
    assert [(group.answers, group.node.asked) for group in asking.owner.groups.values()] == [(0, 0), (3, 3)]
    assert asking.owner.dirty == [asking.two] * 3


def test_a_group_in_which_something_happened_is_visited_by_the_next_answer_before_a_beat_has_told_of_it() -> None:
    asking = Asking()
    asking.beat()
    asking.owner.ticks.now += 1
    asking.beats.tick(silent=False)
    asking.beats.stirred(GroupId(2))
    sequence = asking.beats.senders[OTHER]._sequence
    asking.beats.beat_answered(OTHER, memoryview(encode_ack(sequence, [])))
    assert asking.visits() == (1, 2)
    asking.beat()
    assert asking.visits() == (1, 3)
    asking.beat()
    assert asking.visits() == (1, 3)


def test_an_answer_that_excepts_a_group_is_no_sign_of_life_for_it_until_it_is_answered_again() -> None:
    asking = Asking()
    asking.beat()
    asking.beat(2)
    assert asking.visits() == (1, 1) and asking.two.node.answered is None
    asking.beat()
    assert asking.visits() == (1, 2) and asking.two.node.answered is not None


def test_beats_without_news_come_every_other_tick_and_with_some_in_the_next() -> None:
    asking = Asking()
    asking.beat()

    def beats_of_ticks(count: int) -> int:
        before = len(asking.owner.bodies)
        for _ in range(count):
            asking.owner.ticks.now += 1
            asking.beats.tick(silent=False)
        return len(asking.owner.bodies) - before

    assert beats_of_ticks(10) == 5
    asking.beats.stirred(GroupId(2))
    assert beats_of_ticks(1) == 1  # and each tick until that is answered: the follower may lack it
    assert beats_of_ticks(4) == 4


def test_an_answer_without_news_leaves_with_the_next_beat_to_its_peer_and_one_with_news_at_once() -> None:
    beating = Beating(1)
    beating.beats.connected(LEADER)
    bodies = beating.owner.bodies
    beating.tell((1, 1, 5))
    assert bodies == [encode_ack(1, [GroupId(1)])]
    del bodies[:]
    beating.tell()
    beating.tell()
    assert bodies == []
    beating.beats.tick(silent=False)
    assert bodies[0] == encode_ack(3, []) and len(bodies) == 2, "one answer for both, and our beat"
    del bodies[:]
    beating.tell()
    beating.tell((1, 1, 6))
    assert bodies == [encode_ack(5, [GroupId(1)])]
    beating.owner.ticks.now += 1
    beating.beats.tick(silent=False)
    assert decode_beat(bodies[1]).changed == [] and len(bodies) == 2, "nothing is owed any more"


def test_answers_leave_also_while_this_broker_wants_to_be_taken_for_dead_and_die_with_the_connection() -> None:
    beating = Beating(1)
    beating.beats.connected(LEADER)
    beating.owner.leaders = SimpleNamespace(lost=lambda _: None, found=lambda _: None)
    beating.tell((1, 1, 5))
    del beating.owner.bodies[:]
    beating.tell()
    beating.beats.tick(silent=True)
    assert beating.owner.bodies == [encode_ack(2, [])]
    beating.tell()
    beating.beats.lost(LEADER)
    beating.owner.ticks.now += 2
    beating.beats.tick(silent=True)
    assert beating.owner.bodies == [encode_ack(2, [])]


def test_a_late_answer_is_no_sign_of_life() -> None:
    asking = Asking()
    asking.beat()
    heard_at = asking.one.node.answered.at
    asking.owner.ticks.now += 5
    asking.beats.beat_answered(OTHER, memoryview(encode_ack(asking.beats.senders[OTHER]._sequence, [])))
    assert asking.one.node.answered.at == heard_at


def test_riders_of_a_closed_connection_keep_the_time_at_which_they_were_last_reached() -> None:
    beating = Beating(1)
    beating.tell((1, 1, 5))
    beating.tell()
    node = beating.owner.groups[GroupId(1)].node
    assert node.pulse is not None
    beating.beats.connection_closed(CONNECTION)
    assert node.pulse is None


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
