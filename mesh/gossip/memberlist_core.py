"""Memberlist, sans-IO: packets and blobs in, effects out. It knows who is there; it decides nothing else.

Rule 1: no clock, no socket: `now` (monotonic seconds) and randomness are handed in; after every call `take()` what is
        to be done. Read all waiting packets before `tick`: an answer that waits in a buffer is an answer.
Rule 2: packets never raise: a bad one is dropped and counted under a fixed name.
Rule 3: in one packet pings and acks go first (they are timed), then alive, then the rest: a claim must not hit a
        member whose arrival stands behind it.
Rule 4: a tick that comes later than a probe may take is a stall of OURS: probes and suspicions get the time again, and
        our health is marked down (Lifeguard).
Rule 5: a second state exchange with a random member follows a join after a second: with the first alone one join in
        72 was not heard of until the next round.

Loops, each started at a random point of its first period: probe (probe_core.py), gossip, push/pull. A round of gossip
without rumours is left out, and the next rumour does not wait for the one after it.
Source: "SWIM" (2002), "Lifeguard" (2018); the wire is docs/protocol/gossip.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from mesh.gossip import codec
from mesh.gossip.awareness_core import Awareness
from mesh.gossip.broadcast_queue_core import BroadcastQueue
from mesh.gossip.codec import Ack, Alive, Dead, IndirectPing, MemberRow, MessageType, Nack, Ping, Suspect
from mesh.gossip.compound import flatten
from mesh.gossip.delegate import Delegate
from mesh.gossip.effects import BroadcastSent, Effect, PushPull
from mesh.gossip.faults import CodecError, GossipFault, MergeRefused
from mesh.gossip.member import META_BYTES_MAX, OUR_VERSIONS, Address, Member, MemberState, is_name
from mesh.gossip.membership_core import Membership
from mesh.gossip.outbox_core import Outbox
from mesh.gossip.probe_core import Prober
from mesh.gossip.randomness import Randomness
from mesh.gossip.roster_core import Roster
from mesh.gossip.timing import Timing

SECOND_PUSH_PULL_AFTER_S: Final = 1.0
PINGS_PER_PACKET_MAX: Final = 8  # each is answered: a packet must not be worth a hundred
MESSAGES_BYTES_MAX: Final = 1300
_NEVER: Final = float("inf")
_TIMED: Final = frozenset({MessageType.PING, MessageType.INDIRECT_PING, MessageType.ACK, MessageType.NACK})


def _urgency(body: bytes) -> int:
    if body[0] in _TIMED:
        return 0
    return 1 if body[0] == MessageType.ALIVE else 2


class Memberlist:
    """One member of one pool.

    Args:
        name: ours, [A-Za-z0-9._-], at most 128; unique in the pool.
        address: where others reach us, UDP and TCP.
        meta: our tags, at most 512 bytes.
        timing: of the pool; all members should have the same.
        rng: `random.Random`.
        incarnation: higher than in any earlier life of this name: max(saved + 1, unix time in seconds).
        delegate: the layer above.
        messages_bytes_max: budget of a packet before its envelope.

    Raises:
        ValueError: name or meta out of bounds.
    """

    def __init__(
        self,
        *,
        name: str,
        address: Address,
        meta: bytes,
        timing: Timing,
        rng: Randomness,
        incarnation: int,
        delegate: Delegate,
        messages_bytes_max: int = MESSAGES_BYTES_MAX,
    ) -> None:
        if not is_name(name) or len(meta) > META_BYTES_MAX:
            raise ValueError(f"a name has 1..128 of [A-Za-z0-9._-], tags at most {META_BYTES_MAX} bytes")
        own = Member(
            name=name,
            address=address,
            meta=meta,
            versions=OUR_VERSIONS,
            state=MemberState.ALIVE,
            incarnation=incarnation,
            changed_at=0.0,
        )
        self._timing = timing
        self._rng = rng
        self._delegate = delegate
        self._effects: list[Effect] = []
        self.counts: Counter[str] = Counter()
        self._awareness = Awareness(timing.awareness_max)
        self._roster = Roster(own_name=name, rng=rng, forget_after_s=timing.gossip_to_dead_s)
        self._queue = BroadcastQueue(retransmit_mult=timing.retransmit_mult)
        self._membership = Membership(
            own=own,
            timing=timing,
            roster=self._roster,
            queue=self._queue,
            awareness=self._awareness,
            effects=self._effects,
            counts=self.counts,
        )
        self._outbox = Outbox(
            queue=self._queue,
            delegate=delegate,
            roster=self._roster,
            effects=self._effects,
            messages_bytes_max=messages_bytes_max,
        )
        self._prober = Prober(
            timing=timing,
            roster=self._roster,
            awareness=self._awareness,
            membership=self._membership,
            outbox=self._outbox,
            delegate=delegate,
            effects=self._effects,
            counts=self.counts,
            rng=rng,
        )
        self._gossip_at = _NEVER
        self._push_pull_at = _NEVER
        self._second_push_pull_at = _NEVER

    # What is known

    @property
    def local(self) -> Member:
        """Return ourselves."""
        return self._membership.own

    @property
    def incarnation(self) -> int:
        """Return our incarnation: save it, the next life must start above it."""
        return self.local.incarnation

    @property
    def awareness(self) -> int:
        """Return our health score: 0 is well; from 4 on our accusations are worth little."""
        return self._awareness.score

    @property
    def is_leaving(self) -> bool:
        """Return whether `leave` was called."""
        return self._membership.is_leaving

    @property
    def member_count(self) -> int:
        """Return how many members are known, us and the dead included."""
        return len(self._roster)

    @property
    def alive_count(self) -> int:
        """Return how many are alive or suspect, us included."""
        return sum(not member.is_gone for member in self._roster.values())

    def members(self) -> Sequence[Member]:
        """Return everybody, us included, and the dead until they are forgotten."""
        return self._roster.values()

    def member(self, name: str) -> Member | None:
        """Return one member, None if unknown."""
        return self._roster.get(name)

    # Calls of the layer above

    def start(self, now: float) -> None:
        """Enter the pool, alone: `join` finds the others."""
        self._membership.announce(now=now)
        self._prober.start(now)
        self._gossip_at = now + self._rng.random() * self._timing.gossip_interval_s
        self._push_pull_at = now + self._rng.random() * self._push_pull_after_s()

    def join(self, address: Address, now: float) -> None:
        """Exchange states with whoever listens at `address`."""
        self._effects.append(PushPull(address=address, name="", join=True))

    def set_meta(self, meta: bytes, now: float) -> None:
        """Change our tags; BroadcastSent says when the pool was told.

        Raises:
            ValueError: more than 512 bytes.
        """
        if len(meta) > META_BYTES_MAX:
            raise ValueError(f"tags have {len(meta)} bytes, {META_BYTES_MAX} are allowed")
        self._membership.announce(now=now, meta=meta)
        self._tell_sent()

    def leave(self, now: float) -> None:
        """Say farewell; BroadcastSent says when the pool was told. Keep answering for a while after it."""
        self._membership.leave(now)
        self._tell_sent()

    def stalled(self, seconds: float, now: float) -> None:
        """Mark our health down for a stall that the gossip loop does not see: that of the broker's main loop."""
        if seconds >= self._timing.probe_timeout_s:
            self.counts["stalled"] += 1
            self._awareness.apply(max(1, round(seconds / self._timing.probe_interval_s)))

    def take(self) -> list[Effect]:
        """Return what is to be done, in order."""
        effects = list(self._effects)
        self._effects.clear()
        return effects

    # Time

    def next_due(self) -> float:
        """Return when to call `tick`: monotonic seconds, infinity before `start`."""
        return min(self._timers_due(), self._gossip_at if self._has_news else _NEVER)

    def _timers_due(self) -> float:
        return min(self._prober.next_due(), self._push_pull_at, self._second_push_pull_at, self._membership.next_due())

    @property
    def _has_news(self) -> bool:
        """Whether there is something to tell, and somebody to hear it, or to find out that it was told."""
        return (self._outbox.has_rumours and len(self._roster) > 1) or self._membership.own_ticket != 0

    def tick(self, now: float) -> None:
        """Do what is due."""
        late_s = now - self._timers_due()  # not of gossip, whose moment may have passed before there was news
        if late_s >= self._timing.probe_timeout_s:
            self.stalled(late_s, now)
            self._prober.forgive(late_s)
            self._membership.defer(now + self._timing.probe_timeout_s)
        self._prober.tick(now)
        self._membership.tick(now)
        if self._gossip_at <= now and self._has_news:
            self._gossip_at = now + self._timing.gossip_interval_s
            self._gossip(now)
        if self._push_pull_at <= now:
            self._push_pull_at = now + self._push_pull_after_s()
            self._push_pull()
        if self._second_push_pull_at <= now:
            self._second_push_pull_at = _NEVER
            self._push_pull()
        self._tell_sent()

    # Packets

    def packet_received(self, messages: bytes, source: Address, now: float) -> None:
        """Take a packet whose envelope is off.

        Args:
            messages: a message, a compound or a compression of either.
            source: where it came from.
            now: when it was read.
        """
        try:
            bodies = flatten(messages)
        except CodecError:
            self.counts["packet.malformed"] += 1
            return
        pings = 0
        for body in sorted(bodies, key=_urgency):
            if body[0] in (MessageType.PING, MessageType.INDIRECT_PING):
                pings += 1
                if pings > PINGS_PER_PACKET_MAX:
                    self.counts["ping.refused"] += 1
                    continue
            try:
                self._dispatch(body, source, now)
            except GossipFault:
                self.counts["message.malformed"] += 1

    def _dispatch(self, body: bytes, source: Address, now: float) -> None:
        if body[0] == MessageType.USER:
            self._delegate.user_packet(body[1:])
            return
        message = codec.decode(body)
        if isinstance(message, Ping):
            self._prober.on_ping(message, source)
        elif isinstance(message, Ack):
            self._prober.on_ack(message, now)
        elif isinstance(message, IndirectPing):
            self._prober.on_indirect_ping(message, source, now)
        elif isinstance(message, Nack):
            self._prober.on_nack(message)
        elif isinstance(message, Alive):
            self._membership.on_alive(message, now)
        elif isinstance(message, Suspect):
            self._membership.on_suspect(message, now)
        elif isinstance(message, Dead):
            self._membership.on_dead(message, now)
        else:
            self.counts["message.out_of_place"] += 1

    # TCP

    def stream_state(self, *, join: bool) -> bytes:
        """Return everything we know, for a push/pull exchange."""
        rows = tuple(
            MemberRow(
                name=member.name,
                address=member.address,
                meta=member.meta,
                incarnation=member.incarnation,
                state=member.state,
                versions=member.versions,
            )
            for member in self._roster.values()
        )
        user_state = self._delegate.local_state(join=join)
        return codec.encode_push_pull(codec.PushPull(is_join=join, rows=rows, user_state=user_state))

    def stream_received(self, blob: bytes, now: float) -> bytes | None:
        """Serve one TCP request.

        Returns:
            the reply, None if there is none to send.

        Raises:
            GossipFault: the request is none (CodecError), or the layer above refuses it; `codec.error_reply` tells
                the peer.
        """
        kind = blob[0] if blob else -1
        if kind == MessageType.PUSH_PULL:
            state = codec.decode_push_pull(blob)
            reply = self.stream_state(join=state.is_join)
            self._merge(state, now)
            return reply
        if kind == MessageType.USER:
            self._delegate.user_packet(codec.read_stream_user(blob))
            return None
        message = codec.decode(blob)
        if isinstance(message, Ping):
            is_ours = message.name in ("", self.local.name)
            return codec.encode(Ack(seq_no=message.seq_no)) if is_ours else None
        raise CodecError("no request")

    def merge_stream_state(self, blob: bytes, now: float) -> None:
        """Take the reply to our push/pull.

        Raises:
            CodecError: it is no state.
            MergeRefused: the peer says why it sends none.
        """
        if blob[:1] == bytes((MessageType.ERROR,)):
            raise MergeRefused(codec.read_error(blob))
        state = codec.decode_push_pull(blob)
        if state.is_join:
            self._second_push_pull_at = min(self._second_push_pull_at, now + SECOND_PUSH_PULL_AFTER_S)
        self._merge(state, now)

    def stream_ping_answered(self, seq_no: int, reply: bytes, now: float) -> None:
        """Take the reply to a TCP ping.

        Raises:
            CodecError: it is none.
        """
        self._prober.on_stream_ack(seq_no, reply, now)

    def _merge(self, state: codec.PushPull, now: float) -> None:
        self.counts["row.malformed"] += state.bad_rows
        self._membership.merge(state.rows, now)
        if not state.user_state:
            return
        try:
            self._delegate.merge_remote_state(state.user_state, join=state.is_join)
        except GossipFault:
            self.counts["user_state.malformed"] += 1

    # Loops

    def _gossip(self, now: float) -> None:
        for member in self._roster.pick(self._timing.gossip_members, lambda member: self._hears_rumours(member, now)):
            if not self._outbox.send_rumours(member.address, with_crc=member.reads_crc):
                return

    def _hears_rumours(self, member: Member, now: float) -> bool:
        if member.state is MemberState.DEAD:
            return now - member.changed_at < self._timing.gossip_to_dead_s
        return member.state is not MemberState.LEFT

    def _push_pull(self) -> None:
        for member in self._roster.pick(1, lambda member: member.state is MemberState.ALIVE):
            self._effects.append(PushPull(address=member.address, name=member.name, join=False))

    def _push_pull_after_s(self) -> float:
        return self._timing.push_pull_after_s(len(self._roster))

    def _tell_sent(self) -> None:
        gone = self._membership.own_ticket in self._queue.finished()
        if self._membership.own_ticket and (gone or self.alive_count - (not self.local.is_gone) == 0):
            self._membership.own_ticket = 0
            self._effects.append(BroadcastSent(name=self.local.name))
