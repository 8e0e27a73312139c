"""Round trips of one connection as the kernel has them (values only)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSample:
    """A connection as it is now. `is_young`: so few segments came that the smoothed round trip has not settled."""

    srtt_ms: float
    min_rtt_ms: float
    last_ack_s: float
    is_young: bool = False
