"""kill -9 under load with a foreign idempotent producer: nothing acknowledged is missing, nothing is there twice.

The short form of `python -m loadtest.campaign`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.campaign.runs import Load, kill_leader, new_mesh, restart_all

# The chaos tests restart all three replicas of a region, with what was not synced lost.
LOAD = Load(per_second=500, seconds=3, fault_after_seconds=1)
GAP_MS_MAX = 10_000  # of a busy test machine; the campaign measures the real one


@pytest.mark.slow
async def test_kill_9_of_the_leader_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with new_mesh(tmp_path, ["us"], "--restart") as mesh:
        run = await kill_leader(mesh, "orders", home="us", directory=tmp_path, load=LOAD)
    assert run.verdict.is_exact, run
    assert run.verdict.acked == run.verdict.sent > 0
    assert run.verdict.longest_gap_ms < GAP_MS_MAX


async def test_kill_9_of_all_brokers_and_a_start_on_the_same_data_loses_and_doubles_nothing(tmp_path: Path) -> None:
    run = await restart_all(tmp_path, ["us", "eu"], "orders", load=LOAD, brokers_per_region=1)
    assert run.verdict.is_exact, run
    assert run.verdict.acked == run.verdict.sent > 0
    assert run.fault == "kill -9 of 2 brokers"
