"""The clock of one broker, estimated from exchanges with it: pure, every time is an argument.

Rule 1: the bound is hard. An exchange proves that the peer's clock minus ours was within theta ± delta / 2, however
        unequal the two ways were; every later moment widens that by DRIFT_PPM_MAX. The proven interval is the
        intersection of all exchanges; nothing statistical ever makes it narrower.
Rule 2: the estimate inside it is a line through the exchanges with the shortest round trips of the last 60 s: what
        queues added to one way shows up as a longer round trip (Mills, RFC 5905 section 10; drift must be fitted, or
        20 ppm are 1.2 ms within the window).
Rule 3: two hosts that both know how far they are from UTC tighten the interval by the sum of the two; where that
        contradicts the exchanges, a host is wrong about itself and the exchanges win (`host_contradicts`).
Rule 4: an exchange that contradicts the proven interval means that a clock was set: everything older is forgotten.

Everything is kept against our MONOTONIC clock, so that a step of our own wall clock moves nothing but the answer. Half
of the asymmetry of a path stays invisible to any exchange: it is in the bound, never in the estimate.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from mesh.clock.estimate import ClockEstimate, Exchange

NS_PER_US: Final = 1_000
NS_PER_S: Final = 1_000_000_000
WINDOW_NS: Final = 60 * NS_PER_S
SAMPLES_MAX: Final = 120  # of the window: one a second, and room for a clock that runs fast
DRIFT_PPM_MAX: Final = 1_000  # two kernels, each slewing by at most 500 ppm (MAXFREQ, include/linux/timex.h)
LOWEST_SHARE: Final = 8  # the line goes through the lowest 1/8 of the round trips ...
LOWEST_MIN: Final = 4  # ... but not through fewer than these
SPREAD_FOR_DRIFT_NS: Final = 10 * NS_PER_S  # what a drift is fitted over at least
ROUND_TRIP_NS_MAX: Final = 10 * NS_PER_S  # a longer one tells nothing
ERROR_US_MAX: Final = 1_000_000  # beyond it nothing is known


@dataclass(frozen=True, slots=True)
class _Sample:
    at_ns: int  # our monotonic clock, middle of the round trip
    theta_ns: int  # the peer's wall clock minus our monotonic clock
    delta_ns: int


class PeerClock:
    """What the exchanges with one broker say.

    Attributes:
        exchanges, refused, steps: counts since the start.
        spread_us: how far any clock of the peer's region is from the peer's at most, -1 unknown.
        host_contradicts: at the last estimate, a host's own bound contradicted the exchanges.
    """

    __slots__ = (
        "_drift",
        "_high_ns",
        "_host_ns",
        "_low_ns",
        "_newest",
        "_proven_at_ns",
        "_samples",
        "_theta_at_ns",
        "_theta_ns",
        "_wall_at_ns",
        "exchanges",
        "host_contradicts",
        "refused",
        "spread_us",
        "steps",
    )

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES_MAX)
        self._newest: _Sample | None = None
        self._wall_at_ns = 0
        self._low_ns = self._high_ns = self._proven_at_ns = 0  # the proven interval, and when it held
        self._theta_ns = 0.0  # the line: theta at _theta_at_ns, and its slope
        self._theta_at_ns = 0
        self._drift = 0.0
        self._host_ns = -1  # both hosts' bounds against UTC together, -1 unknown
        self.spread_us = -1
        self.exchanges = 0
        self.refused = 0
        self.steps = 0
        self.host_contradicts = False

    @property
    def rtt_us(self) -> int:
        """Return the shortest round trip of the window, -1 without one."""
        return min((sample.delta_ns for sample in self._samples), default=-NS_PER_US) // NS_PER_US

    def exchanged(self, exchange: Exchange) -> bool:
        """Take one exchange in; False when its stamps cannot be (a hostile or broken peer, or one that was set)."""
        delta_ns = exchange.delta_ns
        if exchange.t3_ns < exchange.t2_ns or not 0 <= delta_ns <= ROUND_TRIP_NS_MAX:
            self.refused += 1
            return False
        middle_ns = (exchange.monotonic1_ns + exchange.monotonic4_ns) // 2
        # Both of the peer's stamps against the middle of our monotonic ones: our wall clock has no part in it.
        theta_ns = (exchange.t2_ns + exchange.t3_ns) // 2 - middle_ns
        sample = _Sample(middle_ns, theta_ns, delta_ns)
        self.exchanges += 1
        self._prove(sample)
        self._samples.append(sample)
        while self._samples[0].at_ns < middle_ns - WINDOW_NS:
            self._samples.popleft()
        self._fit()
        self._newest = sample
        self._wall_at_ns = exchange.t4_ns
        self.spread_us = exchange.spread_us
        hosts = (exchange.host_error_us, exchange.peer_host_error_us)
        self._host_ns = -1 if min(hosts) < 0 else sum(hosts) * NS_PER_US
        return True

    def estimate(self, *, wall_ns: int, monotonic_ns: int) -> ClockEstimate | None:
        """Return what is known now; None before the first exchange, and when it says less than ERROR_US_MAX.

        Args:
            wall_ns, monotonic_ns: our clocks, read together.
        """
        if self._newest is None:
            return None
        shift_ns = monotonic_ns - wall_ns  # from "against our monotonic clock" to "against our wall clock"
        grown_ns = _drifted(monotonic_ns - self._proven_at_ns)
        low_ns, high_ns = self._low_ns - grown_ns + shift_ns, self._high_ns + grown_ns + shift_ns
        fitted_ns = int(self._theta_ns + self._drift * (monotonic_ns - self._theta_at_ns)) + shift_ns
        if self._host_ns >= 0:
            host_ns = self._host_ns + _drifted(monotonic_ns - self._newest.at_ns)
            tight_low, tight_high = max(low_ns, -host_ns), min(high_ns, host_ns)
            self.host_contradicts = tight_low > tight_high
            if not self.host_contradicts and tight_high - tight_low < high_ns - low_ns:
                low_ns, high_ns = tight_low, tight_high
                fitted_ns = (low_ns + high_ns) // 2  # the middle has the smallest error
        offset_ns = min(max(fitted_ns, low_ns), high_ns)
        error_us = -(-max(high_ns - offset_ns, offset_ns - low_ns) // NS_PER_US) + 1  # + 1: the offset is cut to us
        if error_us > ERROR_US_MAX:
            return None
        return ClockEstimate(
            offset_us=offset_ns // NS_PER_US, error_us=error_us, drift_ppm=self._drift * 1e6, at_ns=self._wall_at_ns
        )

    def _prove(self, sample: _Sample) -> None:
        # The clocks run apart during the exchange too, and every stamp and half is cut to whole nanoseconds.
        half_ns = (sample.delta_ns + 1) // 2 + 1 + _drifted(sample.delta_ns)
        low_ns, high_ns = sample.theta_ns - half_ns, sample.theta_ns + half_ns
        if self._newest is not None:
            grown_ns = _drifted(sample.at_ns - self._proven_at_ns)
            old_low, old_high = self._low_ns - grown_ns, self._high_ns + grown_ns
            if old_low > high_ns or old_high < low_ns:
                self.steps += 1
                self._samples.clear()
            else:
                low_ns, high_ns = max(low_ns, old_low), min(high_ns, old_high)
        self._low_ns, self._high_ns, self._proven_at_ns = low_ns, high_ns, sample.at_ns

    def _fit(self) -> None:
        """Put a line through the shortest round trips (least squares); level while they are too few or too close."""
        count = min(max(LOWEST_MIN, len(self._samples) // LOWEST_SHARE), len(self._samples))
        highest_ns = sorted(sample.delta_ns for sample in self._samples)[count - 1]
        lowest = [sample for sample in self._samples if sample.delta_ns <= highest_ns]  # of equal ones, all: no bias
        mean_at = sum(sample.at_ns for sample in lowest) / len(lowest)
        times = [sample.at_ns for sample in lowest]
        self._drift = 0.0
        self._theta_at_ns, self._theta_ns = lowest[0].at_ns, float(lowest[0].theta_ns)
        if len(lowest) < LOWEST_MIN or max(times) - min(times) < SPREAD_FOR_DRIFT_NS:
            return
        base = lowest[0].theta_ns  # sums of small numbers: 1.7e18 ns leave nothing for the fraction
        mean_theta = sum(sample.theta_ns - base for sample in lowest) / len(lowest)
        squares = sum((sample.at_ns - mean_at) ** 2 for sample in lowest)
        products = sum((sample.at_ns - mean_at) * (sample.theta_ns - base - mean_theta) for sample in lowest)
        self._drift = min(max(products / squares, -DRIFT_PPM_MAX / 1e6), DRIFT_PPM_MAX / 1e6)
        self._theta_at_ns = int(mean_at)
        self._theta_ns = base + mean_theta


def _drifted(elapsed_ns: int) -> int:
    """Return by how much two clocks can have moved apart."""
    return max(0, elapsed_ns) * DRIFT_PPM_MAX // 1_000_000 + 1
