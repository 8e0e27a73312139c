"""Replicas have settled when brokers say so, and are compared when each has come to what is committed."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from loadtest.campaign.mesh import CampaignFailed
from loadtest.load import faults, replicas
from loadtest.load.campaign import Campaign, Fault, Stage, Topic, Users

CAMPAIGN = Campaign(
    name="unit",
    about="",
    topics=(Topic(name="orders"),),
    stages=(Stage(seconds=10, users=1, rate=10),),
    users=(Users(kind="kafka", topics=("orders",)),),
)
ADMINS = {"us-1": "one", "us-2": "two", "us-3": "three"}


@dataclass
class Played:
    """A stage whose brokers answer what is in `answers`, by (address, path)."""

    folder: Path
    answers: dict[tuple[str, str], dict[str, Any]]
    campaign: Campaign = CAMPAIGN
    regions: tuple[str, ...] = ("us",)
    done: list[str] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)
    elsewhere: None = None

    def admins(self, region: str) -> dict[str, str]:
        return ADMINS

    def broker_id(self, name: str) -> int:
        return 1000 + int(name[-1])

    def data_of(self, name: str) -> Path:
        return Path("data") / name

    async def ask(self, address: str, path: str) -> dict[str, Any] | None:
        return self.answers.get((address, path))

    def hold_file(self, name: str) -> Path:
        return self.folder / f"{name}.hold"

    def pids(self) -> dict[str, int]:
        return {}

    async def gone(self, name: str) -> Path:
        self.done.append(f"{name} is gone, held down: {self.hold_file(name).exists()}")
        return self.data_of(name)

    async def settle(self) -> None:
        self.done.append("settled")


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(replicas, "SETTLE_S", 0.0)
    brokers = [{"id": 1001 + row, "state": "active", "alive": True, "moving": 0} for row in range(3)]
    partition = {"partition": 0, "group": 7, "leader": 1001, "replicas": [1001, 1002, 1003], "is_settled": True}
    answers: dict[tuple[str, str], dict[str, Any]] = {}
    for address, end in (("one", 5), ("two", 5), ("three", 5)):
        answers[address, "/v1/brokers"] = {"brokers": brokers}
        answers[address, "/v1/topics/orders"] = {"partition_states": [partition]}
        answers[address, "/v1/status"] = {"streams": [{"topic": "orders", "partition": 0, "high_watermark": end}]}
    return Played(tmp_path, answers)


async def test_replicas_that_are_where_they_should_be_have_settled(stage: Any) -> None:
    await replicas.wait_until_settled(stage)
    del stage.answers["one", "/v1/brokers"], stage.answers["one", "/v1/topics/orders"]
    await replicas.wait_until_settled(stage)  # others know as well


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("partition_states", {"replicas": [1001, 1002]}),
        ("partition_states", {"replicas": [1001, 1002, 1009]}),
        ("partition_states", {"is_settled": False}),
        ("partition_states", {"leader": -1}),
        ("brokers", {"moving": 1}),
    ],
)
async def test_whatever_still_moves_has_not_settled(stage: Any, place: str, change: dict[str, Any]) -> None:
    next(answer[place][0] for answer in stage.answers.values() if place in answer).update(change)
    with pytest.raises(CampaignFailed, match=r"(replicas move in|orders has not settled in) us"):
        await replicas.wait_until_settled(stage)


async def test_replicas_are_compared_below_what_is_committed(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[dict[str, Path], int]] = []

    async def differ(folders: dict[str, Path], *, below: int) -> tuple[str, ...]:
        seen.append((dict(folders), below))
        return ("us-3",)

    monkeypatch.setattr(replicas, "replicas_differ", differ)
    await replicas.compare(stage)
    assert seen == [({name: Path("data") / name / "groups" / "7" for name in ADMINS}, 5)]
    row = json.loads((stage.folder / "replicas.jsonl").read_text())
    assert (row["of"], row["compared"], row["differ"]) == ("orders/0", list(ADMINS), ["us-3"])


async def test_a_replica_that_stays_behind_is_said_and_not_left_out(stage: Any) -> None:
    stage.answers["two", "/v1/status"]["streams"][0]["high_watermark"] = 4
    with pytest.raises(CampaignFailed, match=r"the replicas of orders in us do not come to \{0: 5\}"):
        await replicas.compare(stage)


async def test_a_broker_that_does_not_answer_is_named_when_replicas_are_compared(stage: Any) -> None:
    del stage.answers["three", "/v1/status"]
    with pytest.raises(CampaignFailed, match="us-3 does not answer"):
        await replicas.compare(stage)


async def test_replicas_that_another_fault_moves_while_they_are_compared_are_compared_where_they_are_then(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "SETTLE_S", 5.0)
    moved: list[Path] = []

    async def run_command(words: Any, **_: Any) -> tuple[int, str, str]:
        moved.append(Path(words[-1]))
        if len(moved) == 1:
            return 1, "", "it is no directory"
        return 0, "5 batches digest", ""

    monkeypatch.setattr(replicas, "run_command", run_command)
    await replicas.compare(stage)
    row = json.loads((stage.folder / "replicas.jsonl").read_text())
    assert (row["compared"], row["differ"]) == (list(ADMINS), [])


async def test_replicas_are_compared_only_when_every_one_says_how_far_it_is(stage: Any) -> None:
    for address in ADMINS.values():
        del stage.answers[address, "/v1/status"]
    with pytest.raises(CampaignFailed, match="not every replica of orders in us says how far it has come"):
        await replicas.compare(stage)


async def test_a_lost_disk_is_deleted_while_its_broker_is_down_and_filled_before_it_is_healed(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "rmtree", lambda path: stage.done.append(f"{path} is deleted"))
    others = stage.answers["one", "/v1/brokers"]["brokers"]
    stage.answers["one", "/v1/brokers"] = {"brokers": [*others[:2], others[2] | {"alive": False}]}
    async with faults.STRIKES["disk-lost"](stage, Fault(at_s=0, do="disk-lost", what="us-3"), "us-3"):
        assert stage.done == ["us-3 is gone, held down: True", "data/us-3 is deleted"]
        stage.answers["one", "/v1/brokers"] = {"brokers": others}
    assert stage.done[2:] == ["settled"]
    assert not stage.hold_file("us-3").exists()
