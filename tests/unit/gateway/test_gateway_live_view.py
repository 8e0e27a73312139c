"""The gateway shows the live view's file as it is, to those who signed in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.app import Gateway
from gateway.config import BrokerConfig, GatewayConfig, ListenConfig, RegionConfig
from gateway.rest import live_view
from georelay.limits import MIB
from tests.unit.gateway.conftest import ANN, Mesh, OneUser


@pytest.fixture
async def gateway(tmp_path: Path, dead_address: str) -> Any:
    broker = BrokerConfig(number=1, kafka=dead_address, grpc=dead_address, admin=dead_address)
    config = GatewayConfig(
        mesh_id="mesh-1",
        live_file=str(tmp_path / "live.json"),
        listen=ListenConfig(http="127.0.0.1:0", kafka="127.0.0.1:0", grpc="127.0.0.1:0"),
        regions=(RegionConfig(name="us", number=1, brokers=(broker,)),),
    )
    gateway = Gateway(config, OneUser(required=True))
    async with aiohttp.ClientSession() as client:
        yield Mesh(gateway, await gateway.start(), client)
    await gateway.close()


async def ask(gateway: Mesh, authorization: str = ANN) -> tuple[int, Any]:
    async with gateway.client.get(gateway.url("/v1/live"), headers={"Authorization": authorization}) as answer:
        return answer.status, json.loads(await answer.read())


async def test_the_live_view_is_shown_as_its_file_is_now(gateway: Mesh, tmp_path: Path) -> None:
    for batch in (1, 2):
        (tmp_path / "live.json").write_text(json.dumps({"batch": batch}))
        assert await ask(gateway) == (200, {"batch": batch})
    assert (await ask(gateway, "basic d3Jvbmc6"))[0] == 401


async def test_why_there_is_no_live_view_is_said(
    gateway: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    file = tmp_path / "live.json"
    said.append(await ask(gateway))
    file.mkdir()
    said.append(await ask(gateway))
    file.rmdir()
    file.write_text("{}" + " " * MIB)
    monkeypatch.setattr(live_view, "LIVE_BYTES_MAX", MIB)
    said.append(await ask(gateway))
    assert {(status, problem["code"]) for status, problem in said} == {(503, "UNAVAILABLE")}
    assert [problem["detail"] for _, problem in said] == [
        "live_file is not there: is georelay-sla live running, with that checkpoint?",
        "live_file cannot be read: Is a directory",
        "live_file is over 1 MiB: it is no live.json of georelay-sla live",
    ]


async def test_a_gateway_without_a_live_file_says_what_to_set(start_mesh: Any, start_broker: Any) -> None:
    status, problem = await ask(await start_mesh(us=[await start_broker()]))
    assert (status, "live_file" in problem["detail"]) == (503, True)
