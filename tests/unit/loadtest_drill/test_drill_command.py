"""`georelay drill` does not break a mesh that runs without being told so twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from georelay.cli.application import run
from loadtest.campaign.mesh import CampaignFailed
from loadtest.drill import command
from loadtest.drill.drill_run import DrillPlan, ways
from loadtest.load.campaign import Topology

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
    assert code == 1
    assert why in text
    assert "\n" not in text


def test_a_running_mesh_with_one_broker_per_region_has_no_broker_to_lose(
    endpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, "broker-loss", "--endpoints", str(endpoints), "--data", "d", "--yes")
    assert (code, text) == (1, "georelay: broker-loss needs three brokers per region: with fewer the region is lost")


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
        ways(DrillPlan(kind=kind, how=how, topology=Topology(**topology)))  # type: ignore[arg-type]


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
    assert ways(DrillPlan(kind=kind, how=how, topology=Topology(**topology))) == turns  # type: ignore[arg-type]
