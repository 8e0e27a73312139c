"""Vivaldi: each member is a point; the distance of two points guesses their round trip. Pure.

Rule 1: nothing that is not finite gets in: a peer's coordinate is checked, and ours falls back to the start if an
        update made it so.
Rule 2: a round trip is the median of the last three to that member: one slow answer moves nobody.
Rule 3: samples are kept for MEMBERS_MAX members; the longest unheard one goes first.

Everything is in seconds. Source: Dabek et al., "Vivaldi: A Decentralized Network Coordinate System" (2004), with the
heights of its section 5.4; Ledlie et al., "Network Coordinates in the Wild" (2007), for filter, gravity, adjustment.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from mesh.gossip.faults import CoordinateFault
from mesh.gossip.randomness import Randomness

DIMENSIONS: Final = 8
ERROR_MAX: Final = 1.5
ERROR_SHARE: Final = 0.25  # CE of the paper: how fast the own error follows
MOVE_SHARE: Final = 0.25  # CC: how far one sample moves us
ADJUSTMENT_SAMPLES: Final = 20
HEIGHT_MIN_S: Final = 1e-5
FILTER_SAMPLES: Final = 3
GRAVITY_S: Final = 150.0
ZERO_S: Final = 1e-6
RTT_MAX_S: Final = 10.0
MEMBERS_MAX: Final = 4096
_VALUE_MAX_S: Final = 1e6  # a coordinate beyond it is no place on earth, and its square stays finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinate:
    """A point.

    Args:
        vec: its place, DIMENSIONS numbers.
        error: how wrong it may be, 0 (exact) to 1.5 (unknown); from 0.5 down it is worth a look.
        adjustment: mean of what distances missed lately.
        height: the way from the host to the net.
    """

    vec: tuple[float, ...]
    error: float
    adjustment: float
    height: float

    @classmethod
    def origin(cls) -> Coordinate:
        """Return where everybody starts."""
        return cls(vec=(0.0,) * DIMENSIONS, error=ERROR_MAX, adjustment=0.0, height=HEIGHT_MIN_S)

    def raw_distance_s(self, other: Coordinate) -> float:
        """Return the distance without adjustments."""
        return math.dist(self.vec, other.vec) + self.height + other.height

    def distance_s(self, other: Coordinate) -> float:
        """Return the guessed round trip."""
        raw = self.raw_distance_s(other)
        adjusted = raw + self.adjustment + other.adjustment
        return adjusted if adjusted > 0 else raw

    def fault(self) -> str:
        """Return why this cannot be a coordinate, "" if it can."""
        if len(self.vec) != DIMENSIONS:
            return f"a coordinate of {len(self.vec)} dimensions"
        numbers = (*self.vec, self.error, self.adjustment, self.height)
        if not all(math.isfinite(number) and abs(number) <= _VALUE_MAX_S for number in numbers):
            return "a coordinate with a number beyond all bounds"
        if self.error < 0 or self.height < 0:
            return "a coordinate with a negative error or height"
        return ""


_ORIGIN: Final = Coordinate.origin()


class CoordinateClient:
    """Our own coordinate, moved by every answered ping.

    Args:
        rng: chooses a direction when two members stand at one point.
    """

    def __init__(self, *, rng: Randomness) -> None:
        self._rng = rng
        self._samples: dict[str, deque[float]] = {}
        self._missed: deque[float] = deque(maxlen=ADJUSTMENT_SAMPLES)
        self.coordinate = _ORIGIN
        self.resets = 0  # times an update was not finite
        self.updates = 0

    def update(self, name: str, other: Coordinate, rtt_s: float) -> Coordinate:
        """Move by one measured round trip to a member.

        Args:
            name: of that member; its last samples are kept under it.
            other: its coordinate, as its ack said.
            rtt_s: 0..10.

        Returns:
            our new coordinate.

        Raises:
            CoordinateFault: the other's coordinate or the round trip cannot be true; nothing changed.
        """
        fault = other.fault()
        if fault:
            raise CoordinateFault(fault)
        if not 0 <= rtt_s <= RTT_MAX_S:  # NaN too
            raise CoordinateFault("a round trip that is negative or longer than 10 s")
        rtt_s = self._filtered(name, rtt_s)
        moved = self._attracted(other, rtt_s)
        moved = self._adjusted(moved, other, rtt_s)
        moved = self._pulled_home(moved)
        if moved.fault():
            self.resets += 1
            self._missed.clear()
            moved = _ORIGIN
        self.updates += 1
        self.coordinate = moved
        return moved

    def forget(self, name: str) -> None:
        """Drop the samples of a member that is erased."""
        self._samples.pop(name, None)

    def _filtered(self, name: str, rtt_s: float) -> float:
        samples = self._samples.pop(name, None)
        if samples is None:
            samples = deque(maxlen=FILTER_SAMPLES)
            if len(self._samples) >= MEMBERS_MAX:
                del self._samples[next(iter(self._samples))]
        samples.append(rtt_s)
        self._samples[name] = samples  # newest heard last
        return sorted(samples)[len(samples) // 2]

    def _attracted(self, other: Coordinate, rtt_s: float) -> Coordinate:
        own = self.coordinate
        rtt_s = max(rtt_s, ZERO_S)
        distance = own.distance_s(other)
        wrong = abs(distance - rtt_s) / rtt_s
        weight = own.error / max(own.error + other.error, ZERO_S)
        error = ERROR_SHARE * weight * wrong + own.error * (1 - ERROR_SHARE * weight)
        pushed = self._pushed(own, other, MOVE_SHARE * weight * (rtt_s - distance))
        return replace(pushed, error=min(ERROR_MAX, error))

    def _adjusted(self, own: Coordinate, other: Coordinate, rtt_s: float) -> Coordinate:
        self._missed.append(rtt_s - own.raw_distance_s(other))
        # Divided by the whole window even while it fills, as all members do.
        return replace(own, adjustment=sum(self._missed) / (2 * ADJUSTMENT_SAMPLES))

    def _pulled_home(self, own: Coordinate) -> Coordinate:
        # Without it the whole cloud drifts away from the origin.
        pull = (_ORIGIN.distance_s(own) / GRAVITY_S) ** 2
        return self._pushed(own, _ORIGIN, -pull)

    def _pushed(self, own: Coordinate, other: Coordinate, force: float) -> Coordinate:
        direction, distance = self._direction(own, other)
        vec = tuple(place + part * force for place, part in zip(own.vec, direction, strict=True))
        if distance <= ZERO_S:
            return replace(own, vec=vec)
        height = (own.height + other.height) * force / distance + own.height
        return replace(own, vec=vec, height=max(HEIGHT_MIN_S, height))

    def _direction(self, own: Coordinate, other: Coordinate) -> tuple[tuple[float, ...], float]:
        distance = math.dist(own.vec, other.vec)
        if distance > ZERO_S:
            return tuple((a - b) / distance for a, b in zip(own.vec, other.vec, strict=True)), distance
        drawn = tuple(self._rng.random() - 0.5 for _ in range(DIMENSIONS))
        length = math.hypot(*drawn)
        if length > ZERO_S:
            return tuple(part / length for part in drawn), 0.0
        return (1.0,) + (0.0,) * (DIMENSIONS - 1), 0.0
