"""A few worlds in every test run; `make sim` plays as many as one has time for."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.sim.regressions import REGION
from tests.tiers import first

SEEDS = range(1, 9)


@pytest.mark.parametrize("seed", first(2, SEEDS))
def test_a_region_under_faults_keeps_every_rule(seed: int) -> None:
    from tests.sim.runs import play

    outcome = play("region", seed)
    assert not outcome.rule, f"make sim SEED={seed}: {outcome.rule}: {outcome.detail}\n{outcome.crash}"
    assert outcome.events > 1_000


@pytest.mark.parametrize("seed", first(2, reversed(REGION)))  # the newest; each has a unit test beside its code too
def test_a_region_that_once_failed_keeps_every_rule(seed: int) -> None:
    from tests.sim.runs import play

    outcome = play("region", seed)
    assert not outcome.rule, f"make sim SEED={seed} ({REGION[seed]}): {outcome.rule}: {outcome.detail}\n{outcome.crash}"


@pytest.mark.parametrize(("seed", "fault_ms"), first(1, [(1, 5_000), (1, 10_000), (311, 10_000), (110, 10_000)]))
def test_the_mesh_under_faults_keeps_every_rule(seed: int, fault_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.sim.mesh_world import MeshSettings
    from tests.sim.runs import play

    # A world has loops of its own: one of asyncio's would stay open, and fail a test that comes later.
    monkeypatch.setattr(asyncio.get_event_loop_policy(), "new_event_loop", None)
    outcome = play("mesh", seed, MeshSettings(fault_ms=fault_ms))
    assert not outcome.rule, f"make sim WORLD=mesh SEED={seed}: {outcome.rule}: {outcome.detail}\n{outcome.crash}"


@pytest.mark.parametrize("seed", first(1, [5, 3, 1]))
def test_coordinators_under_faults_keep_every_rule(seed: int) -> None:
    from tests.sim.runs import play

    outcome = play("coordinator", seed)
    assert not outcome.rule, (
        f"make sim WORLD=coordinator SEED={seed}: {outcome.rule}: {outcome.detail}\n{outcome.crash}"
    )
    assert outcome.marks["coordinator.acknowledged"] > 100


def test_the_same_seed_plays_the_same_world() -> None:
    from tests.sim.region_world import RegionSettings
    from tests.sim.runs import play

    settings = RegionSettings(fault_ms=3_000)
    first, second = play("region", 7, settings), play("region", 7, settings)
    assert (first.events, first.virtual_ns, first.marks) == (second.events, second.virtual_ns, second.marks)


@pytest.mark.parametrize(
    ("name", "first_seed"),
    first(
        2,
        [
            ("acknowledges_before_sync", 1),
            ("forgets_its_vote", 1),
            ("counts_what_was_sent_to_catch_up", 1),
            ("changes_peers_before_the_quorum", 2),
            ("takes_acknowledgements_of_any_term", 1),
            ("trusts_a_write_of_a_replaced_log", 60),  # one world in some dozens has it: begin near one
        ],
    ),
)
def test_the_simulator_finds_a_bug_of_the_zoo(name: str, first_seed: int) -> None:
    from tests.sim.zoo import ZOO
    from tests.sim.zoo_hunt import find

    _, outcome = find(ZOO[name], seeds_max=20, first_seed=first_seed)
    assert outcome is not None


@pytest.mark.parametrize("drift", [0.02, 0.0, -0.02])
def test_a_timer_of_a_broker_whose_clock_drifts_fires_later_than_it_was_set(drift: float) -> None:
    from tests.sim.clockwork import Clockwork, SimLoop

    clockwork = Clockwork()
    loop = SimLoop(clockwork, drift=drift, settled=lambda: None, power_cut=lambda: None, failed=lambda _: None)
    rounds = [0]

    def wait_on() -> None:  # as product code does that waits for a moment of its own clock
        rounds[0] += 1
        if loop.monotonic_ns() < 1_000 and rounds[0] < 5_000:
            loop.call_later(1e-9, wait_on)

    loop.run_now(wait_on)
    clockwork.run_until(1_000_000)
    assert loop.monotonic_ns() >= 1_000
    assert rounds[0] < 5_000, "a timer of a nanosecond fired at the time it was set"


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


@pytest.mark.parametrize("kept", [True, False])
def test_a_failed_sync_leaves_bytes_that_no_later_sync_writes(kept: bool) -> None:
    from tests.sim.disk import SimDisk

    disk = SimDisk(rng=random.Random(1), mark=lambda _: None)
    disk.keeps_failed_pages = kept
    handle = disk.open(Path("/sim/file"), create=True)
    disk.fsync_directory(Path("/sim"))
    disk.pwritev(handle, [b"a" * 1_000], 0)
    disk.strike(syncs=1)
    with pytest.raises(OSError, match="input/output"):
        disk.fdatasync(handle)
    assert disk.pread(handle, 10, 0) == (b"a" * 10 if kept else b"")
    disk.fdatasync(handle)
    disk.cut_power()
    assert disk.pread(disk.open(Path("/sim/file")), 10, 0) == b""


def test_a_campaign_goes_on_behind_a_failing_seed_and_from_its_file(tmp_path: Path) -> None:
    from collections import Counter

    from tests.sim.runs import lost
    from tests.sim.tally import Tally

    tally = Tally(world="region", first_seed=5)
    for seed in (5, 7, 6, 9):
        tally.add(lost(seed))
    assert tally.next_seed == 8
    tally.marks = Counter({"crash.killed": 2})
    tally.save(tmp_path / "tally.json")
    again = Tally.load(tmp_path / "tally.json")
    assert again == tally
    assert [row[0] for row in again.failures] == [5, 7, 6, 9]


def test_a_name_that_was_not_synced_may_be_lost() -> None:
    from tests.sim.disk import SimDisk

    outcomes = set()
    for seed in range(50):
        disk = SimDisk(rng=random.Random(seed), mark=lambda _: None)
        disk.close(disk.open(Path("/sim/file"), create=True))
        disk.cut_power()
        outcomes.add(disk.exists(Path("/sim/file")))
    assert outcomes == {True, False}
