"""A link between brokers of one region is a connection to the peer listener; who knows of none is dialled otherwise."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import structlog.testing

from georelay.ids import BrokerId
from georelay.limits import LINK_FRAME_BYTES_MAX
from mesh.listening.mesh_secret import MeshSecret
from mesh.replication.link import Link
from mesh.replication.link_framed import ACCEPTED, WAITING_BYTES
from mesh.replication.settings import BrokerAddress
from region.multiraft.peer_hello import encode_hello
from region.multiraft.peer_links import PeerLinks
from region.multiraft.peers import FrameKind, Lane, PeerTransport
from tests.free_ports import free_port

ME, PEER, FAR = BrokerId(1001), BrokerId(1002), BrokerId(2001)
OURS, THEIRS = MeshSecret(key=b"the secret of this mesh"), MeshSecret(key=b"what a stranger guesses")
OFFERED, GUESSED = replace(OURS, required=False), replace(THEIRS, required=False)
MIB = 1 << 20


class End:
    """What one end of a link was told."""

    def __init__(self, link: Link | None = None) -> None:
        self.link: Any = link
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.writable = asyncio.Event()
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def frame_received(self, frame: bytes) -> None:
        self.frames.put_nowait(frame)

    def link_writable(self) -> None:
        self.writable.set()

    def link_closed(self, reason: str) -> None:
        self.closed.set_result(reason)

    async def send(self, frame: bytes) -> None:
        while not self.link.is_writable:
            self.writable.clear()
            await self.writable.wait()
        self.link.send(frame)


class Otherwise:
    """The other carrier: notes what it was asked to carry."""

    peer, peer_names, is_writable, gather_ms = "otherwise", None, True, 2

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.targets: list[BrokerId] = []
        self.closed = ""

    def dial(self, target: BrokerAddress) -> Otherwise:
        self.targets.append(target.broker_id)
        return self

    def quiet_ns(self) -> None: ...

    def met(self) -> None: ...

    def start(self, receiver: Any) -> None:
        self.receiver = receiver

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    def close(self, reason: str) -> None:
        self.closed = reason


class Host:
    """What a transport tells beside links."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()

    def frame_received(self, peer: BrokerId, kind: FrameKind, body: memoryview, connection: object) -> None:
        if kind is not FrameKind.RAFT:
            raise ValueError(f"frame kind {kind.name} is out of place")
        self.frames.put_nowait(bytes(body))

    def peer_connected(self, peer: BrokerId, lane: Lane) -> None: ...

    def peer_lost(self, peer: BrokerId, lane: Lane) -> None: ...

    def connection_closed(self, connection: object) -> None: ...


class Broker:
    """One transport with the links on it."""

    def __init__(self, me: BrokerId, port: int, peers: dict[BrokerId, int], **options: Any) -> None:
        self.port = port
        self.host = Host()
        self.links = PeerLinks(lambda _: 7)
        self.accepted: asyncio.Queue[End] = asyncio.Queue()
        if options.pop("serves", True):
            self.links.serve(self._accepted)
        self.transport = PeerTransport(
            me=me,
            mesh_id="test",
            disk=bytes(16),
            listen=("127.0.0.1", port),
            peers={peer: ("127.0.0.1", at) for peer, at in peers.items()},
            receiver=self.host,
            rng=random.Random(1),
            links=self.links,
            **options,
        )

    def _accepted(self, link: Link) -> None:
        end = End(link)
        link.start(end)
        self.accepted.put_nowait(end)

    def dial(self, broker: BrokerId, otherwise: Otherwise | None = None) -> End:
        target = BrokerAddress(broker_id=broker, address="127.0.0.1:1")
        end = End(self.links.dial(target, otherwise=(otherwise or Otherwise()).dial))
        end.link.start(end)
        return end


Start = Callable[..., Any]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Return a starter of brokers ME and PEER."""
    started: list[Broker] = []

    async def begin(here: dict[str, Any] | None = None, there: dict[str, Any] | None = None) -> tuple[Broker, Broker]:
        ports = free_port(), free_port()
        pair = (
            Broker(ME, ports[0], {PEER: ports[1]}, **(here or {})),
            Broker(PEER, ports[1], {ME: ports[0]}, **(there or {})),
        )
        for broker in pair:
            await broker.transport.start()
            started.append(broker)
        return pair

    yield begin
    for broker in started:
        await broker.transport.stop()


async def test_frames_go_both_ways_in_their_order(start: Start) -> None:
    here, there = await start()
    dialled = here.dial(PEER)
    assert not dialled.link.is_writable
    sizes = [0, 1, 70_000, 5, 3 * MIB, 300_000, 2]
    for row, size in enumerate(sizes):
        await dialled.send(bytes([row]) + bytes(size))
    accepted = await there.accepted.get()
    assert [len(await accepted.frames.get()) for _ in sizes] == [1 + size for size in sizes]
    for row in range(3):
        await accepted.send(b"answer %d" % row)
    assert [await dialled.frames.get() for _ in range(3)] == [b"answer 0", b"answer 1", b"answer 2"]
    assert dialled.link.quiet_ns() == accepted.link.quiet_ns() == 7


async def test_what_one_end_closes_both_hear_once(start: Start) -> None:
    here, there = await start()
    dialled = here.dial(PEER)
    await dialled.send(b"hello")
    accepted = await there.accepted.get()
    dialled.link.close("enough")
    assert await dialled.closed == "enough" and "closed" in await accepted.closed
    dialled.link.close("again")
    dialled.link.send(b"into nothing")


async def test_both_ends_cut_a_connection_off_that_takes_no_byte_for_ten_seconds(start: Start) -> None:
    here, there = await start()
    dialled = here.dial(PEER)
    await dialled.send(b"hello")
    accepted = await there.accepted.get()
    for end in (dialled, accepted):
        option = end.link._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert option == 10_000


async def test_a_link_that_nobody_reads_takes_no_more_and_delays_no_log_entries(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = await start()
    dialled = here.dial(PEER)
    await dialled.send(b"hello")
    accepted = await there.accepted.get()
    connection = next(iter(there.transport.linked))
    assert connection._transport is not None
    connection._transport.pause_reading()
    sent = 0
    while dialled.link.is_writable or not dialled.link._is_paused:
        await dialled.send(bytes(MIB))
        sent += 1
        await asyncio.sleep(0)
    assert sent * MIB > WAITING_BYTES and not dialled.link.is_writable
    while not here.transport.send(PEER, Lane.APPEND, FrameKind.RAFT, [b"entries"]):
        await asyncio.sleep(0.002)
    assert await there.host.frames.get() == b"entries"
    connection._transport.resume_reading()
    await dialled.send(b"the next one")
    assert [len(await accepted.frames.get()) for _ in range(sent + 2)] == [5, *[MIB] * sent, 12]


@pytest.mark.parametrize(
    ("here", "there"), [(OURS, OURS), (None, None), (OURS, OFFERED), (OFFERED, OURS), (OFFERED, None), (None, OFFERED)]
)
async def test_brokers_that_may_talk_do(start: Start, here: MeshSecret | None, there: MeshSecret | None) -> None:
    mine, other = await start({"secret": here}, {"secret": there})
    dialled = mine.dial(PEER)
    await dialled.send(b"forward")
    accepted = await other.accepted.get()
    assert await accepted.frames.get() == b"forward"


@pytest.mark.parametrize(("here", "there"), [(OURS, None), (OURS, GUESSED)])
async def test_who_cannot_prove_the_secret_is_told_nothing(
    start: Start, here: MeshSecret, there: MeshSecret | None
) -> None:
    mine, other = await start({"secret": here}, {"secret": there})
    otherwise = Otherwise()
    dialled = mine.dial(PEER, otherwise)
    assert "did not prove the secret" in await dialled.closed
    assert otherwise.targets == []
    while not other.accepted.empty():
        assert other.accepted.get_nowait().frames.empty()


@pytest.mark.parametrize("secret", [None, GUESSED])
async def test_a_link_of_who_does_not_prove_the_secret_is_not_accepted(start: Start, secret: MeshSecret | None) -> None:
    mine, other = await start({"secret": secret}, {"secret": OURS})
    otherwise = Otherwise()
    dialled = mine.dial(PEER, otherwise)
    await dialled.writable.wait()
    assert otherwise.targets == [PEER] and other.accepted.empty()  # over gRPC it hears why


async def test_a_broker_of_a_version_without_links_is_dialled_otherwise(start: Start) -> None:
    here, _ = await start()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(hello()))
        writer.transport.abort()

    older = await asyncio.start_server(refuse, "127.0.0.1", 0)
    here.transport._peers[PEER]._current = older.sockets[0].getsockname()[:2]
    otherwise = Otherwise()
    dialled = here.dial(PEER, otherwise)
    await dialled.send(b"open")
    assert (otherwise.targets, otherwise.sent) == ([PEER], [b"open"])
    assert dialled.link.quiet_ns() is None
    dialled.link.close("enough")
    assert otherwise.closed == "enough"
    older.close()


async def test_a_link_opens_once_the_other_broker_serves_links(start: Start) -> None:
    here, there = await start(None, {"serves": False})
    given_up = here.dial(PEER)
    while not there.links._waiting:
        await asyncio.sleep(0.002)
    given_up.link.close("no patience")
    while there.transport.linked:
        await asyncio.sleep(0.002)
    dialled = here.dial(PEER)
    while all(transport.is_closing() for transport, _ in there.links._waiting):
        await asyncio.sleep(0.002)
    assert not dialled.link.is_writable
    there.links.serve(there._accepted)
    await dialled.send(b"open")
    assert await (await there.accepted.get()).frames.get() == b"open"
    assert there.accepted.empty()


async def test_brokers_of_other_regions_and_unknown_ones_are_dialled_otherwise(start: Start) -> None:
    here, _ = await start()
    otherwise = Otherwise()
    here.dial(FAR, otherwise)
    here.dial(BrokerId(1009), otherwise)
    assert otherwise.targets == [FAR, 1009]


async def test_where_nobody_listens_the_link_says_so_and_nothing_else_is_tried(start: Start) -> None:
    here, there = await start()
    await there.transport.stop()
    otherwise = Otherwise()
    dialled = here.dial(PEER, otherwise)
    assert f"127.0.0.1:{there.port}" in await dialled.closed
    assert otherwise.targets == []


async def test_a_link_that_is_closed_while_it_is_dialled_says_so(start: Start) -> None:
    here, _ = await start()
    dialled = here.dial(PEER)
    dialled.link.close("no more")
    assert await dialled.closed == "no more"


async def test_a_broker_with_a_new_disk_may_ask_though_its_log_is_not_heard(start: Start) -> None:
    here, there = await start(None, {"registered_disk": lambda _: "00000000-0000-0000-0000-00000000000a"})
    dialled = here.dial(PEER)
    await dialled.send(b"take me in")
    assert await (await there.accepted.get()).frames.get() == b"take me in"
    there.transport.check_disks()
    await dialled.send(b"still here")
    here.transport.send(PEER, Lane.APPEND, FrameKind.RAFT, [b"entries"])
    await asyncio.sleep(0.02)
    assert not dialled.closed.done() and there.host.frames.empty()


def hello(sender: BrokerId = PEER, lane: Lane = Lane.LINK) -> bytes:
    return encode_hello(lane=lane, sender=sender, to=ME, disk=bytes(16), mesh_id="test")


def frame(kind: int, body: bytes) -> bytes:
    return struct.pack(">IB", 1 + len(body), kind) + body


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (hello() + frame(FrameKind.RAFT, b"entries"), "frame of kind 1 on a link"),
        (hello() + frame(200, b""), "frame of kind 200 on a link"),
        (hello() + struct.pack(">IB", LINK_FRAME_BYTES_MAX + 2, FrameKind.LINK), "the limit is"),
        (hello(FAR), "broker 2001 is not of this region"),
        (hello(ME), "broker 1001 is not of this region"),
        (hello(lane=Lane.CONTROL) + frame(FrameKind.LINK, b"open"), "LINK is out of place"),
        (frame(FrameKind.LINK, b"open"), "the first frame is not a hello"),
    ],
)
async def test_garbage_costs_the_peer_its_connection(start: Start, said: bytes, reason: str) -> None:
    here, _ = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    with structlog.testing.capture_logs() as logs:
        writer.write(said)
        answer = await _until_closed(reader)
    assert answer in (b"", ACCEPTED)
    assert [reason in row["reason"] for row in logs if row["event"] == "peer.refused"] == [True]
    writer.close()
    while not here.accepted.empty():
        assert await here.accepted.get_nowait().closed


@pytest.mark.parametrize(
    "said", [frame(FrameKind.LINK, b"early"), frame(FrameKind.RAFT, b""), frame(FrameKind.ACCEPTED, b"x"), b"\0" * 9]
)
async def test_an_acceptor_that_says_garbage_is_closed_and_not_taken_for_an_older_broker(
    start: Start, said: bytes
) -> None:
    here, _ = await start()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await _until_closed(reader)
        writer.close()

    stranger = await asyncio.start_server(answer, "127.0.0.1", 0)
    here.transport._peers[PEER]._current = ("127.0.0.1", stranger.sockets[0].getsockname()[1])
    otherwise = Otherwise()
    dialled = here.dial(PEER, otherwise)
    assert "frame of" in await dialled.closed
    assert otherwise.targets == []
    stranger.close()


async def _until_closed(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
