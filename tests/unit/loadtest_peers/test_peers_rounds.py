"""Rounds of a comparison: who is measured when, and what happens when one of them cannot be."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.cluster import Cluster, Node
from loadtest.peers import __main__
from loadtest.peers.contenders import Contender
from loadtest.peers.installation import Installed
from loadtest.peers.workloads import Workload


class _Silent(Cluster):
    def create(self, topics: object) -> None:
        """Make nothing."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let three contenders run without a process, and return who was started, in order."""
    names: list[str] = []

    def contender(name: str, *, synced: bool = True, fails: bool = False) -> Contender[Cluster]:
        @contextlib.asynccontextmanager
        async def running(folder: Path, installed: Installed) -> AsyncIterator[Cluster]:
            names.append(name)
            if fails:
                raise RuntimeError("its port is taken")
            yield _Silent(protocol="kafka", nodes=[Node("1", "127.0.0.1:1", 1)], packages=folder)

        return Contender(name, "", "", synced, lambda _: "1", running)

    several = (contender("a"), contender("b", fails=True), contender("c", synced=False))
    monkeypatch.setattr(__main__, "HERE", dataclasses.replace(__main__.HERE, contenders=several, measure=_measured))
    return names


def _measured(cluster: Cluster, workload: Workload) -> tuple[dict[str, Any], list[Any]]:
    if workload.key == "bulk-100":
        raise RuntimeError("its client failed")
    return {"workload": workload.key}, []


async def _run(folder: Path, rounds: int, fault_rounds: int) -> int:
    options = argparse.Namespace(only=None, workloads=None, rounds=rounds, fault_rounds=fault_rounds, directory=folder)
    return await __main__.run(options, __main__.HERE, Installed(folder), folder)


async def test_every_round_takes_the_contenders_in_another_order(tmp_path: Path, started: list[str]) -> None:
    await _run(tmp_path, 2, 0)
    assert started == ["a", "b", "c", "b", "c", "a"]


async def test_one_that_does_not_start_or_fails_in_a_workload_is_counted_and_stops_nobody_else(
    tmp_path: Path, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await _run(tmp_path, 1, 0) == 4 + 1 + 1
    assert "FAIL b: its port is taken" in capsys.readouterr().err
    told = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert sorted({one["contender"] for one in told}) == ["a", "c"]
    assert sorted(one["workload"] for one in told if one["contender"] == "a") == [
        "bulk-1024",
        "single-100",
        "single-1000",
    ]


async def test_faults_come_in_their_rounds_and_only_to_what_is_durable(tmp_path: Path, started: list[str]) -> None:
    await _run(tmp_path, 2, 1)
    faulty = [path.name for path in tmp_path.glob("*.json") if path.stem.endswith(("stop", "kill"))]
    assert sorted(faulty) == ["0-a-kill.json", "0-a-stop.json"]
