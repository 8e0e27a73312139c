"""`broker.Broker` and `georelay.v1.Admin` through the gateway: the same bytes and statuses, honest outcomes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.passthrough import broker_service
from georelay.errors import Busy, GeorelayError, OutcomeUnknown, Unavailable
from tests.unit.gateway.conftest import OneUser

ANN = (("authorization", "basic " + base64.b64encode(b"ann:secret").decode()),)
READS = (
    *("DescribeTopic", "ListTopics", "ListBrokers"),
    *("ListGroups", "DescribeGroup", "ListQueues", "DescribeQueue"),
)
ADMIN_METHODS = (
    "CreateTopic",
    "DeleteTopic",
    "AlterTopic",
    "DeleteRecords",
    "ReassignTopic",
    "AddBroker",
    "DrainBroker",
    "RemoveBroker",
    *("DeleteGroup", "SetGroupOffsets", "CreateQueue", "DeleteQueue"),
    *READS,
)
NOT_PROTOBUF = b"\xff\x00 any bytes \x80"


class GrpcBroker:
    """A fake broker that works on bytes; `administer` answers all four methods of georelay.v1.Admin."""

    def __init__(self) -> None:
        self.address = ""
        self.published: list[tuple[bytes, dict[str, Any]]] = []
        self.cancelled = asyncio.Event()
        self.publish: Callable[[bytes, Any], Awaitable[bytes]] = self.store
        self.administer: Callable[[bytes, Any], Awaitable[bytes]] = self.store
        self.server = grpc.aio.server()

    async def store(self, request: bytes, context: Any) -> bytes:
        self.published.append((request, dict(context.invocation_metadata())))
        return b"id:" + request

    async def subscribe(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            for number in range(3):
                yield request + str(number).encode()
            if request == b"end":
                await context.abort(grpc.StatusCode.OUT_OF_RANGE, "beyond", (("georelay-code", "X"),))
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    async def start(self) -> None:
        async def publish(request: bytes, context: Any) -> bytes:
            return await self.publish(request, context)

        handlers = {
            "Publish": grpc.unary_unary_rpc_method_handler(publish),
            "Subscribe": grpc.unary_stream_rpc_method_handler(self.subscribe),
        }
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("broker.Broker", handlers),))
        self._serve_admin()
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()

    def _serve_admin(self) -> None:
        async def administer(request: bytes, context: Any) -> bytes:
            return await self.administer(request, context)

        handlers = {method: grpc.unary_unary_rpc_method_handler(administer) for method in ADMIN_METHODS}
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("georelay.v1.Admin", handlers),))


@pytest.fixture
async def broker() -> AsyncIterator[GrpcBroker]:
    fake = GrpcBroker()
    await fake.start()
    yield fake
    await fake.server.stop(None)


@pytest.fixture
async def open_channel() -> AsyncIterator[Callable[[Any], grpc.aio.Channel]]:
    channels: list[grpc.aio.Channel] = []

    def open_(mesh: Any) -> grpc.aio.Channel:
        channels.append(
            grpc.aio.insecure_channel(f"127.0.0.1:{mesh.ports.grpc}", options=[("grpc.enable_http_proxy", 0)])
        )
        return channels[-1]

    yield open_
    for channel in channels:
        await channel.close()


async def publish(channel: grpc.aio.Channel, request: bytes = b"r", metadata: Any = ()) -> bytes:
    return bytes(await channel.unary_unary("/broker.Broker/Publish")(request, metadata=metadata, timeout=20))


async def administer(channel: grpc.aio.Channel, method: str, request: bytes = b"r", metadata: Any = ()) -> bytes:
    call = channel.unary_unary(f"/georelay.v1.Admin/{method}")
    return bytes(await call(request, metadata=metadata, timeout=20))


def assert_unknown(error: grpc.aio.AioRpcError) -> None:
    """A lost answer looks the same whether a broker or the gateway lost it."""
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # as docs/errors.md says, for brokers and gateways
    trailing = dict(error.trailing_metadata())
    assert (trailing["georelay-code"], trailing["georelay-outcome"]) == (
        OutcomeUnknown.code,
        OutcomeUnknown.outcome.value,
    )


async def test_publish_carries_bytes_and_credentials_both_ways(
    start_mesh: Any, start_broker: Any, broker: GrpcBroker, open_channel: Any
) -> None:
    us = await start_broker()
    us.grpc = broker.address
    mesh = await start_mesh(us=[us])
    assert await publish(open_channel(mesh), NOT_PROTOBUF, (("authorization", "basic eA=="),)) == b"id:" + NOT_PROTOBUF
    request, metadata = broker.published[0]
    assert request == NOT_PROTOBUF
    assert metadata["authorization"] == "basic eA=="


async def test_publish_fails_over_when_no_connection_came_about(
    start_mesh: Any, start_broker: Any, broker: GrpcBroker, open_channel: Any, dead_address: str
) -> None:
    gone, good = await start_broker(), await start_broker()
    gone.grpc, good.grpc = dead_address, broker.address
    mesh = await start_mesh(us=[gone], eu=[good])
    assert await publish(open_channel(mesh)) == b"id:r"


async def test_the_status_of_the_broker_comes_back_with_details_and_metadata(
    start_mesh: Any, start_broker: Any, broker: GrpcBroker, open_channel: Any
) -> None:
    async def refuse(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "no leader", (("georelay-code", "NOT_LEADER"),))
        return b""

    broker.publish = refuse
    us = await start_broker()
    us.grpc = broker.address
    mesh = await start_mesh(us=[us])
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await publish(open_channel(mesh))
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.UNAVAILABLE, "no leader")
    assert dict(refused.value.trailing_metadata())["georelay-code"] == "NOT_LEADER"


async def test_a_publish_whose_answer_is_lost_is_unknown_and_not_sent_again(
    start_mesh: Any, start_broker: Any, broker: GrpcBroker, open_channel: Any
) -> None:
    calls = []
    taken = asyncio.Event()

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speak just enough HTTP/2 to take a call, then break the connection."""
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        while data := await reader.read(65536):
            if b"Publish" in data or b"payload" in data:
                calls.append(data)
                taken.set()
                writer.transport.abort()
                return

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    us, eu = await start_broker(), await start_broker()
    us.grpc, eu.grpc = f"127.0.0.1:{server.sockets[0].getsockname()[1]}", broker.address
    mesh = await start_mesh(us=[us], eu=[eu])
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await publish(open_channel(mesh), b"payload")
    server.close()
    assert_unknown(refused.value)
    assert not broker.published


async def test_a_publish_that_a_stopping_broker_has_not_processed_is_handed_to_another_one(
    start_mesh: Any, start_broker: Any, broker: GrpcBroker, open_channel: Any
) -> None:
    """The connection is there when the call is made; what HTTP/2 says afterwards is that nobody has looked at it."""

    async def stop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        while data := await reader.read(65536):
            if b"Publish" in data or b"payload" in data:
                server.close()
                writer.write(b"\x00\x00\x08\x07\x00" + bytes(4) + bytes(8))  # GOAWAY: last stream 0, no error
                writer.close()
                return

    server = await asyncio.start_server(stop, "127.0.0.1", 0)
    us, eu = await start_broker(), await start_broker()
    us.grpc, eu.grpc = f"127.0.0.1:{server.sockets[0].getsockname()[1]}", broker.address
    mesh = await start_mesh(us=[us], eu=[eu])
    assert await publish(open_channel(mesh), b"payload") == b"id:payload"
    assert not server.is_serving()


async def test_a_publish_whose_answer_is_late_is_unknown_too(
    start_mesh: Any, start_broker: Any, broker: GrpcBroker, open_channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_request: bytes, _context: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    monkeypatch.setattr(broker_service, "ANSWER_TIMEOUT_S", 0.1)
    broker.publish = never
    us = await start_broker()
    us.grpc = broker.address
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await publish(open_channel(await start_mesh(us=[us])))
    assert_unknown(refused.value)


async def test_without_a_ready_region_calls_are_unavailable(
    start_mesh: Any, start_broker: Any, open_channel: Any
) -> None:
    us = await start_broker()
    us.ready = False
    mesh = await start_mesh(us=[us], ready=0)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await publish(open_channel(mesh))
    assert (refused.value.code(), refused.value.details()) == (
        grpc.StatusCode.UNAVAILABLE,
        "no region is ready; try again",
    )


async def test_a_subscription_streams_and_its_end_status_comes_back(
    start_mesh: Any, start_broker: Any, broker: GrpcBroker, open_channel: Any
) -> None:
    us = await start_broker()
    us.grpc = broker.address
    call = open_channel(await start_mesh(us=[us])).unary_stream("/broker.Broker/Subscribe")(b"end")
    got = []
    with pytest.raises(grpc.aio.AioRpcError) as ended:  # noqa: PT012
        async for answer in call:
            got.append(answer)
    assert got == [b"end0", b"end1", b"end2"]
    assert (ended.value.code(), ended.value.details()) == (grpc.StatusCode.OUT_OF_RANGE, "beyond")


async def test_cancelling_a_subscription_cancels_it_at_the_broker(
    start_mesh: Any, start_broker: Any, broker: GrpcBroker, open_channel: Any
) -> None:
    us = await start_broker()
    us.grpc = broker.address
    call = open_channel(await start_mesh(us=[us])).unary_stream("/broker.Broker/Subscribe")(b"s")
    assert await call.read() == b"s0"
    call.cancel()
    async with asyncio.timeout(5):
        await broker.cancelled.wait()


async def test_a_subscription_moves_on_before_its_first_record(
    start_mesh: Any, start_broker: Any, broker: GrpcBroker, open_channel: Any, dead_address: str
) -> None:
    gone, good = await start_broker(), await start_broker()
    gone.grpc, good.grpc = dead_address, broker.address
    call = open_channel(await start_mesh(us=[gone], eu=[good])).unary_stream("/broker.Broker/Subscribe")(b"s")
    assert await call.read() == b"s0"
    call.cancel()


@pytest.mark.parametrize("metadata", [(), (("authorization", "basic d3Jvbmc6"),)])
async def test_without_credentials_nothing_is_passed_on(
    start_mesh: Any, start_broker: Any, broker: GrpcBroker, open_channel: Any, metadata: Any
) -> None:
    us = await start_broker()
    us.grpc = broker.address
    channel = open_channel(await start_mesh(us=[us], users=True))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await publish(channel, metadata=metadata)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await channel.unary_stream("/broker.Broker/Subscribe")(b"s", metadata=metadata).read()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not broker.published
    assert await publish(channel, metadata=ANN) == b"id:r"


@pytest.mark.parametrize(
    ("error", "status"),
    [(Busy("later"), grpc.StatusCode.RESOURCE_EXHAUSTED), (Unavailable("later"), grpc.StatusCode.UNAVAILABLE)],
)
async def test_who_cannot_be_judged_now_is_told_to_come_again(
    start_mesh: Any,
    start_broker: Any,
    open_channel: Any,
    monkeypatch: pytest.MonkeyPatch,
    error: GeorelayError,
    status: grpc.StatusCode,
) -> None:
    async def refuse(*_: Any) -> str:
        raise error

    mesh = await start_mesh(us=[await start_broker()], users=True)
    monkeypatch.setattr(OneUser, "authenticate_header", refuse)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await publish(open_channel(mesh), metadata=ANN)
    assert refused.value.code() is status
    assert dict(refused.value.trailing_metadata() or ())["georelay-code"] == error.code


# --- georelay.v1.Admin ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", ADMIN_METHODS)
async def test_administration_carries_bytes_and_credentials_both_ways(
    start_mesh: Any, start_broker: Any, broker: GrpcBroker, open_channel: Any, method: str
) -> None:
    us = await start_broker()
    us.grpc = broker.address
    channel = open_channel(await start_mesh(us=[us], users=True))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await administer(channel, method)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not broker.published
    assert await administer(channel, method, NOT_PROTOBUF, ANN) == b"id:" + NOT_PROTOBUF
    assert broker.published[0][1]["authorization"] == ANN[0][1]


async def test_a_refusal_of_the_controller_comes_back_with_its_metadata(
    start_mesh: Any, start_broker: Any, broker: GrpcBroker, open_channel: Any
) -> None:
    async def refuse(_request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "no home", (("georelay-code", "HOME_UNREACHABLE"),))
        return b""

    broker.administer = refuse
    us, eu = await start_broker(), await start_broker()
    us.grpc, eu.grpc = broker.address, broker.address
    channel = open_channel(await start_mesh(us=[us], eu=[eu]))
    for method in ADMIN_METHODS:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await administer(channel, method)
        assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.UNAVAILABLE, "no home")
        assert dict(refused.value.trailing_metadata())["georelay-code"] == "HOME_UNREACHABLE"


@pytest.mark.parametrize("method", ADMIN_METHODS)
async def test_a_lost_answer_is_unknown_for_a_change_and_asked_again_for_a_question(
    start_mesh: Any,
    start_broker: Any,
    broker: GrpcBroker,
    open_channel: Any,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    asked = 0

    async def never_at_first(request: bytes, _context: Any) -> bytes:
        nonlocal asked
        asked += 1
        if asked == 1:
            await asyncio.Event().wait()
        return b"second:" + request

    monkeypatch.setattr(broker_service, "ANSWER_TIMEOUT_S", 0.2)
    broker.administer = never_at_first
    us, eu = await start_broker(), await start_broker()
    us.grpc = eu.grpc = broker.address
    channel = open_channel(await start_mesh(us=[us], eu=[eu]))
    if method in READS:
        assert await administer(channel, method) == b"second:r"
        return
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await administer(channel, method)
    assert_unknown(refused.value)
    assert "may have taken effect" in str(refused.value.details())
    assert asked == 1


async def test_a_call_for_one_region_goes_nowhere_else_and_an_unknown_region_is_refused(
    start_mesh: Any, start_broker: Any, broker: GrpcBroker, open_channel: Any
) -> None:
    us, eu = await start_broker(), await start_broker()
    us.grpc, eu.grpc = "127.0.0.1:1", broker.address
    channel = open_channel(await start_mesh(us=[us], eu=[eu]))
    assert await administer(channel, "DrainBroker", b"r", (("georelay-region", "eu"),)) == b"id:r"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await administer(channel, "DrainBroker", b"r", (("georelay-region", "us"),))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await administer(channel, "DrainBroker", b"r", (("georelay-region", "mars"),))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
