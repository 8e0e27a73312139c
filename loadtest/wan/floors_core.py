"""What no mesh can be faster than, and what makes a run worthless. Pure.

Rule 1: publish -> deliver from one region to another takes at least half of their round trip; an acknowledgement by k
        regions at least the round trip to the (k-1)th nearest.
Rule 2: a run during which less than IDLE_SHARE_MIN of the CPU was idle, or the router was later than LAG_US_MAX, says
        nothing about the mesh: it is INVALID, which is neither a pass nor a miss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

IDLE_SHARE_MIN: Final = 0.25
LAG_US_MAX: Final = 2_000
Rtts = Mapping[frozenset[str], float]  # of each pair, in ms


def parse_pairs(text: str) -> dict[frozenset[str], float]:
    """Return the round trips in "us-eu=70ms,us-ap=150ms,eu-ap=120ms" (milliseconds only). Raises ValueError."""
    rtts = {}
    for item in text.split(","):
        names, _, duration = item.partition("=")
        one, other = names.split("-")
        rtts[frozenset((one, other))] = float(duration.removesuffix("ms"))
    return rtts


def one_way_ms(rtts: Rtts, source: str, destination: str) -> float:
    """Return the least time from one region to another, 0 within one."""
    return 0.0 if source == destination else rtts[frozenset((source, destination))] / 2


def acknowledgement_ms(rtts: Rtts, home: str, regions: int) -> float:
    """Return the least time until `regions` regions have a record and their home knows it."""
    others = sorted(rtt for pair, rtt in rtts.items() if home in pair)
    return others[regions - 2] if regions > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What the machine did during a run. `congestion_control`: what TCP used between the regions."""

    idle_share: float
    lag_us: int
    realtime: bool
    congestion_control: str

    @property
    def faults(self) -> list[str]:
        """Return why the run is worth nothing; empty when it counts."""
        found = []
        if self.idle_share < IDLE_SHARE_MIN:
            found.append(f"only {self.idle_share:.0%} of the CPU was idle")
        if self.lag_us > LAG_US_MAX:
            found.append(f"the router was up to {self.lag_us / 1_000:.1f} ms late")
        return found

    def describe(self) -> str:
        """Return one line."""
        verdict = f"INVALID: {', '.join(self.faults)}" if self.faults else "valid"
        return (
            f"{verdict}; idle CPU {self.idle_share:.0%}, router lag at most {self.lag_us / 1_000:.2f} ms"
            f"{'' if self.realtime else ' (no real-time priority)'}, congestion control {self.congestion_control}"
        )
