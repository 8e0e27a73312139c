"""Latencies and accounts of a run of a comparison."""

from __future__ import annotations

from loadtest.bench.figures_core import account, latency

MS = 1_000_000


def test_latency_counts_from_the_due_time_of_records_after_the_warm_up() -> None:
    rows = [(0, 0, 900 * MS), (1, 10 * MS, 12 * MS), (2, 20 * MS, 26 * MS)]
    found = latency(rows, from_ns=10 * MS)
    assert (found.count, found.p50_ms, found.max_ms) == (2, 6.0, 6.0)


def test_of_a_record_delivered_twice_the_first_delivery_counts() -> None:
    assert latency([(1, 0, 5 * MS), (1, 0, 500 * MS)]).max_ms == 5.0


def test_an_account_tells_lost_from_never_acknowledged() -> None:
    found = account(5, [0, 1, 2], [(0, 0, 1), (1, 0, 1), (3, 0, 1)], topics=1)
    assert (found.acknowledged, found.lost, found.unknown) == (3, 1, 1)


def test_a_second_delivery_is_twice_and_not_out_of_order() -> None:
    found = account(3, [0, 1, 2], [(0, 0, 1), (1, 0, 1), (2, 0, 1), (0, 0, 1)], topics=1)
    assert (found.twice, found.early) == (1, 0)


def test_order_is_of_each_topic() -> None:
    crossed = [(1, 0, 1), (0, 0, 1), (3, 0, 1), (2, 0, 1)]
    assert account(4, [0, 1, 2, 3], crossed, topics=2).early == 0
    assert account(4, [0, 1, 2, 3], crossed, topics=1).early == 2
