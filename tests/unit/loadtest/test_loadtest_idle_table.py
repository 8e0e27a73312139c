"""A row of the table of idle meshes has the mean of its brokers, the busiest of them, and the gateway."""

from __future__ import annotations

from loadtest.bench.idle import HEAD, Cost, line_of


def test_a_row_has_the_mean_of_the_brokers_and_the_busiest_of_them() -> None:
    brokers = [
        Cost(cpu=0.01, switches=100, resident_mib=140),
        Cost(cpu=0.03, switches=300, resident_mib=160),
    ]
    gateway = Cost(cpu=0.005, switches=50, resident_mib=120)
    row = line_of("1x2 (3.0 s to ready)", 1_000, brokers, gateway, 0.9)
    assert row == "| 1x2 (3.0 s to ready) | 1,000 | 2.0% | 3.0% | 150 | 200 | 0.5% | 120 | 90% |"
    assert row.count("|") == HEAD.splitlines()[0].count("|")
