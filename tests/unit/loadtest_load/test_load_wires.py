"""Wires carry bytes, are cut, frozen and healed, each direction by itself; real sockets on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.campaign.mesh import CampaignFailed
from loadtest.load.campaign import Fault
from loadtest.load.faults import STRIKES
from loadtest.load.links import LinkedMesh
from loadtest.mesh_process import MeshProcess

FAULT = Fault(at_s=0, do="peer-cut")
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
async def mesh(echo: tuple[str, int], tmp_path: Path) -> AsyncIterator[LinkedMesh]:
    """The connections of a mesh that is not there."""
    mesh = LinkedMesh(tmp_path, regions=("us", "eu"), brokers_per_region=2, has_peers=True)
    forwarders = [*mesh.peers.values(), *mesh.links.values()]
    for forwarder in forwarders:
        forwarder.target = echo
        await forwarder.start()
    yield mesh
    for forwarder in forwarders:
        await forwarder.close()


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


def stage_of(mesh: LinkedMesh) -> Any:
    return SimpleNamespace(mesh=lambda _: mesh)


async def said(pair: tuple[asyncio.StreamReader, asyncio.StreamWriter], text: bytes) -> bytes:
    reader, writer = pair
    writer.write(text)
    async with asyncio.timeout(5):
        return await reader.read(len(text))


async def test_there_is_a_wire_for_each_pair_of_a_region_and_for_each_region_and_foreign_broker(
    mesh: LinkedMesh,
) -> None:
    assert set(mesh.peers) == {("us-1", "us-2"), ("us-2", "us-1"), ("eu-1", "eu-2"), ("eu-2", "eu-1")}
    assert set(mesh.links) == {("us", "eu-1"), ("us", "eu-2"), ("eu", "us-1"), ("eu", "us-2")}


async def test_a_cut_wire_resets_and_refuses_and_the_other_direction_goes_on(mesh: LinkedMesh, dial: Dial) -> None:
    there, back = mesh.peers["us-1", "us-2"], mesh.peers["us-2", "us-1"]
    cut, kept = await dial(there.port), await dial(back.port)
    assert await said(cut, b"a") == await said(kept, b"a") == b"a"
    async with STRIKES["peer-mute"](stage_of(mesh), FAULT, "us-1"):
        with pytest.raises(ConnectionResetError):
            await cut[0].read(1)
        with pytest.raises(ConnectionRefusedError):
            await dial(there.port)
        assert await said(kept, b"b") == b"b"
    assert await said(await dial(there.port), b"c") == b"c"


async def test_a_broker_that_does_not_hear_is_heard(mesh: LinkedMesh, dial: Dial) -> None:
    there, back = mesh.peers["us-1", "us-2"], mesh.peers["us-2", "us-1"]
    for forwarder in (there, back):
        await said(await dial(forwarder.port), b"a")
    async with STRIKES["peer-deaf"](stage_of(mesh), FAULT, "us-1"):
        with pytest.raises(ConnectionRefusedError):
            await dial(back.port)
        assert await said(await dial(there.port), b"b") == b"b"


async def test_a_frozen_wire_stays_open_and_delivers_late(mesh: LinkedMesh, dial: Dial) -> None:
    pair, back = await dial(mesh.peers["us-1", "us-2"].port), await dial(mesh.peers["us-2", "us-1"].port)
    assert await said(pair, b"a") == await said(back, b"a") == b"a"
    async with STRIKES["peer-blackhole"](stage_of(mesh), FAULT, "us-2"):
        pair[1].write(b"b")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(PAUSE_S):
                await pair[0].read(1)
    assert await asyncio.wait_for(pair[0].read(1), 5) == b"b"


async def test_a_wire_that_was_not_used_is_not_cut(mesh: LinkedMesh) -> None:
    with pytest.raises(CampaignFailed, match="us-1 does not reach us-2 through its forwarder: a cut would cut nothing"):
        async with STRIKES["peer-cut"](stage_of(mesh), FAULT, "us-1"):
            pass


async def test_cutting_links_leaves_the_wires_inside_a_region_alone(mesh: LinkedMesh, dial: Dial) -> None:
    await mesh.cut("us", "eu")
    with pytest.raises(ConnectionRefusedError):
        await dial(mesh.links["us", "eu-1"].port)
    assert await said(await dial(mesh.peers["us-1", "us-2"].port), b"a") == b"a"


async def test_every_broker_is_told_of_the_forwarders_for_whatever_address_it_dials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(mesh: MeshProcess) -> MeshProcess:
        return mesh

    monkeypatch.setattr(MeshProcess, "__aenter__", start)
    mesh = LinkedMesh(tmp_path, regions=("us", "eu"), brokers_per_region=2, program=("--clocks", "c"), has_peers=True)
    async with mesh:
        told = json.loads((tmp_path / "wires.json").read_text())
    assert told["us eu-2"] == mesh.links["us", "eu-2"].address
    assert told["us-1 us-2"] == mesh.peers["us-1", "us-2"].address
    assert len(told) == len(mesh.links) + len(mesh.peers) == 8
    words = [word.removeprefix("--broker-program=") for word in mesh._arguments if "broker-program" in word]
    assert words[-4:] == ["--clocks", "c", "--wires", str(tmp_path / "wires.json")]
    assert "loadtest.load.breakable_broker" in words
    assert not any("--link-override" in word for word in mesh._arguments), "brokers go round one that is told once"
