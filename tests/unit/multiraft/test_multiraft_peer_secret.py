"""Brokers of one region without certificates prove the secret of the mesh before anybody believes or tells anything."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from georelay.ids import BrokerId
from mesh.listening.mesh_secret import Call, MeshSecret
from region.multiraft import peer_incoming, peer_outgoing
from region.multiraft.peer_hello import CHALLENGE_FRAME_BYTES, encode_hello, purpose
from region.multiraft.peers import FrameKind, Lane, PeerTransport

ME, PEER = BrokerId(1001), BrokerId(1002)
OURS, THEIRS = MeshSecret(key=b"the secret of this mesh"), MeshSecret(key=b"what a stranger guesses")
OFFERED = replace(OURS, required=False)
NONCE = bytes(range(14))
Start = Callable[..., Any]


class Heard:
    def __init__(self) -> None:
        self.frames: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self.connected: asyncio.Queue[tuple[int, Lane]] = asyncio.Queue()

    def frame_received(self, peer: BrokerId, kind: FrameKind, body: memoryview, connection: object) -> None:
        self.frames.put_nowait((peer, bytes(body)))

    def peer_connected(self, peer: BrokerId, lane: Lane) -> None:
        self.connected.put_nowait((peer, lane))

    def peer_lost(self, peer: BrokerId, lane: Lane) -> None: ...

    def connection_closed(self, connection: object) -> None: ...


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    started: list[PeerTransport] = []

    async def begin(me: BrokerId, secret: MeshSecret | None, peers: dict[BrokerId, int]) -> tuple[Any, Heard, int]:
        heard = Heard()
        transport = PeerTransport(
            me=me,
            mesh_id="test",
            disk=bytes(16),
            listen=("127.0.0.1", 0),
            peers={peer: ("127.0.0.1", port) for peer, port in peers.items()},
            receiver=heard,
            rng=random.Random(1),
            secret=secret,
        )
        await transport.start()
        started.append(transport)
        return transport, heard, transport._acceptor._sockets[0].getsockname()[1]

    yield begin
    for transport in started:
        await transport.stop()


@pytest.mark.parametrize(
    ("here", "there"), [(OURS, OURS), (None, None), (OURS, OFFERED), (OFFERED, OURS), (OFFERED, None), (None, OFFERED)]
)
async def test_brokers_that_may_talk_do(start: Start, here: MeshSecret | None, there: MeshSecret | None) -> None:
    _, heard, port = await start(ME, here, {PEER: 1})
    other, dialled, _ = await start(PEER, there, {ME: port})
    async with asyncio.timeout(5):
        assert (await dialled.connected.get())[0] == ME
        while not other.send(ME, Lane.CONTROL, FrameKind.RAFT, [b"entries"]):
            await asyncio.sleep(0.002)
        assert await heard.frames.get() == (PEER, b"entries")


@pytest.mark.parametrize(
    ("here", "there"), [(OURS, None), (OURS, THEIRS), (None, OURS), (replace(THEIRS, required=False), OURS)]
)
async def test_who_cannot_prove_it_is_neither_heard_nor_told(
    start: Start, here: MeshSecret | None, there: MeshSecret | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_outgoing, "ANSWER_MS", 50)
    _, heard, port = await start(ME, here, {PEER: 1})
    other, dialled, _ = await start(PEER, there, {ME: port})
    await asyncio.sleep(0.2)
    other.send(ME, Lane.CONTROL, FrameKind.RAFT, [b"entries"])
    await asyncio.sleep(0.02)
    assert heard.frames.empty()
    assert there is None or dialled.connected.empty()


def hello(nonce: bytes = NONCE) -> bytes:
    return encode_hello(lane=Lane.CONTROL, sender=PEER, to=ME, disk=bytes(16), mesh_id="test", nonce=nonce)


def frame(kind: FrameKind, body: bytes) -> bytes:
    return struct.pack(">IB", 1 + len(body), kind) + body


async def challenged(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Call, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(hello())
    answer = await reader.readexactly(CHALLENGE_FRAME_BYTES)
    return reader, writer, Call(PEER, ME, NONCE, answer[5:19]), answer[19:]


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionResetError:
        return True


async def test_both_sides_prove_it_for_this_connection(start: Start) -> None:
    _, heard, port = await start(ME, OURS, {PEER: 1})
    async with asyncio.timeout(5):
        _, writer, call, shown = await challenged(port)
        assert shown == OURS.acceptor_proof(call, purpose(Lane.CONTROL))
        proof = OURS.dialler_proof(call, purpose(Lane.CONTROL))
        writer.write(frame(FrameKind.PROOF, proof) + frame(FrameKind.RAFT, b"entries"))
        assert await heard.frames.get() == (PEER, b"entries")
        writer.close()
        reader, again, _, _ = await challenged(port)
        again.write(frame(FrameKind.PROOF, proof) + frame(FrameKind.RAFT, b"repeated"))
        assert await is_closed(reader) and heard.frames.empty()
        again.close()


@pytest.mark.parametrize(
    "said",
    [
        hello(bytes(14)) + frame(FrameKind.RAFT, b"entries"),
        hello() + frame(FrameKind.RAFT, b"entries"),
        hello() + frame(FrameKind.PROOF, b"") + frame(FrameKind.RAFT, b"entries"),
        hello() + hello(),
    ],
    ids=["no nonce", "no proof", "empty proof", "hello again"],
)
async def test_a_stranger_is_closed(start: Start, said: bytes) -> None:
    _, heard, port = await start(ME, OURS, {PEER: 1})
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    async with asyncio.timeout(5):
        while not await is_closed(reader):
            pass
    assert heard.frames.empty()
    writer.close()


async def test_strangers_that_fill_the_listener_keep_no_broker_from_dialling(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_incoming, "INCOMING_MAX", 3)
    here, heard, port = await start(ME, OURS, {PEER: 1})
    strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    strangers[2][1].write(hello())  # it knows the mesh id, and is challenged
    while len(here.incoming) < 3:
        await asyncio.sleep(0)
    there, _, _ = await start(PEER, OURS, {ME: port})
    while not there.send(ME, Lane.CONTROL, FrameKind.RAFT, [b"entries"]):
        await asyncio.sleep(0.001)
    async with asyncio.timeout(5):
        assert await heard.frames.get() == (PEER, b"entries")
    assert len(here.incoming) == 3
    for _, writer in strangers:
        writer.close()


async def test_a_stranger_on_the_port_of_a_broker_that_is_down_is_told_nothing(start: Start) -> None:
    told: asyncio.Queue[bytes] = asyncio.Queue()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(hello()))
        writer.write(frame(FrameKind.CHALLENGE, NONCE + bytes(32)))
        told.put_nowait(await reader.read())
        writer.close()

    stranger = await asyncio.start_server(pretend, "127.0.0.1", 0)
    transport, heard, _ = await start(ME, OURS, {PEER: stranger.sockets[0].getsockname()[1]})
    async with asyncio.timeout(5):
        assert [await told.get(), await told.get()] == [b"", b""]  # on both lanes
    assert heard.connected.empty() and not transport.send(PEER, Lane.CONTROL, FrameKind.RAFT, [b"entries"])
    stranger.close()
