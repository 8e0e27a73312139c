"""A region that joined is compared with the home: as clients read it, and by the audit."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.campaign.mesh import CampaignFailed
from loadtest.load import joining
from loadtest.load.campaign import Topic


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    async def committed(*_: object) -> dict[int, int]:
        return {0: 5}

    monkeypatch.setattr(joining, "committed", committed)
    monkeypatch.setattr(joining, "SETTLE_S", 0.0)
    return SimpleNamespace(
        folder=tmp_path,
        regions=("us", "sa"),
        endpoints={"regions": {"us": {"kafka": ["us:1"]}, "sa": {"kafka": ["sa:1"]}}},
        endpoints_file=tmp_path / "endpoints.json",
        campaign=SimpleNamespace(topics=(Topic(name="orders", home="us"),)),
    )


def held(monkeypatch: pytest.MonkeyPatch, in_sa: str, audit: int) -> None:
    async def digest(brokers: list[str], *_: object) -> str:
        return in_sa if brokers == ["sa:1"] else "same"

    async def run_command(*_: object, **__: object) -> tuple[int, str, str]:
        return audit, "", "eu did not answer"

    monkeypatch.setattr(joining, "_digest", digest)
    monkeypatch.setattr(joining, "run_command", run_command)


@pytest.mark.parametrize(
    ("in_sa", "audit", "differ"),
    [("same", 0, [[], []]), ("other", 0, [["sa"], []]), ("same", 1, [[], ["us", "sa"]])],
    ids=["equal", "read otherwise", "differs in the audit"],
)
async def test_what_differs_is_noted_for_the_verdict(
    in_sa: str, audit: int, differ: list[list[str]], stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(monkeypatch, in_sa, audit)
    await joining.compare(stage, "sa")
    rows = [json.loads(line) for line in (stage.folder / "replicas.jsonl").read_text().splitlines()]
    assert [row["of"] for row in rows] == ["orders/0", "audit of orders"]
    assert [row["differ"] for row in rows] == differ


async def test_an_audit_that_reaches_no_end_is_no_result(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    held(monkeypatch, "same", 3)
    with pytest.raises(CampaignFailed, match="the audit of orders reaches no end: eu did not answer"):
        await joining.compare(stage, "sa")
