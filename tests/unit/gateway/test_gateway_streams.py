"""Calls that stream both ways through the gateway: bytes, back-pressure, statuses, cancelling, health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from gateway.passthrough import broker_service
from tests.unit.gateway.conftest import ANN, BOB

SECONDS = 10
METHODS = ("Subscribe", "PublishStream")
Serve = Callable[[Any], Awaitable[None]]


class StreamBroker:
    """A fake broker of georelay.v1.Streams that works on bytes; `serve` is every call that streams."""

    def __init__(self) -> None:
        self.address = ""
        self.serve: Serve = self.echo
        self.ended = asyncio.Event()
        self.metadata: dict[str, Any] = {}
        self.server = grpc.aio.server()

    async def echo(self, context: Any) -> None:
        self.metadata = dict(context.invocation_metadata())
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(b"echo:" + message)

    async def start(self) -> None:
        async def streamed(_: Any, context: Any) -> None:
            try:
                await self.serve(context)
            finally:
                self.ended.set()

        async def located(request: bytes, context: Any) -> bytes:
            return b"located:" + request

        table = {method: grpc.stream_stream_rpc_method_handler(streamed) for method in METHODS}
        table["Locate"] = grpc.unary_unary_rpc_method_handler(located)
        reflected = {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(streamed)}
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(broker_service.REFLECTION_SERVICE, reflected),)
        )
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("georelay.v1.Streams", table),))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()


@pytest.fixture
async def streams() -> AsyncIterator[StreamBroker]:
    fake = StreamBroker()
    await fake.start()
    yield fake
    await fake.server.stop(None)


@pytest.fixture
async def channel(start_mesh: Any, start_broker: Any, streams: StreamBroker) -> AsyncIterator[grpc.aio.Channel]:
    us = await start_broker()
    us.grpc = streams.address
    mesh = await start_mesh(us=[us])
    options = [("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.ports.grpc}", options=options) as opened:
        yield opened


def both_ways(channel: grpc.aio.Channel, method: str = "Subscribe", metadata: Any = ()) -> Any:
    return channel.stream_stream(f"/georelay.v1.Streams/{method}")(metadata=metadata, timeout=SECONDS)


@pytest.mark.parametrize("method", METHODS)
async def test_bytes_go_both_ways_and_ending_ends(channel: Any, streams: StreamBroker, method: str) -> None:
    call = both_ways(channel, method, (("authorization", "basic YTpi"),))
    for number in range(3):
        await call.write(b"\xff%d" % number)
        assert await call.read() == b"echo:\xff%d" % number
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    assert streams.metadata["authorization"] == "basic YTpi"


async def test_the_status_of_the_broker_comes_back_with_its_metadata(channel: Any, streams: StreamBroker) -> None:
    async def refuse(context: Any) -> None:
        await context.read()
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "beyond", (("georelay-code", "OFFSET_OUT_OF_RANGE"),))

    streams.serve = refuse
    call = both_ways(channel)
    await call.write(b"start")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.OUT_OF_RANGE, "beyond")
    assert ("georelay-code", "OFFSET_OUT_OF_RANGE") in tuple(caught.value.trailing_metadata())


async def test_cancelling_reaches_the_broker(channel: Any, streams: StreamBroker) -> None:
    call = both_ways(channel)
    await call.write(b"start")
    await call.read()
    call.cancel()
    async with asyncio.timeout(SECONDS):
        await streams.ended.wait()


async def test_a_slow_client_holds_the_broker_up(channel: Any, streams: StreamBroker) -> None:
    written = 0

    async def flood(context: Any) -> None:
        nonlocal written
        await context.read()
        for _ in range(200):
            await context.write(bytes(1 << 20))
            written += 1

    streams.serve = flood
    call = both_ways(channel)
    await call.write(b"start")
    await call.read()
    await asyncio.sleep(0.5)
    assert written < 100  # what fits the windows of two connections, never all of it
    call.cancel()


async def test_a_broker_that_breaks_is_unavailable_and_the_next_call_goes_to_another(
    start_mesh: Any, start_broker: Any, streams: StreamBroker
) -> None:
    other = StreamBroker()
    await other.start()
    us, eu = await start_broker(), await start_broker()
    us.grpc, eu.grpc = streams.address, other.address
    mesh = await start_mesh(us=[us], eu=[eu])
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{mesh.ports.grpc}", options=[("grpc.enable_http_proxy", 0)]
    ) as channel:
        call = both_ways(channel, metadata=(("georelay-region", "us"),))
        await call.write(b"start")
        await call.read()
        await streams.server.stop(None)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert ("georelay-code", "UNAVAILABLE") in tuple(caught.value.trailing_metadata())
        again = both_ways(channel)
        await again.write(b"again")
        assert await again.read() == b"echo:again"
        again.cancel()
    await other.server.stop(None)


async def test_streams_of_one_caller_leave_places_at_the_broker_and_one_too_many_is_told_to_come_again(
    start_mesh: Any, start_broker: Any, streams: StreamBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_service, "STREAMS_PER_BROKER_MAX", 4)
    monkeypatch.setattr(broker_service, "CONNECT_TIMEOUT_S", 0.1)
    us = await start_broker()
    us.grpc = streams.address
    mesh = await start_mesh(us=[us], users=True)
    ann, bob = ((("authorization", who),) for who in (ANN, BOB))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.ports.grpc}") as channel:
        for who in (ann, bob):  # a broker has let them in
            assert await channel.unary_unary("/georelay.v1.Streams/Locate")(b"x", metadata=who)
        held = [both_ways(channel, metadata=ann) for _ in range(2)]
        for call in held:
            await call.write(b"x")
            assert await call.read() == b"echo:x"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await both_ways(channel, metadata=ann).read()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(refused.value.trailing_metadata() or ())["georelay-code"] == "BUSY"
        other = both_ways(channel, metadata=bob)
        await other.write(b"y")
        assert await other.read() == b"echo:y"


async def test_who_asks_for_reflection_was_judged_by_nobody(
    start_mesh: Any, start_broker: Any, streams: StreamBroker
) -> None:
    us = await start_broker()
    us.grpc = streams.address
    mesh = await start_mesh(us=[us], users=True)
    path = f"/{broker_service.REFLECTION_SERVICE}/ServerReflectionInfo"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{mesh.ports.grpc}") as channel:
        for method, caller in ((path, "address 127.0.0.1"), ("/georelay.v1.Streams/Subscribe", "user ann")):
            call = channel.stream_stream(method)(metadata=(("authorization", ANN),), timeout=SECONDS)
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK
            assert mesh.gateway._callers.of(ANN, "127.0.0.1") == caller


async def test_unary_methods_of_streams_are_passed_on(channel: Any) -> None:
    assert await channel.unary_unary("/georelay.v1.Streams/Locate")(b"x", timeout=SECONDS) == b"located:x"


async def test_the_gateway_says_its_own_health(channel: Any) -> None:
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    answer = await check(health_pb2.HealthCheckRequest(service="georelay.v1.Streams"), timeout=SECONDS)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await check(health_pb2.HealthCheckRequest(service="nobody"), timeout=SECONDS)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
