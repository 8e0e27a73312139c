"""kill -9 under load with a foreign idempotent producer: nothing acknowledged is missing, nothing is there twice.

The long form is `georelay load run leader-kill` and `region-restart`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loadtest.history.evidence_core import silences_ms
from loadtest.history.history_file import read_history
from loadtest.history.operation import Kind
from loadtest.history.verdict import Verdict
from tests.e2e.foreign_producer import loading
from tests.e2e.real_mesh import create_topic, judged, leader_of, new_mesh, wait_until_whole
from tests.tiers import first

# The chaos tests restart all three replicas of a region, with what was not synced lost.
PER_SECOND = 500
SECONDS = 3
FAULT_AFTER_S = 1
GAP_MS_MAX = 10_000  # of a busy test machine; the campaign measures the real one


def is_exact(verdict: Verdict) -> bool:
    return verdict.is_valid and verdict.acknowledged > 0 and not (verdict.refused or verdict.unknown)


@pytest.mark.slow
async def test_kill_9_of_the_leader_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with new_mesh(tmp_path, ["us"], "--restart") as mesh:
        await wait_until_whole(mesh)
        await create_topic(mesh, "orders", home="us")
        load = loading(mesh, "orders", entries=["us"], directory=tmp_path, per_second=PER_SECOND, seconds=SECONDS)
        async with load as producers:
            await asyncio.sleep(FAULT_AFTER_S)
            mesh.kill(await leader_of(mesh, "us", "orders"))
            verdict = await judged(mesh, "orders", producers, tmp_path)
    assert is_exact(verdict), verdict.describe()
    sends = [each for each in read_history([producers[0].history]) if each.kind is Kind.PRODUCE and each.is_ok]
    assert max(silences_ms((send.key, send) for send in sends).values()) < GAP_MS_MAX


@pytest.mark.parametrize("regions", first(1, [["us"], ["us", "eu"]]), ids=",".join)
async def test_kill_9_of_all_brokers_and_a_start_on_the_same_data_loses_and_doubles_nothing(
    tmp_path: Path, regions: list[str]
) -> None:
    async with new_mesh(tmp_path, regions, "--restart", brokers_per_region=1) as mesh:
        await create_topic(mesh, "orders", home="us")
        load = loading(mesh, "orders", entries=["us"], directory=tmp_path, per_second=PER_SECOND, seconds=SECONDS)
        async with load as producers:
            await asyncio.sleep(FAULT_AFTER_S)
            killed = [mesh.kill(f"{region}-1") for region in regions]
            await wait_until_whole(mesh)
            assert not set(killed) & {mesh.pid_of(f"{region}-1") for region in regions}
            verdict = await judged(mesh, "orders", producers, tmp_path)
    assert is_exact(verdict), verdict.describe()
