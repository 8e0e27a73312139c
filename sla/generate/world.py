"""The world that traces are generated of: regions, paths, streams, who writes what, and faults with every choice made.

Times are integer nanoseconds of one true clock that nobody in the world has; regions are numbered from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from sla.generate.request import FAULTS, Fault, FaultKind, GenerateRequest

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
NS_PER_US: Final = 1_000
SAME_REGION_NS: Final = 150_000  # one way
NEIGHBOURS_MS: Final = 12
APART_MS: Final = 6  # more per region in between
FARTHEST_MS: Final = 38
SPAN_AT: Final = 0.4  # where in the period a span begins unless it is said
SPAN_SHARE: Final = 0.2
FIRST_OFFSET: Final = 1_000  # a stream has a past

Int64 = npt.NDArray[np.int64]
_REPEATED: Final = frozenset({FaultKind.GAP, FaultKind.DUPLICATE, FaultKind.REORDER, FaultKind.ABORTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One ordered log.

    Args:
        topic: number of the topic. origin: as in the ledger, empty for homes=one. home: number of the region.
        group: of its consumers, empty for plain ones.
    """

    index: int
    topic: int
    origin: str
    home: int
    partition: int
    group: str

    @property
    def has_every_home(self) -> bool:
        """Return whether every region is home of a stream of the topic."""
        return bool(self.origin)


@dataclass(frozen=True, kw_only=True)
class World:
    """Everything that does not change while traces are generated. `faults` have no open choices."""

    request: GenerateRequest
    seconds: int
    faults: tuple[Fault, ...]
    topics: tuple[str, ...]
    groups: tuple[str, ...]
    streams: tuple[Stream, ...]
    delay_ns: Int64

    @classmethod
    def of(cls, request: GenerateRequest) -> World:
        """Build the world of a checked request."""
        rng = np.random.default_rng([request.seed, 1])
        seconds = request.length_s
        faults = tuple(made for fault in request.faults for made in _decided(fault, request, seconds=seconds, rng=rng))
        topics = tuple(f"{'orders' if index % 2 == 0 else 'events'}-{index}" for index in range(request.topics))
        groups = tuple("" if index % 2 == 0 else f"workers-{index}" for index in range(request.topics))
        return cls(
            request=request,
            seconds=seconds,
            faults=faults,
            topics=topics,
            groups=groups,
            streams=_streams(request, groups),
            delay_ns=_delays(request, faults),
        )

    @property
    def regions(self) -> tuple[str, ...]:
        """Return the names."""
        return self.request.regions

    @cached_property
    def start_ns(self) -> int:
        """Return when publishing begins."""
        return int(self.request.start.timestamp()) * NS_PER_S

    @property
    def end_ns(self) -> int:
        """Return when publishing has ended."""
        return self.start_ns + self.seconds * NS_PER_S

    @property
    def batches_per_s(self) -> float:
        """Return the mean batches that one stream gets per second."""
        return self.request.rate_per_s / self.request.batch_records / len(self.streams)

    def brokers(self, region: int) -> list[int]:
        """Return the ids of a region's brokers."""
        return [(region + 1) * 1_000 + number for number in range(1, self.request.brokers + 1)]

    def leader(self, region: int, partition: int) -> int:
        """Return the broker of a region that leads its copy of a partition."""
        return self.brokers(region)[partition % self.request.brokers]

    def of_kind(self, *kinds: FaultKind) -> list[Fault]:
        """Return the faults of some kinds."""
        return [fault for fault in self.faults if fault.kind in kinds]

    def number(self, region: str) -> int:
        """Return the number of a region."""
        return self.regions.index(region)

    def span_ns(self, fault: Fault) -> tuple[int, int]:
        """Return the true [start, end) of a fault."""
        start = self.start_ns + fault.at_s * NS_PER_S
        return start, start + max(0, fault.for_s) * NS_PER_S


def _decided(fault: Fault, request: GenerateRequest, *, seconds: int, rng: np.random.Generator) -> list[Fault]:
    """Return the fault with every open choice made; one that happens `count` times as so many faults."""
    known = FAULTS[fault.kind]
    times = fault.count if fault.kind in (*_REPEATED, FaultKind.EXPIRED) else 1
    made = []
    for index in range(times):
        region, peer, at_s, for_s = fault.region, fault.peer, fault.at_s, fault.for_s
        if "region" in known and not region and fault.kind not in _REPEATED:
            region = str(rng.choice([name for name in request.regions if name != peer]))
        if "peer" in known and not peer:
            peer = str(rng.choice([name for name in request.regions if name != region]))
        if "at" in known and at_s < 0:
            # Evenly spread, so that faults of one kind do not meet.
            low, width = 0.1, 0.7 / times
            at_s = int(seconds * (SPAN_AT if "for" in known else low + width * (index + rng.random())))
        if "for" in known and for_s < 0:
            for_s = max(5, int(seconds * SPAN_SHARE))
        count = fault.count if times == 1 else 1
        made.append(replace(fault, region=region, peer=peer, at_s=at_s, for_s=for_s, count=count))
    return made


def _streams(request: GenerateRequest, groups: tuple[str, ...]) -> tuple[Stream, ...]:
    streams: list[Stream] = []
    regions = len(request.regions)
    for topic, group in enumerate(groups):
        homes = range(regions) if topic % 2 == 0 else (-1,)
        for home in homes:
            for partition in range(request.partitions):
                streams.append(
                    Stream(
                        index=len(streams),
                        topic=topic,
                        origin="" if home < 0 else request.regions[home],
                        home=partition % regions if home < 0 else home,
                        partition=partition,
                        group=group,
                    )
                )
    return tuple(streams)


def _delays(request: GenerateRequest, faults: tuple[Fault, ...]) -> Int64:
    """Return the time from region to region in ns."""
    regions = len(request.regions)
    delays = np.full((regions, regions), SAME_REGION_NS, dtype=np.int64)
    for one in range(regions):
        for other in range(regions):
            if one != other:
                far_ms = min(FARTHEST_MS, NEIGHBOURS_MS + APART_MS * abs(one - other))
                delays[one, other] = far_ms * NS_PER_MS
    for fault in faults:
        if fault.kind in (FaultKind.SLOW_PAIR, FaultKind.ASYMMETRIC_PATH):
            one, other = request.regions.index(fault.region), request.regions.index(fault.peer)
            if fault.kind is FaultKind.SLOW_PAIR:
                delays[one, other] = delays[other, one] = fault.ms * NS_PER_MS
            else:
                delays[one, other] += fault.ms * NS_PER_MS
    return delays
