"""Every request ends: with its own answer, or with ConnectionError."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from georelay.client.broker_connection import BrokerConnection
from georelay.client.stream_reader import StreamReader
from georelay.errors import OffsetOutOfRange, Unauthenticated
from georelay.wire.api import ApiKey
from georelay.wire.requests import ApiVersionsRequest

Answer = Callable[[int], bytes]  # correlation id -> what is written
Dial = Callable[[Answer], Awaitable[BrokerConnection]]


def answered(correlation: int, body: bytes = b"") -> bytes:
    """Return a frame with the smallest ApiVersions 0 response: no error, no APIs."""
    content = struct.pack(">i", correlation) + (body or struct.pack(">hi", 0, 0))
    return struct.pack(">i", len(content)) + content


@pytest.fixture
async def dial() -> AsyncIterator[Dial]:
    servers: list[asyncio.Server] = []
    connections: list[BrokerConnection] = []

    async def start(answer: Answer) -> BrokerConnection:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    (length,) = struct.unpack(">i", await reader.readexactly(4))
                    request = await reader.readexactly(length)
                    writer.write(answer(struct.unpack_from(">i", request, 4)[0]))
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        servers.append(server)
        connection = await BrokerConnection.dial(*server.sockets[0].getsockname()[:2])
        connections.append(connection)
        return connection

    yield start
    for connection in connections:
        connection.close()
    for server in servers:
        server.close()
    for _ in range(3):
        await asyncio.sleep(0)


def ask(connection: BrokerConnection) -> asyncio.Task[object]:
    return asyncio.ensure_future(connection.request(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()))


async def test_pipelined_requests_get_their_answers_in_order(dial: Dial) -> None:
    connection = await dial(answered)
    assert len(await asyncio.gather(*(ask(connection) for _ in range(20)))) == 20


@pytest.mark.parametrize(
    "wrong",
    [
        lambda correlation: answered(correlation, b"\0"),
        lambda correlation: answered(correlation + 1),
        lambda correlation: struct.pack(">ih", -1, 0),
        lambda correlation: answered(correlation, struct.pack(">hi", 0, 2**31 - 1)),
    ],
    ids=["cut short", "of another request", "no length", "absurd count"],
)
async def test_an_answer_that_makes_no_sense_ends_the_request_and_the_connection(dial: Dial, wrong: Answer) -> None:
    connection = await dial(wrong)
    with pytest.raises(ConnectionError):
        async with asyncio.timeout(5):
            await ask(connection)
    assert not connection.is_open
    with pytest.raises(ConnectionError):
        await ask(connection)


async def test_an_answer_nobody_asked_for_closes_the_connection(dial: Dial) -> None:
    connection = await dial(lambda correlation: answered(correlation) + answered(correlation + 1))
    await ask(connection)
    with pytest.raises(ConnectionError):
        async with asyncio.timeout(5):
            await ask(connection)


async def test_a_request_that_was_given_up_does_not_shift_the_answers(dial: Dial) -> None:
    connection = await dial(answered)
    given_up, kept = ask(connection), ask(connection)
    await asyncio.sleep(0)
    given_up.cancel()
    assert await asyncio.wait_for(kept, 5)


async def test_closing_ends_what_is_in_flight(dial: Dial) -> None:
    connection = await dial(lambda _: b"")
    waiting = ask(connection)
    await asyncio.sleep(0)
    connection.close()
    with pytest.raises(ConnectionError):
        async with asyncio.timeout(5):
            await waiting


async def test_a_connection_that_closes_while_signing_in_is_a_refusal(dial: Dial) -> None:
    connection = await dial(lambda _: struct.pack(">ih", -1, 0))
    with pytest.raises(Unauthenticated):
        await connection._sign_in("ann", "wrong")


async def test_a_reader_tries_the_next_broker_and_gives_up_on_none(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    async def refused(host: str, port: int, *, user: object = None) -> BrokerConnection:
        tried.append(port)
        if len(tried) > 5:
            raise OffsetOutOfRange("far enough")
        raise ConnectionRefusedError

    monkeypatch.setattr(BrokerConnection, "dial", refused)
    monkeypatch.setattr("georelay.client.stream_reader.RETRY_MS", 0)
    reader = StreamReader(brokers=["127.0.0.1:1", "127.0.0.1:2"], topic="orders", partition=0)
    with pytest.raises(OffsetOutOfRange):
        await anext(reader.batches())
    assert tried == [1, 2, 1, 2, 1, 2]


async def test_a_reader_leaves_a_broker_that_never_answers(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = await dial(lambda _: b"")
    dials: list[int] = []

    async def leader() -> BrokerConnection:
        dials.append(1)
        if len(dials) > 1:
            raise OffsetOutOfRange("far enough")
        return silent

    monkeypatch.setattr("georelay.client.stream_reader.ANSWER_SECONDS_MAX", 0)
    monkeypatch.setattr("georelay.client.stream_reader.RETRY_MS", 0)
    reader = StreamReader(brokers=[], topic="orders", partition=0, offset=5, max_wait_ms=20)
    monkeypatch.setattr(reader, "_dial_leader", leader)
    with pytest.raises(OffsetOutOfRange):
        async with asyncio.timeout(5):
            await anext(reader.batches())
    assert not silent.is_open
