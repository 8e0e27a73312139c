"""A rewired loop dials the forwarder of an address, wherever the address comes from, and every other one as it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from georelay.errors import ConfigError
from georelay.ids import BrokerId
from mesh.listening.dialling import connected_within
from mesh.replication.link_framed import Carriers, DialledLink
from mesh.replication.settings import BrokerAddress
from region.faults.rewired_loop import dial_framed_only, read_wires, rewired


async def _answer(host: str, port: int, *, as_peers: bool) -> bytes:
    if as_peers:
        reader, writer = await asyncio.open_connection(sock=await connected_within(host, port, timeout_ms=5_000))
    else:
        reader, writer = await asyncio.open_connection(host, port)
    try:
        return await reader.read(8)
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("as_peers", [False, True])
def test_a_connection_follows_its_wire_and_others_do_not(*, as_peers: bool) -> None:
    async def said_through(text: bytes) -> tuple[asyncio.Server, tuple[str, int]]:
        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(text)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        return server, server.sockets[0].getsockname()[:2]

    async def run(wires: dict[tuple[str, int], tuple[str, int]]) -> list[bytes]:
        one, true = await said_through(b"true")
        other, forwarder = await said_through(b"wire")
        untouched = await _answer(*true, as_peers=as_peers)
        wires[true] = forwarder
        answers = [untouched, await _answer(*true, as_peers=as_peers)]
        one.close()
        other.close()
        return answers

    wires: dict[tuple[str, int], tuple[str, int]] = {}
    with asyncio.Runner(loop_factory=lambda: rewired(wires)) as runner:
        assert runner.run(run(wires)) == [b"true", b"wire"]


def test_wires_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "wires.json"
    path.write_text('{"127.0.0.1:5": "127.0.0.1:6"}')
    assert read_wires(path) == {("127.0.0.1", 5): ("127.0.0.1", 6)}


@pytest.mark.parametrize("text", ["{", "[]", '{"a": "127.0.0.1:6"}', '{"127.0.0.1:5": 6}'])
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wires.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not"):
        read_wires(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_wires(tmp_path / "none.json")


@pytest.mark.parametrize(("is_rewired", "dialled"), [(False, "gRPC"), (True, "framed")])
async def test_a_link_that_was_reset_before_it_was_answered_is_not_dialled_round_the_wires(
    is_rewired: bool, dialled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Carriers, "_is_older", Carriers._is_older)  # it is put back afterwards
    if is_rewired:
        dial_framed_only()
    other: Any = SimpleNamespace()
    carriers = Carriers(tls=None, mesh_id="m", otherwise=lambda _: other)
    target = BrokerAddress(broker_id=BrokerId(2001), address="127.0.0.1:1")
    link = carriers.dial(target)
    assert isinstance(link, DialledLink)
    receiver: Any = SimpleNamespace(link_closed=lambda _: None)
    link.start(receiver)
    link.unanswered("reset")
    await link.closed()
    assert ("gRPC" if carriers.dial(target) is other else "framed") == dialled
