"""Whose a group is, is written down in a mesh whose regions all understand it."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from region.coordination.coordinators import PRINCIPALS_LEVEL
from region.coordination.part import Part


@pytest.mark.parametrize("mesh", [{"us": 1, "eu": 1}], indirect=True)
async def test_a_named_consumer_is_its_principals_once_every_region_said_its_level(mesh: Any, until: Any) -> None:
    await mesh.start()
    await mesh.create_topic()
    us = mesh.running["us", 1]
    await until(lambda: us.core.controller.state.older_regions(PRINCIPALS_LEVEL) == [])
    url = f"http://{us.config.listen.admin}/v1/topics/orders/consumers/billing"
    async with aiohttp.ClientSession() as client, client.post(url, json={}) as answer:
        assert answer.status == 200, await answer.text()
    shares = [part._state.shares for part in us.core.coordinators.parts_here(Part.GROUPS)]
    assert sum(share.held_by("User:ANONYMOUS") for share in shares) > 0
