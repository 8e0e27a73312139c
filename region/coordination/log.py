"""What a part is given of its coordinator: the log that it proposes to, clocks and timers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from georelay.errors import Unavailable
from georelay.ids import RaftIndex, RegionNumber
from region.coordination.part import Part


class TimerHandle(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Forget it; harmless when it has happened."""


class CoordinatorLog(Protocol):
    """The replicated log of one coordinator, as one part sees it."""

    @property
    def partition(self) -> int:
        """Return the partition of the internal topic, 0-based."""

    @property
    def origin(self) -> RegionNumber:
        """Return the region that began it: what it keeps was named by clients of that region."""

    @property
    def feature_level(self) -> int:
        """Return what the brokers of this region all understand."""

    def is_understood(self, level: int) -> bool:
        """Return whether every broker that follows this log, in every region, is known to be at a feature level."""

    @property
    def is_leader(self) -> bool:
        """Return whether this broker leads and has applied everything that was acknowledged."""

    def propose(self, part: Part, command: bytes, *, shrinks: bool = False) -> asyncio.Future[RaftIndex]:
        """Append one command; the future resolves after `apply` has seen it here, in the order of the proposals.

        Args:
            shrinks: it deletes or ends something, so it is taken also while the state is over PART_SNAPSHOT_BYTES_MAX.

        Raises:
            at once, not stored: NotLeader; Busy: too much waits, or the state is too large; DiskFull; TooLarge: over
            COMMAND_BYTES_MAX; Unavailable: this region has brokers of a version that does not know coordinators.
            in the future: OutcomeUnknown: the leader changed, `apply` may see it yet; NotLeader, Busy: not stored.
        """

    def now_us(self) -> int:
        """Return this broker's wall clock, us since 1970; at the leader never behind the log's newest append time."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds from an arbitrary origin; never goes back."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        """Call `callback` on the event loop after `delay_s`, unless it is cancelled before."""


def check_level(log: CoordinatorLog, needed: int) -> None:
    """Refuse a command that brokers of this region may not understand (Unavailable)."""
    if log.feature_level < needed:
        known = log.feature_level
        raise Unavailable(f"this needs feature level {needed}, this region is at {known}: upgrade all its brokers")
