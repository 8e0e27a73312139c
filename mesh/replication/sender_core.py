"""The home's side of one session: what to send next. Pure: the mirror's position is the only truth.

Rule 1: the sender holds no truth: it starts where HELLO says, and goes back to where GAP says.
Rule 2: no position means refuse, never "earliest".
Rule 3: bytes sent and not yet acknowledged stay within a window; one batch always fits.
Rule 4: nothing at or beyond the start of the epoch that follows the session's is sent.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence

from georelay.ids import Epoch, Offset
from georelay.limits import LINK_INFLIGHT_BYTES_MAX
from mesh.replication.link_state import PeerProtocolError
from mesh.replication.ports import EpochRow
from mesh.replication.receiver_core import following_row


class Refusal(enum.Enum):
    """Why a HELLO gets no session."""

    FENCED = "FENCED"  # the mirror has seen a newer epoch than this home
    NO_POSITION = "NO_POSITION"  # the home does not store what the mirror needs next
    AHEAD = "AHEAD"  # the mirror holds more than the home has committed
    DIVERGED = "DIVERGED"  # different records below the mirror's position


def refuse_hello(
    *, epoch: Epoch, next_offset: Offset, table: Sequence[EpochRow], high_watermark: Offset
) -> tuple[Refusal, str] | None:
    """Return why a mirror at (epoch, next_offset) gets no session, None if only its digest is left to check."""
    if epoch < 1:
        return Refusal.NO_POSITION, "the mirror has no epoch yet"
    newest = table[-1][0] if table else Epoch(0)
    if epoch > newest:
        return Refusal.FENCED, f"the mirror is in epoch {epoch}, this home in {newest}"
    if following_row(table, epoch) is None and next_offset > high_watermark:
        return Refusal.AHEAD, f"the mirror ends at {next_offset}, the home has committed up to {high_watermark}"
    return None


class SenderCore:
    """Position and window of one session.

    Invariants: 1 acked <= next_offset   2 in-flight rows rise   3 in_flight_bytes is their sum.
    """

    def __init__(
        self,
        *,
        next_offset: Offset,
        stop_at: Offset | None = None,
        window_bytes_max: int = LINK_INFLIGHT_BYTES_MAX,
    ) -> None:
        self.next_offset = next_offset
        self.acked = next_offset
        self.in_flight_bytes = 0
        self._stop_at = stop_at
        self._window_bytes_max = window_bytes_max
        self._in_flight: deque[tuple[Offset, int, int]] = deque()  # (next offset, bytes, append_us)
        self._records_sent = 0
        self._bytes_sent = 0

    def wants(self, high_watermark: Offset) -> int:
        """Return how many bytes to read from `next_offset`, 0 when there is nothing to send or no room."""
        end = high_watermark if self._stop_at is None else min(high_watermark, self._stop_at)
        if self.next_offset >= end:
            return 0
        return max(self._window_bytes_max - self.in_flight_bytes, 1 if not self._in_flight else 0)

    def takes(self, following: Offset) -> bool:
        """Return whether an entry that ends at `following` may be sent in this session."""
        return self._stop_at is None or following <= self._stop_at

    def sent(self, *, following: Offset, size_bytes: int, append_us: int) -> None:
        """Follow one batch handed to the link; it starts at `next_offset` and ends before `following`."""
        assert following > self.next_offset, (following, self.next_offset)
        self._records_sent += following - self.next_offset
        self._bytes_sent += size_bytes
        self.next_offset = following
        self._in_flight.append((following, size_bytes, append_us))
        self.in_flight_bytes += size_bytes

    def acknowledged(self, high_watermark: Offset) -> bool:
        """Follow the mirror's committed high watermark; return whether it moved.

        Raises:
            PeerProtocolError: it acknowledges what was never sent in this session.
        """
        if high_watermark <= self.acked:
            # At the start of a session the mirror may have entries that are not committed yet.
            return False
        if high_watermark > self.next_offset:
            raise PeerProtocolError(f"acknowledged {high_watermark}, sent up to {self.next_offset}")
        self.acked = high_watermark
        while self._in_flight and self._in_flight[0][0] <= high_watermark:
            self.in_flight_bytes -= self._in_flight.popleft()[1]
        return True

    def rewind(self, next_offset: Offset) -> None:
        """Follow a GAP: the mirror's log ends at `next_offset`.

        Raises:
            PeerProtocolError: below what it acknowledged or beyond what was sent.
        """
        if not self.acked <= next_offset <= self.next_offset:
            raise PeerProtocolError(f"asked for {next_offset}, acknowledged {self.acked}, sent {self.next_offset}")
        while self._in_flight and self._in_flight[-1][0] > next_offset:
            self.in_flight_bytes -= self._in_flight.pop()[1]
        self.next_offset = next_offset

    @property
    def oldest_append_us(self) -> int | None:
        """Return the append time of the oldest batch in flight, None when none is."""
        return self._in_flight[0][2] if self._in_flight else None

    def lag_bytes(self, high_watermark: Offset) -> int:
        """Return the bytes in flight plus an estimate (mean size so far) of those not sent yet."""
        unsent = max(high_watermark - self.next_offset, 0)
        mean = self._bytes_sent / self._records_sent if self._records_sent else 0.0
        return self.in_flight_bytes + int(unsent * mean)
