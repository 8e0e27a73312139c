"""The network between brokers: what TCP keeps and what it loses.

- A connection delivers its frames in order, late, or not at all: a reset loses what is on its way.
- A blocked direction holds the frames that travel it; they go on, after a retransmission timeout, when it is open
  again, or the connection is reset when that takes too long.
- A killed process resets its connections; a broker without power says nothing, and its peers find out.
- With `datagrams` Raft frames are also dropped, doubled and reordered: the core promises to bear that, and TCP never
  shows it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from georelay.ids import BrokerId
from mesh.listening.addresses_core import Source
from region.multiraft.peers import FrameKind, Lane
from tests.sim.clockwork import NS_PER_MS, Clockwork, SimLoop

SEND_BUFFER_BYTES_MAX: Final = 4 * 1024 * 1024
CONNECT_TIMEOUT_NS: Final = 2_000 * NS_PER_MS
REDIAL_NS: Final = 100 * NS_PER_MS
Mark = Callable[[str], None]


@dataclass(slots=True)
class Direction:
    """One direction between two brokers."""

    blocked: bool = False
    blocked_since_ns: int = 0
    base_ns: int = 120_000
    jitter_ns: int = 80_000
    laid_ns: tuple[int, int] = (120_000, 80_000)  # what a healthy path has


class Receiver(Protocol):
    """What a transport's owner is told; see region.multiraft.peers.PeerReceiver."""

    def frame_received(self, peer: BrokerId, kind: FrameKind, body: memoryview, connection: object) -> None: ...

    def peer_connected(self, peer: BrokerId, lane: Lane) -> None: ...

    def peer_lost(self, peer: BrokerId, lane: Lane) -> None: ...

    def connection_closed(self, connection: object) -> None: ...


class Network:
    """All brokers of a world and the paths between them."""

    def __init__(self, clockwork: Clockwork, *, rng: random.Random, mark: Mark) -> None:
        self.clockwork = clockwork
        self.rng = rng
        self.mark = mark
        self.endpoints: dict[BrokerId, SimTransport] = {}
        self.powered_off: set[BrokerId] = set()
        self.on_send: Callable[[BrokerId, BrokerId, FrameKind, bytes], None] = lambda *_: None
        self.datagrams = 0.0  # odds of each of drop, doubling and reordering of a Raft frame
        self.patience_ns = 10_000 * NS_PER_MS
        self.stalled: list[Any] = []  # wires and links whose next frame met a blocked path
        self._paths: dict[tuple[BrokerId, BrokerId], Direction] = {}

    def path(self, source: BrokerId, target: BrokerId) -> Direction:
        """Return the state of one direction."""
        found = self._paths.get((source, target))
        if found is None:
            found = self._paths[source, target] = Direction()
        return found

    def delay_ns(self, source: BrokerId, target: BrokerId) -> int:
        """Return how long the next frame travels."""
        path = self.path(source, target)
        return path.base_ns + int(self.rng.random() * path.jitter_ns)

    def is_open(self, source: BrokerId, target: BrokerId) -> bool:
        """Return whether both directions carry bytes."""
        return not (self.path(source, target).blocked or self.path(target, source).blocked)

    def block(self, source: BrokerId, target: BrokerId) -> None:
        """Hold everything that travels from `source` to `target`."""
        path = self.path(source, target)
        path.blocked = True
        path.blocked_since_ns = self.clockwork.now_ns

    def unblock_all(self) -> None:
        """Open every direction; held frames go on after a retransmission timeout."""
        for path in self._paths.values():
            path.blocked = False
        self.resume_all()

    def resume_all(self) -> None:
        """Let held frames go on; those whose path is still blocked are held again."""
        stalled, self.stalled = self.stalled, []
        for wire in stalled:
            wire.resume(int((0.02 + 0.3 * self.rng.random()) * 1000) * NS_PER_MS)

    def slow(self, source: BrokerId, target: BrokerId, base_ns: int, jitter_ns: int) -> None:
        """Change how long frames travel."""
        path = self.path(source, target)
        path.base_ns, path.jitter_ns = base_ns, jitter_ns

    def lay(self, source: BrokerId, target: BrokerId, *, base_ns: int, jitter_ns: int) -> None:
        """Say how long frames travel on a healthy path."""
        path = self.path(source, target)
        path.laid_ns = (base_ns, jitter_ns)
        path.base_ns, path.jitter_ns = base_ns, jitter_ns

    def heal(self) -> None:
        """Make every path fast and open."""
        for path in self._paths.values():
            path.base_ns, path.jitter_ns = path.laid_ns
        self.datagrams = 0.0
        self.unblock_all()

    def process_died(self, broker: BrokerId, *, silently: bool) -> None:
        """Forget a broker's process; its peers hear a reset unless the whole machine is gone."""
        transport = self.endpoints.pop(broker, None)
        if silently:
            self.powered_off.add(broker)
        if transport is not None:
            for wire in transport.wires.values():
                wire.source_died(silently=silently)
        for other in self.endpoints.values():
            for lane in Lane:
                wire_to = other.wires.get((broker, lane))
                if wire_to is not None:
                    wire_to.target_died(silently=silently)

    def reset_between(self, one: BrokerId, other: BrokerId) -> None:
        """Reset every connection between two brokers."""
        for source, target in ((one, other), (other, one)):
            transport = self.endpoints.get(source)
            if transport is not None:
                for lane in Lane:
                    wire = transport.wires.get((target, lane))
                    if wire is not None:
                        wire.reset()


class Accepted:
    """The receiving end of a connection, as the host knows it: only its identity counts."""

    __slots__ = ("disk", "open", "peer", "target", "wire")

    def __init__(self, wire: Wire, target: SimTransport, disk: bytes) -> None:
        self.wire = wire
        self.peer = wire.source.me
        self.target = target
        self.disk = disk
        self.open = True


class Wire:
    """The dialling end of one connection, re-dialled for ever."""

    def __init__(self, source: SimTransport, peer: BrokerId, lane: Lane) -> None:
        self.source = source
        self.peer = peer
        self.lane = lane
        self.up = False
        self.closed = False
        self._accepted: Accepted | None = None
        self._queue: deque[tuple[int, FrameKind, bytes]] = deque()
        self._queued_bytes = 0
        self._last_ns = 0
        self._path = source.network.path(source.me, peer)
        self._random = source.network.rng.random
        self._draining = False
        self._told_refused = False
        self._life = 0  # counts connections, so that late events of an old one mean nothing
        self._stalled = False

    # --- connecting -----------------------------------------------------------------------------------

    def dial(self) -> None:
        """Try to connect now."""
        if self.closed or self.up or self.source.loop.dead:
            return
        network = self.source.network
        me = self.source.me
        if not network.is_open(me, self.peer) or self.peer in network.powered_off:
            self._later(CONNECT_TIMEOUT_NS, self._refused)
            return
        round_trip = network.delay_ns(me, self.peer) + network.delay_ns(self.peer, me)
        self._later(round_trip, self._connected if self.peer in network.endpoints else self._refused)

    def _later(self, delay_ns: int, action: Callable[[], None]) -> None:
        clockwork = self.source.network.clockwork
        clockwork.at(clockwork.now_ns + delay_ns, self.source.loop, self.source.loop.run_now, action)

    def _refused(self) -> None:
        if self.closed or self.up:
            return
        if not self._told_refused:
            self._told_refused = True
            self.source.network.mark("net.refused")
            self.source.receiver.peer_lost(self.peer, self.lane)
        self._redial()

    def _redial(self) -> None:
        delay = int(REDIAL_NS * (0.5 + self.source.rng.random()))
        self._later(delay, self.dial)

    def _connected(self) -> None:
        if self.closed or self.up:
            return
        network = self.source.network
        target = network.endpoints.get(self.peer)
        if target is None or not network.is_open(self.source.me, self.peer):
            self._refused()
            return
        self._told_refused = False
        self.up = True
        self._life += 1
        self._queue.clear()
        self._queued_bytes = 0
        self._last_ns = 0
        accepted = self._accepted = Accepted(self, target, self.source.disk)
        network.clockwork.at(
            network.clockwork.now_ns + network.delay_ns(self.source.me, self.peer),
            target.loop,
            target.loop.run_now,
            target.accept,
            accepted,
        )
        self._last_ns = network.clockwork.now_ns + network.path(self.source.me, self.peer).base_ns * 2
        self.source.receiver.peer_connected(self.peer, self.lane)

    # --- sending --------------------------------------------------------------------------------------

    def send(self, kind: FrameKind, parts: Sequence[bytes | bytearray | memoryview]) -> bool:
        """Queue one frame."""
        if not self.up:
            return False
        body = b"".join(parts)
        network = self.source.network
        if self._queued_bytes + len(body) > SEND_BUFFER_BYTES_MAX:
            network.mark("net.buffer_full")
            return False
        network.on_send(self.source.me, self.peer, kind, body)
        if network.datagrams and kind is FrameKind.RAFT and self._as_datagram(body):
            return True
        path = self._path
        when = network.clockwork.now_ns + path.base_ns + int(self._random() * path.jitter_ns)
        if when < self._last_ns:
            when = self._last_ns
        self._last_ns = when
        self._queue.append((when, kind, body))
        self._queued_bytes += len(body)
        if not self._draining and not self._stalled:
            self._schedule(when)
        return True

    def _as_datagram(self, body: bytes) -> bool:
        network = self.source.network
        draw = network.rng.random() / network.datagrams
        if draw >= 3:
            return False
        accepted = self._accepted
        if accepted is None or draw < 1:
            network.mark("net.frame_dropped")
            return True
        if draw < 2:
            network.mark("net.frame_doubled")
        else:
            network.mark("net.frame_reordered")
        late = network.clockwork.now_ns + int(network.rng.random() ** 3 * 2_000 * NS_PER_MS)
        network.clockwork.at(
            late, accepted.target.loop, accepted.target.loop.run_now, self._deliver_stray, accepted, body
        )
        return draw >= 2

    def _deliver_stray(self, accepted: Accepted, body: bytes) -> None:
        if accepted.open and not self._path.blocked:
            accepted.target.receiver.frame_received(accepted.peer, FrameKind.RAFT, memoryview(body), accepted)

    def _schedule(self, when_ns: int) -> None:
        assert self._accepted is not None
        self._draining = True
        loop = self._accepted.target.loop
        self.source.network.clockwork.at(when_ns, loop, self._drain, self._life)

    def _drain(self, life: int) -> None:
        accepted = self._accepted
        if life != self._life or accepted is None or not self.up:
            return
        self._draining = False
        network = self.source.network
        if self._path.blocked:
            network.mark("net.stalled_frames")
            self._stalled = True
            network.stalled.append(self)
            network.clockwork.after(network.patience_ns, self._lost_patience, life)
            return
        if accepted.target.appends_paused and self.lane is Lane.APPEND:
            self._stalled = True
            return
        now = network.clockwork.now_ns
        queue = self._queue
        frames: list[tuple[FrameKind, bytes]] = []
        while queue and queue[0][0] <= now:
            _, kind, body = queue.popleft()
            self._queued_bytes -= len(body)
            frames.append((kind, body))
        if queue:
            self._schedule(queue[0][0])
        if frames:
            accepted.target.loop.run_now(self._deliver, accepted, frames)

    def _deliver(self, accepted: Accepted, frames: list[tuple[FrameKind, bytes]]) -> None:
        receiver = accepted.target.receiver
        for kind, body in frames:
            if not accepted.open:
                return
            scratch = bytearray(body)
            receiver.frame_received(accepted.peer, kind, memoryview(scratch), accepted)
            if len(scratch) < 2048:
                scratch[:] = b"\xa5" * len(scratch)  # the buffer of a real connection is used again

    def resume(self, delay_ns: int) -> None:
        """The path is open again: retransmit."""
        if self._stalled and self._accepted is not None:
            self._stalled = False
            if self._queue and self.up:
                when = self.source.network.clockwork.now_ns + delay_ns
                self._last_ns = max(self._last_ns, when)
                self._queue = deque((max(row[0], when), row[1], row[2]) for row in self._queue)
                self._schedule(when)

    def _lost_patience(self, life: int) -> None:
        if self._stalled and life == self._life:
            self.reset()

    # --- ends -----------------------------------------------------------------------------------------

    def _break(self) -> Accepted | None:
        self.up = False
        self._life += 1
        self._queue.clear()
        self._queued_bytes = 0
        self._draining = self._stalled = False
        accepted, self._accepted = self._accepted, None
        return accepted

    def reset(self) -> None:
        """Both ends learn that the connection is gone; what was on its way is lost."""
        if not self.up:
            return
        network = self.source.network
        network.mark("net.reset")
        accepted = self._break()
        if accepted is not None:
            self._close_at_target(accepted)
        loop = self.source.loop
        network.clockwork.at(network.clockwork.now_ns + 20_000, loop, loop.run_now, self._lost_at_source)

    def _close_at_target(self, accepted: Accepted) -> None:
        network = self.source.network
        loop = accepted.target.loop
        network.clockwork.at(network.clockwork.now_ns + 50_000, loop, loop.run_now, accepted.target.forget, accepted)

    def _lost_at_source(self) -> None:
        if not self.closed:
            self.source.receiver.peer_lost(self.peer, self.lane)
            self._redial()

    def source_died(self, *, silently: bool) -> None:
        """Our process is gone."""
        self.closed = True
        accepted = self._break()
        if accepted is not None and not silently:
            self._close_at_target(accepted)

    def target_died(self, *, silently: bool) -> None:
        """The other process is gone."""
        if not self.up:
            return
        if silently:  # found out when the machine is back, or when patience ends
            network = self.source.network
            self._accepted = None
            self._stalled = True
            network.clockwork.after(network.patience_ns, self._lost_patience, self._life)
            return
        self.reset()

    def found_dead(self) -> None:
        """The machine is back without our connection: its kernel answers with a reset."""
        if self.up and self._accepted is None:
            self.reset()

    def close(self) -> None:
        """Close for good."""
        self.closed = True
        accepted = self._break()
        if accepted is not None:
            self._close_at_target(accepted)


class SimTransport:
    """Implements the peer transport of one broker over the simulated network."""

    def __init__(
        self,
        network: Network,
        loop: SimLoop,
        *,
        me: BrokerId,
        disk: bytes,
        peers: Iterable[BrokerId],
        receiver: Receiver,
        rng: random.Random,
        admits: Callable[[BrokerId, bytes], bool] = lambda _peer, _disk: True,
    ) -> None:
        self.network = network
        self.loop = loop
        self.me = me
        self.disk = disk
        self.receiver = receiver
        self.rng = rng
        self.peers: dict[BrokerId, Any] = {peer: ("sim", int(peer)) for peer in peers}
        self.wires: dict[tuple[BrokerId, Lane], Wire] = {}
        self.incoming: dict[Accepted, None] = {}
        self.appends_paused = False
        self._admits = admits
        self._started = False

    async def start(self) -> None:
        """Listen and dial."""
        self._started = True
        network = self.network
        network.endpoints[self.me] = self
        network.powered_off.discard(self.me)
        for other in network.endpoints.values():
            for lane in Lane:
                wire = other.wires.get((self.me, lane))
                if wire is not None:
                    wire.found_dead()
        for peer in self.peers:
            self._dial_all(peer)

    def _dial_all(self, peer: BrokerId) -> None:
        for lane in (Lane.CONTROL, Lane.APPEND):
            if (peer, lane) not in self.wires:
                wire = self.wires[peer, lane] = Wire(self, peer, lane)
                wire.dial()

    async def stop(self) -> None:
        """Close every connection."""
        self.network.endpoints.pop(self.me, None)
        for wire in self.wires.values():
            wire.close()
        for accepted in list(self.incoming):
            accepted.open = False
            accepted.wire.reset()
        self.incoming.clear()

    def send(
        self,
        peer: BrokerId,
        lane: Lane,
        kind: FrameKind,
        parts: Sequence[bytes | bytearray | memoryview],
        *,
        can_wait: bool = False,
    ) -> bool:
        """Queue one frame; False when it was dropped."""
        wire = self.wires.get((peer, lane))
        if wire is None:
            if peer in self.peers:  # a lane that is opened when it is first used
                wire = self.wires[peer, lane] = Wire(self, peer, lane)
                wire.dial()
            return False
        return wire.send(kind, parts)

    def add_peer(self, broker: BrokerId, address: tuple[str, int], source: Source) -> None:
        """Dial one more broker."""
        self.peers[broker] = address
        if self._started:
            self._dial_all(broker)

    def remove_peer(self, broker: BrokerId) -> None:
        """Let a broker go."""
        self.peers.pop(broker, None)
        for lane in Lane:
            wire = self.wires.pop((broker, lane), None)
            if wire is not None:
                wire.close()

    def accept(self, accepted: Accepted) -> None:
        """A peer's HELLO is here."""
        if not accepted.wire.up or accepted.wire._accepted is not accepted:
            return
        if accepted.peer not in self.peers or not self._admits(accepted.peer, accepted.disk):
            accepted.open = False
            accepted.wire.reset()
            return
        for older in [old for old in self.incoming if (old.peer, old.wire.lane) == (accepted.peer, accepted.wire.lane)]:
            self.forget(older)
        self.incoming[accepted] = None

    def forget(self, accepted: Accepted) -> None:
        """An incoming connection is gone."""
        accepted.open = False
        if self.incoming.pop(accepted, self) is None:
            self.receiver.connection_closed(accepted)

    def admits(self, peer: BrokerId, disk: bytes) -> bool:
        """Return whether a peer comes from the disk it is registered with."""
        return self._admits(peer, disk)

    def check_disks(self) -> None:
        """Look at the open connections again."""
        for accepted in list(self.incoming):
            if not self._admits(accepted.peer, accepted.disk):
                self.forget(accepted)
                accepted.wire.reset()

    def disconnect(self, peer: BrokerId, lane: Lane) -> None:
        """Drop the outgoing connection."""
        wire = self.wires.get((peer, lane))
        if wire is not None:
            wire.reset()

    def pause_appends(self) -> None:
        """Read nothing from APPEND lanes until `resume_appends`."""
        self.network.mark("net.appends_paused")
        self.appends_paused = True

    def resume_appends(self) -> None:
        """Read the APPEND lanes again."""
        self.appends_paused = False
        for accepted in list(self.incoming):
            accepted.wire.resume(50_000)

    def dropped_frames(self) -> int:
        """Return how many frames were dropped because a buffer was full."""
        return 0
