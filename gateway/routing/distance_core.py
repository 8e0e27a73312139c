"""How far a client is from each region: the best of what was measured, with how wrong it may be. Pure; milliseconds.

Rule 1: what the kernel of this gateway measured on the client's own connection cannot be made up by the client, and
        counts before what the client says. What it says of other regions, and what gateways there say of its prefix, is
        bounded by the triangle of client, gateway and region, with room for routes that are no straight lines.
Rule 2: what was measured comes before what others of the client's prefix have, that before what the links between
        regions allow, and coordinates are only a prior. Each is used with its error.
Rule 3: of a client that nothing is known about this gateway's own distances are the best guess.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Final

from mesh.distance.prefix_table_core import PrefixDistance

OBSERVED_LOW_SHARE: Final = 0.5  # of the shortest way that the triangle allows
OBSERVED_HIGH_SHARE: Final = 3.0  # of the longest one
NEAR_MS: Final = 2.0  # a region this near to the gateway is where the gateway is
KERNEL_ERROR_MS: Final = 0.5  # of a window minimum (measured: 0.3 ms on a quiet path of 40 ms)
OBSERVED_ERROR_MS: Final = 1.0  # of a median of at least three warm exchanges
COORDINATE_ERROR_SHARE: Final = 0.3  # what is usual on the internet, see mesh/gossip/coordinate_core.py
UNPLACED_ERROR_SHARE: Final = 0.3  # a client that was never seen is somewhere around this gateway


class Source(enum.Enum):
    """Where an estimate comes from, the best first."""

    KERNEL = "kernel"  # TCP_INFO of the client's own connection to a gateway in that region
    OBSERVED = "observed"  # what the client measured itself, bounded
    PREFIX = "prefix"  # median of others of its prefix, seen by a gateway in that region
    LINKS = "links"  # kernel to this gateway, and measured from here to that region
    GATEWAY = "gateway"  # this gateway's own distance: the client was never seen
    COORDINATES = "coordinates"  # a prior of gossip, nothing was measured
    NOTHING = "nothing"

    @property
    def is_of_the_client(self) -> bool:
        """Return whether this says something about the client, and not only about where the gateway is."""
        return self in (Source.KERNEL, Source.OBSERVED, Source.PREFIX, Source.LINKS)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Round trip to one region, ms, and how wrong it may be. Infinite: nothing is known."""

    rtt_ms: float
    error_ms: float
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """The way from this gateway to one region. `is_measured`: by probes; else by coordinates."""

    rtt_ms: float
    is_measured: bool = True


UNKNOWN: Final = Estimate(math.inf, math.inf, Source.NOTHING)


def estimate(
    *,
    leg: Leg | None,
    kernel_ms: float | None = None,
    observed_ms: float | None = None,
    far: PrefixDistance | None = None,
) -> Estimate:
    """Return the estimate of a client's round trip to one region.

    Args:
        leg: from this gateway to the region; None: not known.
        kernel_ms: round trip client to this gateway, by the kernel. observed_ms: to the region, as the client says.
        far: of the client's prefix, as gateways in the region measured it.
    """
    measured = leg is not None and leg.is_measured
    if kernel_ms is not None and measured and leg is not None and leg.rtt_ms <= NEAR_MS:
        return Estimate(kernel_ms + leg.rtt_ms, KERNEL_ERROR_MS + leg.rtt_ms, Source.KERNEL)
    low_ms, high_ms = _bounds(leg.rtt_ms if measured and leg is not None else None, kernel_ms)
    if observed_ms is not None:
        clamped_ms = min(max(observed_ms, OBSERVED_LOW_SHARE * low_ms), OBSERVED_HIGH_SHARE * high_ms)
        return Estimate(clamped_ms, OBSERVED_ERROR_MS, Source.OBSERVED)
    if far is not None:
        clamped_ms = min(max(far.rtt_ms, OBSERVED_LOW_SHARE * low_ms), OBSERVED_HIGH_SHARE * high_ms)
        return Estimate(clamped_ms, max(far.error_ms, abs(clamped_ms - far.rtt_ms)), Source.PREFIX)
    if leg is None:
        return UNKNOWN
    if not leg.is_measured:
        guess_ms = max(leg.rtt_ms, kernel_ms or 0.0)
        return Estimate(guess_ms, max(guess_ms * COORDINATE_ERROR_SHARE, kernel_ms or 0.0), Source.COORDINATES)
    if kernel_ms is None:
        return Estimate(leg.rtt_ms, leg.rtt_ms * UNPLACED_ERROR_SHARE, Source.GATEWAY)
    return Estimate((low_ms + high_ms) / 2, max(KERNEL_ERROR_MS, (high_ms - low_ms) / 2), Source.LINKS)


def _bounds(leg_ms: float | None, kernel_ms: float | None) -> tuple[float, float]:
    """Return what the triangle of client, gateway and region allows."""
    if leg_ms is None or kernel_ms is None:
        return 0.0, math.inf
    return abs(leg_ms - kernel_ms), leg_ms + kernel_ms
