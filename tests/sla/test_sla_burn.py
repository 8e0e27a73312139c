"""Burn windows by running sums give what adding up every window's minutes gives."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from sla.targets import BurnRule
from sla.transforms.burn import burn_alerts
from sla.transforms.minute_counts import worst_minutes

RULES = (
    BurnRule(long_minutes=10, short_minutes=3, rate=5.0, severity="page"),
    BurnRule(long_minutes=45, short_minutes=10, rate=2.0, severity="ticket"),
)
START_S, END_S, ALLOWED, EVENTS_MIN = 6_000, 12_000, 0.01, 20
COLUMNS = ("target", "a", "b", "allowed", "ts_s", "total", "bad")
Minutes = dict[int, tuple[int, int]]


def _minutes(seed: int, *, first_s: int) -> Minutes:
    """Return minute -> (total, bad), with holes and a bad spell."""
    rng = random.Random(seed)
    minutes: Minutes = {}
    for ts_s in range(first_s, END_S, 60):
        if rng.random() < 0.3:
            continue
        total = rng.randint(0, 12)
        is_spell = 8_000 <= ts_s < 8_900
        minutes[ts_s] = (total, sum(rng.random() < (0.4 if is_spell else 0.01) for _ in range(total)))
    return minutes


def _window(minutes: Minutes, ts_s: int, length: int) -> tuple[int, int]:
    inside = [minutes.get(ts_s - 60 * back, (0, 0)) for back in range(length)]
    return sum(total for total, _ in inside), sum(bad for _, bad in inside)


def _counts(rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(COLUMNS, row, strict=True)) for row in rows],
        schema=pa.schema(
            [(name, pa.string()) for name in COLUMNS[:3]]
            + [("allowed", pa.float64())]
            + [(name, pa.int64()) for name in COLUMNS[4:]]
        ),
    )


def _oracle(minutes: Minutes, rule: BurnRule) -> dict[str, Any]:
    limit = rule.rate * ALLOWED
    firing, rates = 0, []
    for ts_s in range(START_S, END_S, 60):
        long_total, long_bad = _window(minutes, ts_s, rule.long_minutes)
        short_total, short_bad = _window(minutes, ts_s, rule.short_minutes)
        if ts_s + 60 - min(minutes) < 60 * rule.long_minutes or long_total < EVENTS_MIN:
            continue
        firing += long_bad > limit * long_total and short_bad > limit * short_total
        rates.append((long_bad / long_total / ALLOWED, -ts_s))
    long_total, long_bad = _window(minutes, END_S - 60, rule.long_minutes)
    short_total, short_bad = _window(minutes, END_S - 60, rule.short_minutes)
    rate, before_s = max(rates, default=(None, None))
    return {
        "long_bad": long_bad,
        "long_total": long_total,
        "short_bad": short_bad,
        "short_total": short_total,
        "covered_minutes": min(rule.long_minutes, (END_S - min(minutes)) // 60),
        "firing_minutes": firing,
        "worst_rate": rate,
        "worst_s": None if before_s is None else 60 - before_s,
    }


def test_running_sums_equal_adding_up_every_window() -> None:
    subjects = {
        ("us", "eu"): _minutes(1, first_s=0),  # reaches back before the period
        ("eu", "us"): _minutes(2, first_s=7_020),  # begins inside
        ("ap", "eu"): _minutes(3, first_s=END_S - 600),  # younger than the long windows
    }
    rows = [
        ("latency", *pair, ALLOWED, ts_s, total, bad)
        for pair, minutes in subjects.items()
        for ts_s, (total, bad) in minutes.items()
    ]
    rows += [("latency", "eu", "us", ALLOWED, END_S, 1_000, 1_000)]  # after the period
    counts = _counts(rows)
    alerts = burn_alerts(counts, RULES, start_s=START_S, end_s=END_S, events_min=EVENTS_MIN)
    found = {(row["a"], row["b"], row["rule"]): row for row in alerts}
    for pair, minutes in subjects.items():
        for rule in RULES:
            row = found.pop((*pair, rule.name))
            assert {name: row[name] for name in _oracle(minutes, rule)} == _oracle(minutes, rule), (pair, rule)
    assert not found
    fired = [row["firing_minutes"] for row in alerts]
    assert any(fired)
    assert not all(fired)


def test_events_before_the_counts_cover_the_windows_of_a_subject_that_was_idle_when_they_begin() -> None:
    counts = _counts([("latency", "us", "eu", ALLOWED, START_S + 60 * at, 10, 5) for at in range(30)])
    young, old = (
        {
            row["rule"]: row
            for row in burn_alerts(
                counts, RULES, start_s=START_S, end_s=START_S + 1_800, events_min=EVENTS_MIN, older=older
            )
        }
        for older in ((), {("latency", "us", "eu")})
    )
    page, ticket = (rule.name for rule in RULES)
    assert [young[name]["is_unsure"] for name in (page, ticket)] == [True, True]
    assert [old[name]["is_unsure"] for name in (page, ticket)] == [False, False]
    assert [(young[name]["covered_minutes"], young[name]["firing_minutes"]) for name in (page, ticket)] == [
        (10, 21),
        (30, 0),
    ]
    # From the second minute on there are enough events, and all rates are far beyond those of the rules.
    assert [(old[name]["covered_minutes"], old[name]["firing_minutes"]) for name in (page, ticket)] == [
        (10, 29),
        (45, 29),
    ]
    assert old[ticket]["long_bad"] == young[ticket]["long_bad"] == 150


def test_a_window_that_is_not_covered_and_has_nothing_bad_is_not_unsure() -> None:
    counts = _counts([("latency", "us", "eu", ALLOWED, START_S + 60 * at, 10, 0) for at in range(30)])
    alerts = burn_alerts(counts, RULES, start_s=START_S, end_s=START_S + 1_800, events_min=EVENTS_MIN)
    assert [alert["is_unsure"] for alert in alerts] == [False, False]


def test_a_subject_with_too_few_events_never_burns() -> None:
    counts = _counts([("latency", "us", "eu", ALLOWED, START_S, 19, 19)])
    (first, second) = burn_alerts(counts, RULES, start_s=START_S, end_s=START_S + 300, events_min=20)
    for row in (first, second):
        assert (row["firing_minutes"], row["worst_rate"], row["worst_s"]) == (0, None, None)
        assert (row["long_bad"], row["long_total"], row["covered_minutes"]) == (19, 19, 5)


def test_without_a_row_there_is_no_alert_and_no_worst_minute() -> None:
    assert burn_alerts(_counts([]), RULES, start_s=START_S, end_s=END_S, events_min=20) == []
    assert worst_minutes(_counts([]), start_s=START_S, end_s=END_S, most=3).num_rows == 0


def test_the_worst_minutes_of_each_target_are_those_with_the_most_bad_events_the_earliest_first() -> None:
    bad = {("t", "us"): [3, 0, 9, 3], ("t", "eu"): [3, 0, 0, 9], ("other", "us"): [1, 0, 0, 0]}
    rows = [
        (target, a, "b", ALLOWED, START_S + 60 * at, 10, count)
        for (target, a), counts in bad.items()
        for at, count in enumerate(counts)
    ]
    rows.append(("t", "us", "b", ALLOWED, START_S - 60, 10, 10))  # before
    found = worst_minutes(_counts(rows), start_s=START_S, end_s=END_S, most=3).to_pylist()
    assert [(row["target"], row["a"], (row["ts_s"] - START_S) // 60, row["bad"]) for row in found] == [
        ("other", "us", 0, 1), ("t", "us", 2, 9), ("t", "eu", 3, 9), ("t", "eu", 0, 3),
    ]  # fmt: skip
