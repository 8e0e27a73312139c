"""How many records share a batch, and how long they wait for it: lanes of three brokers in virtual time, no mesh.

Calls come at random times through one gateway for a topic of three partitions; storing a batch takes `store_ms`, give
or take 30 %. `stay_ms` is how long calls go to the same broker and partition (0: to the next one each time).
`python -m loadtest.bench lanes`.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from georelay.lane_core import Lane, LaneBatch, LaneLimits
from georelay.limits import COALESCE_MS_MAX
from loadtest.bench.single_client import quantile

BROKERS: Final = 3
PARTITIONS: Final = 3
SECONDS: Final = 10
MS: Final = 1_000_000
RATES_PER_SECOND: Final = (100, 300, 1_000)
STORE_MS: Final = (2, 5, 20, 100)
STAY_MS: Final = 20  # as the gateway's router and a broker's partitioner
WAYS: Final = ((0, 2), (STAY_MS, 2), (STAY_MS, COALESCE_MS_MAX))  # stay_ms, linger_ms


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    at_ns: int
    record_count: int = 1
    size_bytes: int = 150


@dataclass(slots=True)
class _World:
    """Lanes, and what happens to them when."""

    store_ms: int
    linger_ms: int
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    events: list[tuple[int, int, Lane[_Call], LaneBatch[_Call] | None]] = field(default_factory=list)
    waits_ns: list[int] = field(default_factory=list)
    batches: int = 0
    number: int = 0

    def lane(self) -> Lane[_Call]:
        lane: Lane[_Call] = Lane(limits=LaneLimits(linger_ns=self.linger_ms * MS))
        lane.producer_assigned(1)
        return lane

    def pump(self, lane: Lane[_Call], now_ns: int) -> None:
        while (batch := lane.next_batch(now_ns)) is not None:
            self.batches += 1
            self.waits_ns += [now_ns - call.at_ns for call in batch.chunks]
            self._later(now_ns + int(self.store_ms * MS * self.rng.uniform(0.7, 1.3)), lane, batch)
        wake_ns = lane.wake_at_ns()
        if wake_ns is not None and now_ns < wake_ns <= now_ns + self.linger_ms * MS:
            self._later(wake_ns, lane, None)

    def until(self, end_ns: float) -> None:
        while self.events and self.events[0][0] <= end_ns:
            now_ns, _, lane, batch = heapq.heappop(self.events)
            if batch is not None:
                lane.acked(batch)
            self.pump(lane, now_ns)

    def _later(self, at_ns: int, lane: Lane[_Call], batch: LaneBatch[_Call] | None) -> None:
        self.number += 1
        heapq.heappush(self.events, (at_ns, self.number, lane, batch))


def shared(*, rate: int, store_ms: int, stay_ms: int, linger_ms: int) -> tuple[float, float]:
    """Return records per batch, and the p99 of the wait in ms."""
    world = _World(store_ms, linger_ms)
    lanes: dict[Any, Lane[_Call]] = defaultdict(world.lane)
    calls = now_ns = 0
    while now_ns < SECONDS * 1_000 * MS:
        now_ns += int(world.rng.expovariate(rate) * 1e9)
        world.until(now_ns)
        turn = now_ns // (stay_ms * MS) if stay_ms else calls
        lane = lanes[turn % BROKERS, turn // BROKERS % PARTITIONS]
        lane.offer(now_ns, _Call(now_ns))
        world.pump(lane, now_ns)
        calls += 1
    world.until(float("inf"))
    return calls / world.batches, quantile(world.waits_ns, 0.99) / MS


def run(_: Path) -> list[str]:
    """Return report lines: one for each rate and time to store, one column for each way."""
    lines = []
    for rate in RATES_PER_SECOND:
        for store_ms in STORE_MS:
            columns = []
            for stay_ms, linger_ms in WAYS:
                per_batch, wait_ms = shared(rate=rate, store_ms=store_ms, stay_ms=stay_ms, linger_ms=linger_ms)
                columns.append(f"stay {stay_ms} ms, linger {linger_ms} ms: {per_batch:.2f}, {wait_ms:.1f} ms")
            lines.append(f"{rate}/s, stored in {store_ms} ms; records per batch and wait p99: {'; '.join(columns)}")
    return lines
