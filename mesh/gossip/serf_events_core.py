"""User events of one member: sent, heard once, told on (serf-wire 2.7). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from mesh.gossip.broadcast_queue_core import BroadcastQueue
from mesh.gossip.event_ring_core import EventRing
from mesh.gossip.lamport_core import LamportClock
from mesh.gossip.serf_effects import EventHeard, SerfEffect
from mesh.gossip.serf_messages import UserEvent
from mesh.gossip.serf_queries_core import TooLong

EVENT_BYTES_MAX: Final = 512


class SerfEvents:
    """Args:
    floor: events before it were heard in an earlier run. effects: where what is heard is put.
    """

    def __init__(self, *, clock: LamportClock, floor: int, queue: BroadcastQueue, effects: list[SerfEffect]) -> None:
        self.clock = clock
        self.queue = queue
        self._effects = effects
        self._ring: EventRing[tuple[str, bytes]] = EventRing()
        self._ring.raise_floor(floor)

    def send(self, name: str, payload: bytes, *, coalesce: bool) -> None:
        """See Serf.user_event."""
        event = UserEvent(ltime=self.clock.time, name=name, payload=payload, coalesce=coalesce)
        raw = event.encode()
        if len(raw) > EVENT_BYTES_MAX:
            raise TooLong(f"the event takes {len(raw)} bytes; an event may take {EVENT_BYTES_MAX}")
        self.heard(event, raw)

    def heard(self, event: UserEvent, raw: bytes) -> None:
        """Take in an event, ours included; `raw` is told on if it is news."""
        self.clock.witness(event.ltime)
        if not self._ring.accept(event.ltime, (event.name, event.payload), clock=self.clock.time):
            return
        self._effects.append(EventHeard(event.name, event.payload, event.ltime, event.coalesce))
        self.queue.push(raw)

    def merge(self, events: Iterable[tuple[int, Sequence[tuple[str, bytes]]]]) -> None:
        """Take in the events that another member remembers."""
        for ltime, rows in events:
            for name, payload in rows:
                event = UserEvent(ltime=ltime, name=name, payload=payload)
                self.heard(event, event.encode())

    def remembered(self) -> list[tuple[int, Sequence[tuple[str, bytes]]]]:
        """Return the events of the last times, by time."""
        return list(self._ring.slots())

    def raise_floor(self, ltime: int) -> None:
        """Take events before `ltime` for old."""
        self._ring.raise_floor(ltime)
