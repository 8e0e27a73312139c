"""`georelay drill` does not break a mesh that runs without being told so twice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from georelay.cli.application import run
from georelay.errors import ConfigError
from loadtest.campaign.mesh import CampaignFailed
from loadtest.drill import command, drill_run
from loadtest.drill.drill_run import carry_out, ways
from loadtest.drill.shot import DrillPlan, Kind
from loadtest.load.campaign import Topology
from tests.unit.loadtest_drill.test_drill_report import result

REGIONS = ("us", "eu", "ap")


class Plugin:
    """The entry point, without an installation."""

    name = "drill"

    def load(self) -> object:
        return command.register


@pytest.fixture
def endpoints(tmp_path: Path) -> Path:
    places = {port: ["127.0.0.1:1"] for port in ("kafka", "grpc", "admin")}
    document = {"mesh": "abc", "regions": dict.fromkeys(REGIONS, places), "gateway": {"http": ["127.0.0.1:1"]}}
    path = tmp_path / "endpoints.json"
    path.write_text(json.dumps(document))
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = run(["drill", *words], plugins=[Plugin()])  # type: ignore[list-item]
    return code, capsys.readouterr().err.strip()


def test_a_running_mesh_is_not_broken_without_a_terminal_and_without_yes(
    endpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, "region-loss", "--endpoints", str(endpoints), "--break", "true", "--mend", "true")
    assert code == 2
    assert text == "georelay: region-loss breaks the running mesh abc: add --yes, or type its id at a terminal"


def test_a_running_mesh_and_one_that_is_started_are_not_asked_for_at_once(
    endpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, "region-loss", "--endpoints", str(endpoints), "--loopback")
    assert code == 2
    assert "--endpoints is a running mesh" in text


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("link-cut", "--endpoints", "nothing", "--yes"), "nothing: no mesh there; `georelay up --endpoints FILE`"),
        (("link-cut", "--wan", "us-eu=fast"), "'us-eu=fast' is not a round trip such as us-eu=70ms"),
    ],
)
def test_what_is_no_mesh_is_refused_in_one_line(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, *words)
    assert code == 3
    assert why in text
    assert "\n" not in text


def test_a_running_mesh_with_one_broker_per_region_has_no_broker_to_lose(
    endpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, "broker-loss", "--endpoints", str(endpoints), "--data", "d", "--yes")
    assert (code, text) == (3, "georelay: broker-loss needs three brokers per region: with fewer the region is lost")


RUNNING = {"kind": "endpoints", "regions": REGIONS}


@pytest.mark.parametrize(
    ("kind", "how", "topology", "why"),
    [
        ("region-loss", "", RUNNING, "name its --data, or the commands"),
        ("region-loss", "cut", RUNNING, "cut off in a WAN test bed only"),
        ("region-loss", "both", RUNNING | {"data": "d"}, "cut off in a WAN test bed only"),
        ("link-cut", "", RUNNING | {"data": "d"}, "in a WAN test bed only"),
        ("broker-loss", "", {"kind": "up"}, "three brokers per region"),
        ("region-loss", "", {"kind": "up", "regions": ("us", "eu")}, "needs three regions"),
    ],
)
def test_what_cannot_be_done_to_a_mesh_is_refused_before_anything_is_broken(
    kind: str, how: str, topology: dict[str, object], why: str
) -> None:
    with pytest.raises(CampaignFailed, match=why):
        ways(DrillPlan(kind=Kind(kind), how=how, topology=Topology(**topology)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "how", "topology", "turns"),
    [
        ("region-loss", "", {"kind": "wan"}, ["kill", "cut"]),
        ("region-loss", "", {"kind": "up"}, ["kill"]),
        ("region-loss", "cut", {"kind": "up"}, ["cut"]),
        ("region-loss", "", RUNNING | {"data": "d"}, ["kill"]),
        ("region-loss", "", RUNNING | {"data": "d", "bed": "b"}, ["kill", "cut"]),
        ("region-loss", "cut", RUNNING | {"bed": "b"}, ["cut"]),
        ("region-loss", "kill", RUNNING | {"break_command": "b"}, ["kill"]),
        ("link-cut", "", {"kind": "up"}, ["link"]),
        ("broker-loss", "", {"kind": "up", "brokers_per_region": 3}, ["kill"]),
    ],
)
def test_runs_break_a_mesh_in_turn_in_every_way_that_is_possible(
    kind: str, how: str, topology: dict[str, object], turns: list[str]
) -> None:
    assert ways(DrillPlan(kind=Kind(kind), how=how, topology=Topology(**topology))) == turns  # type: ignore[arg-type]


@pytest.mark.parametrize(("verdict", "code"), [("KEPT", 0), ("FAILED", 1), ("INVALID", 2)])
def test_the_exit_code_tells_a_broken_promise_from_a_run_that_says_nothing(
    verdict: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def carried_out(*_: object, **__: object) -> str:
        return verdict

    monkeypatch.setattr(drill_run, "carry_out", carried_out)
    assert said(capsys, "region-loss", "--loopback") == (code, "")


@pytest.mark.parametrize("error", [CampaignFailed("why"), ConfigError("why"), PermissionError("why")])
def test_a_drill_that_could_not_run_broke_no_promise(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def carried_out(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(drill_run, "carry_out", carried_out)
    assert said(capsys, "region-loss", "--loopback") == (3, "georelay: why")


@pytest.fixture
def ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[tuple[str, list[str]]]]:
    """Return a drill of three runs of which the second one fails."""

    @asynccontextmanager
    async def meshed(*_: object) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(endpoints={"mesh": "abc", "regions": dict.fromkeys(REGIONS)})

    async def drilled(**first: list[str]) -> tuple[str, list[str]]:
        async def one(plan: DrillPlan, mesh: object, number: int, *_: object) -> dict[str, Any]:
            if number == 1:
                raise CampaignFailed("its disk is full")
            return result() | first

        lines: list[str] = []
        monkeypatch.setattr(drill_run, "meshed", meshed)
        monkeypatch.setattr(drill_run, "_one", one)
        plan = DrillPlan(kind=Kind.REGION_LOSS, topology=Topology(), runs=3, out=tmp_path)
        return await carry_out(plan, say=lines.append), lines

    return drilled


async def test_a_promise_that_was_broken_is_told_also_when_a_later_run_could_not_be_done(
    ends_early: Callable[..., Awaitable[tuple[str, list[str]]]],
) -> None:
    verdict, lines = await ends_early(broken=["1 records are lost"])
    assert verdict == "FAILED"
    assert lines[-3:] == ["run 1: 1 records are lost", "FAILED: 1 of 3 runs", "ended early: its disk is full"]


@pytest.mark.parametrize("first", [{}, {"invalid": ["the generator was late"]}])
async def test_a_drill_that_ended_early_and_broke_nothing_could_not_run(
    first: dict[str, list[str]], ends_early: Callable[..., Awaitable[tuple[str, list[str]]]], tmp_path: Path
) -> None:
    with pytest.raises(CampaignFailed, match="its disk is full"):
        await ends_early(**first)
    (report,) = tmp_path.glob("drill-region-loss-*.json")
    assert json.loads(report.read_text())["ended_early"] == "its disk is full"
