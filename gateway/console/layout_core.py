"""Where regions stand on the picture: their distances are the measured round trips, as well as a plane allows. Pure.

Stress majorization (SMACOF: de Leeuw 1977, doi.org/10.1007/978-94-009-9610-2_11): from the last picture, or a ring,
every region moves to the mean of where the others want it; each step brings the distances nearer to the round trips.
Begun from the last picture a region never jumps because another one came.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

STEPS: Final = 100
UNMEASURED_MS: Final = 100.0  # when no pair was measured
LEAST_MS: Final = 0.05  # two regions are never one point

Point = tuple[float, float]


def layout(
    names: Sequence[str], rtts_ms: Mapping[tuple[str, str], float], before: Mapping[str, Point] | None = None
) -> dict[str, Point]:
    """Return (x, y) of every region in ms, around (0, 0); pairs without a measurement stand at the mean distance."""
    if not names:
        return {}
    known = [rtt for pair, rtt in rtts_ms.items() if pair[0] in names and pair[1] in names]
    usual = sum(known) / len(known) if known else UNMEASURED_MS
    points = _begin(names, max(usual, LEAST_MS), before or {})
    for _ in range(STEPS):
        points = [
            _moved(
                here, [(points[j], _wanted(names[i], names[j], rtts_ms, usual)) for j in range(len(names)) if j != i]
            )
            for i, here in enumerate(points)
        ]
    middle_x, middle_y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    return {name: (round(x - middle_x, 3), round(y - middle_y, 3)) for name, (x, y) in zip(names, points, strict=True)}


def _begin(names: Sequence[str], size: float, before: Mapping[str, Point]) -> list[Point]:
    ring = [
        (size / 2 * math.cos(angle), size / 2 * math.sin(angle))
        for angle in (math.tau * place / len(names) - math.pi / 2 for place in range(len(names)))
    ]
    return [before.get(name, point) for name, point in zip(names, ring, strict=True)]


def _wanted(one: str, other: str, rtts_ms: Mapping[tuple[str, str], float], usual: float) -> float:
    return max(LEAST_MS, rtts_ms.get((one, other), rtts_ms.get((other, one), usual)))


def _moved(here: Point, others: Sequence[tuple[Point, float]]) -> Point:
    """Return the mean of the points at the wanted distances from the others, towards where one stands."""
    if not others:
        return here
    x = y = 0.0
    for place, ((other_x, other_y), wanted) in enumerate(others):
        far = math.hypot(here[0] - other_x, here[1] - other_y)
        if far > 0:
            x += other_x + wanted * (here[0] - other_x) / far
            y += other_y + wanted * (here[1] - other_y) / far
        else:  # two at one point part in a direction that is the same each time
            x += other_x + wanted * math.cos(place)
            y += other_y + wanted * math.sin(place)
    return x / len(others), y / len(others)
