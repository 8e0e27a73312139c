"""A pool of members in one process and in virtual time: deterministic from a seed.

Packets are delayed, lost, doubled and cut off; TCP exchanges are delayed and cut off; members die, come back and stall.
Everything goes through the envelopes, so that a test can give the pool a keyring and a label.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mesh.gossip.codec import decode_coordinate, encode_coordinate
from mesh.gossip.coordinate_core import CoordinateClient
from mesh.gossip.delegate import SilentDelegate
from mesh.gossip.effects import (
    BroadcastSent,
    Effect,
    MemberJoined,
    MemberLeft,
    MemberUpdated,
    NameConflict,
    PushPull,
    SendPacket,
    StreamPing,
)
from mesh.gossip.faults import GossipFault, PacketError
from mesh.gossip.keyring import Keyring
from mesh.gossip.member import Address, Member, MemberState
from mesh.gossip.memberlist_core import Memberlist
from mesh.gossip.packet import open_packet, seal_packet
from mesh.gossip.timing import LAN, Timing

START = 5000.0


class Above(SilentDelegate):
    """The layer above: coordinates only."""

    def __init__(self, rng: random.Random) -> None:
        self.coordinates = CoordinateClient(rng=rng)
        self.rtts: list[float] = []

    def ack_payload(self) -> bytes:
        return encode_coordinate(self.coordinates.coordinate)

    def ping_completed(self, member: Member, rtt_s: float, payload: bytes) -> None:
        self.rtts.append(rtt_s)
        self.coordinates.update(member.name, decode_coordinate(payload), rtt_s)


@dataclass(frozen=True)
class Seen:
    """One piece of news that a host was told."""

    at: float
    host: str
    kind: str
    name: str


@dataclass(eq=False)
class Host:
    """A machine with one member on it."""

    name: str
    address: Address
    memberlist: Memberlist
    above: Above
    keyring: Keyring | None
    is_up: bool = True
    stalled_until: float = 0.0
    backlog: list[tuple[bytes, Address]] = field(default_factory=list)
    tick_at: float = float("inf")
    packets_sent: int = 0
    refused_packets: int = 0

    def states(self) -> dict[str, MemberState]:
        return {member.name: member.state for member in self.memberlist.members()}

    def alive(self) -> set[str]:
        return {name for name, state in self.states().items() if state is MemberState.ALIVE}

    def sees(self, wanted: set[str]) -> bool:
        """Return whether exactly those are alive, and nobody is suspected."""
        states = self.states()
        return self.alive() == wanted and MemberState.SUSPECT not in states.values()


class Pool:
    """Hosts and the net between them.

    Args:
        seed: of everything.
        timing: of all members.
        loss, doubled: shares of packets.
        delay_s: shortest and longest one-way delay; `delay_between` may set it by pair.
    """

    def __init__(
        self,
        seed: int,
        *,
        timing: Timing = LAN,
        loss: float = 0.0,
        doubled: float = 0.0,
        delay_s: tuple[float, float] = (0.0001, 0.001),
        keys: Sequence[bytes] = (),
        label: str = "",
    ) -> None:
        self.rng = random.Random(seed)
        self.timing = timing
        self.loss, self.doubled, self.delay_s = loss, doubled, delay_s
        self.keys, self.label = keys, label
        self.now = START
        self.hosts: dict[str, Host] = {}
        self.by_address: dict[Address, Host] = {}
        self.seen: list[Seen] = []
        self.is_cut: Callable[[Host, Host], bool] = lambda a, b: False
        self.delay_between: Callable[[Host, Host], float] | None = None
        self.loss_between: Callable[[Host, Host], float] | None = None
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    # Hosts

    def add(self, name: str, *, via: str | None = None, incarnation: int = 1, address: Address | None = None) -> Host:
        """Start a member; it joins by `via`."""
        number = len(self.by_address)
        where = address or (f"10.{number >> 16}.{number >> 8 & 255}.{number & 255 or 1}", 1 + number)
        rng = random.Random(self.rng.randrange(2**62))
        above = Above(rng)
        memberlist = Memberlist(
            name=name,
            address=where,
            meta=b"",
            timing=self.timing,
            rng=rng,
            incarnation=incarnation,
            delegate=above,
        )
        keyring = Keyring(self.keys) if self.keys else None
        host = Host(name=name, address=where, memberlist=memberlist, above=above, keyring=keyring)
        self.hosts[name] = host
        self.by_address[where] = host
        memberlist.start(self.now)
        if via is not None:
            memberlist.join(self.hosts[via].address, self.now)
        self._perform(host)
        return host

    def storm(self, count: int, over_s: float) -> None:
        """Let `count` members join by the first, spread over some seconds."""
        self.add("m0")
        for number in range(1, count):
            self.at(self.now + over_s * number / count, functools.partial(self._join_first, f"m{number}"))

    def _join_first(self, name: str) -> None:
        self.add(name, via="m0")

    def kill(self, *names: str) -> None:
        """Switch hosts off."""
        for name in names:
            self.hosts[name].is_up = False

    def stall(self, name: str, seconds: float) -> None:
        """Stop a host's loop: packets wait, timers do not fire."""
        host = self.hosts[name]
        host.stalled_until = self.now + seconds
        self.at(host.stalled_until, lambda: self._wake(host))

    def up(self) -> list[Host]:
        """Return hosts that are on."""
        return [host for host in self.hosts.values() if host.is_up]

    # Time

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._heap, (when, next(self._order), action))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = end

    def run_until(self, condition: Callable[[], bool], *, limit_s: float) -> float:
        """Let time pass until `condition`, judged every 50 ms; return how long it took."""
        began = self.now
        while not condition():
            if self.now - began > limit_s:
                raise AssertionError(f"not within {limit_s} s: {self.describe()}")
            self.run(0.05)
        return self.now - began

    # Judgements

    def all_see(self, expected: set[str] | None = None) -> bool:
        """Return whether every host that is on sees exactly those alive."""
        wanted = {host.name for host in self.up()} if expected is None else expected
        return all(host.sees(wanted) for host in self.up())

    def news(self, kind: str, name: str | None = None) -> list[Seen]:
        """Return what hosts were told of one kind."""
        return [row for row in self.seen if row.kind == kind and name in (None, row.name)]

    def describe(self) -> str:
        """Return whom each host misses."""
        wanted = {host.name for host in self.up()}
        return "; ".join(
            f"{host.name} sees {len(host.alive())}, not {sorted(wanted - host.alive())[:3]}" for host in self.up()
        )

    # The net

    def perform(self, host: Host) -> None:
        """Do what a test made a member want."""
        self._perform(host)

    def _perform(self, host: Host) -> None:
        for effect in host.memberlist.take():
            self._do(host, effect)
        due = host.memberlist.next_due()
        if due < host.tick_at:
            host.tick_at = due
            self.at(max(due, self.now), lambda: self._tick(host, due))

    def _do(self, host: Host, effect: Effect) -> None:
        if isinstance(effect, SendPacket):
            self._send(host, effect)
        elif isinstance(effect, PushPull):
            self._push_pull(host, effect)
        elif isinstance(effect, StreamPing):
            self._stream_ping(host, effect)
        else:
            self._note(host, effect)

    def _note(
        self, host: Host, effect: MemberJoined | MemberLeft | MemberUpdated | NameConflict | BroadcastSent
    ) -> None:
        name = effect.name if isinstance(effect, BroadcastSent) else effect.member.name
        kind = type(effect).__name__
        if isinstance(effect, MemberLeft):
            kind = effect.member.state.name
        self.seen.append(Seen(self.now, host.name, kind, name))

    def _tick(self, host: Host, due: float) -> None:
        if host.tick_at != due:
            return  # a sooner one was scheduled meanwhile
        host.tick_at = float("inf")
        if not host.is_up or self.now < host.stalled_until:
            return
        host.memberlist.tick(self.now)
        self._perform(host)

    def _wake(self, host: Host) -> None:
        if not host.is_up:
            return
        for raw, source in host.backlog:
            self._read(host, raw, source)
        host.backlog.clear()
        host.memberlist.tick(self.now)
        self._perform(host)

    def _delay(self, one: Host, two: Host) -> float:
        base = 0.0 if self.delay_between is None else self.delay_between(one, two)
        return base + self.rng.uniform(*self.delay_s)

    def _send(self, host: Host, packet: SendPacket) -> None:
        host.packets_sent += 1
        raw = seal_packet(packet.messages, keyring=host.keyring, label=self.label, with_crc=packet.with_crc)
        target = self.by_address.get(packet.address)
        if target is None or self.is_cut(host, target):
            return
        loss = self.loss if self.loss_between is None else self.loss_between(host, target)
        for _ in range(2 if self.rng.random() < self.doubled else 1):
            if self.rng.random() >= loss:
                self.at(self.now + self._delay(host, target), lambda: self._arrive(target, raw, host.address))

    def _arrive(self, host: Host, raw: bytes, source: Address) -> None:
        if not host.is_up or self.by_address.get(host.address) is not host:
            return
        if self.now < host.stalled_until:
            host.backlog.append((raw, source))
            return
        self._read(host, raw, source)
        self._perform(host)

    def _read(self, host: Host, raw: bytes, source: Address) -> None:
        try:
            messages = open_packet(raw, keyring=host.keyring, label=self.label)
        except PacketError:
            host.refused_packets += 1
            return
        host.memberlist.packet_received(messages, source, self.now)

    def _push_pull(self, host: Host, ask: PushPull) -> None:
        state = host.memberlist.stream_state(join=ask.join)
        self._exchange(host, ask.address, state, lambda reply: host.memberlist.merge_stream_state(reply, self.now))

    def _stream_ping(self, host: Host, ask: StreamPing) -> None:
        def answered(reply: bytes) -> None:
            if self.now < ask.deadline:
                host.memberlist.stream_ping_answered(ask.seq_no, reply, self.now)

        self._exchange(host, ask.address, ask.blob, answered)

    def _exchange(self, host: Host, address: Address, blob: bytes, answered: Callable[[bytes], None]) -> None:
        server = self.by_address.get(address)
        if server is None:
            return
        deadline = self.now + self.timing.stream_timeout_s

        def serve() -> None:
            if not server.is_up or self.is_cut(host, server) or self.now > deadline:
                return
            if self.now < server.stalled_until:
                self.at(server.stalled_until, serve)
                return
            reply = server.memberlist.stream_received(blob, self.now)
            self._perform(server)
            if reply is not None:
                self.at(self.now + self._delay(server, host), lambda: back(reply))

        def back(reply: bytes) -> None:
            if not host.is_up or self.now < host.stalled_until or self.is_cut(server, host):
                return
            try:
                answered(reply)
            except GossipFault as error:
                raise AssertionError("members of one pool understand each other") from error
            self._perform(host)

        self.at(self.now + 3 * self._delay(host, server), serve)  # a connection is one round trip, then the request
