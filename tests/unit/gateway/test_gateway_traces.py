"""A gateway serves the rows of its own outcomes, to those who signed in: what it refused is among them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest

from gateway.app import Gateway
from gateway.config import BrokerConfig, GatewayConfig, ListenConfig, RegionConfig
from gateway.traces import writer_number
from tests.unit.gateway.conftest import ANN, Mesh, OneUser

WRONG = "basic " + base64.b64encode(b"ann:guessed").decode()
RECORDS = "/v1/topics/orders/records"


@pytest.fixture
async def gateway(tmp_path: Path, dead_address: str) -> Any:
    broker = BrokerConfig(number=1, kafka=dead_address, grpc=dead_address, admin=dead_address)
    config = GatewayConfig(
        mesh_id="mesh-1",
        name="edge-1",
        region="us",
        trace_dir=str(tmp_path),
        listen=ListenConfig(http="127.0.0.1:0", kafka="127.0.0.1:0", grpc="127.0.0.1:0"),
        regions=(RegionConfig(name="us", number=1, brokers=(broker,)),),
    )
    gateway = Gateway(config, OneUser(required=True))
    async with aiohttp.ClientSession() as client:
        yield Mesh(gateway, await gateway.start(), client)
    await gateway.close()


async def ask(mesh: Mesh, path: str, *, method: str = "GET", authorization: str = ANN) -> tuple[int, bytes]:
    async with mesh.client.request(method, mesh.url(path), headers={"Authorization": authorization}) as answer:
        return answer.status, await answer.read()


async def test_requests_that_the_gateway_refused_are_in_the_rows_that_it_serves(gateway: Mesh) -> None:
    assert (await ask(gateway, RECORDS, method="POST", authorization=WRONG))[0] == 401
    assert (await ask(gateway, RECORDS, method="POST"))[0] == 503  # no broker is there
    assert (await ask(gateway, RECORDS))[0] == 503
    counted: Counter[tuple[str, str]] = Counter()
    async with asyncio.timeout(20):
        while counted["publish", "attempts"] < 2 or counted["consume", "attempts"] < 1:
            await asyncio.sleep(0.05)
            _, raw = await ask(gateway, "/v1/traces")
            document = json.loads(raw)
            end = document["kinds"]["outcome"]
            if end["latest"] == "/0":
                continue
            _, raw = await ask(gateway, f"/v1/traces/outcome?from={end['oldest']}&until={end['latest']}")
            rows = pa.ipc.open_stream(raw).read_all().to_pylist()
            counted = Counter()
            for row in rows:
                for name in ("attempts", "client_error", "server_error"):
                    counted[row["op"], name] += row[name]
    assert document == {
        "region": "us", "broker": writer_number("edge-1"), "gateway": "edge-1", "is_writing": True,
        "kinds": {"outcome": end},
    }  # fmt: skip
    assert {row["gateway"] for row in rows} == {"edge-1"}
    publish = [counted["publish", name] for name in ("attempts", "client_error", "server_error")]
    assert publish == [2, 1, 1]
    assert counted["consume", "server_error"] == 1


async def test_traces_of_a_gateway_need_a_sign_in_however_they_are_asked_for(gateway: Mesh) -> None:
    for path in ("/v1/traces", "/v1/traces/outcome", "/v1/traces/outcome/end", "/v1/%74races"):
        assert (await ask(gateway, path, authorization=WRONG))[0] == 401, path
    status, raw = await ask(gateway, "/v1/traces/ledger?from=/0&until=/0")
    assert (status, "kind: one of outcome" in json.loads(raw)["detail"]) == (400, True)


async def test_a_gateway_that_writes_none_says_so(start_mesh: Any, start_broker: Any) -> None:
    mesh = await start_mesh(us=[await start_broker()])
    status, raw = await ask(mesh, "/v1/traces")
    assert (status, json.loads(raw)["is_writing"]) == (200, False)
    status, raw = await ask(mesh, "/v1/traces/outcome/end?from=/0")
    assert (status, "set trace_dir" in json.loads(raw)["detail"]) == (400, True)
