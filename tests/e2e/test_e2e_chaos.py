"""The chaos campaign on real processes, in its shortest form: one kind fault, and one whose loss it must find."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from loadtest.chaos.chaos_mesh import ChaosMesh
from loadtest.chaos.chaos_run import ChaosRun, Load, run_once
from loadtest.chaos.nemesis import NEMESES
from loadtest.history.verdict import Category

pytestmark = pytest.mark.slow

LOAD = Load(per_second=300, settle_seconds=1, partitions=2)


async def struck(tmp_path: Path, *names: str) -> list[ChaosRun]:
    """Do these faults one after the other, each with a topic of its own."""
    runs = []
    async with ChaosMesh(tmp_path, ["us"]) as mesh:
        for name in names:
            directory = tmp_path / name
            directory.mkdir()
            rng = random.Random(1)
            runs.append(await run_once(mesh, name, NEMESES[name], name, load=LOAD, rng=rng, directory=directory))
    return runs


async def test_faults_break_no_promise(tmp_path: Path) -> None:
    for run in await struck(tmp_path, "power-cut", "peer-cut"):
        assert run.is_clean, f"{run.nemesis}: {run.complaints} {run.verdict.describe()}"
        assert run.verdict.acknowledged > 0
        assert run.verdict.records_read >= 2 * run.verdict.acknowledged


async def test_the_loss_of_a_lying_disk_is_found(tmp_path: Path) -> None:
    (run,) = await struck(tmp_path, "lying-disk")
    assert run.verdict.count(Category.LOST_WRITE, Category.UNSEEN) > 0, run.verdict.describe()
