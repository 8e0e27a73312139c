"""Rumours waiting to be told: each is sent a bounded number of times, the least told first.

Rule 1: order: fewest sends, then longest (it is the hardest to fit), then newest. What does not fit is passed over.
Rule 2: a rumour goes after `retransmit_mult * ceil(log10(members + 1))` sends: by then all have heard it.
Rule 3: a newer rumour under the same key replaces the older one, which is void.
Rule 4: at most `entries_max` rumours: the most told and shortest one goes for a new one.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from typing import Final, NamedTuple

ENTRIES_MAX: Final = 4096
BODIES_MAX: Final = 127  # of one compound


class _Rank(NamedTuple):
    """Position of a rumour; smaller is told sooner."""

    sends: int
    minus_length: int
    minus_ticket: int


class BroadcastQueue:
    """Rumours of one kind.

    Args:
        retransmit_mult: `Timing.retransmit_mult`.
        entries_max: bound of the queue.
    """

    def __init__(self, *, retransmit_mult: int, entries_max: int = ENTRIES_MAX) -> None:
        self._mult = retransmit_mult
        self._entries_max = entries_max
        self._order: list[_Rank] = []
        self._bodies: dict[int, bytes] = {}
        self._ranks: dict[int, _Rank] = {}
        self._keys: dict[int, str] = {}
        self._by_key: dict[str, int] = {}
        self._finished: deque[int] = deque(maxlen=entries_max)
        self._tickets = 0
        self.dropped = 0  # by the bound or by prune(), before they were told often enough

    def __len__(self) -> int:
        return len(self._order)

    def push(self, body: bytes, *, key: str | None = None) -> int:
        """Queue a rumour.

        Args:
            body: the message.
            key: whom or what it is about; replaces an older one with the same key.

        Returns:
            a ticket for `is_pending` and `finished`.
        """
        if key is not None and key in self._by_key:
            self._finish(self._by_key[key])
        if len(self._order) >= self._entries_max:
            self.prune(self._entries_max - 1)
        self._tickets += 1
        ticket = self._tickets
        self._bodies[ticket] = body
        if key is not None:
            self._keys[ticket] = key
            self._by_key[key] = ticket
        self._rank(ticket, 0)
        return ticket

    def take(self, *, members: int, overhead_bytes: int, limit_bytes: int, bodies_max: int = BODIES_MAX) -> list[bytes]:
        """Return rumours for one packet and count them as sent once more.

        Args:
            members: of the pool.
            overhead_bytes: what each costs beside its bytes.
            limit_bytes: what all may cost.
            bodies_max: most rumours to return.
        """
        sends_max = self._mult * math.ceil(math.log10(members + 1))
        chosen: list[_Rank] = []
        for rank in self._order:
            if len(chosen) >= bodies_max or limit_bytes <= overhead_bytes:
                break
            cost = overhead_bytes - rank.minus_length
            if cost <= limit_bytes:
                chosen.append(rank)
                limit_bytes -= cost
        bodies = []
        for rank in chosen:
            ticket = -rank.minus_ticket
            bodies.append(self._bodies[ticket])
            if rank.sends + 1 >= sends_max:
                self._finish(ticket)
            else:
                self._unrank(ticket)
                self._rank(ticket, rank.sends + 1)
        return bodies

    def is_pending(self, ticket: int) -> bool:
        """Return whether the rumour is still to be told."""
        return ticket in self._bodies

    def finished(self) -> list[int]:
        """Return the tickets that went since the last call: told often enough, replaced or dropped."""
        gone = list(self._finished)
        self._finished.clear()
        return gone

    def prune(self, keep: int) -> int:
        """Drop the most told rumours until at most `keep` are left; return how many went."""
        surplus = self._order[max(0, keep) :]
        for rank in surplus:
            self._finish(-rank.minus_ticket)
        self.dropped += len(surplus)
        return len(surplus)

    def clear(self) -> None:
        """Drop everything."""
        for rank in list(self._order):
            self._finish(-rank.minus_ticket)

    def _rank(self, ticket: int, sends: int) -> None:
        rank = _Rank(sends, -len(self._bodies[ticket]), -ticket)
        self._ranks[ticket] = rank
        bisect.insort(self._order, rank)

    def _unrank(self, ticket: int) -> None:
        rank = self._ranks.pop(ticket)
        del self._order[bisect.bisect_left(self._order, rank)]

    def _finish(self, ticket: int) -> None:
        self._unrank(ticket)
        del self._bodies[ticket]
        key = self._keys.pop(ticket, None)
        if key is not None:
            del self._by_key[key]
        self._finished.append(ticket)
