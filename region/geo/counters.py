"""Plain counters of geo acknowledgements; region.geo.metrics shows them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class LevelOutcome(StrEnum):
    """What became of a publish that asked for more than its home."""

    REACHED = "reached"  # in as many regions as were asked for, in time
    PENDING = "pending"  # stored at its home, not in enough regions in time
    FAILED = "failed"  # not stored, or its outcome is unknown


class Refusal(StrEnum):
    """Why the home did not take a publish."""

    TOO_FEW_LIVE = "too_few_live"
    LAG = "lag"
    TOO_FEW_REGIONS = "too_few_regions"


@dataclass(slots=True)
class GeoCounters:
    """Of one broker, since its start; levels are numbers of regions."""

    publishes: Counter[tuple[int, LevelOutcome]] = field(default_factory=Counter)
    refusals: Counter[Refusal] = field(default_factory=Counter)
    slowed: int = 0  # publishes answered later because regions lag
