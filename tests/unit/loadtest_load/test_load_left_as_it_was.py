"""A mesh that runs is left as it was: what a campaign made there is deleted, however the run ended."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.campaign.mesh import CampaignFailed
from loadtest.load import stage as stage_module
from loadtest.load.campaign import Campaign, Readers, Topic, Topology
from loadtest.load.running_mesh import RunningMesh
from loadtest.load.stage import Stage, staged
from loadtest.mesh_process import MeshProcess

TOPICS = (Topic(name="orders"), Topic(name="stock"))
CREATED = ["topics create orders", "topics create stock"]
DELETED = ["topics delete stock", "topics delete orders"]


class Commands:
    """Takes the place of `georelay` on a mesh: what was asked for, and what fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.failing: set[str] = set()
        self.queues: list[dict[str, str]] = []

        async def cli(_: Stage, *words: str, seconds: float = 0) -> str:
            said = " ".join(words[:3])
            self.done.append(" ".join(words) if words[0] == "queues" else said)
            if said in self.failing:
                raise CampaignFailed(f"georelay {said}: no")
            return json.dumps(self.queues)

        monkeypatch.setattr(Stage, "cli", cli)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(monkeypatch)


@pytest.fixture
def running(tmp_path: Path) -> RunningMesh:
    file = tmp_path / "endpoints.json"
    file.write_text(json.dumps({"mesh": "m", "regions": {"us": {}, "eu": {}}}))
    return RunningMesh(Topology(kind="endpoints", endpoints=str(file)))


async def run(folder: Path, mesh: MeshProcess, *, kind: str = "kafka", failure: Exception | None = None) -> None:
    readers = (Readers(topics=("orders",), kind=kind),)
    campaign = Campaign(name="unit", about="", topics=TOPICS, stages=(), users=(), readers=readers)
    async with staged(folder, mesh) as stage:
        await stage.create(campaign)
        if failure is not None:
            raise failure


async def test_the_topics_of_a_campaign_are_deleted(commands: Commands, running: RunningMesh, tmp_path: Path) -> None:
    await run(tmp_path, running)
    assert commands.done == CREATED + DELETED


async def test_they_are_deleted_when_the_run_failed(commands: Commands, running: RunningMesh, tmp_path: Path) -> None:
    with pytest.raises(CampaignFailed, match="no Locust"):
        await run(tmp_path, running, failure=CampaignFailed("no Locust"))
    assert commands.done == CREATED + DELETED


async def test_a_topic_that_was_there_before_is_not_deleted(
    commands: Commands, running: RunningMesh, tmp_path: Path
) -> None:
    commands.failing = {"topics create stock"}
    with pytest.raises(CampaignFailed, match="topics create stock: no"):
        await run(tmp_path, running)
    assert commands.done == [*CREATED, "topics delete orders"]


async def test_what_cannot_be_deleted_is_told_and_hides_nothing(
    commands: Commands, running: RunningMesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.failing = {"topics delete stock"}
    with pytest.raises(CampaignFailed, match="no Locust"):
        await run(tmp_path, running, failure=CampaignFailed("no Locust"))
    told = "topics stock could not be deleted and may still be there: georelay topics delete stock: no\n"
    assert capsys.readouterr().err == told
    assert commands.done == CREATED + DELETED


async def test_queues_over_its_topics_go_with_them(commands: Commands, running: RunningMesh, tmp_path: Path) -> None:
    commands.queues = [{"name": "load-0-0", "topic": "orders"}, {"name": "bills", "topic": "of somebody else"}]
    await run(tmp_path, running, kind="queue")
    of_queues = [
        f"queues {words} --region {region}{more}"
        for region in ("us", "eu")
        for words, more in (("list", " --json"), ("delete load-0-0", ""))
    ]
    assert commands.done == CREATED + of_queues + DELETED


async def test_a_mesh_that_was_started_here_ends_with_its_topics(commands: Commands, tmp_path: Path) -> None:
    told: dict[str, Any] = {"data": tmp_path, "user": None, "ca": None, "headers": {}, "scheme": "http"}
    own: Any = SimpleNamespace(endpoints={"regions": {"us": {}}}, endpoints_file=tmp_path / "endpoints.json", **told)
    await run(tmp_path, own)
    assert commands.done == CREATED


async def test_nothing_is_deleted_where_nothing_was_made(
    commands: Commands, running: RunningMesh, tmp_path: Path
) -> None:
    async with stage_module.staged(tmp_path, running):
        pass
    assert commands.done == []
