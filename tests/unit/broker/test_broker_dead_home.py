"""A region that cannot store says so at once, and that nothing was stored, over every entrance."""

from __future__ import annotations

import time
from typing import Any

import aiohttp
import pytest

from georelay.errors import HomeUnreachable
from georelay.wire.batch import RecordDraft, build_batch, validate


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
    for _ in range(2):
        status, problem, waited_s = await post(eu)
        assert (status, problem["code"], problem["outcome"]) == (503, "HOME_UNREACHABLE", "not_stored")
        assert "region us" in problem["detail"]
        assert "georelay status" in problem["detail"]
        assert waited_s < 1
    batch = build_batch([RecordDraft(b"of a Kafka client")], timestamps_ms=1)
    with pytest.raises(HomeUnreachable, match="region us"):
        await eu.cluster.publish(
            "orders",
            0,
            validate(batch, from_client=True),
            bytearray(batch),
            received_ns=1,
            entry_region=2,
            lane="kafka",
        )
    await mesh.start()
    await until(lambda: not links.is_unreachable(1))
    assert (await post(mesh.running["eu", 1]))[0] == 200
