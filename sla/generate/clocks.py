"""The clocks of the world: what each region's clocks show, and what its brokers believe about the others.

A region's brokers share one clock. Every quantity is exact: tests compare reports with it. What a broker believes
about another region is (offset, error bound) as in `mesh.clock`: half of the round trip, or less when both hosts know
their distance from UTC. Half of a path's asymmetry stays invisible to it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sla.generate.request import FaultKind
from sla.generate.world import NS_PER_MS, NS_PER_S, NS_PER_US, Int64, World

HOST_ERROR_US: Final = 500  # of a host that is synchronised
USUAL_OFFSET_US: Final = 200
_NO_HOST_BOUND: Final = (FaultKind.WRONG_CLOCK, FaultKind.CLOCK_STEP)


class Clocks:
    """All clocks of a world."""

    def __init__(self, world: World) -> None:
        rng = np.random.default_rng([world.request.seed, 2])
        regions = len(world.regions)
        self._world = world
        offsets_us = rng.integers(-USUAL_OFFSET_US, USUAL_OFFSET_US + 1, regions).astype(np.int64)
        self._offset_ns: Int64 = offsets_us * NS_PER_US
        self._believed_ns: Int64 = self._offset_ns.copy()
        self._steps: list[tuple[int, int, int]] = []  # (region, true moment, ns)
        self.is_host_known: npt.NDArray[np.bool_] = np.full(regions, True)
        self._is_pair_known: npt.NDArray[np.bool_] = np.full((regions, regions), True)
        for fault in world.faults:
            region = world.number(fault.region) if fault.region else -1
            if fault.kind in (FaultKind.WRONG_CLOCK, FaultKind.CLOCK_REVISED):
                self._offset_ns[region] += fault.ms * NS_PER_MS
            if fault.kind is FaultKind.WRONG_CLOCK:
                self._believed_ns[region] += fault.ms * NS_PER_MS
            if fault.kind is FaultKind.CLOCK_STEP:
                self._steps.append((region, world.start_ns + fault.at_s * NS_PER_S, fault.ms * NS_PER_MS))
            if fault.kind in _NO_HOST_BOUND:
                self.is_host_known[region] = False
            if fault.kind is FaultKind.ASYMMETRIC_PATH:
                self.is_host_known[[region, world.number(fault.peer)]] = False
            if fault.kind is FaultKind.CLOCK_UNKNOWN:
                self._is_pair_known[region, :] = self._is_pair_known[:, region] = False
                self._is_pair_known[region, region] = True

    def shown(self, region: int | Int64, true_ns: Int64) -> Int64:
        """Return what the clocks of a region (of one region per element) show at true times."""
        return true_ns + self._offset_ns[region] + self._stepped(region, true_ns)

    def shown_at(self, region: int, true_ns: int) -> int:
        """Return what a region's clocks show at one true moment."""
        return int(self.shown(region, np.array([true_ns], dtype=np.int64))[0])

    def _stepped(self, region: int | Int64, true_ns: Int64) -> Int64:
        stepped = np.zeros(len(true_ns), dtype=np.int64)
        for set_region, at_ns, by_ns in self._steps:
            stepped += np.where((np.asarray(region) == set_region) & (true_ns >= at_ns), by_ns, 0)
        return stepped

    def exchanges(self, region: int, peer: int) -> bool:
        """Return whether brokers of `region` ask brokers of `peer` for their clock."""
        return bool(self._is_pair_known[region, peer])

    def correction_us(self, dest: int, origin: Int64, second: Int64) -> tuple[Int64, Int64]:
        """Return (offset, error) that a broker of `dest` uses for latencies that began in `origin` in a second.

        Both are in microseconds, one per element; an error of -1 says that nothing is known (the offset is 0 then).
        """
        # A step is noticed when the next histogram of the pair is begun: at the next second.
        at_ns = second * NS_PER_S
        offset_ns = self._believed_ns[origin] + self._stepped(origin, at_ns)
        offset_ns = offset_ns - self._believed_ns[dest] - self._stepped(dest, at_ns)
        delays = self._world.delay_ns
        asymmetry_ns = (delays[dest, origin] - delays[origin, dest]) // 2
        error_us = -(-((delays[dest, origin] + delays[origin, dest]) // 2) // NS_PER_US) + 1
        both_hosts = self.is_host_known[dest] & self.is_host_known[origin]
        error_us = np.where(both_hosts, np.minimum(error_us, 2 * HOST_ERROR_US), error_us)
        offset_us = np.where(both_hosts, offset_ns, offset_ns + asymmetry_ns) // NS_PER_US
        is_known = self._is_pair_known[dest, origin]
        is_same = np.asarray(origin) == dest
        error_us = np.where(is_same, 0, np.where(is_known, error_us, -1))
        return np.where(is_same | ~is_known, 0, offset_us).astype(np.int64), error_us.astype(np.int64)

    def is_revised(self, dest: int, origin: Int64, error_us: Int64) -> npt.NDArray[np.bool_]:
        """Return whether the exchanges of `dest` contradict the correction it uses by more than its bound."""
        wrong_ns = self._offset_ns - self._believed_ns
        moved_us = np.abs(wrong_ns[origin] - wrong_ns[dest]) // NS_PER_US
        is_moved: npt.NDArray[np.bool_] = (moved_us > error_us) & (error_us >= 0) & (origin != dest)
        return is_moved
