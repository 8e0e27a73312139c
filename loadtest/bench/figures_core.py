"""Figures of one run: latencies of what was delivered, and the account of what was acknowledged."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.quantile_core import quantile

Row = tuple[int, int, int]  # number of the record, when it was due, when it was delivered; ns of one clock


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles of publish -> deliver, from the due time, in ms."""

    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    count: int


def latency(rows: Sequence[Row], from_ns: int = 0) -> Latency:
    """Return the latencies of the records due from a time on; of one that was delivered twice the first counts."""
    first: dict[int, int] = {}
    for number, due_ns, delivered_ns in rows:
        if due_ns >= from_ns:
            first[number] = min(first.get(number, delivered_ns - due_ns), delivered_ns - due_ns)
    values = list(first.values())
    p50, p99, p999 = (quantile(values, share, none=0) / 1e6 for share in (0.5, 0.99, 0.999))
    return Latency(p50, p99, p999, max(values, default=0) / 1e6, len(values))


@dataclass(frozen=True, slots=True)
class Account:
    """What became of records.

    Args:
        lost: acknowledged and never delivered. twice: deliveries beyond the first of a record. early: deliveries of a
            record for the first time after a later one of its topic. unknown: not acknowledged and not delivered.
    """

    sent: int
    acknowledged: int
    lost: int
    twice: int
    early: int
    unknown: int


def account(sent: int, acknowledged: Sequence[int], rows: Sequence[Row], topics: int) -> Account:
    """Return the account of a run; `rows` are in the order in which they were delivered."""
    seen: set[int] = set()
    newest: dict[int, int] = {}
    twice = early = 0
    for number, _, _ in rows:
        if number in seen:
            twice += 1
            continue
        seen.add(number)
        topic = number % topics
        early += number < newest.get(topic, -1)
        newest[topic] = max(number, newest.get(topic, -1))
    acked = set(acknowledged)
    return Account(sent, len(acked), len(acked - seen), twice, early, sent - len(acked | seen))


def spread(numbers: Sequence[float], form: str) -> str:
    """Return the median of several runs, with the smallest and the largest in brackets."""
    middle = form.format(statistics.median(numbers))
    if len(numbers) == 1:
        return middle
    return f"{middle} ({form.format(min(numbers))} to {form.format(max(numbers))})"
