"""Exit code 1 says BREACH and nothing else: what could not run or be judged ends with 3, in one line."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from georelay.cli.application import PLUGIN_GROUP, build_app
from georelay.cli.failure import CommandFailed
from georelay.errors import ConfigError
from loadtest.campaign.mesh import CampaignFailed
from loadtest.load import command, runner, running_mesh
from loadtest.load.campaign import Campaign, Fault, Topic, Topology, Users
from loadtest.load.campaign import Stage as Load
from loadtest.load.locust_processes import RunOptions
from loadtest.load.running_mesh import RunningMesh


@pytest.mark.parametrize("error", [CampaignFailed("why"), ConfigError("why"), PermissionError("why")])
def test_what_could_not_run_is_no_breach(error: Exception) -> None:
    with pytest.raises(CommandFailed, match=r"^why$") as caught, command._no_failure_is_a_breach():
        raise error
    assert caught.value.exit_code == 3


def test_a_mistake_of_ours_is_no_breach_and_leaves_its_traceback_in_a_file() -> None:
    with pytest.raises(CommandFailed, match="nothing was judged") as caught, command._no_failure_is_a_breach():
        raise KeyError("no such key")
    assert caught.value.exit_code == 3
    trace = Path(str(caught.value).partition("traceback: ")[2].rstrip(")"))
    assert "no such key" in trace.read_text()
    trace.unlink()


def test_two_runs_of_one_second_have_a_folder_each(tmp_path: Path) -> None:
    made = [runner._new_folder(tmp_path / "out" / "smoke-20261201T000000Z").name for _ in range(3)]
    assert made == ["smoke-20261201T000000Z", "smoke-20261201T000000Z-2", "smoke-20261201T000000Z-3"]


async def test_a_break_that_failed_for_one_broker_is_told_when_it_is_done_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "endpoints.json").write_text('{"regions": {"us": {}}}')
    done: list[str] = []

    async def answer(*words: str) -> str:
        if words[-1] == "us-1":
            raise CampaignFailed("us-1 cannot be reached")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        done.append(words[-1])
        return ""

    monkeypatch.setattr(running_mesh, "_answer", answer)
    mesh = RunningMesh(Topology(kind="endpoints", endpoints=str(tmp_path / "endpoints.json")))
    with pytest.raises(CampaignFailed, match="us-1 cannot be reached"):
        await mesh.command("stop {broker}", ["us-1", "us-2"])
    assert done == ["us-2"]


@pytest.mark.parametrize(
    ("campaign", "said"),
    [("chaos", "aiokafka is not installed: pip install aiokafka"), ("groups", "kcat is not installed: apt-get")],
)
def test_what_reads_with_a_client_that_is_not_installed_is_not_begun(
    campaign: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.groups.member_process.shutil.which", lambda _: None)
    is_there = campaign != "chaos"
    monkeypatch.setattr("loadtest.groups.member_process.find_spec", lambda _: "there" if is_there else None)
    app = build_app(importlib.metadata.entry_points(group=PLUGIN_GROUP), ())
    ended = CliRunner().invoke(app, ["load", "run", campaign, "--out", str(tmp_path / "out")])
    assert isinstance(ended.exception, CommandFailed)
    assert ended.exception.exit_code == 3
    assert str(ended.exception).startswith(said)
    assert not (tmp_path / "out").exists()


CAMPAIGN = Campaign(
    name="unit",
    about="",
    topics=(Topic(name="orders"),),
    stages=(Load(seconds=0.0, users=1, rate=1),),
    users=(Users(kind="kafka", topics=("orders",)),),
    faults=(Fault(at_s=0.0, do="kill", what="us-1"),),
)


@pytest.mark.parametrize(
    ("said", "why", "told"),
    [
        (json.dumps({"failed": "the complete engine could not begin: no brokers"}) + "\n", "", "no brokers"),
        ('{"second": 1}\n{"sec', "RuntimeError: the thread has ended\n", "RuntimeError: the thread has ended"),
    ],
)
async def test_a_complete_read_that_failed_says_why(
    said: str, why: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ended(*_: object, **__: object) -> tuple[int, str, str]:
        return 3, said, why

    monkeypatch.setattr(runner, "run_command", ended)
    stage: Any = SimpleNamespace(endpoints_file=tmp_path / "e.json", regions=("us",), settings={})
    with pytest.raises(CampaignFailed, match=rf"^the complete read ended with 3: .*{told}$"):
        await runner._read_completely(CAMPAIGN, tmp_path, stage)


async def test_whatever_went_wrong_with_a_fault_is_told_though_locust_failed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Locust:
        def __init__(self, *_: object) -> None:
            """Take everything."""

        async def start(self) -> None:
            """Begin."""

        async def ended(self) -> None:
            await asyncio.sleep(0.05)
            raise CampaignFailed("Locust ended with 1")

        async def stop(self) -> None:
            """End."""

    async def break_it(_: Fault) -> None:
        raise PermissionError("no right to kill us-1")

    monkeypatch.setattr(runner, "LocustProcesses", Locust)
    stage: Any = SimpleNamespace(
        bed=None, folder=tmp_path, campaign=CAMPAIGN, pids=dict, programs={}, break_it=break_it, killed=()
    )
    with pytest.raises(CampaignFailed, match="Locust ended with 1"):
        await runner._load(CAMPAIGN, RunOptions(campaign_text="", out=tmp_path), tmp_path, stage)
    assert "PermissionError('no right to kill us-1')" in capsys.readouterr().err
