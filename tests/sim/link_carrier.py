"""Links between regions: frames in order over the simulated network, one in the carrier's hands at a time.

Implements mesh.replication.link.Link, Dial and MakeListener. A blocked path holds frames; a killed process closes its
links; a machine without power says nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from georelay.ids import BrokerId
from mesh.replication.settings import GATHER_MS
from tests.sim.clockwork import NS_PER_MS, SimLoop
from tests.sim.network import Network

TAKEN_NS: Final = 60_000
CONNECT_TIMEOUT_NS: Final = 1_500 * NS_PER_MS
QUEUED_MAX: Final = 8  # frames on their way; beyond it the carrier takes no more


class LinkCarrier:
    """Every link of a world, by address of the listener."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.listeners: dict[str, SimListener] = {}
        self.links: dict[SimLink, None] = {}

    def dial(self, broker: BrokerId, loop: SimLoop, address: str) -> SimLink:
        """Return the dialling end of a new link."""
        return SimLink(self, broker, loop, address)

    def listener(self, broker: BrokerId, loop: SimLoop, accept: Callable[[Any], None]) -> SimListener:
        """Return what accepts links for a broker."""
        return SimListener(self, broker, loop, accept)

    def process_died(self, broker: BrokerId, *, silently: bool) -> None:
        """Forget a broker's links."""
        for address in [address for address, each in self.listeners.items() if each.broker == broker]:
            del self.listeners[address]
        for link in [link for link in self.links if link.broker == broker]:
            link.died(silently=silently)


class SimListener:
    """Implements mesh.replication.link.Listener."""

    def __init__(self, carrier: LinkCarrier, broker: BrokerId, loop: SimLoop, accept: Callable[[Any], None]) -> None:
        self.broker = broker
        self.loop = loop
        self.accept = accept
        self._carrier = carrier
        self._address = ""

    async def start(self, listen: str) -> int:
        """Accept links at "host:port"."""
        self._address = listen
        self._carrier.listeners[listen] = self
        return int(listen.rpartition(":")[2])

    async def stop(self) -> None:
        """Accept no more, and end what was accepted."""
        self._carrier.listeners.pop(self._address, None)
        for link in [link for link in self._carrier.links if link.accepted_by is self]:
            link.close("the listener stops")


class SimLink:
    """One end of a link."""

    gather_ms = GATHER_MS

    def __init__(self, carrier: LinkCarrier, broker: BrokerId, loop: SimLoop, address: str) -> None:
        self.broker = broker
        self.loop = loop
        self.peer = address
        self.peer_names: frozenset[str] | None = None
        self.accepted_by: SimListener | None = None
        self._carrier = carrier
        self._network = carrier.network
        self._receiver: Any = None
        self._other: SimLink | None = None
        self._target: BrokerId | None = None
        self._frame: bytes | None = None
        self._queue: deque[tuple[int, bytes]] = deque()
        self._last_ns = 0
        self._draining = self._stalled = False
        self._closed = False
        carrier.links[self] = None

    def quiet_ns(self) -> int | None:
        """Return None: the link itself says whether the other end lives."""
        return None

    def met(self) -> None:
        """Nothing to do: nobody here is a stranger."""

    @property
    def is_writable(self) -> bool:
        """Return whether the carrier takes a frame now."""
        return self._frame is None and not self._closed

    def start(self, receiver: Any) -> None:
        """Begin to receive; the dialling end connects."""
        self._receiver = receiver
        if self.accepted_by is not None:
            return
        listener = self._carrier.listeners.get(self.peer)
        network = self._network
        if listener is None or not network.is_open(self.broker, listener.broker):
            slow = listener is None or listener.broker in network.powered_off
            self._at(CONNECT_TIMEOUT_NS if slow else 2 * NS_PER_MS, self._failed, "unavailable")
            return
        delay = network.delay_ns(self.broker, listener.broker)
        network.clockwork.at(
            network.clockwork.now_ns + delay, listener.loop, listener.loop.run_now, self._accepted, listener
        )

    def _accepted(self, listener: SimListener) -> None:
        if self._closed or self.loop.dead or self._carrier.listeners.get(self.peer) is not listener:
            self._at(NS_PER_MS, self._failed, "refused")
            return
        other = SimLink(self._carrier, listener.broker, listener.loop, f"broker {self.broker}")
        other.accepted_by = listener
        other._other, other._target = self, self.broker
        listener.accept(other)
        self._at(self._network.delay_ns(listener.broker, self.broker), self._connected, other)

    def _connected(self, other: SimLink) -> None:
        if self._closed:
            other.hear_end("the other end closed")
            return
        self._other, self._target = other, other.broker
        if self._frame is not None:
            self._transmit()

    def _at(self, delay_ns: int, action: Callable[..., None], *arguments: Any) -> None:
        clockwork = self._network.clockwork
        clockwork.at(clockwork.now_ns + delay_ns, self.loop, self.loop.run_now, action, *arguments)

    # --- frames ---------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Hand over one frame."""
        assert self._frame is None, "a frame was sent while the one before is still in flight"
        if self._closed:
            return
        self._frame = frame
        if self._other is not None:
            self._transmit()

    def _transmit(self) -> None:
        frame = self._frame
        assert frame is not None and self._target is not None
        network = self._network
        when = max(network.clockwork.now_ns + network.delay_ns(self.broker, self._target), self._last_ns)
        self._last_ns = when
        self._queue.append((when, frame))
        if not self._draining and not self._stalled:
            self._schedule(when)
        if len(self._queue) < QUEUED_MAX:
            self._at(TAKEN_NS, self._taken)

    def _taken(self) -> None:
        if self._frame is not None and not self._closed:
            self._frame = None
            self._receiver.link_writable()

    def _schedule(self, when_ns: int) -> None:
        assert self._other is not None
        self._draining = True
        self._network.clockwork.at(when_ns, self._other.loop, self._drain)

    def _drain(self) -> None:
        self._draining = False
        other, target = self._other, self._target
        if other is None or other._closed or target is None:
            return
        network = self._network
        if network.path(self.broker, target).blocked:
            network.mark("link.stalled_frames")
            self._stalled = True
            network.stalled.append(self)
            return
        was_full = len(self._queue) >= QUEUED_MAX
        now = network.clockwork.now_ns
        while self._queue and self._queue[0][0] <= now:
            _, frame = self._queue.popleft()
            other.loop.run_now(other._arrived, frame)
        if self._queue:
            self._schedule(self._queue[0][0])
        if was_full and not self.loop.dead:
            self._at(TAKEN_NS, self._taken)

    def _arrived(self, frame: bytes) -> None:
        if not self._closed and self._receiver is not None:
            self._receiver.frame_received(frame)

    def resume(self, delay_ns: int) -> None:
        """The path is open again."""
        if self._stalled and self._other is not None and not self._closed:
            self._stalled = False
            when = self._network.clockwork.now_ns + delay_ns
            self._last_ns = max(self._last_ns, when)
            self._queue = deque((max(row[0], when), row[1]) for row in self._queue)
            if self._queue:
                self._schedule(when)

    # --- ends -----------------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """Close at once; the owner hears it in its next turn."""
        if self._closed:
            return
        self._end()
        self.loop.call_soon(self._tell, reason)
        other = self._other
        if other is not None and not other.loop.dead:
            other._at(self._network.delay_ns(self.broker, other.broker), other.hear_end, "the other end closed")

    def hear_end(self, reason: str) -> None:
        """The other end is gone."""
        if not self._closed:
            self._end()
            self._tell(reason)

    def _failed(self, reason: str) -> None:
        self.hear_end(reason)

    def _end(self) -> None:
        self._closed = True
        self._carrier.links.pop(self, None)
        self._queue.clear()

    def _tell(self, reason: str) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.link_closed(reason)

    def died(self, *, silently: bool) -> None:
        """Our process is gone."""
        self._end()
        other = self._other
        if other is not None and not silently and not other.loop.dead:
            other._at(self._network.delay_ns(self.broker, other.broker), other.hear_end, "reset")
