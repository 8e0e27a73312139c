"""Connections of links get the congestion control that was chosen, also those that gRPC hides."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from georelay.errors import ConfigError
from mesh.listening import congestion_control
from mesh.listening.congestion_control import LinkSockets

CHOSEN = "reno"  # every kernel has it


def algorithm(connection: socket.socket) -> str:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


@pytest.fixture
def pair() -> Iterator[tuple[int, socket.socket, socket.socket]]:
    """Yield the port of a listener and both ends of a connection to it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as dialled, listener.accept()[0] as accepted:
            for end in (dialled, accepted):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
            yield port, dialled, accepted


Pair = tuple[int, socket.socket, socket.socket]


def test_both_ends_of_a_link_get_it(pair: Pair) -> None:
    port, dialled, accepted = pair
    assert LinkSockets(CHOSEN, frozenset({port})).apply() == 2
    assert (algorithm(dialled), algorithm(accepted)) == (CHOSEN, CHOSEN)


def test_other_connections_are_left_alone(pair: Pair) -> None:
    _, dialled, _ = pair
    assert LinkSockets(CHOSEN, frozenset({1})).apply() == 0
    assert algorithm(dialled) == "cubic"


def test_a_connection_is_set_once(pair: Pair) -> None:
    port, dialled, _ = pair
    links = LinkSockets(CHOSEN, frozenset({port}))
    links.apply()
    dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    assert links.apply() == 0
    assert algorithm(dialled) == "cubic"


def test_the_metric_says_what_the_kernel_uses(pair: Pair) -> None:
    port, dialled, _ = pair
    links = LinkSockets("kernel", frozenset({port}))
    dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CHOSEN.encode())
    assert links.in_use() == {CHOSEN: 1, "cubic": 1}
    (family,) = links.collect()
    assert {sample.labels["congestion_control"]: sample.value for sample in family.samples} == {CHOSEN: 1, "cubic": 1}


def test_an_algorithm_that_the_kernel_has_not_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        LinkSockets("nosuch", frozenset({1}))


def test_auto_is_cubic_and_kernel_leaves_connections_as_they_are(pair: Pair) -> None:
    port, *_ = pair
    assert LinkSockets("auto", frozenset({port})).name == "cubic"
    assert LinkSockets("kernel", frozenset({port})).name == ""


def test_auto_is_the_kernels_default_where_cubic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(congestion_control, "AUTO_CHOICE", "nosuch")
    assert LinkSockets("auto", frozenset({1})).name == ""


@pytest.fixture
async def channel() -> AsyncIterator[tuple[int, grpc.aio.Channel]]:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        await asyncio.wait_for(opened.channel_ready(), 10)
        yield port, opened
    await server.stop(None)


async def test_the_sockets_of_grpc_are_reached(channel: tuple[int, grpc.aio.Channel]) -> None:
    port, _ = channel
    links = LinkSockets(CHOSEN, frozenset({port}))
    assert links.apply() == 2
    assert links.in_use() == {CHOSEN: 2}


async def test_a_connection_made_later_is_found(pair: Pair) -> None:
    port, dialled, _ = pair
    links = LinkSockets(CHOSEN, frozenset({port}))
    links.start()
    try:
        async with asyncio.timeout(5):
            while algorithm(dialled) != CHOSEN:
                await asyncio.sleep(0.01)
    finally:
        await links.stop()
