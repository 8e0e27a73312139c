"""Traces, what one process makes of them, and a cluster to make it again.

These tests start masters, workers and executors and take minutes: `make sla-cluster` runs them, other runs of pytest do
not collect them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from sla.cluster.lifecycle import ClusterStatus, UpRequest, down, up
from tests.sla_cluster.job_runs import Expected, judged, sla, tables

collect_ignore_glob = [] if os.environ.get("GEORELAY_SLA_CLUSTER_RUNS") else ["test_*.py"]
START = "2026-11-01T09:57"
SECONDS = 300
FAULTS = ("gap:count=3", "duplicate:count=2", "reorder:count=2", "rebalance")


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    folder = tmp_path_factory.mktemp("local")
    faults = [part for fault in FAULTS for part in ("--fault", fault)]
    made = sla("gen", "--out", folder, "--start", START, "--seconds", str(SECONDS), "--rate", "30", *faults)
    assert made.returncode == 0, made.stderr
    traces = folder / "traces"
    done = sla("report", "--traces", traces, "--out", folder / "report", "--format", "json", "--fail-on", "never")
    assert done.returncode == 0, done.stderr
    found = tables(folder / "rollups")
    assert sum(row["gaps"] for row in found["integrity_hour"]) > 0
    assert all(found[table] for table in ("minute", "hour", "clock_hour", "avail_minute", "sessions_hour"))
    return Expected(traces, found, judged(folder / "report"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], ClusterStatus]]:
    """Return a function that makes the cluster whole and returns it: two workers of one core each."""
    directory = tmp_path_factory.mktemp("cluster")

    def whole() -> ClusterStatus:
        began = time.monotonic()
        found = up(UpRequest(directory=directory, port=0))
        print(f"\n  cluster up: {time.monotonic() - began:.1f} s", flush=True)
        assert found.is_whole
        return found

    yield whole
    down(directory)
