"""What callers of a broker's gRPC port can take before they are known, or may do anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from georelay._pb import admin_pb2, streams_pb2
from georelay.credentials import basic
from georelay.errors import TooLarge
from georelay.limits import ADMIN_BODY_BYTES_MAX, GRPC_FIELDS_MAX
from mesh.listening import grpc_limits
from mesh.listening.admission_core import AdmissionCounters, AdmissionLimits, Refusal
from mesh.listening.bounded_messages import has_more_fields, nested_of, reader_of
from mesh.listening.grpc_limits import OPEN_CALLS_MAX, OPEN_CALLS_PER_ADDRESS_MAX, CallLimits
from region.api._pb import broker_pb2
from region.api.grpc_listener import GrpcListener
from region.api.grpc_services import grpc_handlers
from tests.unit.api.test_api_security import PASSWORD, Guarded, guarded

__all__ = ["guarded"]

WATCH = "/grpc.health.v1.Health/Watch"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
ASKED = health_pb2.HealthCheckRequest().SerializeToString()


@pytest.fixture
async def channel(guarded: Guarded) -> AsyncIterator[Any]:
    handlers = grpc_handlers(guarded.services, ready=lambda: True)
    listener = GrpcListener(handlers, host="127.0.0.1", port=0, admit=guarded.calls.admit)
    port = await listener.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.enable_http_proxy", 0),)) as channel:
        yield channel
    await listener.close()


async def ended(call: Any) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code(), dict(refused.value.trailing_metadata() or ()).get("georelay-code")


@pytest.mark.parametrize("path", [WATCH, REFLECT])
async def test_an_address_has_few_calls_of_services_that_are_open_to_everybody(channel: Any, path: str) -> None:
    held = []
    for _ in range(OPEN_CALLS_PER_ADDRESS_MAX):
        call = channel.stream_stream(path)()
        await call.write(ASKED if path == WATCH else b"\x3a\x00")  # list_services
        assert await call.read() is not grpc.aio.EOF
        held.append(call)
    assert await ended(channel.stream_stream(path)().read()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "BUSY")
    metadata = (("authorization", basic("root", PASSWORD)),)
    answer = await channel.unary_unary("/broker.Broker/Publish")(
        broker_pb2.PublishRequest(topic="orders", body=b"x").SerializeToString(), metadata=metadata
    )
    assert broker_pb2.PublishResponse.FromString(answer).id.startswith("orders/0/")
    held.pop().cancel()


class Caller:
    """The context of a call of somebody at an address."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.trailers: dict[str, str] = {}

    def peer(self) -> str:
        return f"ipv4:{self._address}:1"

    async def abort(self, code: grpc.StatusCode, text: str, trailers: tuple[tuple[str, str], ...]) -> None:
        self.trailers = dict(trailers)
        raise ConnectionAbortedError(code.name)


class Rooms:
    """Calls that last until they are told to end, behind limits."""

    def __init__(self, **limits: Any) -> None:
        self.counters = AdmissionCounters()
        self.end = asyncio.Event()
        self._limits = CallLimits(AdmissionLimits(), self.counters, open_services={"h.H"}, **limits)

    async def call(self, service: str, caller: Caller) -> None:
        async def last(_: Any, __: Any) -> None:
            await self.end.wait()

        handler = self._limits.within(grpc.unary_unary_rpc_method_handler(last), f"/{service}/Last")
        await handler.unary_unary(b"", caller)


async def test_strangers_of_many_addresses_take_no_place_of_those_who_have_to_sign_in() -> None:
    rooms = Rooms(calls_max=1)
    calls = [
        asyncio.create_task(rooms.call("h.H", Caller(f"10.0.0.{number // OPEN_CALLS_PER_ADDRESS_MAX}")))
        for number in range(OPEN_CALLS_MAX)
    ]
    await asyncio.sleep(0)
    with pytest.raises(ConnectionAbortedError, match="RESOURCE_EXHAUSTED"):
        await rooms.call("h.H", Caller("10.9.9.9"))
    calls.append(asyncio.create_task(rooms.call("t.T", Caller("10.9.9.9"))))
    await asyncio.sleep(0)
    refused = Caller("10.9.9.8")
    with pytest.raises(ConnectionAbortedError, match="RESOURCE_EXHAUSTED"):  # the one place is taken
        await rooms.call("t.T", refused)
    assert refused.trailers == {"georelay-code": "BUSY", "georelay-outcome": "not_stored"}
    assert rooms.counters.refused == {Refusal.TOO_MANY: 2}
    rooms.end.set()
    await asyncio.gather(*calls)
    await asyncio.gather(rooms.call("h.H", Caller("10.9.9.9")), rooms.call("t.T", Caller("10.9.9.8")))


async def test_a_call_of_an_open_service_has_an_end_and_no_other_call_has() -> None:
    rooms = Rooms(open_call_s=0.01)
    other = asyncio.create_task(rooms.call("t.T", Caller("10.0.0.1")))
    stranger = Caller("10.0.0.1")
    with pytest.raises(ConnectionAbortedError, match="UNAVAILABLE"):
        await rooms.call("h.H", stranger)
    assert stranger.trailers["georelay-code"] == "UNAVAILABLE" and not other.done()
    rooms.end.set()
    await other


def test_grpc_itself_runs_more_calls_than_all_rooms_hold_so_that_we_are_who_refuses() -> None:
    assert grpc_limits.calls_at_once(2_000) > 2_000 + OPEN_CALLS_MAX


async def test_a_wish_of_megabytes_is_refused_before_it_is_read(channel: Any) -> None:
    metadata = (("authorization", basic("ann", PASSWORD)),)
    wish = b"\x12\x00" * (ADMIN_BODY_BYTES_MAX // 2 + 1)  # offsets of a group, empty ones
    call = channel.unary_unary("/georelay.v1.Admin/SetGroupOffsets")(wish, metadata=metadata)
    assert await ended(call) == (grpc.StatusCode.INVALID_ARGUMENT, "TOO_LARGE")
    stream = channel.stream_stream("/georelay.v1.Streams/PublishStream")(metadata=metadata)
    await stream.write(b"\x0a\x00" * (GRPC_FIELDS_MAX + 1))  # publishes, empty ones
    assert await stream.read() is not grpc.aio.EOF  # the window
    assert await ended(stream.read()) == (grpc.StatusCode.INVALID_ARGUMENT, "TOO_LARGE")


def publishes(records: int) -> streams_pb2.PublishStreamRequest:
    row = streams_pb2.NewRecord(value=b"v" * 300, key=b"k", headers=[streams_pb2.Header(name="h", value=b"v")])
    publish = streams_pb2.Publish(tag=1 << 62, topic="t", partition=-1)
    publish.records.records.extend([row] * records)
    return streams_pb2.PublishStreamRequest(publishes=[publish])


def test_fields_are_counted_at_every_depth() -> None:
    message, nested = publishes(2), nested_of(streams_pb2.PublishStreamRequest.DESCRIPTOR)
    raw = message.SerializeToString()
    count = 1 + 4 + 2 * (1 + 3 + 2)  # the publish; its fields; of each record itself, its fields and its header's
    assert (has_more_fields(raw, nested, count), has_more_fields(raw, nested, count - 1)) == (False, True)


@pytest.mark.parametrize("raw", [b"\x80" * 70_000, b"\x0a\xff\xff\xff\xff\x0f" + bytes(70_000), b"\x0b" + b"\x0d" * 9])
def test_bytes_that_are_no_message_are_left_to_the_parser(raw: bytes) -> None:
    assert not has_more_fields(raw, nested_of(admin_pb2.CreateTopicRequest.DESCRIPTOR), GRPC_FIELDS_MAX)


def test_a_large_message_within_bounds_is_read_and_one_beyond_is_not() -> None:
    read = reader_of(streams_pb2.PublishStreamRequest)
    message = publishes(1_000)
    assert read(message.SerializeToString()) == message
    with pytest.raises(TooLarge, match=str(GRPC_FIELDS_MAX)):
        read(publishes(GRPC_FIELDS_MAX // 5).SerializeToString())
