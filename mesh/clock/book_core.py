"""Every clock that this broker knows of, and what they say about a region: pure.

Rule 1: records carry the region that received them first, not the broker: a region's estimate covers the clocks of
        ALL its brokers. A peer says how far the clocks of its region are from its own at most (`spread`), so one
        exchange per region and second is enough.
Rule 2: the own region's spread covers every broker of it that has been reached; one that is not reachable for
        UNREACHED_NS stamps nothing that could arrive in time, and is left out. One that was never reached makes the
        spread unknown for that long.
Rule 3: unknown is None or -1, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from georelay.ids import BrokerId, RegionNumber, region_of
from mesh.clock.clock_core import DRIFT_PPM_MAX, ERROR_US_MAX, NS_PER_S, PeerClock
from mesh.clock.estimate import ClockEstimate, ClockRow, Exchange

UNREACHED_NS: Final = 30 * NS_PER_S
PEERS_MAX: Final = 4_096  # clocks known at a time; the configuration has fewer


class ClockBook:
    """Estimates by broker.

    Args:
        region: ours.
        broker: ours.
        override_us: bound of the clock error between any two brokers as configured, >= 0; it replaces every estimate
            (one host: 0). None: estimate.
    """

    def __init__(self, *, region: RegionNumber, broker: BrokerId, override_us: int | None = None) -> None:
        self._region = region
        self._broker = broker
        self._override_us = override_us
        self._clocks: dict[BrokerId, PeerClock] = {}
        self._seen_ns: dict[BrokerId, int] = {}  # last exchange, or since when we wait for one; monotonic
        self._now_ns = (0, 0)

    @property
    def is_overridden(self) -> bool:
        """Return whether a configured bound replaces the estimates."""
        return self._override_us is not None

    @property
    def steps(self) -> int:
        """Return how often any peer's clock was set, or ours against its."""
        return sum(clock.steps for clock in self._clocks.values())

    def tick(self, *, wall_ns: int, monotonic_ns: int, own_region: Sequence[BrokerId]) -> None:
        """Move to a moment; call it once per second.

        Args:
            own_region: the other brokers of our region.
        """
        self._now_ns = (wall_ns, monotonic_ns)
        for broker in own_region:
            self._seen_ns.setdefault(broker, monotonic_ns)
        for broker in [b for b in self._seen_ns if region_of(b) == self._region and b not in own_region]:
            self.forget(broker)

    def forget(self, broker: BrokerId) -> None:
        """Drop what is known of a broker that was removed."""
        self._clocks.pop(broker, None)
        self._seen_ns.pop(broker, None)

    def exchanged(self, broker: BrokerId, exchange: Exchange) -> bool:
        """Take one exchange with a broker in; False when its stamps cannot be."""
        clock = self._clocks.get(broker)
        if clock is None:
            if len(self._clocks) >= PEERS_MAX:
                return False
            clock = self._clocks[broker] = PeerClock()
        is_taken = clock.exchanged(exchange)
        if is_taken:
            self._seen_ns[broker] = exchange.monotonic4_ns
        return is_taken

    def spread_us(self) -> int:
        """Return how far any clock of our region is from ours at most, -1 unknown."""
        if self._override_us is not None:
            return self._override_us
        spread_us = 0
        for broker, seen_ns in self._seen_ns.items():
            if region_of(broker) != self._region or self._now_ns[1] - seen_ns > UNREACHED_NS:
                continue
            estimate = self._estimate(broker)
            if estimate is None:
                return -1
            spread_us = max(spread_us, abs(estimate.offset_us) + estimate.error_us)
        return spread_us

    def move_to(self, *, wall_ns: int, monotonic_ns: int) -> None:
        """Answer as of this moment from now on."""
        self._now_ns = (wall_ns, monotonic_ns)

    def offset_to(self, region: RegionNumber | int, *, for_ns: int = 0) -> ClockEstimate | None:
        """Return how the clocks of a region's brokers stand against ours, None unknown.

        Args:
            for_ns: the bound holds for so long from the moment of the last `tick` or `move_to` on.
        """
        estimate = self._offset_to(region)
        if estimate is None or estimate.error_us == 0 or self._override_us is not None:
            return estimate  # one clock, or what the configuration says: nothing drifts
        return replace(estimate, error_us=estimate.error_us + for_ns * DRIFT_PPM_MAX // 1_000_000_000)

    def _offset_to(self, region: RegionNumber | int) -> ClockEstimate | None:
        wall_ns, _ = self._now_ns
        if self._override_us is not None:
            return ClockEstimate(offset_us=0, error_us=self._override_us, drift_ppm=0.0, at_ns=wall_ns)
        if region == self._region:
            spread_us = self.spread_us()
            if spread_us < 0:
                return None
            return ClockEstimate(offset_us=0, error_us=spread_us, drift_ppm=0.0, at_ns=wall_ns)
        best: ClockEstimate | None = None
        for broker, clock in self._clocks.items():
            if region_of(broker) != region or clock.spread_us < 0:
                continue
            estimate = self._estimate(broker)
            if estimate is None or (best is not None and estimate.error_us + clock.spread_us >= best.error_us):
                continue
            best = ClockEstimate(
                offset_us=estimate.offset_us,
                error_us=estimate.error_us + clock.spread_us,
                drift_ppm=estimate.drift_ppm,
                at_ns=estimate.at_ns,
            )
        return None if best is None or best.error_us > ERROR_US_MAX else best

    def rows(self, regions: Sequence[RegionNumber]) -> list[ClockRow]:
        """Return one row per region, then one per broker whose clock was asked for."""
        rows = [
            ClockRow(
                region=region,
                broker=BrokerId(0),
                estimate=self.offset_to(region),
                rtt_us=self._rtt_us(region),
                spread_us=self.spread_us() if region == self._region else -1,
            )
            for region in regions
        ]
        for broker in sorted(self._clocks):
            clock = self._clocks[broker]
            rows.append(
                ClockRow(
                    region=region_of(broker),
                    broker=broker,
                    estimate=self._estimate(broker),
                    rtt_us=clock.rtt_us,
                    exchanges=clock.exchanges,
                    refused=clock.refused,
                    steps=clock.steps,
                    spread_us=clock.spread_us,
                )
            )
        return rows

    def _rtt_us(self, region: RegionNumber) -> int:
        known = [c.rtt_us for b, c in self._clocks.items() if region_of(b) == region and c.rtt_us >= 0]
        return min(known, default=-1)

    def _estimate(self, broker: BrokerId) -> ClockEstimate | None:
        clock = self._clocks.get(broker)
        wall_ns, monotonic_ns = self._now_ns
        return None if clock is None else clock.estimate(wall_ns=wall_ns, monotonic_ns=monotonic_ns)
