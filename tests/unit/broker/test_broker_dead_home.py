"""A region that cannot store says so at once, and that nothing was stored, over every entrance."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from georelay.errors import HomeUnreachable
from georelay.wire.batch import RecordDraft, build_batch
from mesh.replication.publish import Publish
from region.api import coalescer


async def post(broker: Any) -> tuple[int, dict[str, Any], float]:
    """Publish one record over REST; return the status, the body and the seconds."""
    url = f"http://{broker.config.listen.admin}/v1/topics/orders/records"
    began_s = time.monotonic()
    async with aiohttp.ClientSession() as client, client.post(url, json={"value": "v"}) as answer:
        return answer.status, await answer.json(), time.monotonic() - began_s


@pytest.mark.parametrize("mesh", [{"us": 1, "eu": 1}], indirect=True)
async def test_a_publish_for_a_home_that_is_gone_is_refused_at_once_and_is_stored_when_it_is_back(
    mesh: Any, until: Any
) -> None:
    await mesh.start()
    await mesh.create_topic()
    await mesh.publish(b"before")
    eu = mesh.running["eu", 1]
    assert (await post(eu))[0] == 200
    await mesh.running.pop(("us", 1)).stop()
    links = eu.core.links._outgoing
    await until(lambda: links.is_unreachable(1))
    with capture_logs() as logs:
        for _ in range(20):
            status, problem, waited_s = await post(eu)
            assert (status, problem["code"], problem["outcome"]) == (503, "HOME_UNREACHABLE", "not_stored")
            assert "region us" in problem["detail"]
            assert "georelay status" in problem["detail"]
            assert waited_s < 1
    assert len([row for row in logs if row["event"] == "batch.given_up"]) == 1  # not one for each refused record
    batch = build_batch([RecordDraft(b"of a Kafka client")], timestamps_ms=1)
    with pytest.raises(HomeUnreachable, match="region us"):
        await eu.cluster.publish("orders", 0, Publish.built(batch, received_ns=1, entry_region=2, lane="kafka"))
    await mesh.start()
    await until(lambda: not links.is_unreachable(1))
    assert (await post(mesh.running["eu", 1]))[0] == 200


@pytest.mark.parametrize("mesh", [{"us": 3}], indirect=True)
async def test_a_publish_in_a_region_without_a_majority_is_refused_at_once_and_is_stored_when_it_has_one(
    mesh: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coalescer, "OUTAGE_NS", 300_000_000)
    await mesh.start()
    await mesh.create_topic()
    await mesh.publish(b"before")
    left = mesh.running["us", 1]
    for number in (2, 3):
        await mesh.running.pop(("us", number)).stop()
    await until(lambda: not left.cluster.ready())
    first = await post(left)
    again = await post(left)
    for status, problem, _ in (first, again):
        assert (status, problem["outcome"]) == (503, "not_stored")
        assert problem["code"] in ("NOT_LEADER", "UNAVAILABLE")  # of the partition, or of who gives out producer ids
        assert "region us" in problem["detail"]
        assert "georelay status" in problem["detail"]
    assert again[2] < 0.2
    await mesh.start()
    await until(lambda: left.cluster.leader_of("orders", 0) > 0)
    async with asyncio.timeout(10):
        while (await post(left))[0] != 200:
            await asyncio.sleep(0.05)
