"""Builders of facts for tests of judging: each has defaults, tests say what differs."""

from __future__ import annotations

from typing import Any

from georelay.trace.histogram import bucket_index
from sla.judging.facts import (
    BurnFacts,
    ClockFacts,
    HourFacts,
    InputFacts,
    IntegrityFacts,
    LatencyFacts,
    MinutesFacts,
    PeriodFacts,
    ProbeFacts,
    RequestFacts,
    Span,
    ThroughputFacts,
)
from sla.report.model import Made

HOUR = Span(start_s=1_700_000_400 // 3_600 * 3_600, end_s=1_700_000_400 // 3_600 * 3_600 + 3_600)
HOURS = HourFacts(expected=1, rolled_up=1, revised=0, not_final=0)
MADE = Made(
    generated_at="2023-11-15T00:00:00Z",
    code_version="1",
    targets_file="targets.toml",
    period_from="2023-11-14T22:00:00Z",
    period_to="2023-11-14T23:00:00Z",
    asked_from=None,
    asked_to=None,
    minutes=60,
    integrity_from="2023-11-14T22:00:00Z",
    integrity_to="2023-11-14T23:00:00Z",
    settle_s=900,
)


def latency(
    latencies_us: dict[int, int] | None = None, *, error_us: int | None = 0, bad: int = 0, **columns: Any
) -> LatencyFacts:
    """Build from {latency_us: records}; without them 10 000 records of 10 ms and `bad` of them at 80 ms."""
    counts = {10_000: 10_000 - bad, 80_000: bad} if latencies_us is None else latencies_us
    hist: dict[int, int] = {}
    for latency_us, n in counts.items():
        if n:
            hist[bucket_index(latency_us)] = hist.get(bucket_index(latency_us), 0) + n
    n = sum(counts.values())

    def within(limit_us: int) -> int:
        return sum(count for latency_us, count in counts.items() if latency_us <= limit_us)

    values: dict[str, Any] = {
        "origin": "us",
        "dest": "eu",
        "stage": "total",
        "n": n,
        "n_good": within(50_000),
        "n_good_lo": 0 if error_us is None else within(50_000 - error_us),
        "n_good_hi": n if error_us is None else within(50_000 + error_us),
        "n_clock_unknown": n if error_us is None else 0,
        "n_clock_revised": 0,
        "lat_sum_us": sum(latency_us * count for latency_us, count in counts.items()),
        "lat_max_us": max(counts, default=0),
        "clock_err_max_us": error_us,
        "hist": tuple(sorted(hist.items())),
    }
    return LatencyFacts(**(values | columns))


def clock(**columns: Any) -> ClockFacts:
    values: dict[str, Any] = {
        "region": "eu", "peer": "us", "exchanges": 3_600, "offset_us": 0, "offset_spread_us": 0, "drift_ppm": 0.0,
        "bound_max_us": 1_000, "rtt_min_us": 70_000, "steps": 0, "unsync": 0,
    }  # fmt: skip
    return ClockFacts(**(values | columns))


def throughput(**columns: Any) -> ThroughputFacts:
    values: dict[str, Any] = {
        "target": "throughput", "dest": "eu", "delivered": 3_600_000, "offered": 3_600_000, "active_minutes": 60,
        "max_1s": 1_200, "max_10s_mean": 1_100.0, "offered_max_10s_mean": 1_100.0, "max_60s_mean": 1_000.0,
        "loaded_seconds": 3_000, "loaded_seconds_met": 2_900, "loaded_minutes": 60, "loaded_minutes_met": 60,
    }  # fmt: skip
    values |= columns
    return ThroughputFacts(**({"loaded_minutes_perhaps_met": values["loaded_minutes_met"]} | values))


def reader(**columns: Any) -> IntegrityFacts:
    values: dict[str, Any] = {
        "topic": "orders", "origin": "", "partition": 0, "dest": "eu", "group": "", "sessions": 1, "delivered": 100,
        "dup_flagged": 0, "dup_unflagged": 0, "gaps": 0, "gap_records": 0, "healed_records": 0, "lost": 0,
        "unexplained": 0, "aborted": 0, "expired": 0, "order_violations": 0, "pending": 0,
    }  # fmt: skip
    return IntegrityFacts(**(values | columns))


def requests(**columns: Any) -> RequestFacts:
    values: dict[str, Any] = {
        "region": "eu", "source": "broker", "op": "publish", "attempts": 100_000, "ok": 100_000, "client_error": 0,
        "server_error": 0, "timeout": 0, "offered": 100_000, "writers": 3,
    }  # fmt: skip
    return RequestFacts(**(values | columns))


def probes(**columns: Any) -> ProbeFacts:
    values: dict[str, Any] = {
        "origin": "us", "dest": "eu", "probes": 3_600, "probes_ok": 3_600, "probes_late": 0, "probes_lost": 0,
        "probes_refused": 0,
    }  # fmt: skip
    return ProbeFacts(**(values | columns))


def minutes(**columns: Any) -> MinutesFacts:
    values: dict[str, Any] = {
        "target": "minutes", "origin": "us", "dest": "eu", "up": 60, "down": 0, "longest_down_minutes": 0,
        "longest_down_s": None,
    }  # fmt: skip
    return MinutesFacts(**(values | columns))


def inputs(**columns: Any) -> InputFacts:
    values: dict[str, Any] = {
        "kind": "ledger", "region": "eu", "files": 10, "bytes": 1_000, "rows": 900, "quarantined_files": 0,
        "missing_rows": 0, "dropped_rows": 0, "writers": ("eu/2001",), "writer_hours": 10,
        "silent_writer_hours": 0,
    }  # fmt: skip
    values |= columns
    return InputFacts(**({"gone_rows": max(values["missing_rows"], values["dropped_rows"])} | values))


def burn(**columns: Any) -> BurnFacts:
    values: dict[str, Any] = {
        "target": "latency", "subject": ("us", "eu"), "rule": "1h+5m", "long_bad": 0, "long_total": 10_000,
        "short_bad": 0, "short_total": 1_000, "covered_minutes": 4_320, "firing_minutes": 0, "worst_rate": 0.0,
        "worst_s": HOUR.end_s,
    }  # fmt: skip
    return BurnFacts(**(values | columns))


def period(**facts: Any) -> PeriodFacts:
    return PeriodFacts(span=HOUR, **facts)
