"""Wires carry bytes, are cut, frozen and healed, each direction by itself; real sockets on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from loadtest.chaos.wires import Wires

REGIONS = {"us": ["us-1", "us-2"], "eu": ["eu-1"]}
PAUSE_S = 0.05
Dial = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@pytest.fixture
async def echo() -> AsyncIterator[tuple[str, int]]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1024):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[:2]
    server.close()


@pytest.fixture
async def wires(echo: tuple[str, int]) -> AsyncIterator[Wires]:
    wires = Wires(REGIONS)
    names = [name for names in REGIONS.values() for name in names]
    await wires.start(peers=dict.fromkeys(names, echo), links=dict.fromkeys(names, echo))
    yield wires
    await wires.close()


@pytest.fixture
async def dial() -> AsyncIterator[Dial]:
    writers = []

    async def dialled(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        return reader, writer

    yield dialled
    for writer in writers:
        writer.transport.abort()


async def said(pair: tuple[asyncio.StreamReader, asyncio.StreamWriter], text: bytes) -> bytes:
    reader, writer = pair
    writer.write(text)
    async with asyncio.timeout(5):
        return await reader.read(len(text))


def test_there_is_a_wire_for_each_pair_of_a_region_and_for_each_region_and_foreign_broker() -> None:
    wires = Wires(REGIONS)
    assert set(wires.peers) == {("us-1", "us-2"), ("us-2", "us-1")}
    assert set(wires.links) == {("us", "eu-1"), ("eu", "us-1"), ("eu", "us-2")}
    for forwarder in [*wires.peers.values(), *wires.links.values()]:
        forwarder._socket.close()


async def test_a_cut_wire_resets_and_refuses_and_the_other_direction_goes_on(wires: Wires, dial: Dial) -> None:
    there, back = wires.peers["us-1", "us-2"], wires.peers["us-2", "us-1"]
    cut, kept = await dial(there.port), await dial(back.port)
    assert await said(cut, b"a") == await said(kept, b"a") == b"a"
    assert wires.are_used
    await wires.cut_peers(lambda wire: wire[0] == "us-1")
    with pytest.raises(ConnectionResetError):
        await cut[0].read(1)
    with pytest.raises(ConnectionRefusedError):
        await dial(there.port)
    assert await said(kept, b"b") == b"b"
    await wires.heal()
    assert await said(await dial(there.port), b"c") == b"c"


async def test_a_frozen_wire_stays_open_and_delivers_late(wires: Wires, dial: Dial) -> None:
    forwarder = wires.peers["us-1", "us-2"]
    pair = await dial(forwarder.port)
    assert await said(pair, b"a") == b"a"
    wires.freeze_peers(lambda wire: True)
    pair[1].write(b"b")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(PAUSE_S):
            await pair[0].read(1)
    await wires.heal()
    assert await asyncio.wait_for(pair[0].read(1), 5) == b"b"


async def test_a_wire_that_was_not_used_is_noticed(wires: Wires) -> None:
    assert not wires.are_used


async def test_cutting_links_leaves_the_wires_inside_a_region_alone(wires: Wires, dial: Dial) -> None:
    await wires.cut_links(lambda wire: True)
    with pytest.raises(ConnectionRefusedError):
        await dial(wires.links["us", "eu-1"].port)
    assert await said(await dial(wires.peers["us-1", "us-2"].port), b"a") == b"a"
