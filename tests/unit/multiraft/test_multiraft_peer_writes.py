"""Frames leave in the order in which they were sent, whether they can wait for company or not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from georelay.ids import BrokerId
from region.multiraft import peer_outgoing
from region.multiraft.peers import FrameKind, Lane, PeerTransport
from tests.free_ports import free_port

ME, PEER = BrokerId(1001), BrokerId(1002)


class Heard:
    def __init__(self) -> None:
        self.bodies: asyncio.Queue[bytes] = asyncio.Queue()
        self.connected: asyncio.Queue[Lane] = asyncio.Queue()

    def frame_received(self, peer: BrokerId, kind: FrameKind, body: memoryview, connection: object) -> None:
        self.bodies.put_nowait(bytes(body))

    def peer_connected(self, peer: BrokerId, lane: Lane) -> None:
        self.connected.put_nowait(lane)

    def peer_lost(self, peer: BrokerId, lane: Lane) -> None:
        pass

    def connection_closed(self, connection: object) -> None:
        pass


@pytest.fixture
async def pair() -> AsyncIterator[tuple[PeerTransport, Heard]]:
    """The sending transport, and what the other side hears."""
    ports = {ME: ("127.0.0.1", free_port()), PEER: ("127.0.0.1", free_port())}
    heard = {ME: Heard(), PEER: Heard()}
    transports = {
        me: PeerTransport(
            me=me,
            mesh_id="test",
            disk=bytes(16),
            listen=ports[me],
            peers={other: address for other, address in ports.items() if other != me},
            receiver=heard[me],
            rng=random.Random(1),
        )
        for me in ports
    }
    for transport in transports.values():
        await transport.start()
    for _ in (Lane.CONTROL, Lane.APPEND):
        await heard[ME].connected.get()
    yield transports[ME], heard[PEER]
    for transport in transports.values():
        await transport.stop()


async def take(heard: Heard, count: int) -> list[bytes]:
    async with asyncio.timeout(5):
        return [await heard.bodies.get() for _ in range(count)]


async def test_a_frame_that_can_wait_leaves_before_the_next_one_that_cannot(
    pair: tuple[PeerTransport, Heard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_outgoing, "LAZY_MS", 60_000)
    transport, heard = pair
    transport.send(PEER, Lane.APPEND, FrameKind.RAFT, [b"waits"], can_wait=True)
    await asyncio.sleep(0)
    transport.send(PEER, Lane.APPEND, FrameKind.RAFT, [b"urgent"])
    assert await take(heard, 2) == [b"waits", b"urgent"]


async def test_a_frame_that_can_wait_leaves_alone_when_no_other_comes(pair: tuple[PeerTransport, Heard]) -> None:
    transport, heard = pair
    transport.send(PEER, Lane.APPEND, FrameKind.RAFT, [b"alone"], can_wait=True)
    assert await take(heard, 1) == [b"alone"]


async def test_frames_of_many_sizes_keep_their_order(pair: tuple[PeerTransport, Heard]) -> None:
    transport, heard = pair
    bodies = [bytes([row]) * (1 + row * 9_001) for row in range(40)]
    for row, body in enumerate(bodies):
        assert transport.send(PEER, Lane.APPEND, FrameKind.RAFT, [body[:1], body[1:]], can_wait=row % 3 == 0)
        if row % 5 == 0:
            await asyncio.sleep(0)
    assert await take(heard, len(bodies)) == bodies
