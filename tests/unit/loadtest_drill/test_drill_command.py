"""`georelay drill` does not break a mesh that runs without being told so twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from georelay.cli.application import run
from loadtest.campaign.mesh import CampaignFailed
from loadtest.drill import command
from loadtest.drill.drill_run import DrillPlan, carry_out
from loadtest.drill.mesh import DrillMesh, MeshAccess

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


def test_a_file_that_names_no_mesh_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, "link-cut", "--endpoints", str(tmp_path / "nothing"), "--yes")
    assert code == 1
    assert text.endswith("is no file of `georelay up --endpoints`")


@pytest.mark.parametrize(
    ("kind", "how", "why"),
    [
        ("region-loss", "", "name its --data, or the commands"),
        ("region-loss", "cut", "cut off in a WAN test bed only"),
        ("link-cut", "", "in a WAN test bed only"),
    ],
)
def test_what_cannot_be_done_to_a_mesh_is_refused_before_anything_is_broken(
    endpoints: Path, kind: str, how: str, why: str
) -> None:
    plan = DrillPlan(kind=kind, how=how, running=MeshAccess(endpoints_file=endpoints))
    with pytest.raises(CampaignFailed, match=why):
        carry_out(plan, say=print)


def test_the_loss_of_a_broker_needs_others_in_its_region(endpoints: Path, tmp_path: Path) -> None:
    plan = DrillPlan(kind="broker-loss", running=MeshAccess(endpoints_file=endpoints, run_directory=tmp_path))
    with pytest.raises(CampaignFailed, match="three brokers per region"):
        carry_out(plan, say=print)


def test_a_password_is_not_in_the_representation_of_how_a_mesh_is_reached(endpoints: Path) -> None:
    assert "secret" not in repr(MeshAccess(endpoints_file=endpoints, user="me:secret"))


async def test_a_killed_broker_is_held_down_until_it_is_brought_back(endpoints: Path, tmp_path: Path) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (tmp_path / "us-1.pid").write_text(f"{sleeper.pid}\n")
    mesh = DrillMesh(MeshAccess(endpoints_file=endpoints, run_directory=tmp_path))
    await mesh.kill(mesh.brokers_of("us"))
    assert sleeper.wait(10) == -signal.SIGKILL
    assert (tmp_path / "us-1.hold").exists()
    await mesh.bring_back(mesh.brokers_of("us"))
    assert not (tmp_path / "us-1.hold").exists()


async def test_nothing_is_killed_when_one_of_the_pids_is_not_known(endpoints: Path, tmp_path: Path) -> None:
    (tmp_path / "us-1.pid").write_text(f"{os.getpid()}\n")
    mesh = DrillMesh(MeshAccess(endpoints_file=endpoints, run_directory=tmp_path))
    with pytest.raises(CampaignFailed, match="no pid of a broker"):
        await mesh.kill(["us-1", "us-2"])
    assert not (tmp_path / "us-1.hold").exists()


async def test_an_operator_s_command_gets_the_names_and_no_shell(endpoints: Path, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    script = tmp_path / "script.py"
    script.write_text("import sys; open(sys.argv[1], 'a').write(sys.argv[2])")
    template = f"{sys.executable} {script} {marks} '" + "{region}/{broker};'"
    mesh = DrillMesh(MeshAccess(endpoints_file=endpoints, break_command=template))
    await mesh.kill(["us-1"])
    assert marks.read_text() == "us/us-1;"
