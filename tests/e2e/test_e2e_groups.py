"""One short run of the campaign of groups for each client: three members, then kills, joins and leaves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from loadtest.campaign.group_runs import REGION, Campaign
from loadtest.campaign.runs import new_mesh
from loadtest.groups.member_process import missing_for

SECONDS = 9.0


@pytest.mark.parametrize("client", ["confluent-kafka", "sdk"])
async def test_a_group_processes_everything_while_members_and_its_coordinator_come_and_go(
    client: str, tmp_path: Path, record_property: Any
) -> None:
    assert missing_for(client, os.environ) == ""
    async with new_mesh(tmp_path / "mesh", [REGION], "--restart") as mesh:
        campaign = Campaign(mesh, tmp_path, rate=200, seconds=SECONDS)
        run = await campaign.run(client, 3, "range")
    record_property("verdict", str(run.verdict))
    assert run.verdict.is_exact, run.verdict
    assert run.verdict.generations >= 3
