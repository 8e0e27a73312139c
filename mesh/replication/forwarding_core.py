"""One ordered forward lane, and its guard at the other end. Pure: no clock, no sockets, no futures.

A lane carries the batches of one publisher (a client connection) for one stream to the leader of its home.

Rule 1: batches are sent in the order they were submitted, pipelined, over one link at a time.
Rule 2: a batch is sent again only after a definite "not stored, the leader (or the home) is elsewhere", never after an
        ambiguous failure: whoever published it must decide.
Rule 3: once a batch failed, nothing behind it may be stored before the publisher knows: the receiving side refuses
        the rest of the lane's generation (LaneGuard), the lane drains, fails what is behind it, and begins a new
        generation.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from georelay.limits import FORWARDS_IN_FLIGHT_MAX

# Answers that were given up on may still be in flight, so the guard remembers longer than the window.
GUARD_REMEMBERS: Final = 4 * FORWARDS_IN_FLIGHT_MAX


class Refusal(enum.Enum):
    """What a definite failure means for the lane."""

    LEADER_MOVED = "leader_moved"  # not stored; the same batch may go to the leader
    LANE_RESET = "lane_reset"  # not looked at: one before it in its generation failed
    FAILED = "failed"  # failed, and the publisher may send it again: nothing may overtake it
    REJECTED = "rejected"  # this batch is wrong for good; the others do not depend on it


class Failure(enum.Enum):
    """What the publisher is told."""

    OWN = "own"  # the error that came for this batch
    BEHIND = "behind"  # not stored: one before it failed
    UNKNOWN = "unknown"  # sent, no answer: it may be stored
    NOT_SENT = "not_sent"


class LaneState(enum.Enum):
    """What a lane does with what is submitted."""

    FLOWING = "flowing"  # sends at once
    RETRYING = "retrying"  # the leader moved: waits for every answer, then sends the refused ones again, in order
    DRAINING = "draining"  # one failed: waits for every answer, then begins anew


@dataclass(frozen=True, slots=True)
class Failed:
    """Tell the publisher of `batch`."""

    batch: int
    failure: Failure


class LaneCore:
    """Order and generation of one lane; batches are numbers that rise with submission.

    Invariants: 1 every submitted batch is in exactly one of waiting, in flight, again, or ended.
                2 waiting is in order, and behind everything in flight and again.
    """

    def __init__(self) -> None:
        self.state = LaneState.FLOWING
        self.generation = 1
        self._waiting: list[int] = []
        self._in_flight: dict[int, None] = {}
        self._again: list[int] = []

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is left to answer."""
        return not (self._waiting or self._in_flight or self._again)

    @property
    def is_flying(self) -> bool:
        """Return whether answers are awaited: the lane must stay on its link."""
        return bool(self._in_flight)

    @property
    def is_retrying(self) -> bool:
        """Return whether batches were refused that go again, ahead of what is in flight now."""
        return self.state is LaneState.RETRYING

    @property
    def has_waiting(self) -> bool:
        """Return whether batches wait to be sent."""
        return bool(self._waiting)

    def submit(self, batch: int) -> None:
        """Take one batch, behind all others."""
        self._waiting.append(batch)

    def take(self) -> list[int]:
        """Return the batches to send now, in order; they are in flight from here on."""
        if self.state is not LaneState.FLOWING:
            return []
        batches, self._waiting = self._waiting, []
        self._in_flight.update(dict.fromkeys(batches))
        return batches

    def stored(self, batch: int) -> None:
        """Follow the answer of a batch that is committed."""
        self._in_flight.pop(batch, None)
        self._settle()

    def refused(self, batch: int, refusal: Refusal) -> list[Failed]:
        """Follow a definite failure."""
        if batch not in self._in_flight:
            return []
        del self._in_flight[batch]
        told: list[Failed] = []
        if refusal is Refusal.REJECTED:
            told = [Failed(batch, Failure.OWN)]
        elif refusal is Refusal.FAILED:
            told = [Failed(batch, Failure.OWN), *self._fail_behind()]
        elif self.state is LaneState.DRAINING:
            told = [Failed(batch, Failure.BEHIND)]
        else:
            self.state = LaneState.RETRYING
            self._again.append(batch)
        self._settle()
        return told

    def lost(self) -> list[Failed]:
        """Follow the loss of the link or of patience: everything in flight has an unknown outcome."""
        told = [Failed(batch, Failure.UNKNOWN) for batch in self._in_flight]
        # What is again in line was refused for certain, and what waits was never sent.
        told += [Failed(batch, Failure.BEHIND if told else Failure.NOT_SENT) for batch in self._again]
        told += [Failed(batch, Failure.BEHIND if told else Failure.NOT_SENT) for batch in self._waiting]
        self._in_flight.clear()
        self._again.clear()
        self._waiting.clear()
        self.state = LaneState.FLOWING
        self.generation += 1
        return sorted(told, key=lambda row: row.batch)

    def _fail_behind(self) -> list[Failed]:
        self.state = LaneState.DRAINING
        behind = sorted([*self._again, *self._waiting])
        self._again.clear()
        self._waiting.clear()
        return [Failed(batch, Failure.BEHIND) for batch in behind]

    def _settle(self) -> None:
        if self._in_flight or self.state is LaneState.FLOWING:
            return
        self._waiting = sorted(self._again) + self._waiting
        self._again = []
        self.generation += 1
        self.state = LaneState.FLOWING


class LaneGuard:
    """The receiving end: refuses what is behind a failed batch of the same generation.

    A row is needed only until everything that was in flight when its batch failed has arrived, so rows end after
    GUARD_REMEMBERS further batches and there are never more.
    """

    def __init__(self) -> None:
        self._failed: OrderedDict[int, tuple[int, int]] = OrderedDict()  # lane -> (generation, received then)
        self._received = 0

    def admits(self, lane: int, generation: int) -> bool:
        """Return whether a batch of this lane and generation may be looked at; call once per batch, in order."""
        self._received += 1
        while self._failed:
            oldest, (_, received) = next(iter(self._failed.items()))
            if self._received - received <= GUARD_REMEMBERS:
                break
            del self._failed[oldest]
        row = self._failed.get(lane)
        return row is None or generation > row[0]

    def failed(self, lane: int, generation: int) -> None:
        """Remember that a batch of this generation failed."""
        row = self._failed.get(lane)
        if row is None or generation > row[0]:
            self._failed.pop(lane, None)
            self._failed[lane] = (generation, self._received)
