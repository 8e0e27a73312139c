"""The budget of bytes that batches unfold to, of all readers of a process that get records and no batches.

Rule 1: who reads takes what the batch may unfold to before it is unfolded, and gives back what it did not need.
Rule 2: whoever came first is served first; nothing is refused, a large batch cannot be passed by small ones for ever.
Rule 3: a reader that does not go on (its client is slow, or over its quota) keeps nothing that others wait for: after
        IDLE_S its batch is dropped, and it unfolds it again when it goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from georelay.limits import DECOMPRESSED_BATCH_BYTES_MAX, MIB

UNFOLDED_BYTES_MAX: Final = 512 * MIB
IDLE_S: Final = 1.0


class Share:
    """What one reader holds. `drop` is called when it is taken away; afterwards `is_lost`."""

    __slots__ = ("drop", "idle_since_s", "is_lost", "size_bytes")

    def __init__(self, size_bytes: int, drop: Callable[[], None]) -> None:
        self.size_bytes = size_bytes
        self.drop = drop
        self.idle_since_s: float | None = None  # None: it works with it
        self.is_lost = False


class UnfoldingMemory:
    """The shares of all readers.

    Attributes:
        used_bytes: taken. waits: how often a reader had to wait. dropped: batches that had to be unfolded again.
    """

    def __init__(self, limit_bytes: int = UNFOLDED_BYTES_MAX, *, idle_s: float = IDLE_S) -> None:
        self.limit_bytes = max(limit_bytes, DECOMPRESSED_BATCH_BYTES_MAX)  # one batch always fits
        self.used_bytes = 0
        self.waits = 0
        self.dropped = 0
        self._idle_s = idle_s
        self._shares: dict[Share, None] = {}
        self._waiting: deque[tuple[asyncio.Future[None], Share]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, size_bytes: int, drop: Callable[[], None]) -> Share:
        """Return a share of `size_bytes` (at most DECOMPRESSED_BATCH_BYTES_MAX) once there is room for it."""
        share = Share(min(size_bytes, DECOMPRESSED_BATCH_BYTES_MAX), drop)
        if not self._waiting and self._fits(share):
            self._grant(share)
            return share
        self.waits += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, share))
        self._look_later()
        try:
            await turn
        except asyncio.CancelledError:
            if share in self._shares:
                self.give(share)
            else:
                self._waiting.remove((turn, share))
                self._serve()
            raise
        return share

    def shrink(self, share: Share, size_bytes: int) -> None:
        """Keep `size_bytes` of a share and give back the rest."""
        if share in self._shares and size_bytes < share.size_bytes:
            self.used_bytes -= share.size_bytes - size_bytes
            share.size_bytes = size_bytes
            self._serve()

    def give(self, share: Share) -> None:
        """Give a share back. Safe to repeat."""
        if share in self._shares:
            del self._shares[share]
            self.used_bytes -= share.size_bytes
            self._serve()

    def _fits(self, share: Share) -> bool:
        return self.used_bytes + share.size_bytes <= self.limit_bytes

    def _grant(self, share: Share) -> None:
        self._shares[share] = None
        self.used_bytes += share.size_bytes

    def _serve(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            turn, share = self._waiting.popleft()
            if not turn.done():
                self._grant(share)
                turn.set_result(None)

    def _look_later(self) -> None:
        if self._timer is None or self._timer.cancelled():
            self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._look)

    def _look(self) -> None:
        """Take from those that do not go on, whoever stopped first, until the first that waits fits."""
        self._timer = None
        if not self._waiting:
            return
        before_s = asyncio.get_running_loop().time() - self._idle_s
        idle = [
            (share.idle_since_s, at, share)
            for at, share in enumerate(self._shares)
            if share.idle_since_s is not None and share.idle_since_s <= before_s
        ]
        for _, _, share in sorted(idle, key=lambda row: row[:2]):
            if not self._waiting or self._fits(self._waiting[0][1]):
                break
            share.is_lost = True
            self.dropped += 1
            share.drop()
            self.give(share)
        if self._waiting:
            self._look_later()


PROCESS_MEMORY: Final = UnfoldingMemory()
