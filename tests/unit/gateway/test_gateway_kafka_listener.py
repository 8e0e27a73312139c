"""The bootstrap listener between real sockets: relays, fails over, ends both sides."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.kafka import listener
from gateway.kafka.listener import _Client, _Upstream
from gateway.metrics import GatewayMetrics
from gateway.routing.region_view_core import RegionView
from gateway.routing.router import Router

METADATA = struct.pack(">ihhih", 10, 3, 0, 7, -1)
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)


class EchoBroker:
    """A TCP listener that sends every byte back."""

    def __init__(self) -> None:
        self.connections: list[asyncio.StreamWriter] = []
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[EchoBroker]:
    broker = EchoBroker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield broker
    server.close()
    for writer in broker.connections:
        writer.close()


async def connect(mesh: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", mesh.ports.kafka)


async def closed_reasons(mesh: Any) -> str:
    async with mesh.client.get(mesh.url("/metrics")) as answer:
        return "".join(line for line in (await answer.text()).splitlines() if "kafka_closed_total{" in line)


async def test_bytes_go_to_the_broker_and_back_in_order(start_mesh: Any, start_broker: Any, echo: EchoBroker) -> None:
    us = await start_broker()
    us.kafka = echo.address
    reader, writer = await connect(await start_mesh(us=[us]))
    produce = struct.pack(">ihh", 3_000_000, 0, 9) + bytes(3_000_000 - 4)
    writer.write(API_VERSIONS + METADATA + produce)
    assert await reader.readexactly(28) == API_VERSIONS + METADATA
    assert await reader.readexactly(len(produce)) == produce
    writer.close()


async def test_a_broker_that_refuses_the_connection_is_passed_over(
    start_mesh: Any, start_broker: Any, echo: EchoBroker, dead_address: str
) -> None:
    gone, good = await start_broker(), await start_broker()
    gone.kafka, good.kafka = dead_address, echo.address
    mesh = await start_mesh(us=[gone], eu=[good])
    reader, writer = await connect(mesh)
    writer.write(METADATA)
    assert await reader.readexactly(len(METADATA)) == METADATA
    writer.close()


async def test_while_a_broker_is_silent_the_next_one_is_tried_beside_it(
    start_mesh: Any, start_broker: Any, echo: EchoBroker, silent_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "CONNECT_TIMEOUT_S", 600.0)
    silent, good = await start_broker(), await start_broker()
    silent.kafka, good.kafka = silent_address, echo.address
    mesh = await start_mesh(us=[silent], eu=[good])
    reader, writer = await connect(mesh)
    writer.write(METADATA)
    async with asyncio.timeout(60):
        assert await reader.readexactly(len(METADATA)) == METADATA
    async with mesh.client.get(mesh.url("/metrics")) as answer:
        assert 'georelay_gateway_failovers_total{listener="kafka"} 1.0' in await answer.text()
    writer.close()


async def test_a_broker_that_owes_no_answer_is_tried_soon_beside_those_that_do(
    echo: EchoBroker, silent_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wait in ("CONNECT_TIMEOUT_S", "LATE_S", "NEXT_S"):
        monkeypatch.setattr(listener, wait, 600.0)
    known = (silent_address, silent_address, echo.address, "127.0.0.1:1")
    brokers = [SimpleNamespace(kafka=address) for address in known]
    router = SimpleNamespace(brokers_of=lambda _: brokers, is_late=lambda broker: broker.kafka == silent_address)
    routes = SimpleNamespace(order_for=lambda _: ((), ()))
    metrics = GatewayMetrics(Router(RegionView([]), monotonic_ns=lambda: 0))
    parts = cast("tuple[Any, Any]", (routes, router))
    bootstrap = listener.KafkaListener(*parts, metrics, sign_in_required=lambda: False)
    reader, writer = await asyncio.open_connection("127.0.0.1", await bootstrap.start("127.0.0.1", 0))
    writer.write(METADATA)
    async with asyncio.timeout(60):
        assert await reader.readexactly(len(METADATA)) == METADATA
    assert metrics.failovers.labels("kafka")._value.get() == 2, "nobody else is tried"
    writer.close()
    await bootstrap.close()


async def test_one_that_is_only_busy_comes_first(echo: EchoBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HURRY_S", 600.0)
    brokers = [SimpleNamespace(kafka=address) for address in (echo.address, "127.0.0.1:1")]
    router = SimpleNamespace(brokers_of=lambda _: brokers, is_late=lambda _: True)
    parts = cast("tuple[Any, Any]", (SimpleNamespace(order_for=lambda _: ((), ())), router))
    metrics = GatewayMetrics(Router(RegionView([]), monotonic_ns=lambda: 0))
    bootstrap = listener.KafkaListener(*parts, metrics, sign_in_required=lambda: False)
    reader, writer = await asyncio.open_connection("127.0.0.1", await bootstrap.start("127.0.0.1", 0))
    writer.write(METADATA)
    assert await reader.readexactly(len(METADATA)) == METADATA
    assert metrics.failovers.labels("kafka")._value.get() == 0
    writer.close()
    await bootstrap.close()


async def test_a_client_ends_when_its_broker_does(start_mesh: Any, start_broker: Any, echo: EchoBroker) -> None:
    us = await start_broker()
    us.kafka = echo.address
    mesh = await start_mesh(us=[us])
    reader, writer = await connect(mesh)
    writer.write(METADATA)
    await reader.readexactly(len(METADATA))
    echo.connections[0].transport.abort()
    assert await reader.read() == b""
    assert 'reason="broker_closed"' in await closed_reasons(mesh)
    writer.close()


async def test_the_broker_side_ends_when_the_client_leaves(
    start_mesh: Any, start_broker: Any, echo: EchoBroker
) -> None:
    us = await start_broker()
    us.kafka = echo.address
    reader, writer = await connect(await start_mesh(us=[us]))
    writer.write(METADATA)
    await reader.readexactly(len(METADATA))
    writer.close()
    async with asyncio.timeout(5):
        await echo.connections[0].wait_closed()


async def test_without_a_ready_region_the_connection_is_closed_and_counted(start_mesh: Any, start_broker: Any) -> None:
    us = await start_broker()
    us.ready = False
    mesh = await start_mesh(us=[us], ready=0)
    reader, writer = await connect(mesh)
    writer.write(METADATA)
    assert await reader.read() == b""
    assert 'reason="no_ready_region"' in await closed_reasons(mesh)
    writer.close()


async def test_with_users_metadata_before_sign_in_never_reaches_a_broker(
    start_mesh: Any, start_broker: Any, echo: EchoBroker
) -> None:
    us = await start_broker()
    us.kafka = echo.address
    reader, writer = await connect(await start_mesh(us=[us], users=True))
    writer.write(API_VERSIONS)
    assert await reader.readexactly(len(API_VERSIONS)) == API_VERSIONS
    writer.write(METADATA)
    assert await reader.read() == b""
    writer.close()


@pytest.fixture
def silent_address() -> Iterator[str]:
    """Return an address at which nobody answers: its line of connections that nobody takes is full."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield f"127.0.0.1:{listening.getsockname()[1]}"


class WrittenTransport:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.written = b""
        self.is_reading = True
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


def _client() -> _Client:
    known = ("opened", "connected", "ended", "join")
    return _Client(cast("Any", SimpleNamespace(sign_in_required=lambda: False, **dict.fromkeys(known, lambda _: None))))


def _side(client: _Client, transport: WrittenTransport) -> _Upstream:
    side = _Upstream(client, cast("Any", "its broker"))
    side.connection_made(cast("Any", transport))
    return side


async def test_a_broker_that_was_tried_and_not_joined_may_end() -> None:
    client, client_side, joined = _client(), WrittenTransport(), WrittenTransport()
    client.connection_made(cast("Any", client_side))
    other = _side(client, WrittenTransport())
    client.joined(_side(client, joined))
    other.connection_lost(None)
    client.data_received(METADATA)
    assert joined.written == METADATA
    assert not client_side.is_closed


async def test_a_client_whose_broker_ended_before_it_was_joined_ends() -> None:
    client, client_side, broker_side = _client(), WrittenTransport(), WrittenTransport()
    client.connection_made(cast("Any", client_side))
    broker_side.close()
    client.joined(_side(client, broker_side))
    assert client_side.is_closed


async def test_bytes_that_come_before_the_broker_is_connected_are_kept_and_sent_first() -> None:
    client, client_side, broker_side = _client(), WrittenTransport(), WrittenTransport()
    client.connection_made(cast("Any", client_side))
    client_side.resume_reading()  # uvloop starts to read after connection_made, whatever the protocol did in it
    client.data_received(API_VERSIONS)
    assert not client_side.is_reading
    client.joined(_side(client, broker_side))
    assert client_side.is_reading
    client.data_received(METADATA)
    assert broker_side.written == API_VERSIONS + METADATA


@pytest.mark.parametrize("owes_probes", [True, False])
async def test_a_client_is_let_go_when_its_broker_owes_answers_to_it_and_to_probes(
    owes_probes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "LATE_S", 0.0)
    ends: list[str] = []
    looks: list[object] = []

    def is_silent(broker: object) -> bool:
        looks.append(broker)
        return owes_probes

    client, client_side, broker_side = _client(), WrittenTransport(), WrittenTransport()
    monkeypatch.setattr(client._listener, "ended", ends.append)
    monkeypatch.setattr(client._listener, "is_silent", is_silent, raising=False)
    client.connection_made(cast("Any", client_side))
    side = _side(client, broker_side)
    client.joined(side)
    client.data_received(METADATA)
    while len(looks) < 2 and not ends:
        await asyncio.sleep(0)
    assert set(looks) == {"its broker"}
    assert ends == (["broker_silent"] if owes_probes else [])
    assert client_side.is_closed == broker_side.is_closed == owes_probes


async def test_a_broker_that_owes_a_client_nothing_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "LATE_S", 0.0)
    client, client_side, broker_side = _client(), WrittenTransport(), WrittenTransport()
    monkeypatch.setattr(client._listener, "is_silent", lambda _: True, raising=False)
    client.connection_made(cast("Any", client_side))
    side = _side(client, broker_side)
    client.joined(side)
    client.data_received(METADATA)
    side.data_received(METADATA)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not client_side.is_closed


async def test_a_gateway_that_was_late_itself_lets_nobody_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "LATE_S", 0.0)
    monkeypatch.setattr(listener, "OWN_LATE_S", -1.0)
    client, client_side, broker_side = _client(), WrittenTransport(), WrittenTransport()
    monkeypatch.setattr(client._listener, "is_silent", lambda _: True, raising=False)
    client.connection_made(cast("Any", client_side))
    client.joined(_side(client, broker_side))
    client.data_received(METADATA)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not client_side.is_closed
