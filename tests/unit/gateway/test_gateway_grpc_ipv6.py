"""Who calls a gateway over IPv6 has its whole address at brokers and in rules, as over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.passthrough import broker_service
from mesh.listening import grpc_limits
from tests.unit.gateway.conftest import ANN, OneUser
from tests.unit.gateway.test_gateway_carried_publishes import CarryingBroker, by_stream
from tests.unit.gateway.test_gateway_grpc import publish
from tests.unit.gateway.test_gateway_routes import ask, judging
from tests.unit.gateway.test_gateway_streams import SECONDS, StreamBroker, both_ways

PEER = "ipv6:%5B2001:db8:0:1::5%5D:50123"  # as grpcio says it; not every host has IPv6 to call from
ADDRESS = "2001:db8:0:1::5"


@pytest.fixture(autouse=True)
def over_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    for read in (grpc_limits.host_of, grpc_limits.address_of):
        monkeypatch.setattr(broker_service, read.__name__, lambda _, read=read: read(PEER))


@asynccontextmanager
async def channel_to(mesh: Any) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.ports.grpc}", options=options) as channel:
        yield channel


@asynccontextmanager
async def started(fake: Any) -> AsyncIterator[Any]:
    await fake.start()
    yield fake
    await fake.server.stop(None)


async def test_a_broker_hears_the_address_of_every_call(
    start_mesh: Any, start_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = []

    async def judge(_self: Any, _authorization: str | None, client: str = "") -> str:
        judged.append(client)
        return "ann"

    us = await start_broker()
    async with started(CarryingBroker()) as broker:
        us.grpc = broker.address
        mesh = await start_mesh(us=[us], users=True)
        monkeypatch.setattr(OneUser, "authenticate_header", judge)
        async with channel_to(mesh) as channel:
            assert await publish(channel, b"r", (("authorization", ANN),)) == b"id:r"
            await by_stream(channel)
            await channel.unary_unary("/georelay.v1.Routes/Resolve")(b"", timeout=SECONDS)
        assert {metadata["georelay-client"] for _, metadata in broker.published} == {ADDRESS}
        assert {call.client for call in broker.carried} == {ADDRESS}
        assert set(judged) == {ADDRESS}


async def test_a_call_that_streams_says_its_address(start_mesh: Any, start_broker: Any) -> None:
    us = await start_broker()
    async with started(StreamBroker()) as broker:
        us.grpc = broker.address
        async with channel_to(await start_mesh(us=[us])) as channel:
            call = both_ways(channel)
            await call.write(b"x")
            assert await call.read() == b"echo:x"
            assert broker.metadata["georelay-client"] == ADDRESS
            call.cancel()


async def test_a_rule_for_a_prefix_holds_for_calls(start_mesh: Any, start_broker: Any) -> None:
    us, eu = await start_broker(judging), await start_broker(judging)
    async with started(CarryingBroker()) as first, started(CarryingBroker()) as second:
        us.grpc, eu.grpc = first.address, second.address
        mesh = await start_mesh(us=[us], eu=[eu])
        async with channel_to(mesh) as channel:
            for region, broker in (("eu", second), ("us", first), ("eu", second)):
                assert (await ask(mesh, "POST", "/v1/routes/pin", {"subject": "2001:db8::/48", "value": region}))[
                    0
                ] == 200
                calls = len(broker.published) + len(broker.carried)
                await publish(channel)
                assert len(broker.published) + len(broker.carried) == calls + 1
