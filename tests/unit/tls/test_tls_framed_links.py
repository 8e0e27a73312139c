"""Framed links between regions: what both ends hear, who is kept out, and brokers of the version before them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest

from georelay.ids import BrokerId
from georelay.limits import LINK_FRAME_BYTES_MAX
from georelay.tls import ClientAuth, TlsContexts
from mesh.listening.admission_core import AdmissionCounters, Refusal
from mesh.replication import link_framed, link_listener
from mesh.replication.link import Link
from mesh.replication.link_framed import BEGIN, BEGIN_KIND, LINK_KIND, Carriers, DialledLink
from mesh.replication.link_grpc import METHOD, DialledGrpcLink
from mesh.replication.link_listener import LinkListener
from mesh.replication.settings import BrokerAddress
from tests.older_links import OlderListener

MESH = "test-mesh"
MIB = 1 << 20
ACCEPTED = b"\0\0\0\1\x08"


class End:
    """What one end of a link was told; the accepting one answers each frame, the first of which is a broker's."""

    def __init__(self, link: Link, *, answers: bytes = b"") -> None:
        self.link: Any = link
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.writable = asyncio.Event()
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._answers = answers
        link.start(self)

    def frame_received(self, frame: bytes) -> None:
        self.frames.put_nowait(frame)
        if frame == b"open":
            self.link.met()
        if self._answers:
            self.link.send(self._answers + frame)

    def link_writable(self) -> None:
        self.writable.set()

    def link_closed(self, reason: str) -> None:
        self.closed.set_result(reason)

    async def send(self, frame: bytes) -> None:
        while not self.link.is_writable:
            self.writable.clear()
            await self.writable.wait()
        self.link.send(frame)


class Home:
    """Broker 1001 with a link listener of this version, or of the one before."""

    def __init__(self, tls: TlsContexts | None, *, older: bool = False, answers: bytes = b"heard ") -> None:
        self.counters = AdmissionCounters()
        self.accepted: list[End] = []
        self._answers = answers
        make: Any = OlderListener if older else partial(LinkListener, counters=self.counters)
        self.listener = make(self._accept, tls=tls)
        self.port = 0

    def _accept(self, link: Link) -> None:
        self.accepted.append(End(link, answers=self._answers))

    @property
    def target(self) -> BrokerAddress:
        return BrokerAddress(broker_id=BrokerId(1001), address=f"127.0.0.1:{self.port}")


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Any]]:
    homes: list[Home] = []

    async def begin(tls: TlsContexts | None = None, **options: Any) -> Home:
        home = Home(tls, **options)
        home.port = await home.listener.start("127.0.0.1:0")
        homes.append(home)
        return home

    yield begin
    for home in homes:
        await home.listener.stop()


def mutual(mesh: Any, name: str) -> TlsContexts:
    contexts: TlsContexts = mesh.contexts(name, ClientAuth.REQUIRED)
    return contexts


def carriers(tls: TlsContexts | None = None) -> Carriers:
    return Carriers(tls=tls, mesh_id=MESH, otherwise=partial(DialledGrpcLink, tls=tls, mesh_id=MESH))


async def closed(end: End) -> str:
    end.link.close("done")
    reason = await end.closed
    await end.link.closed()
    return reason


@pytest.mark.parametrize("secure", [False, True])
async def test_frames_go_both_ways_in_order_and_the_first_waits_for_no_answer(
    start: Callable[..., Any], mesh: Any, secure: bool
) -> None:
    home = await start(mutual(mesh, "broker-1001") if secure else None)
    end = End(carriers(mutual(mesh, "broker-2001") if secure else None).dial(home.target))
    end.link.send(b"open")
    assert not end.link.is_writable
    assert await end.frames.get() == b"heard open"
    for size in (0, 1, 70_000, 3 * MIB, 2):
        await end.send(bytes(size))
        assert len(await end.frames.get()) == 6 + size
    accepted = home.accepted[0].link
    assert (accepted.peer_names is not None and "broker-2001.test-mesh" in accepted.peer_names) == secure
    assert accepted.peer.startswith("127.0.0.1:")
    assert await closed(end) == "done"
    assert "closed" in await home.accepted[0].closed


@pytest.mark.parametrize("secure", [False, True])
async def test_a_broker_of_the_version_before_is_dialled_with_grpc_the_next_time_and_tried_again_after_that(
    start: Callable[..., Any], mesh: Any, secure: bool
) -> None:
    home = await start(mutual(mesh, "broker-1001") if secure else None, older=True)
    dial = carriers(mutual(mesh, "broker-2001") if secure else None).dial
    for _ in range(2):
        end = End(dial(home.target))
        end.link.send(b"open")
        assert "dialled with gRPC next" in await end.closed
        end = End(dial(home.target))
        end.link.send(b"open")
        assert await end.frames.get() == b"heard open"
        await closed(end)


@pytest.mark.parametrize("secure", [False, True])
async def test_a_broker_of_the_version_before_is_served_on_the_same_port(
    start: Callable[..., Any], mesh: Any, secure: bool
) -> None:
    home = await start(mutual(mesh, "broker-1001") if secure else None)
    tls = mutual(mesh, "broker-2001") if secure else None
    end = End(DialledGrpcLink(home.target, tls=tls, mesh_id=MESH))
    for frame in (b"open", bytes(5 * MIB), b"!"):
        await end.send(frame)
        assert await end.frames.get() == b"heard " + frame
    accepted = home.accepted[0].link
    assert (accepted.peer_names is not None and "broker-2001.test-mesh" in accepted.peer_names) == secure
    assert accepted.peer.startswith("127.0.0.1:") and home.port != int(accepted.peer.rpartition(":")[2])
    await closed(end)
    assert await home.accepted[0].closed


async def test_the_grpc_server_behind_the_listener_serves_nobody_who_comes_past_it(start: Callable[..., Any]) -> None:
    home = await start()
    port = await home.listener.older.port()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(METHOD)()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert home.accepted == []


async def test_the_wrong_certificate_and_plain_text_reach_nobody(
    start: Callable[..., Any], mesh: Any, other_mesh: Any
) -> None:
    home = await start(mutual(mesh, "broker-1001"))
    wrong = BrokerAddress(broker_id=BrokerId(1009), address=home.target.address)
    for tls, target in ((mutual(mesh, "broker-2001"), wrong), (mutual(other_mesh, "broker-2001"), home.target)):
        assert await End(carriers(tls).dial(target)).closed
    assert await End(carriers().dial(home.target)).closed
    assert home.accepted == []


async def test_a_refused_dial_says_why_and_is_not_taken_for_an_older_broker(start: Callable[..., Any]) -> None:
    home = await start()
    await home.listener.stop()
    dial = carriers().dial
    for _ in range(2):
        assert "refused" in (await End(dial(home.target)).closed).lower()
        assert isinstance(dial(home.target), DialledLink)


class Connection:
    """A TCP connection that the test made up."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("answers", [4, None])
async def test_a_connection_that_nobody_takes_is_joined_by_others_and_the_first_decided_is_used(
    monkeypatch: pytest.MonkeyPatch, answers: int | None
) -> None:
    monkeypatch.setattr(link_framed, "DIAL_AGAIN_S", 0.001)
    given_up: list[int] = []

    async def connected(_rows: Any, *, first: int) -> Any:
        if first == answers:
            return "connected"
        try:
            await asyncio.Event().wait()
        finally:
            given_up.append(first)

    monkeypatch.setattr(link_framed, "connected", connected)
    if answers is None:
        with pytest.raises(TimeoutError, match=r"no answer within 0\.006 s"):
            await link_framed._first_connected([])
    else:
        chosen: Any = await link_framed._first_connected([])
        assert chosen == "connected"
    await asyncio.sleep(0)
    assert sorted(given_up) == list(range(link_framed.DIALS_MAX if answers is None else answers))


async def test_a_connection_that_was_made_beside_the_one_that_is_used_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_framed, "DIAL_AGAIN_S", 0.001)
    made, both = [Connection(), Connection()], asyncio.Event()

    async def connected(_rows: Any, *, first: int) -> Any:
        if first == 1:
            both.set()
        await both.wait()
        return made[first]

    monkeypatch.setattr(link_framed, "connected", connected)
    chosen: Any = await link_framed._first_connected([])
    await asyncio.sleep(0)
    assert [connection.is_closed for connection in made] == [connection is not chosen for connection in made]


async def test_a_connection_that_was_taken_is_joined_by_none_however_slow_its_handshake_is(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_framed, "DIAL_AGAIN_S", 0.001)
    met: list[asyncio.StreamWriter] = []

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.append(writer)
        await asyncio.sleep(20 * link_framed.DIAL_AGAIN_S)
        await reader.readexactly(len(BEGIN))
        writer.write(ACCEPTED)

    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    end = End(carriers().dial(BrokerAddress(broker_id=BrokerId(1001), address=address)))
    end.link.send(b"open")
    while not end.link.is_writable:
        await asyncio.sleep(0.001)
    assert len(met) == 1
    await closed(end)
    met[0].close()
    server.close()


async def said(port: int, *words: bytes) -> bytes:
    """Say something to a listener and return all that it answers until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for word in words:
        writer.write(word)
    answer = b""
    try:
        async with asyncio.timeout(5):
            while data := await reader.read(1024):
                answer += data
    except ConnectionResetError:
        pass
    writer.close()
    return answer


def head(length: int, kind: int) -> bytes:
    return struct.pack(">IB", length, kind)


OPENED = BEGIN + head(1 + len(b"open"), LINK_KIND) + b"open"


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b""),
        (head(1, LINK_KIND), b""),
        (head(5_000, BEGIN_KIND), b""),
        (BEGIN + BEGIN, ACCEPTED),
        (OPENED + head(LINK_FRAME_BYTES_MAX + 2, LINK_KIND), ACCEPTED + head(1 + 10, LINK_KIND) + b"heard open"),
    ],
)
async def test_garbage_costs_who_says_it_the_connection(start: Callable[..., Any], words: bytes, answer: bytes) -> None:
    home = await start()
    assert await said(home.port, words) == answer
    assert [await end.closed for end in home.accepted] == ["the other end closed the connection"] * len(home.accepted)


OPENING = BEGIN + head(1 + len(b"who?"), LINK_KIND) + b"who?"
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # and SETTINGS


@pytest.mark.parametrize("words", [b"", BEGIN, OPENING, HTTP2], ids=["nothing", "begin", "a frame", "HTTP/2"])
async def test_strangers_are_few_whatever_they_say_and_have_an_end(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, words: bytes
) -> None:
    monkeypatch.setattr(link_listener, "MEET_S", 0.2)
    monkeypatch.setattr(link_listener, "STRANGERS_PER_ADDRESS_MAX", 2)
    home = await start()
    await asyncio.gather(*(said(home.port, words) for _ in range(3)))
    assert home.counters.refused == {Refusal.TOO_MANY_OF_ADDRESS: 1, Refusal.NO_SIGN_IN: 2}
    assert not home.listener.strangers and not home.listener.connections
    end = End(carriers().dial(home.target))
    end.link.send(b"open")
    assert await end.frames.get() == b"heard open"
    assert not home.listener.strangers
    await closed(end)


async def test_of_many_strangers_the_oldest_goes_for_a_broker_that_dials(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_listener, "STRANGERS_MAX", 3)
    home = await start()
    oldest, *others = [await asyncio.open_connection("127.0.0.1", home.port) for _ in range(3)]
    end = End(carriers().dial(home.target))
    end.link.send(b"open")
    assert await end.frames.get() == b"heard open"
    with suppress(ConnectionResetError):
        assert await oldest[0].read() == b""
    assert (home.counters.refused, len(home.listener.unmet)) == ({Refusal.TOO_MANY: 1}, 2)
    await closed(end)
    for _, writer in (oldest, *others):
        writer.close()


@pytest.mark.parametrize(
    "words", [BEGIN + head(5_000, LINK_KIND), HTTP2 + bytes(70_000)], ids=["a frame of 5 KB", "70 KB of HTTP/2"]
)
async def test_a_stranger_says_little_before_it_has_shown_that_it_is_a_broker(
    start: Callable[..., Any], words: bytes
) -> None:
    home = await start()
    heard = asyncio.create_task(said(home.port, words))
    await asyncio.wait_for(heard, 2)  # long before its time is over
    assert not home.listener.connections
