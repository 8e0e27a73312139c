"""Faults of a campaign: what is noted, and when."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadtest.load import faults
from loadtest.load.campaign import Fault
from loadtest.load.links import LinkedMesh
from loadtest.load.stage import Stage


async def test_a_fault_is_noted_once_it_is_done_and_once_it_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = tmp_path / "events.jsonl"
    seen: list[tuple[str, list[str]]] = []

    def noted() -> list[str]:
        return [json.loads(line)["what"] for line in events.read_text().splitlines()] if events.exists() else []

    @asynccontextmanager
    async def strike(*_: object) -> AsyncIterator[None]:
        seen.append(("breaking", noted()))
        yield
        seen.append(("healing", noted()))

    monkeypatch.setitem(faults.STRIKES, "stop", strike)
    endpoints = tmp_path / "endpoints.json"
    endpoints.write_text('{"regions": {"us": {}}}')
    stage = Stage(tmp_path, endpoints, mesh=None, settings={}, user="")
    await stage.break_it(Fault(at_s=0, do="stop", what="us-1"))
    assert seen == [("breaking", []), ("healing", ["stop"])]
    assert noted() == ["stop", "healed"]


async def test_links_here_are_cut_once_between_two_regions_or_around_one(tmp_path: Path) -> None:
    mesh = LinkedMesh(tmp_path, regions=("us", "eu", "ap"), brokers_per_region=1)
    done: list[tuple[str, tuple[str, str, int]]] = []

    def watched(what: str, key: tuple[str, str, int]) -> object:
        async def change() -> None:
            done.append((what, key))

        return change

    for key, forwarder in mesh._forwarders.items():
        await forwarder.close()
        forwarder.cut = watched("cut", key)  # type: ignore[assignment, method-assign]
        forwarder.heal = watched("heal", key)  # type: ignore[assignment, method-assign]
    await mesh.cut("us", "eu")
    await mesh.cut("eu")
    assert done[:2] == [("cut", ("us", "eu", 1)), ("cut", ("eu", "us", 1))]
    assert {key[:2] for _, key in done[2:]} == {("eu", "ap"), ("ap", "eu")}
    done.clear()
    await mesh.heal("us", "eu")
    await mesh.heal("us", "eu")
    assert len(done) == 2
