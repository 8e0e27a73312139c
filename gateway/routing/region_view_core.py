"""Ranks the regions by measured round-trip time and readiness (pure: time comes in as an argument).

Rule 1: RTT of a broker is the median of its last SAMPLES_KEPT samples, none older than SAMPLE_AGE_NS_MAX; the
first exchange on a connection pays for its set-up and is never a sample. RTT of a region is its nearest ready broker's.
Rule 2: network time only. Ranking by service time as well is delayed feedback and moves all clients at once.
Rule 3: a region is ready while at least one of its brokers is (broker_health.py: hysteresis).
Rule 4: the first place is kept until another ready region is better by max(5 ms, 10 %), or its holder is not ready.
Clients beyond the first place are ordered by RTT; regions that are not ready come last, in configured order.
Rule 5: regions and brokers come and go (`replace`); a broker at the same addresses keeps its health and samples.
Rule 6: an estimate of gossip's coordinates stands in for an RTT until the broker was measured once. The two are never
compared: measured regions come before estimated ones, and those before the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from gateway.routing.broker_health import TRANSITIONS, Health, Probe
from gateway.routing.endpoints import BrokerEndpoints, RegionEndpoints
from georelay.ids import BrokerId

SAMPLES_KEPT: Final = 6
SAMPLE_AGE_NS_MAX: Final = 30_000_000_000
SWITCH_MARGIN_NS: Final = 5_000_000
SWITCH_MARGIN_PERCENT: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedBroker:
    """One broker at the moment of ranking. `rtt_ns` is None without a fresh sample; `estimate_ns` only before any."""

    endpoints: BrokerEndpoints
    ready: bool
    rtt_ns: int | None
    estimate_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedRegion:
    """One region at the moment of ranking; `brokers` ready ones first, in configured order inside each half."""

    name: str
    number: int
    ready: bool
    rtt_ns: int | None
    brokers: tuple[RankedBroker, ...]
    estimate_ns: int | None = None

    @property
    def ready_brokers(self) -> tuple[RankedBroker, ...]:
        """Return the brokers clients may be sent to."""
        return tuple(broker for broker in self.brokers if broker.ready)


class _BrokerView:
    """Health and samples of one broker."""

    __slots__ = ("endpoints", "estimate_ns", "health", "samples")

    def __init__(self, endpoints: BrokerEndpoints) -> None:
        self.endpoints = endpoints
        self.health = Health.UNKNOWN
        self.estimate_ns: int | None = None
        self.samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES_KEPT)  # (taken at, RTT), ns

    def ranked(self, now_ns: int) -> RankedBroker:
        fresh = [rtt_ns for taken_ns, rtt_ns in self.samples if now_ns - taken_ns <= SAMPLE_AGE_NS_MAX]
        return RankedBroker(
            endpoints=self.endpoints,
            ready=self.health.ready,
            rtt_ns=int(median(fresh)) if fresh else None,
            estimate_ns=None if self.samples else self.estimate_ns,
        )


class RegionView:
    """What this gateway knows about every region. One task owns it; no locks."""

    def __init__(self, regions: Sequence[RegionEndpoints]) -> None:
        self._regions: tuple[RegionEndpoints, ...] = ()
        self._brokers: dict[BrokerId, _BrokerView] = {}
        self._incumbent: str | None = None
        self.version = 0  # changes with whatever is known
        self.replace(regions)

    @property
    def regions(self) -> tuple[RegionEndpoints, ...]:
        """Return the regions that are known now."""
        return self._regions

    def replace(self, regions: Sequence[RegionEndpoints], estimates_ns: Mapping[BrokerId, int] | None = None) -> None:
        """Know these regions from now on, and these estimated round trips (rules 5 and 6)."""
        self.version += 1
        before, self._brokers = self._brokers, {}
        for region in regions:
            for broker in region.brokers:
                view = before.get(broker.id)
                if view is None or view.endpoints != broker:
                    view = _BrokerView(broker)
                view.estimate_ns = (estimates_ns or {}).get(broker.id)
                self._brokers[broker.id] = view
        self._regions = tuple(regions)

    def health(self, broker: BrokerId) -> Health:
        """Return the health of one broker."""
        return self._brokers[broker].health

    def on_probe(
        self, broker: BrokerId, probe: Probe, *, now_ns: int, rtt_ns: int | None = None, warm: bool = False
    ) -> bool:
        """Take in the result of one probe; returns whether the broker's usability changed.

        Args:
            rtt_ns: how long the answer took, when there was one (any status).
            warm: the connection had carried an exchange before; otherwise the time is not a sample.
        """
        self.version += 1
        view = self._brokers[broker]
        before = view.health.ready
        view.health = TRANSITIONS[view.health, probe]
        if rtt_ns is not None and warm:
            view.samples.append((now_ns, rtt_ns))
        return view.health.ready != before

    def rank(self, now_ns: int) -> tuple[RankedRegion, ...]:
        """Return every region, best first (rules 1-4)."""
        seen = [self._ranked(region, now_ns) for region in self._regions]
        ready = [region for region in seen if region.ready]
        first = self._choose(ready)
        rest = sorted((region for region in ready if region is not first), key=_distance)
        return (*([first] if first else []), *rest, *(region for region in seen if not region.ready))

    def _ranked(self, region: RegionEndpoints, now_ns: int) -> RankedRegion:
        brokers = [self._brokers[broker.id].ranked(now_ns) for broker in region.brokers]
        ready = [broker for broker in brokers if broker.ready]
        rtts_ns = [broker.rtt_ns for broker in (ready or brokers) if broker.rtt_ns is not None]
        return RankedRegion(
            name=region.name,
            number=region.number,
            ready=bool(ready),
            rtt_ns=min(rtts_ns, default=None),
            brokers=(*ready, *(broker for broker in brokers if not broker.ready)),
            estimate_ns=min((b.estimate_ns for b in (ready or brokers) if b.estimate_ns is not None), default=None),
        )

    def _choose(self, ready: Sequence[RankedRegion]) -> RankedRegion | None:
        """Return the holder of the first place and remember it."""
        if not ready:
            return None
        # Without a holder the configured order stands in for one, so that equal distances give one answer.
        holder = next((region for region in ready if region.name == self._incumbent), ready[0])
        nearest = min(ready, key=_distance)
        first = nearest if _clearly_nearer(nearest, holder) else holder
        if first.rtt_ns is not None:
            self._incumbent = first.name
        return first


def _distance(region: RankedRegion) -> tuple[int, int]:
    """Return what regions are ordered by: measured ones, then estimated ones, then the rest."""
    if region.rtt_ns is not None:
        return 0, region.rtt_ns
    return (2, 0) if region.estimate_ns is None else (1, region.estimate_ns)


def _clearly_nearer(nearest: RankedRegion, holder: RankedRegion) -> bool:
    (kind, near_ns), (held_kind, held_ns) = _distance(nearest), _distance(holder)
    if kind != held_kind:
        return kind < held_kind
    margin_ns = max(SWITCH_MARGIN_NS, held_ns * SWITCH_MARGIN_PERCENT // 100)
    return held_ns - near_ns > margin_ns
