"""A peer is believed nothing before its hello; what breaks the protocol closes the connection."""

from __future__ import annotations

import asyncio
import itertools
import random
import struct
from collections.abc import AsyncIterator

import pytest

from georelay.ids import BrokerId
from georelay.limits import PEER_FRAME_BYTES_MAX
from mesh.listening.addresses_core import Source
from region.multiraft import peer_incoming, peer_outgoing
from region.multiraft.peers import FrameKind, Lane, PeerProtocolError, PeerTransport, decode_hello, encode_hello
from tests.free_ports import free_port

ME, PEER = BrokerId(1001), BrokerId(1002)


class Heard:
    """What the host was told."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[tuple[int, int, bytes]] = asyncio.Queue()
        self.closed: asyncio.Queue[object] = asyncio.Queue()
        self.connected: asyncio.Queue[tuple[int, Lane]] = asyncio.Queue()
        self.lost: asyncio.Queue[tuple[int, Lane]] = asyncio.Queue()
        self.refuse = False

    def frame_received(self, peer: BrokerId, kind: FrameKind, body: memoryview, connection: object) -> None:
        if self.refuse:
            raise ValueError("garbage")
        self.frames.put_nowait((peer, kind, bytes(body)))

    def peer_connected(self, peer: BrokerId, lane: Lane) -> None:
        self.connected.put_nowait((peer, lane))

    def peer_lost(self, peer: BrokerId, lane: Lane) -> None:
        self.lost.put_nowait((peer, lane))

    def connection_closed(self, connection: object) -> None:
        self.closed.put_nowait(connection)


class Side:
    """One transport and what it heard."""

    def __init__(self, transport: PeerTransport, heard: Heard, port: int) -> None:
        self.transport = transport
        self.heard = heard
        self.port = port

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


def hello(*, lane: Lane = Lane.CONTROL, sender: BrokerId = PEER, to: BrokerId = ME, mesh_id: str = "test") -> bytes:
    return encode_hello(lane=lane, sender=sender, to=to, disk=bytes(16), mesh_id=mesh_id)


def frame(kind: int, body: bytes) -> bytes:
    return struct.pack(">IB", 1 + len(body), kind) + body


@pytest.fixture
async def side() -> AsyncIterator[Side]:
    """A transport whose peer nobody plays: its address refuses."""
    heard, port = Heard(), free_port()
    transport = PeerTransport(
        me=ME,
        mesh_id="test",
        disk=bytes(16),
        listen=("127.0.0.1", port),
        peers={PEER: ("127.0.0.1", free_port())},
        receiver=heard,
        rng=random.Random(1),
    )
    await transport.start()
    yield Side(transport, heard, port)
    await transport.stop()


async def closed_by_peer(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(5):
            return await reader.read(1) == b""
    except ConnectionResetError:
        return True


async def test_frames_arrive_whole_and_in_order_however_they_are_cut(side: Side) -> None:
    _, writer = await side.dial()
    small, large = b"s" * 10, bytes(range(256)) * 1000  # the large one has a buffer of its own
    stream = hello() + b"".join(frame(FrameKind.RAFT, body) for body in (small, large, small, b""))
    cuts = [0, 1, 4, 60, 70, 75, 90_000, 200_000, len(stream) - 3, len(stream)]
    for start, end in itertools.pairwise(cuts):
        writer.write(stream[start:end])
        await writer.drain()
    received = [await side.heard.frames.get() for _ in range(4)]
    assert received == [(PEER, FrameKind.RAFT, body) for body in (small, large, small, b"")]
    writer.close()


@pytest.mark.parametrize(
    "first",
    [
        frame(FrameKind.RAFT, hello()[5:]),
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">IB", 0, 0),
        struct.pack(">IB", 513, 0),
        hello(mesh_id="other"),
        hello(to=BrokerId(1003)),
        hello(sender=BrokerId(2002)),
        hello()[:-1] + b"\xff" + hello(),
    ],
    ids=["no hello", "http", "empty", "long hello", "other mesh", "other broker", "stranger", "bad name"],
)
async def test_whoever_does_not_introduce_itself_properly_is_closed(side: Side, first: bytes) -> None:
    reader, writer = await side.dial()
    writer.write(first)
    assert await closed_by_peer(reader)
    assert side.heard.frames.empty()
    writer.close()


@pytest.mark.parametrize(
    "wrong",
    [struct.pack(">IB", PEER_FRAME_BYTES_MAX + 1, 1), frame(99, b""), struct.pack(">IB", 0, 1)],
    ids=["too long", "unknown kind", "no length"],
)
async def test_after_its_hello_a_peer_that_sends_garbage_is_closed(side: Side, wrong: bytes) -> None:
    reader, writer = await side.dial()
    writer.write(hello() + wrong)
    assert await closed_by_peer(reader)
    await side.heard.closed.get()
    writer.close()


async def test_a_frame_that_the_host_refuses_closes_the_connection(side: Side) -> None:
    side.heard.refuse = True
    reader, writer = await side.dial()
    writer.write(hello() + frame(FrameKind.BEAT, b"?"))
    assert await closed_by_peer(reader)
    writer.close()


async def test_silence_instead_of_a_hello_is_closed(monkeypatch: pytest.MonkeyPatch, side: Side) -> None:
    monkeypatch.setattr(peer_incoming, "HELLO_TIMEOUT_MS", 10)
    reader, writer = await side.dial()
    assert await closed_by_peer(reader)
    writer.close()


async def test_a_new_connection_of_a_peer_ends_the_older_one_of_that_lane_only(side: Side) -> None:
    old, other, new = await side.dial(), await side.dial(), await side.dial()
    old[1].write(hello() + frame(FrameKind.BEAT, b"old"))
    await side.heard.frames.get()
    other[1].write(hello(lane=Lane.APPEND) + frame(FrameKind.BEAT, b"other"))
    await side.heard.frames.get()
    new[1].write(hello() + frame(FrameKind.BEAT, b"new"))
    assert await closed_by_peer(old[0])
    other[1].write(frame(FrameKind.BEAT, b"still here"))
    assert {(await side.heard.frames.get())[2] for _ in range(2)} == {b"new", b"still here"}
    for _, writer in (old, other, new):
        writer.close()


async def test_over_the_limit_of_connections_nobody_is_heard(monkeypatch: pytest.MonkeyPatch, side: Side) -> None:
    monkeypatch.setattr(peer_incoming, "INCOMING_MAX", 0)
    reader, writer = await side.dial()
    assert await closed_by_peer(reader)
    writer.close()


async def test_without_a_connection_a_frame_is_dropped_at_once(side: Side) -> None:
    assert await side.heard.lost.get() in {(PEER, Lane.CONTROL), (PEER, Lane.APPEND)}
    assert not side.transport.send(PEER, Lane.CONTROL, FrameKind.BEAT, [b"x"])


async def test_a_peer_that_never_reads_costs_a_bounded_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_outgoing, "SEND_BUFFER_BYTES_MAX", 1 << 20)
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    deaf = await asyncio.start_server(lambda _, writer: accepted.put(writer), "127.0.0.1", 0, limit=1)
    heard = Heard()
    transport = PeerTransport(
        me=ME,
        mesh_id="test",
        disk=bytes(16),
        listen=("127.0.0.1", free_port()),
        peers={PEER: ("127.0.0.1", deaf.sockets[0].getsockname()[1])},
        receiver=heard,
        rng=random.Random(1),
    )
    await transport.start()
    for _ in (Lane.CONTROL, Lane.APPEND):
        await heard.connected.get()
    sent = 0
    while transport.send(PEER, Lane.APPEND, FrameKind.RAFT, [bytes(1 << 18)]) and sent < 1000:
        sent += 1
        await asyncio.sleep(0)
    assert (sent < 1000, transport.dropped_frames()) == (True, 1)
    assert transport.send(PEER, Lane.CONTROL, FrameKind.BEAT, [b"x"])  # a lane of its own
    await transport.stop()
    deaf.close()
    while not accepted.empty():
        (await accepted.get()).close()


async def test_a_paused_transport_reads_no_appends_but_everything_else(side: Side) -> None:
    control, append = await side.dial(), await side.dial()
    append[1].write(hello(lane=Lane.APPEND) + frame(FrameKind.RAFT, b"before"))
    assert (await side.heard.frames.get())[2] == b"before"
    side.transport.pause_appends()
    append[1].write(frame(FrameKind.RAFT, b"held"))
    control[1].write(hello() + frame(FrameKind.BEAT, b"beat"))
    assert (await side.heard.frames.get())[2] == b"beat"
    known = set(side.transport.incoming)
    late = await side.dial()  # a new connection of the lane is not read either
    late[1].write(hello(lane=Lane.APPEND))
    while not any(accepted.peer == PEER and accepted not in known for accepted in side.transport.incoming):
        await asyncio.sleep(0)
    late[1].write(frame(FrameKind.RAFT, b"late"))
    control[1].write(frame(FrameKind.BEAT, b"beat"))
    assert (await side.heard.frames.get())[2] == b"beat"
    side.transport.resume_appends()
    while (await side.heard.frames.get())[2] != b"late":
        pass
    for _, writer in (control, append, late):
        writer.close()


async def test_a_peer_can_be_added_and_removed_while_running(side: Side) -> None:
    stranger = BrokerId(1003)
    reader, writer = await side.dial()
    writer.write(hello(sender=stranger))
    assert await closed_by_peer(reader)
    side.transport.add_peer(stranger, ("127.0.0.1", free_port()), Source.REGION)
    side.transport.add_peer(ME, ("127.0.0.1", free_port()), Source.REGION)
    assert set(side.transport.peers) == {PEER, stranger}
    again_reader, again = await side.dial()
    again.write(hello(sender=stranger) + frame(FrameKind.BEAT, b"hello"))
    assert (await side.heard.frames.get())[:1] == (stranger,)
    side.transport.remove_peer(stranger)
    assert await closed_by_peer(again_reader)
    assert not side.transport.send(stranger, Lane.CONTROL, FrameKind.BEAT, [b"x"])
    for each in (writer, again):
        each.close()


async def test_the_bulk_lane_is_dialled_when_it_is_first_used_and_a_new_address_is_followed(side: Side) -> None:
    accepted: asyncio.Queue[bytes] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.put_nowait((await reader.readexactly(8))[7:8])
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    side.transport.add_peer(PEER, ("127.0.0.1", server.sockets[0].getsockname()[1]), Source.REGION)
    lanes = {await accepted.get(), await accepted.get()}
    while len(lanes) < 2:
        lanes.add(await accepted.get())
    assert lanes == {bytes([Lane.CONTROL]), bytes([Lane.APPEND])}
    assert not side.transport.send(PEER, Lane.BULK, FrameKind.BULK, [b"x"])
    while await accepted.get() != bytes([Lane.BULK]):
        pass
    await side.transport.stop()
    server.close()
    await server.wait_closed()


async def test_stopping_ends_every_connection_and_says_so(side: Side) -> None:
    reader, writer = await side.dial()
    writer.write(hello() + frame(FrameKind.BEAT, b"x"))
    await side.heard.frames.get()
    await side.transport.stop()
    assert await closed_by_peer(reader)
    assert not side.transport.incoming
    writer.close()


def test_a_hello_of_another_protocol_version_or_lane_is_refused() -> None:
    body = hello()[5:]
    with pytest.raises(PeerProtocolError, match="protocol 2"):
        decode_hello(struct.pack(">H", 2) + body[2:], me=ME, mesh_id="test")
    with pytest.raises(PeerProtocolError, match="lane"):
        decode_hello(body[:2] + b"\x07" + body[3:], me=ME, mesh_id="test")
    for cut in range(len(body)):
        with pytest.raises(PeerProtocolError):
            decode_hello(body[:cut], me=ME, mesh_id="test")
