"""What the mesh promises, as numbers the report judges against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from georelay.trace.histogram import GOOD_US_MAX

THROUGHPUT_WINDOW_S: Final = 10
QUANTILES: Final = (0.5, 0.95, 0.99, 0.999)


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The targets of a report.

    Args:
        latency_ms: publish to deliver. Fixed at 50: the brokers count the records within it exactly.
        latency_share: share of the records of a region pair that must be within it, in (0, 1).
        delivered_per_s: records per second a region must deliver while at least as many are offered, > 0.
        offered_margin: a region is judged only if so many times the target was offered for the whole window;
            at exactly the target the seconds' edges would decide.
    """

    latency_ms: float = GOOD_US_MAX / 1_000
    latency_share: float = 0.99
    delivered_per_s: int = 1_000
    offered_margin: float = 1.05
