"""What this gateway sees of every region: round trips, readiness, load (pure: time comes in as an argument).

Rule 1: RTT of a broker is the median of its last SAMPLES_KEPT samples, none older than SAMPLE_AGE_NS_MAX; the
first exchange on a connection pays for its set-up and is never a sample. RTT of a region is its nearest ready broker's.
Rule 2: a region is ready while at least one of its brokers is (broker_health.py: hysteresis). One that was away and is
ready again came back then; what was never ready before did not. When this gateway was cut off itself and hears the
others again, the regions that stayed with it come back too: to all others they were away.
Rule 3: regions and brokers come and go (`replace`); a broker at the same addresses keeps its health and samples.
Rule 4: an estimate of gossip's coordinates stands in for an RTT until the broker was measured once.
Rule 5: what a region sheds is the mean of what its ready brokers say with their answers to probes; those of an older
version say nothing.
Rule 6: a broker is late while it owes an answer for longer than one takes, silent when it owes it for longer than a
broker that works and is busy, and both after a probe without an answer. It is still used: two probes have to fail
before it is taken for lost, three seconds later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from gateway.routing.broker_health import TRANSITIONS, Health, Probe
from gateway.routing.choosing_core import RegionState, is_cut_off
from gateway.routing.endpoints import BrokerEndpoints, RegionEndpoints
from georelay.ids import BrokerId

SAMPLES_KEPT: Final = 6
SAMPLE_AGE_NS_MAX: Final = 30_000_000_000
LATE_NS: Final = 300_000_000
SILENT_NS: Final = 750_000_000
LATE_ROUND_TRIPS: Final = 3  # of a new connection: TCP, TLS, the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedBroker:
    """One broker at a moment. `rtt_ns` is None without a fresh sample; `estimate_ns` only before any."""

    endpoints: BrokerEndpoints
    ready: bool
    rtt_ns: int | None
    estimate_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedRegion:
    """One region at a moment; `brokers` ready ones first, in configured order inside each half.

    Args:
        is_refused: nothing listens at any of its brokers. was_ready: ever. returned_ns: when it became ready again.
        shed: share of clients that it wants elsewhere; heard_ns: when it said so, None: never.
    """

    name: str
    number: int
    ready: bool
    rtt_ns: int | None
    brokers: tuple[RankedBroker, ...]
    estimate_ns: int | None = None
    is_refused: bool = False
    was_ready: bool = False
    returned_ns: int | None = None
    shed: float = 0.0
    heard_ns: int | None = None

    @property
    def ready_brokers(self) -> tuple[RankedBroker, ...]:
        """Return the brokers clients may be sent to."""
        return tuple(broker for broker in self.brokers if broker.ready)


class _BrokerView:
    """Health and samples of one broker."""

    __slots__ = (
        "asked_ns",
        "endpoints",
        "estimate_ns",
        "health",
        "is_refused",
        "is_unanswered",
        "samples",
        "shed",
        "shed_heard_ns",
    )

    def __init__(self, endpoints: BrokerEndpoints) -> None:
        self.endpoints = endpoints
        self.health = Health.UNKNOWN
        self.estimate_ns: int | None = None
        self.is_refused = False
        self.shed = 0.0
        self.shed_heard_ns: int | None = None
        self.samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES_KEPT)  # (taken at, RTT), ns
        self.asked_ns: int | None = None  # when the probe left that is not answered yet
        self.is_unanswered = False  # the last probe

    def seen(self, now_ns: int) -> RankedBroker:
        fresh = [rtt_ns for taken_ns, rtt_ns in self.samples if now_ns - taken_ns <= SAMPLE_AGE_NS_MAX]
        return RankedBroker(
            endpoints=self.endpoints,
            ready=self.health.ready,
            rtt_ns=int(median(fresh)) if fresh else None,
            estimate_ns=None if self.samples else self.estimate_ns,
        )

    def owes(self, now_ns: int, *, for_ns: int) -> bool:
        if self.is_unanswered:
            return True
        rtt_ns = self.samples[-1][1] if self.samples else 0
        return self.asked_ns is not None and now_ns - self.asked_ns > for_ns + LATE_ROUND_TRIPS * rtt_ns


class RegionView:
    """What this gateway knows about every region. One task owns it; no locks."""

    def __init__(self, regions: Sequence[RegionEndpoints]) -> None:
        self._regions: tuple[RegionEndpoints, ...] = ()
        self._brokers: dict[BrokerId, _BrokerView] = {}
        self._was_ready: dict[str, bool] = {}  # region -> whether it is ready now, of those that ever were
        self._returned_ns: dict[str, int] = {}
        self._is_cut_off = False
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

    def is_late(self, broker: BrokerId, now_ns: int) -> bool:
        """Return whether a broker does not answer as it did, so that it may be one of those that are lost (rule 6)."""
        return self._owes(broker, now_ns, for_ns=LATE_NS)

    def is_silent(self, broker: BrokerId, now_ns: int) -> bool:
        """Return whether a broker does not answer for longer than one that works and is busy (rule 6)."""
        return self._owes(broker, now_ns, for_ns=SILENT_NS)

    def _owes(self, broker: BrokerId, now_ns: int, *, for_ns: int) -> bool:
        view = self._brokers.get(broker)
        return view is not None and view.owes(now_ns, for_ns=for_ns)

    def on_asked(self, broker: BrokerId, *, now_ns: int) -> None:
        """Note that a probe leaves for a broker; `on_probe` says what became of it."""
        self._brokers[broker].asked_ns = now_ns

    def on_probe(
        self,
        broker: BrokerId,
        probe: Probe,
        *,
        now_ns: int,
        rtt_ns: int | None = None,
        warm: bool = False,
        shed: float | None = None,
    ) -> bool:
        """Take in the result of one probe; returns whether the broker's usability changed.

        Args:
            rtt_ns: how long the answer took, when there was one (any status).
            warm: the connection had carried an exchange before; otherwise the time is not a sample.
            shed: share of its clients that the broker wants elsewhere, None: it does not say.
        """
        self.version += 1
        view = self._brokers[broker]
        before = view.health.ready
        view.health = TRANSITIONS[view.health, probe]
        view.asked_ns = None
        view.is_unanswered = probe is Probe.FAILED and rtt_ns is None
        view.is_refused = probe is Probe.REFUSED
        if rtt_ns is not None and warm:
            view.samples.append((now_ns, rtt_ns))
        if shed is not None:
            view.shed, view.shed_heard_ns = shed, now_ns
        if view.health.ready != before:
            self._note_return(broker, now_ns)
        return view.health.ready != before

    def seen(self, now_ns: int) -> tuple[RankedRegion, ...]:
        """Return every region as it is seen now, in the configured order."""
        return tuple(self._seen(region, now_ns) for region in self._regions)

    def _note_return(self, broker: BrokerId, now_ns: int) -> None:
        for region in self._regions:
            if any(endpoints.id == broker for endpoints in region.brokers):
                ready = any(self._brokers[endpoints.id].health.ready for endpoints in region.brokers)
                was = self._was_ready.get(region.name)
                if was is False and ready:
                    self._returned_ns[region.name] = now_ns
                if was is not None or ready:
                    self._was_ready[region.name] = ready
        was_cut_off, self._is_cut_off = self._is_cut_off, is_cut_off([self._state(row) for row in self._regions])
        if was_cut_off and not self._is_cut_off:
            self._returned_ns |= {name: now_ns for name, ready in self._was_ready.items() if ready}

    def _state(self, region: RegionEndpoints) -> RegionState:
        return RegionState(
            name=region.name,
            is_ready=self._was_ready.get(region.name, False),
            is_refused=all(self._brokers[broker.id].is_refused for broker in region.brokers),
            was_seen=region.name in self._was_ready,
            capacity=len(region.brokers),
        )

    def _seen(self, region: RegionEndpoints, now_ns: int) -> RankedRegion:
        views = [self._brokers[broker.id] for broker in region.brokers]
        brokers = [view.seen(now_ns) for view in views]
        ready = [broker for broker in brokers if broker.ready]
        rtts_ns = [broker.rtt_ns for broker in (ready or brokers) if broker.rtt_ns is not None]
        heard = [(view.shed, view.shed_heard_ns) for view in views if view.health.ready and view.shed_heard_ns]
        return RankedRegion(
            name=region.name,
            number=region.number,
            ready=bool(ready),
            rtt_ns=min(rtts_ns, default=None),
            brokers=(*ready, *(broker for broker in brokers if not broker.ready)),
            estimate_ns=min((b.estimate_ns for b in (ready or brokers) if b.estimate_ns is not None), default=None),
            is_refused=all(view.is_refused for view in views),
            was_ready=region.name in self._was_ready,
            returned_ns=self._returned_ns.get(region.name),
            shed=sum(shed for shed, _ in heard) / len(heard) if heard else 0.0,
            heard_ns=max((at_ns for _, at_ns in heard), default=None),
        )
