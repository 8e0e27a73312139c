"""What is known of another clock: values only."""

from __future__ import annotations

from dataclasses import dataclass

from georelay.ids import BrokerId, RegionNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockEstimate:
    """A clock elsewhere against ours at one moment.

    Args:
        offset_us: its wall clock minus ours.
        error_us: the true offset lies in offset_us ± error_us; >= 0.
        drift_ppm: microseconds that its clock gains on ours per second; 0 while unknown.
        at_ns: our wall clock at the newest exchange.
    """

    offset_us: int
    error_us: int
    drift_ppm: float
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Four stamps of one question and its answer (RFC 5905, section 8), all in ns.

    Args:
        t1_ns, t4_ns: our wall clock when we asked and when the answer came.
        t2_ns, t3_ns: the peer's when the question came and when it answered.
        monotonic1_ns, monotonic4_ns: our monotonic clock at t1 and t4.
        host_error_us: how far our host's clock is from UTC at most, -1 unknown; peer_host_error_us: the peer's.
        spread_us: how far any clock of the peer's region is from the peer's at most, -1 unknown.
    """

    t1_ns: int
    t2_ns: int
    t3_ns: int
    t4_ns: int
    monotonic1_ns: int
    monotonic4_ns: int
    host_error_us: int = -1
    peer_host_error_us: int = -1
    spread_us: int = -1

    @property
    def theta_ns(self) -> int:
        """Return the peer's clock minus ours, right when both ways take equally long."""
        return ((self.t2_ns - self.t1_ns) + (self.t3_ns - self.t4_ns)) // 2

    @property
    def delta_ns(self) -> int:
        """Return the time on the way, both ways together: measured without our wall clock, which may be set."""
        return (self.monotonic4_ns - self.monotonic1_ns) - (self.t3_ns - self.t2_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRow:
    """One line of `georelay clocks`.

    Args:
        region, broker: whose clock; broker 0: all of the region.
        estimate: None while nothing is known.
        rtt_us: shortest round trip of the window, -1 without one.
        exchanges, refused, steps: counts since the start.
        spread_us: how far the brokers of that region are apart at most, -1 unknown.
    """

    region: RegionNumber
    broker: BrokerId
    estimate: ClockEstimate | None
    rtt_us: int = -1
    exchanges: int = 0
    refused: int = 0
    steps: int = 0
    spread_us: int = -1
