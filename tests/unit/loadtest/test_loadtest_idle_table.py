"""A row of the table of idle meshes has the mean of its brokers, the busiest of them, and the gateway."""

from __future__ import annotations

from loadtest.bench.idle import GATEWAY, HEAD, line_of
from loadtest.bench.machine import Meter

CORES = {"us-1": 0.01, "us-2": 0.03, GATEWAY: 0.005}
MIB = {"us-1": 140.0, "us-2": 160.0, GATEWAY: 120.0}


class _Known(Meter):
    """One that has watched for two seconds."""

    seconds = 2.0

    def __init__(self) -> None:
        self.pids = dict.fromkeys(CORES, 0)

    def share(self, *names: str) -> float:
        return sum(CORES[name] for name in names)

    def resident_mib(self, *names: str) -> float:
        return sum(MIB[name] for name in names)

    def switches(self, *names: str) -> int:
        return 400 * len(names)

    def idle(self) -> float:
        return 0.9


def test_a_row_has_the_mean_of_the_brokers_and_the_busiest_of_them() -> None:
    row = line_of("1x2 (3.0 s to ready)", 1_000, _Known())
    assert row == "| 1x2 (3.0 s to ready) | 1,000 | 2.0% | 3.0% | 150 | 200 | 0.5% | 120 | 90% |"
    assert row.count("|") == HEAD.splitlines()[0].count("|")
