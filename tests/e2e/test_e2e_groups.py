"""One short run of the campaign of groups for each client: three members, then kills, joins and leaves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from loadtest.campaign.group_runs import REGION, Campaign
from loadtest.campaign.mesh import new_mesh
from loadtest.groups.member_process import missing_for

pytestmark = pytest.mark.slow

SECONDS = 6.0


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    """One region for all runs: each has a topic and a group of its own, and begins when all brokers are back."""
    scratch = tmp_path_factory.mktemp("groups")
    mesh = new_mesh(scratch / "mesh", [REGION], "--restart")
    asyncio.run(mesh.__aenter__())
    try:
        yield Campaign(mesh, scratch, rate=200, seconds=SECONDS)
    finally:
        mesh.stop()


@pytest.mark.parametrize("client", ["confluent-kafka", pytest.param("sdk", marks=pytest.mark.slow)])
async def test_a_group_processes_everything_while_members_and_its_coordinator_come_and_go(
    client: str, campaign: Campaign, record_property: Any
) -> None:
    assert missing_for(client, os.environ) == ""
    run = await campaign.run(client, 3, "range")
    record_property("verdict", str(run.verdict))
    assert run.verdict.is_exact, run.verdict
    assert run.verdict.generations >= 3
