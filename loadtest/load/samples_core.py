"""Latencies of one second, by what was done: buckets of 0.1 ms below 100 ms, 1 ms below 1 s, then 10 ms. Pure.

Locust's own buckets are 1 ms and 10 ms; a target of 50 ms wants finer ones. Sums, minima and maxima are exact.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Done = tuple[str, str, float | None]  # (what, of which stream or pair, latency in ms; None: it failed)


def bucket_ms(latency_ms: float) -> float:
    """Return the bucket of a latency, in ms."""
    if latency_ms < 100:
        return round(latency_ms, 1)
    return float(round(latency_ms) if latency_ms < 1_000 else round(latency_ms, -1))


@dataclass(slots=True)
class Samples:
    """What was done of one kind: how often, how long it took, how often it failed."""

    n: int = 0
    failed: int = 0
    sum_ms: float = 0.0
    min_ms: float | None = None
    max_ms: float = 0.0
    buckets: Counter[float] = field(default_factory=Counter)

    def add(self, latency_ms: float) -> None:
        """Count one that was done."""
        self.n += 1
        self.sum_ms += latency_ms
        self.min_ms = latency_ms if self.min_ms is None else min(self.min_ms, latency_ms)
        self.max_ms = max(self.max_ms, latency_ms)
        self.buckets[bucket_ms(latency_ms)] += 1

    @classmethod
    def taken(cls, *queues: deque[Done]) -> dict[tuple[str, str], Samples]:
        """Return what was done since the last time, by what and of which; threads may put more into the queues."""
        found: dict[tuple[str, str], Samples] = {}
        for queue in queues:
            for _ in range(len(queue)):
                what, of, latency_ms = queue.popleft()
                samples = found.setdefault((what, of), cls())
                if latency_ms is None:
                    samples.failed += 1
                else:
                    samples.add(latency_ms)
        return found

    def extend(self, told: Mapping[str, Any]) -> None:
        """Add what another process told."""
        self.n += told["n"]
        self.failed += told["failed"]
        self.sum_ms += told["sum_ms"]
        self.max_ms = max(self.max_ms, told["max_ms"])
        if told["min_ms"] is not None:
            self.min_ms = told["min_ms"] if self.min_ms is None else min(self.min_ms, told["min_ms"])
        for bucket, count in told["buckets"]:
            self.buckets[bucket] += count

    def told(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "n": self.n,
            "failed": self.failed,
            "sum_ms": round(self.sum_ms, 3),
            "min_ms": self.min_ms,
            "max_ms": self.max_ms,
            "buckets": sorted(self.buckets.items()),
        }

    def quantile_ms(self, share: float) -> float:
        """Return a quantile of what was done, 0 without any."""
        wanted, seen = share * self.n, 0
        for bucket, count in sorted(self.buckets.items()):
            seen += count
            if seen >= wanted:
                return bucket
        return 0.0
