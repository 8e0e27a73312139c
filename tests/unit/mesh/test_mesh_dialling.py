"""A dial that is not answered does not hold up the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog.testing

from georelay.ids import BrokerId
from mesh.replication.link import Link
from mesh.replication.link_grpc import DialledGrpcLink
from mesh.replication.link_listener import LinkListener
from mesh.replication.settings import BrokerAddress

ECHO = b"heard"


class Heard:
    """A receiver that remembers."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def frame_received(self, frame: bytes) -> None:
        self.frames.put_nowait(frame)

    def link_writable(self) -> None:
        pass

    def link_closed(self, reason: str) -> None:
        self.closed.set_result(reason)


class Echo(Heard):
    """Answers each frame."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.link = link

    def frame_received(self, frame: bytes) -> None:
        self.link.send(ECHO + frame)


class Doorway:
    """Passes connections on to a listener; the first `silent` ones are taken and never answered, as in a cut."""

    def __init__(self, port: int, *, silent: int) -> None:
        self._port = port
        self._silent = silent
        self.met = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._enter, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.met += 1
        self._writers.append(writer)
        if self.met <= self._silent:
            return
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(inner_writer)
        for source, target in ((reader, inner_writer), (inner_reader, writer)):
            task = asyncio.create_task(self._pass(source, target))
            self._tasks.add(task)

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65_536):
                target.write(data)

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@pytest.fixture
async def listener() -> AsyncIterator[int]:
    made = LinkListener(lambda link: link.start(Echo(link)))
    yield await made.start("127.0.0.1:0")
    await made.stop()


def dialled(port: int) -> DialledGrpcLink:
    return DialledGrpcLink(BrokerAddress(broker_id=BrokerId(1001), address=f"127.0.0.1:{port}"))


async def test_a_dial_that_hears_nothing_is_joined_by_another_one(listener: int) -> None:
    doorway = Doorway(listener, silent=2)
    link, heard = dialled(await doorway.start()), Heard()
    link.start(heard)
    link.send(b"!")
    async with asyncio.timeout(10):
        assert await heard.frames.get() == ECHO + b"!"
    assert doorway.met == 3
    link.close("done")
    await link.closed()
    await doorway.stop()


async def test_a_refused_dial_says_why_at_once() -> None:
    unused = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    port = int(unused.sockets[0].getsockname()[1])
    unused.close()
    await unused.wait_closed()
    link, heard = dialled(port), Heard()
    link.start(heard)
    async with asyncio.timeout(10):
        assert "refused" in (await heard.closed).lower()
    await link.closed()


async def test_a_link_that_is_closed_while_it_dials_is_closed_once(listener: int) -> None:
    doorway = Doorway(listener, silent=1_000)
    link, heard = dialled(await doorway.start()), Heard()
    link.start(heard)
    async with asyncio.timeout(10):
        while doorway.met < 2:
            await asyncio.sleep(0.01)
        link.close("enough")
        assert await heard.closed == "enough"
    await link.closed()
    await doorway.stop()


class EndedCall:
    """A call whose end is known before its reader is told, as grpcio's is for a turn of the loop."""

    def __init__(self) -> None:
        self.is_over = False
        self.reader_told: asyncio.Event = asyncio.Event()

    def done(self) -> bool:
        return self.is_over

    async def read(self) -> Any:
        await self.reader_told.wait()
        return grpc.aio.EOF

    async def write(self, _frame: bytes) -> None:
        if self.is_over:
            raise asyncio.InvalidStateError("RPC already finished.")


class ReadyChannel:
    """A channel that is connected, with one call."""

    def __init__(self, call: EndedCall) -> None:
        self._call = call

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.READY

    def stream_stream(self, _method: str) -> Any:
        return lambda: self._call

    async def close(self) -> None: ...


async def test_a_frame_that_meets_a_call_which_has_just_ended_is_no_failure_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = EndedCall()
    monkeypatch.setattr(DialledGrpcLink, "_channel", lambda _link: ReadyChannel(call))
    link, heard = dialled(1), Heard()
    with structlog.testing.capture_logs() as logs:
        link.start(heard)
        async with asyncio.timeout(10):
            while link._tasks != set() and len(link._tasks) < 2:
                await asyncio.sleep(0)
            call.is_over = True
            link.send(b"too late")
            for _ in range(5):
                await asyncio.sleep(0)
            call.reader_told.set()
            assert await heard.closed == "the other end closed the stream"
        await link.closed()
    assert logs == []
