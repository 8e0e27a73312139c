"""A broker is asked over one connection, and whatever it answers is told or is no answer."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gateway.routing.endpoints import BrokerEndpoints, RegionEndpoints
from gateway.routing.probe_line import BODY_BYTES_MAX, BadAnswer, NotReached, ProbeLine
from gateway.routing.prober import Prober
from gateway.routing.region_view_core import RegionView
from georelay.ids import BrokerId, RegionNumber

READY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nGeorelay-Shed: 0.25\r\n\r\nok"
Serve = Callable[[bytes], Awaitable[int]]


class Broker:
    """Answers every request with `answer`; ends a connection after `asks_max` of them."""

    def __init__(self) -> None:
        self.answer, self.asks_max = READY, 1_000
        self.requests: list[bytes] = []
        self.connections = 0
        self.port = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for _ in range(self.asks_max):
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(self.answer)
                await writer.drain()

    def line(self) -> ProbeLine:
        return ProbeLine(f"127.0.0.1:{self.port}", "/readyz", monotonic_ns=time.monotonic_ns, tls=None)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    one = Broker()
    async with await asyncio.start_server(one.talk, "127.0.0.1", 0) as server:
        one.port = server.sockets[0].getsockname()[1]
        yield one


async def test_a_connection_is_used_again_and_its_first_answer_is_not_warm(broker: Broker) -> None:
    line = broker.line()
    answers = [await line.ask() for _ in range(3)]
    assert [(found.status, found.warm) for found in answers] == [(200, False), (200, True), (200, True)]
    assert all(found.rtt_ns > 0 and found.headers["georelay-shed"] == "0.25" for found in answers)
    assert broker.connections == 1
    assert (
        broker.requests[0] == f"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1:{broker.port}\r\nAccept: */*\r\n\r\n".encode()
    )
    line.close()


async def test_a_broker_that_lets_a_probe_wait_is_late(broker: Broker) -> None:
    ends = BrokerEndpoints(id=BrokerId(1001), kafka="", grpc="", admin=f"127.0.0.1:{broker.port}")
    view = RegionView([RegionEndpoints(name="us", number=RegionNumber(1), brokers=(ends,))])
    broker.answer = b""
    prober = Prober(view, monotonic_ns=lambda: 0, rng=random.Random(1))
    prober.follow()
    async with asyncio.timeout(10):
        while not view.is_late(ends.id, 1_000_000_000):
            await asyncio.sleep(0)
    assert not view.is_late(ends.id, 0)
    await prober.close()


async def test_a_connection_that_ended_meanwhile_says_nothing_of_the_broker(broker: Broker) -> None:
    broker.asks_max = 1
    line = broker.line()
    assert [(await line.ask()).warm for _ in range(3)] == [False, False, False]
    assert broker.connections == 3
    line.close()


async def test_a_broker_that_is_not_ready_is_told_with_its_status(broker: Broker) -> None:
    broker.answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nConnection: close\r\n\r\n"
    line = broker.line()
    assert [((found := await line.ask()).status, found.warm) for _ in range(2)] == [(503, False), (503, False)]


async def test_nobody_there_is_not_reached(broker: Broker) -> None:
    closed = await asyncio.start_server(broker.talk, "127.0.0.1", 0)
    port = closed.sockets[0].getsockname()[1]
    closed.close()
    await closed.wait_closed()
    for address in (f"127.0.0.1:{port}", "nowhere"):
        with pytest.raises(NotReached):
            await ProbeLine(address, "/readyz", monotonic_ns=time.monotonic_ns, tls=None).ask()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 \xff\xff\xff\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        f"HTTP/1.1 200 OK\r\nContent-Length: {BODY_BYTES_MAX + 1}\r\n\r\n".encode(),
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
    ],
)
async def test_what_is_no_answer_ends_the_connection_and_the_next_one_is_asked_anew(
    broker: Broker, answer: bytes
) -> None:
    broker.answer = answer
    line = broker.line()
    with pytest.raises(BadAnswer):
        await line.ask()
    broker.answer = READY
    assert ((found := await line.ask()).status, found.warm) == (200, False)
    line.close()


async def test_an_answer_that_does_not_come_is_waited_for_as_long_as_the_caller_wants(broker: Broker) -> None:
    broker.answer = READY[:-1]
    line = broker.line()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await line.ask()
    broker.answer = READY
    assert not (await line.ask()).warm  # nothing of the answer before is taken for this one's
    line.close()
