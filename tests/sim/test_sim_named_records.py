"""The rule `unnamed` sees what a killed broker takes along, and clocks that race."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from georelay.ids import RegionNumber
from georelay.trace.kinds import LedgerKind
from mesh.tracing.offset_run_core import LateRange
from tests.sim.mesh_world import RACING_WALL_RATE, MeshWorld
from tests.sim.named_records import NamedRecords, NamingRecorder
from tests.sim.violation import Violation

EU = RegionNumber(2)
NOW_NS = 1_700_000_000_000_000_000
WHERE: dict[str, Any] = {"topic": "orders", "origin": 1, "partition": 0}
STREAM = SimpleNamespace(
    region=EU, topic="orders", key=SimpleNamespace(origin=1), partition=0, log_start=0, high_watermark=10
)


def life(named: NamedRecords) -> NamingRecorder:
    return NamingRecorder(EU, named, wall_ns=lambda: NOW_NS)


def commit(recorder: NamingRecorder, first: int, end: int) -> None:
    recorder.committed(epoch=1, from_offset=first, to_offset=end, now_ns=NOW_NS, home=1, entries=(), **WHERE)


def name_late(recorder: NamingRecorder, first: int, end: int) -> None:
    us = NOW_NS // 1_000
    late = LateRange(epoch=1, from_offset=first, to_offset=end, first_us=us, last_us=us)
    recorder.named_late(LedgerKind.REPLICATED, [late], **WHERE)


def test_what_the_journal_has_of_a_killed_life_is_named() -> None:
    named = NamedRecords()
    recorder = life(named)
    commit(recorder, 0, 4)
    commit(recorder, 4, 7)
    name_late(recorder, 7, 10)
    named.check(STREAM)
    assert named.late == 3


def test_what_only_the_memory_of_a_killed_life_has_is_not_named_before_its_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = NamedRecords()
    recorder = life(named)
    commit(recorder, 0, 7)
    monkeypatch.setattr(recorder._core, "_journal", None)
    name_late(recorder, 7, 10)
    with pytest.raises(Violation, match="3 of"):
        named.check(STREAM)
    recorder.drain()
    named.check(STREAM)


def test_records_of_another_region_or_stream_name_nothing_here() -> None:
    named = NamedRecords()
    commit(NamingRecorder(RegionNumber(3), named, wall_ns=lambda: NOW_NS), 0, 10)
    with pytest.raises(Violation, match="10 of"):
        named.check(STREAM)


def test_in_some_worlds_the_wall_clocks_of_one_region_race_and_those_of_the_others_do_not() -> None:
    worlds = [MeshWorld(seed) for seed in range(1, 9)]
    racing = [world for world in worlds if world.racing is not None]
    assert 0 < len(racing) < len(worlds)
    world = racing[0]
    for broker in world.brokers:
        world.start(broker)
        clock = world.lives[broker].clock
        assert clock.wall_rate == (RACING_WALL_RATE if broker // 1_000 == world.racing else 1)
