"""Who is alive: coalesced beats to every broker of the region, their answers, and who was heard lately.

Rule 1: liveness is a fact about a broker pair. Every frame is a sign of life, whatever it is about.
Rule 2: a beat costs what has changed. Whoever may change a group's term, commit index, members or leader says so
        (`stirred`), and whoever changes what a leader believes of a follower; the rows of all other groups are those
        of the beat before.
Rule 3: a beat, or an answer, that says nothing new reaches the groups by one `Pulse`, and visits none of them.
Rule 4: with news, or with a follower that may lack something, there is a beat each tick; else each QUIET_BEAT_TICKS.
Rule 5: an answer that says no more than "heard you" waits for our own next beat to that peer: one write for both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Final, Protocol

from georelay.ids import BrokerId, GroupId, RaftIndex, Term
from region.multiraft.group import Group
from region.multiraft.heartbeat import BeatReceiver, BeatSender, decode_ack, decode_beat, encode_ack, encode_beat
from region.multiraft.leader_book import LeaderBook
from region.multiraft.transport import FrameKind, Lane, Transport
from region.raft.core import Pulse, Ticks

QUIET_BEAT_TICKS: Final = 2  # between two beats that say nothing new; an election takes 10 ticks of silence
PEER_SILENT_TICKS: Final = 10  # without a frame for this long a broker counts as unreachable


class BeatOwner(Protocol):
    """What beats need of the host."""

    groups: dict[GroupId, Group]
    leaders: LeaderBook
    transport: Transport | None

    def guard(self, group: Group, action: Callable[..., None], *arguments: object) -> None:
        """Run a step of a group; the group stops when it breaks."""

    def mark_dirty(self, group: Group) -> None:
        """Have the group looked at in this turn."""

    def mark_if_ready(self, group: Group) -> None:
        """Have the group looked at in this turn if its core wants anything done, and by the next beat anyway."""


class Beats:
    """Beats of one broker, sent and received."""

    def __init__(self, owner: BeatOwner, rng: Random, ticks: Ticks) -> None:
        self._owner = owner
        self._rng = rng
        self._ticks = ticks
        self._heard_at_tick: dict[BrokerId, int] = {}
        self.senders: dict[BrokerId, BeatSender] = {}
        self._stirred: set[GroupId] = set()  # since the last beat
        self._owed: dict[BrokerId, bytes] = {}  # answers that wait for the next beat
        self._receivers: dict[object, BeatReceiver] = {}
        self._answers: dict[BrokerId, Pulse] = {}  # of followers; apart: led groups of which there may be news
        self._leaders: dict[object, Pulse] = {}  # by connection; apart: groups that do not follow its peer, or not yet
        self.alive: set[BrokerId] = set()
        self.version = 0  # changes with every change of `alive`

    def heard(self, peer: BrokerId) -> None:
        """Note a sign of life."""
        self._heard_at_tick[peer] = self._ticks.now

    def quiet_ns(self, peer: BrokerId, *, tick_ms: int) -> int | None:
        """Return for how long a peer was not heard; None while it was never heard, or cannot hear us."""
        heard_at_tick = self._heard_at_tick.get(peer)
        if heard_at_tick is None or peer not in self.senders:
            return None
        return (self._ticks.now - heard_at_tick) * tick_ms * 1_000_000

    def stirred(self, group_id: GroupId) -> None:
        """Have the next beat look at a group: what it tells of it may have changed, or it may be gone."""
        self._stirred.add(group_id)

    def connected(self, peer: BrokerId) -> None:
        """Begin with nothing: so does the reader of a new connection."""
        self.senders[peer] = BeatSender(self._rng.getrandbits(32))
        self._answers[peer] = Pulse(self._ticks)
        self._stirred.update(self._owner.groups)

    def lost(self, peer: BrokerId) -> None:
        """The outgoing connection is gone: nobody is sent to a broker that just died."""
        self.senders.pop(peer, None)
        self._owed.pop(peer, None)
        self._answers.pop(peer, None)
        self._heard_at_tick.pop(peer, None)
        self.review()

    def connection_closed(self, connection: object) -> None:
        """Forget what an incoming connection has told."""
        self._receivers.pop(connection, None)
        pulse = self._leaders.pop(connection, None)
        for rider in () if pulse is None else pulse.riders():
            rider.get_off()

    def tick(self, *, silent: bool) -> None:
        """Send every peer a beat that is due, unless this broker wants to be taken for dead; see who is alive."""
        if self._is_due():
            self._send_owed()
            if not silent:
                self._send()
        self.review()

    def _is_due(self) -> bool:
        """Return whether a beat has something to say, or has to be a sign of life."""
        if self._stirred or self._ticks.now % QUIET_BEAT_TICKS == 0:
            return True
        return any(answers.apart for answers in self._answers.values())

    def _send_owed(self) -> None:
        owed, self._owed = self._owed, {}
        for peer, answer in owed.items():
            self._answer(peer, answer)

    def _answer(self, peer: BrokerId, answer: bytes) -> None:
        if self._owner.transport is not None:
            self._owner.transport.send(peer, Lane.CONTROL, FrameKind.BEAT_ACK, [answer])

    def _send(self) -> None:
        transport = self._owner.transport
        if transport is None:
            return
        groups, stirred = self._owner.groups, self._stirred
        self._stirred = set()
        rows: dict[BrokerId, list[tuple[GroupId, Term, RaftIndex]]] = {peer: [] for peer in self.senders}
        for group_id in stirred:
            group = groups.get(group_id)
            if group is not None and group.node.is_leader and not group.stopped:
                group.beat_rows(rows)
        for peer, sender in self.senders.items():
            beat = sender.next_beat(rows[peer], stirred)
            apart = self._answers[peer].apart
            apart -= stirred
            apart.update(group_id for group_id, _, _ in rows[peer])
            transport.send(peer, Lane.CONTROL, FrameKind.BEAT, [encode_beat(beat)])

    def unsettled(self) -> set[GroupId]:
        """Return the groups led here whose followers may not hold everything; the same as before while they do."""
        return set[GroupId]().union(*(pulse.apart for pulse in self._answers.values()))

    def review(self) -> None:
        """See who was heard lately."""
        alive = {peer for peer, tick in self._heard_at_tick.items() if self._ticks.now - tick <= PEER_SILENT_TICKS}
        if alive == self.alive:
            return
        for lost in self.alive - alive:
            self._owner.leaders.lost(lost)
        for found in alive - self.alive:
            self._owner.leaders.found(found)
        self.alive = alive
        self.version += 1

    def beat_received(self, peer: BrokerId, body: memoryview, connection: object) -> None:
        """Take a beat and answer it. Raises ValueError on garbage."""
        beat = decode_beat(body)
        receiver = self._receivers.setdefault(connection, BeatReceiver())
        receiver.follow(beat)
        pulse = self._leaders.get(connection)
        if pulse is None:
            pulse = self._leaders[connection] = Pulse(self._ticks)
        for group_id in beat.removed:
            self._get_off(group_id, pulse)
            pulse.apart.discard(group_id)
        changed = {row[0] for row in beat.changed}
        for group_id in changed:
            self._get_off(group_id, pulse)
        pulse.apart |= changed
        pulse.beat()
        exceptions = self._follow(peer, receiver.told, changed, pulse)
        answer = encode_ack(beat.sequence, exceptions)
        if peer in self.senders and not (beat.changed or beat.removed or exceptions):
            self._owed[peer] = answer  # in place of one before it: an answer speaks for all earlier beats
        else:
            self._owed.pop(peer, None)
            self._answer(peer, answer)

    def _get_off(self, group_id: GroupId, pulse: Pulse) -> None:
        group = self._owner.groups.get(group_id)
        if group is not None and pulse.carries(group.node):
            group.node.get_off()

    def _follow(
        self,
        peer: BrokerId,
        told: Mapping[GroupId, tuple[Term, RaftIndex]],
        changed: Collection[GroupId],
        pulse: Pulse,
    ) -> list[GroupId]:
        """Take the rows of a beat that do not ride on it; return the groups that need more than "heard you"."""
        exceptions: list[GroupId] = []
        groups = self._owner.groups
        for group_id in tuple(pulse.apart):
            term, commit = told[group_id]
            group = groups.get(group_id)
            if group is None or group.stopped or peer in group.unsafe:
                exceptions.append(group_id)
            elif group_id in changed or not group.node.touch_leader(peer, term):
                self._owner.guard(group, group.step_heartbeat, peer, term, commit)
                exceptions.append(group_id)  # its own answer is a Raft message
                self._owner.mark_dirty(group)
            else:
                pulse.carry(group.node, group_id)
        return exceptions

    def beat_answered(self, peer: BrokerId, body: memoryview) -> None:
        """Take the answer to a beat. Raises ValueError on garbage."""
        sequence, exceptions = decode_ack(body)
        sender = self.senders.get(peer)
        if sender is None:
            return
        told = sender.answered(sequence)
        if not told:
            return  # late, or of an earlier connection
        pulse = self._answers[peer]
        for group_id in exceptions:
            group = self._owner.groups.get(group_id)
            if group is not None and group_id in sender.told:
                group.node.ignore_pulse(peer)
                pulse.apart.add(group_id)
        pulse.beat()
        for group_id in (pulse.apart | self._stirred).difference(exceptions):
            row, group = told.get(group_id), self._owner.groups.get(group_id)
            if row is None or group is None or group.stopped or peer in group.unsafe:
                continue
            if group.node.touch_peer(peer, row[0], pulse):
                pulse.apart.discard(group_id)
                continue
            self._owner.guard(group, group.step_heartbeat_answer, peer, row[0])
            self._owner.mark_if_ready(group)
