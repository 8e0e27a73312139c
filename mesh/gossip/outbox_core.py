"""Packets on their way out: every one takes along as many rumours as fit. Pure.

Rule 1: claims about members go before messages of the layer above: members that do not know each other cannot talk.
Rule 2: a packet never exceeds `messages_bytes_max`, unless one message alone does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mesh.gossip.broadcast_queue_core import BroadcastQueue
from mesh.gossip.codec import user_message
from mesh.gossip.compound import BODIES_MAX, ENTRY_BYTES, HEADER_BYTES, make_compound
from mesh.gossip.delegate import Delegate
from mesh.gossip.effects import Effect, SendPacket
from mesh.gossip.member import Address
from mesh.gossip.roster_core import Roster

USER_TYPE_BYTES: Final = 1


class Outbox:
    """Makes packets.

    Args:
        queue: claims about members.
        delegate: has rumours of its own.
        roster: its size says how often a rumour is told.
        effects: where packets go.
        messages_bytes_max: budget of one packet before its envelope.
    """

    def __init__(
        self,
        *,
        queue: BroadcastQueue,
        delegate: Delegate,
        roster: Roster,
        effects: list[Effect],
        messages_bytes_max: int,
    ) -> None:
        self._queue = queue
        self._delegate = delegate
        self._roster = roster
        self._effects = effects
        self._budget = messages_bytes_max - HEADER_BYTES

    def send(self, address: Address, bodies: Sequence[bytes], *, with_crc: bool = False) -> None:
        """Send messages in one packet, with rumours in what room is left."""
        used = sum(len(body) + ENTRY_BYTES for body in bodies)
        rumours = self._rumours(self._budget - used, BODIES_MAX - len(bodies))
        messages = make_compound([*bodies, *rumours])
        self._effects.append(SendPacket(address=address, messages=messages, with_crc=with_crc))

    @property
    def has_rumours(self) -> bool:
        """Return whether there is anything to tell on."""
        return len(self._queue) > 0 or self._delegate.has_broadcasts()

    def send_rumours(self, address: Address, *, with_crc: bool) -> bool:
        """Send rumours alone; return False, and send nothing, if there are none."""
        rumours = self._rumours(self._budget, BODIES_MAX)
        if not rumours:
            return False
        self._effects.append(SendPacket(address=address, messages=make_compound(rumours), with_crc=with_crc))
        return True

    def _rumours(self, limit_bytes: int, bodies_max: int) -> list[bytes]:
        found = self._queue.take(
            members=len(self._roster), overhead_bytes=ENTRY_BYTES, limit_bytes=limit_bytes, bodies_max=bodies_max
        )
        left = limit_bytes - sum(len(body) + ENTRY_BYTES for body in found)
        overhead = ENTRY_BYTES + USER_TYPE_BYTES
        if left > overhead and len(found) < bodies_max:
            above = self._delegate.user_broadcasts(overhead_bytes=overhead, limit_bytes=left)
            found += map(user_message, above[: bodies_max - len(found)])
        return found
