"""Failure detection: one member is probed at a time, directly, then through others, then accused. Pure.

Rule 1: probe_timeout after the ping, `indirect_checks` others are asked to ping it, and a TCP ping goes beside: a
        member behind a broken UDP path is not dead.
Rule 2: only a direct answer within probe_timeout is a round trip worth believing.
Rule 3: no answer until the interval, stretched by our health, has passed: the member is suspected. Helpers that did
        not even send their nack say that WE are cut off: that costs our health, not theirs.
Rule 4: as a helper we ping with a number of our own, pass the ack on without payload, and else send a nack.
Rule 5: everything a peer can make us hold is bounded: RELAYS_MAX pings for others.

Source: "SWIM", section 3.1; "Lifeguard", 3.1 (nacks) and 3.3 (buddy system).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from mesh.gossip.awareness_core import Awareness
from mesh.gossip.codec import Ack, IndirectPing, Nack, Ping, Suspect, decode, encode
from mesh.gossip.delegate import Delegate
from mesh.gossip.effects import Effect, StreamPing
from mesh.gossip.faults import CodecError, GossipFault
from mesh.gossip.member import Address, Member, MemberState
from mesh.gossip.membership_core import Membership
from mesh.gossip.outbox_core import Outbox
from mesh.gossip.randomness import Randomness
from mesh.gossip.roster_core import Roster
from mesh.gossip.timing import Timing

RELAYS_MAX: Final = 1024
_SEQ_NO_END: Final = 2**32
_NEVER: Final = float("inf")


@dataclass(slots=True, kw_only=True)
class _Probe:
    """The probe under way."""

    seq_no: int
    member: Member
    sent_at: float
    timeout_at: float
    deadline: float
    is_indirect: bool = False
    nacks_wanted: int = 0
    nacks: int = 0

    @property
    def next_due(self) -> float:
        return self.deadline if self.is_indirect else self.timeout_at


@dataclass(slots=True, kw_only=True)
class _Relay:
    """A ping that we sent for somebody else."""

    asker: Address
    seq_no: int
    ends_at: float
    wants_nack: bool


class Prober:
    """Probes others, and answers their probes.

    Args:
        timing, roster, awareness, membership, outbox, delegate, effects, counts: those of the pool.
        rng: staggers the start, chooses helpers.
    """

    def __init__(
        self,
        *,
        timing: Timing,
        roster: Roster,
        awareness: Awareness,
        membership: Membership,
        outbox: Outbox,
        delegate: Delegate,
        effects: list[Effect],
        counts: Counter[str],
        rng: Randomness,
    ) -> None:
        self._timing = timing
        self._roster = roster
        self._awareness = awareness
        self._membership = membership
        self._outbox = outbox
        self._delegate = delegate
        self._effects = effects
        self._counts = counts
        self._seq_no = rng.randrange(_SEQ_NO_END)
        self._stagger = rng.random()
        self._probe: _Probe | None = None
        self._next_probe_at = _NEVER
        self._relays: dict[int, _Relay] = {}  # in the order of their ends

    def start(self, now: float) -> None:
        """Begin to probe, somewhere within the first interval."""
        self._next_probe_at = now + self._stagger * self._timing.probe_interval_s

    def next_due(self) -> float:
        """Return when `tick` has something to do."""
        probe_at = self._next_probe_at if self._probe is None else self._probe.next_due
        relay = next(iter(self._relays.values()), None)
        return probe_at if relay is None else min(probe_at, relay.ends_at)

    def tick(self, now: float) -> None:
        """Go on with the probe under way, begin the next, end relays."""
        probe = self._probe
        if probe is not None and not probe.is_indirect and probe.timeout_at <= now:
            self._ask_others(probe)
        if probe is not None and probe.is_indirect and probe.deadline <= now:
            self._fail(probe, now)
        if self._probe is None and self._next_probe_at <= now:
            self._begin(now)
        self._end_relays(now)

    def forgive(self, late_s: float) -> None:
        """Give the probe and the relays under way the time again that we were stalled."""
        if self._probe is not None:
            self._probe.timeout_at += late_s
            self._probe.deadline += late_s
        for relay in self._relays.values():
            relay.ends_at += late_s

    def on_ping(self, ping: Ping, source: Address) -> None:
        """Answer a ping, if it is for us."""
        if ping.name not in ("", self._membership.own.name):
            self._counts["ping.for_another"] += 1
            return
        ack = Ack(seq_no=ping.seq_no, payload=self._delegate.ack_payload())
        self._outbox.send(ping.source or source, [encode(ack)])

    def on_indirect_ping(self, ask: IndirectPing, source: Address, now: float) -> None:
        """Ping a member for somebody else."""
        if len(self._relays) >= RELAYS_MAX:
            self._counts["relay.refused"] += 1
            return
        own = self._membership.own
        seq_no = self._next_seq_no()
        self._relays[seq_no] = _Relay(
            asker=ask.source or source,
            seq_no=ask.seq_no,
            ends_at=now + self._timing.probe_timeout_s,
            wants_nack=ask.wants_nack,
        )
        ping = Ping(seq_no=seq_no, name=ask.name, source=own.address, source_name=own.name)
        self._outbox.send(ask.target, [encode(ping)])

    def on_ack(self, ack: Ack, now: float) -> None:
        """Take an answer: to our probe, or to a ping for somebody else."""
        relay = self._relays.pop(ack.seq_no, None)
        if relay is not None:
            self._outbox.send(relay.asker, [encode(Ack(seq_no=relay.seq_no))])
            return
        probe = self._probe
        if probe is None or probe.seq_no != ack.seq_no:
            self._counts["ack.late"] += 1
            return
        self._end_probe(now, awareness=-1)
        if not probe.is_indirect and now <= probe.timeout_at:
            self._complete(probe, now - probe.sent_at, ack.payload)

    def on_nack(self, nack: Nack) -> None:
        """Count that a helper is there."""
        probe = self._probe
        if probe is not None and probe.seq_no == nack.seq_no and probe.nacks < probe.nacks_wanted:
            probe.nacks += 1

    def on_stream_ack(self, seq_no: int, reply: bytes, now: float) -> None:
        """Take the answer to a TCP ping.

        Raises:
            CodecError: it is none.
        """
        answer = decode(reply)
        if not isinstance(answer, Ack) or answer.seq_no != seq_no:
            raise CodecError("not the answer to a TCP ping")
        if self._probe is not None and self._probe.seq_no == seq_no:
            self._counts["probe.tcp_only"] += 1
            self._end_probe(now, awareness=-1)

    def _next_seq_no(self) -> int:
        self._seq_no = (self._seq_no + 1) % _SEQ_NO_END
        return self._seq_no

    def _begin(self, now: float) -> None:
        self._next_probe_at = now + self._timing.probe_interval_s
        target = self._roster.next_probe(now)
        if target is None:
            return
        own = self._membership.own
        probe = _Probe(
            seq_no=self._next_seq_no(),
            member=target,
            sent_at=now,
            timeout_at=now + self._timing.probe_timeout_s,
            deadline=now + self._awareness.scaled_s(self._timing.probe_interval_s),
        )
        self._probe = probe
        ping = encode(Ping(seq_no=probe.seq_no, name=target.name, source=own.address, source_name=own.name))
        if target.state is MemberState.SUSPECT:
            # Buddy: the accused hears of it with the ping itself, and can refute at once.
            claim = Suspect(incarnation=target.incarnation, name=target.name, accuser=own.name)
            self._outbox.send(target.address, [ping, encode(claim)], with_crc=target.reads_crc)
        else:
            self._outbox.send(target.address, [ping])

    def _ask_others(self, probe: _Probe) -> None:
        probe.is_indirect = True
        own, target = self._membership.own, probe.member
        helpers = self._roster.pick(
            self._timing.indirect_checks,
            lambda member: member.state is MemberState.ALIVE and member.name != target.name,
        )
        for helper in helpers:
            ask = IndirectPing(
                seq_no=probe.seq_no,
                target=target.address,
                name=target.name,
                wants_nack=helper.sends_nacks,
                source=own.address,
                source_name=own.name,
            )
            probe.nacks_wanted += helper.sends_nacks
            self._outbox.send(helper.address, [encode(ask)])
        if target.reads_stream_pings:
            blob = encode(Ping(seq_no=probe.seq_no, name=target.name, source=own.address, source_name=own.name))
            self._effects.append(
                StreamPing(
                    address=target.address, name=target.name, seq_no=probe.seq_no, blob=blob, deadline=probe.deadline
                )
            )

    def _fail(self, probe: _Probe, now: float) -> None:
        missing = probe.nacks_wanted - probe.nacks if probe.nacks_wanted else 1
        self._counts["probe.failed"] += 1
        self._end_probe(now, awareness=missing)
        self._membership.suspect(probe.member.name, now)

    def _end_probe(self, now: float, *, awareness: int) -> None:
        self._probe = None
        self._next_probe_at = max(self._next_probe_at, now)
        self._awareness.apply(awareness)

    def _complete(self, probe: _Probe, rtt_s: float, payload: bytes) -> None:
        try:
            self._delegate.ping_completed(probe.member, rtt_s, payload)
        except GossipFault:
            self._counts["ack.bad_payload"] += 1

    def _end_relays(self, now: float) -> None:
        while self._relays:
            seq_no, relay = next(iter(self._relays.items()))
            if relay.ends_at > now:
                return
            del self._relays[seq_no]
            if relay.wants_nack:
                self._outbox.send(relay.asker, [encode(Nack(seq_no=relay.seq_no))])
