"""A store decodes each manifest once, and again when another one took its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from sla import rollups
from sla.rollup_manifests import HourRun
from sla.rollups import RollupStore
from tests.sla.rollup_days import DAY0_S, run


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The hours whose manifests were decoded."""
    hours: list[int] = []
    decode = HourRun.decode

    class Counted(HourRun):
        @classmethod
        def decode(cls, raw: bytes) -> HourRun:
            found = decode(raw)
            hours.append(found.hour_s)
            return found

    monkeypatch.setattr(rollups, "HourRun", Counted)
    return hours


def test_manifests_that_stand_are_decoded_once_for_all_readers_of_a_store(tmp_path: Path, decoded: list[int]) -> None:
    for hour in range(3):
        RollupStore(tmp_path).write_run(run(hour))
    store = RollupStore(tmp_path)
    first = store.runs()
    assert decoded == [found.hour_s for found in first] == [DAY0_S + 3_600 * hour for hour in range(3)]
    assert store.snapshot().runs() == first
    assert len(decoded) == 3


def test_a_manifest_that_another_process_replaced_is_decoded_again(tmp_path: Path, decoded: list[int]) -> None:
    RollupStore(tmp_path).write_run(run(0))
    store = RollupStore(tmp_path)
    (before,) = store.runs()
    RollupStore(tmp_path).write_run(run(0, revision=before.revision + 1))
    (after,) = store.runs()
    assert after.revision == before.revision + 1
    assert decoded == [DAY0_S, DAY0_S]


def test_a_manifest_that_is_gone_is_not_remembered(tmp_path: Path, decoded: list[int]) -> None:
    store = RollupStore(tmp_path)
    store.write_run(run(0))
    assert len(store.runs()) == 1
    next(tmp_path.glob("_runs/*/*/_run.json")).unlink()
    assert store.runs() == []
