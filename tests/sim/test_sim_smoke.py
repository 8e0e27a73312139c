"""A few worlds in every test run; `make sim` plays as many as one has time for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

SEEDS = range(1, 9)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_region_under_faults_keeps_every_rule(seed: int) -> None:
    from tests.sim.runs import play

    outcome = play("region", seed)
    assert not outcome.rule, f"make sim SEED={seed}: {outcome.rule}: {outcome.detail}\n{outcome.crash}"
    assert outcome.events > 1_000


def test_the_mesh_under_faults_keeps_every_rule() -> None:
    from tests.sim.runs import play

    outcome = play("mesh", 1)
    assert not outcome.rule, f"make sim WORLD=mesh SEED=1: {outcome.rule}: {outcome.detail}\n{outcome.crash}"


def test_the_same_seed_plays_the_same_world() -> None:
    from tests.sim.region_world import RegionSettings
    from tests.sim.runs import play

    settings = RegionSettings(fault_ms=3_000)
    first, second = play("region", 7, settings), play("region", 7, settings)
    assert (first.events, first.virtual_ns, first.marks) == (second.events, second.virtual_ns, second.marks)


@pytest.mark.parametrize("name", ["acknowledges_before_sync", "forgets_its_vote", "counts_what_was_sent_to_catch_up"])
def test_the_simulator_finds_a_bug_of_the_zoo(name: str) -> None:
    from tests.sim.zoo import ZOO
    from tests.sim.zoo_hunt import find

    _, outcome = find(ZOO[name], seeds_max=20)
    assert outcome is not None


def test_a_power_cut_loses_only_what_was_not_synced() -> None:
    from tests.sim.disk import SimDisk

    for seed in range(50):
        disk = SimDisk(rng=random.Random(seed), mark=lambda _: None)
        path = Path("/sim/file")
        handle = disk.open(path, create=True)
        disk.pwritev(handle, [b"a" * 1_000], 0)
        disk.fdatasync(handle)
        disk.fsync_directory(path.parent)
        disk.pwritev(handle, [b"b" * 3_000], 1_000)
        disk.cut_power()
        handle = disk.open(path)
        kept = disk.pread(handle, 10_000, 0)
        assert kept[:1_000] == b"a" * 1_000, seed
        assert set(kept[1_000:]) <= set(b"b\0"), seed


def test_a_name_that_was_not_synced_may_be_lost() -> None:
    from tests.sim.disk import SimDisk

    outcomes = set()
    for seed in range(50):
        disk = SimDisk(rng=random.Random(seed), mark=lambda _: None)
        disk.close(disk.open(Path("/sim/file"), create=True))
        disk.cut_power()
        outcomes.add(disk.exists(Path("/sim/file")))
    assert outcomes == {True, False}
