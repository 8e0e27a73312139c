"""A broker with a wrong clock: its own file says no longer that all brokers read one clock."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path

import pytest

from loadtest.load.breakable_broker import control_path, prepared, wires_of
from loadtest.load.control_file import ControlFile

CONFIG = 'mesh_id = "m"\nregion = "eu"\nclock_error_us = 0  # all brokers of a development mesh read one clock\nx = 1\n'


@pytest.mark.parametrize(("region", "step_ms"), [("eu", -80), ("us", 0)])
def test_the_clock_is_wrong_by_what_its_region_says(tmp_path: Path, region: str, step_ms: int) -> None:
    path = tmp_path / "one.toml"
    path.write_text(CONFIG.replace("eu", region), encoding="utf-8")
    config = prepared(path, {"eu": -80})
    assert tomllib.loads(config.read_text(encoding="utf-8")) == {"mesh_id": "m", "region": region, "x": 1}
    assert json.loads(control_path(path).read_text(encoding="utf-8"))["wall_step_ms"] == step_ms


def test_a_broker_that_comes_back_finds_what_is_broken_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text(CONFIG, encoding="utf-8")
    assert prepared(path, {}) == path
    control_path(path).write_text('{"version": 1, "generation": 4, "free_bytes": 0}', encoding="utf-8")
    prepared(path, {})
    assert json.loads(control_path(path).read_text(encoding="utf-8"))["free_bytes"] == 0


def test_a_broker_dials_forwarders_instead_of_the_links_of_other_regions(tmp_path: Path) -> None:
    for name, port in (("us-1", 1), ("us-2", 2), ("eu-1", 3)):
        (tmp_path / f"{name}.toml").write_text(
            f'[listen]\npeers = "127.0.0.1:{port}"\nlink = "127.0.0.1:{port + 10}"\n'
        )
    told = {"us eu-1": "127.0.0.1:93", "eu us-1": "127.0.0.1:91", "eu us-2": "127.0.0.1:92", "us-1 us-2": "127.0.0.1:7"}
    assert wires_of(tmp_path / "us-2.toml", told) == {"127.0.0.1:13": "127.0.0.1:93"}
    assert wires_of(tmp_path / "eu-1.toml", told) == {"127.0.0.1:11": "127.0.0.1:91", "127.0.0.1:12": "127.0.0.1:92"}


def test_a_broker_dials_the_forwarders_of_its_own_pairs_instead_of_its_peers(tmp_path: Path) -> None:
    for row in (1, 2, 3):
        (tmp_path / f"us-{row}.toml").write_text(f'[listen]\npeers = "127.0.0.1:{row}"\n')
    peers = {"us-1 us-2": "127.0.0.1:12", "us-1 us-3": "127.0.0.1:13", "us-2 us-1": "127.0.0.1:21"}
    wires = {"127.0.0.1:2": "127.0.0.1:12", "127.0.0.1:3": "127.0.0.1:13"}
    assert wires_of(tmp_path / "us-1.toml", peers) == wires


async def test_who_waits_for_a_broker_is_content_when_it_obeys_something_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.load.control_file.APPLY_SECONDS_MAX", 0.2)
    control = ControlFile(tmp_path / "one.json")
    control.set(sync_delay_ms=200)
    waiting = asyncio.create_task(control.obeyed(lambda: True))
    await asyncio.sleep(0)
    control.set(wall_step_ms=1_000)
    (tmp_path / "one.json.applied").write_text("2\n")
    assert await waiting
    control.set(wall_step_ms=2_000)
    assert not await control.obeyed(lambda: True)
