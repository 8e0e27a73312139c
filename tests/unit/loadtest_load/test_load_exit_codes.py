"""Exit code 1 says BREACH and nothing else: what could not run or be judged ends with 3, in one line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from georelay.cli.failure import CommandFailed
from georelay.errors import ConfigError
from loadtest.campaign.mesh import CampaignFailed
from loadtest.load import command, runner, running_mesh
from loadtest.load.campaign import Topology
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
