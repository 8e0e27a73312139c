"""A connection that ends as soon as it is made closes its own number, later no other file's, and is told as lost."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
from collections.abc import Callable
from typing import Any, cast

import pytest
import uvloop

from mesh.listening.dialling import carried, connected_within
from region.multiraft import peer_links, peer_outgoing
from region.multiraft.peer_links import DialledPeerLink
from region.multiraft.peer_outgoing import Dial
from region.multiraft.peers import PeerTransport
from region.multiraft.transport import Lane
from tests.unit.multiraft.test_multiraft_peers import ME, PEER, Heard


class GivesUp(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()


def test_a_dial_that_is_given_up_closes_no_file_that_has_its_number_now() -> None:
    async def run() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        connection = await connected_within(*server.sockets[0].getsockname()[:2], timeout_ms=5_000)
        number = connection.fileno()
        await carried(GivesUp, connection)
        for _ in range(5):
            await asyncio.sleep(0)  # the loop closes it in a turn of its own
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        del connection
        gc.collect()
        os.fstat(number)  # OSError: somebody has closed it
        for each in {null, number}:
            os.close(each)
        server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


class CancelsItsDial(asyncio.Protocol):
    dialling: asyncio.Task[CancelsItsDial]

    def __init__(self) -> None:
        self.told: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.told.append("made")
        self.dialling.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")


@pytest.mark.parametrize("make_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_dial_that_is_cancelled_just_when_it_is_made_is_told_as_lost_once(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as nobody_accepts:
            connection = await connected_within(*nobody_accepts.getsockname(), timeout_ms=5_000)
            protocol = CancelsItsDial()
            protocol.dialling = asyncio.ensure_future(carried(lambda: protocol, connection))
            with pytest.raises(asyncio.CancelledError):
                await protocol.dialling
            for _ in range(5):
                await asyncio.sleep(0)
            assert protocol.told == ["made", "lost"]

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(run())


def test_a_broker_stops_though_a_dial_was_cancelled_just_when_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the end of every connection that it was told of."""
    made: asyncio.Event = asyncio.Event()
    connection_made = Dial.connection_made

    def cancelled(dial: Dial, stream: asyncio.BaseTransport) -> None:
        connection_made(dial, stream)
        task = dial._connection._task
        assert task is not None
        task.cancel()
        made.set()

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as nobody_accepts:
            broker = broker_that_knows(nobody_accepts.getsockname(), Heard())
            await broker.start()
            async with asyncio.timeout(10):
                await made.wait()
                await broker.stop()
            assert not broker._outgoing[PEER, Lane.CONTROL].is_up

    monkeypatch.setattr(Dial, "connection_made", cancelled)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


class ReceivesNothing:
    def frame_received(self, frame: bytes) -> None: ...

    def link_writable(self) -> None: ...

    def link_closed(self, reason: str) -> None: ...


def broker_that_knows(peer: tuple[str, int], heard: Heard) -> PeerTransport:
    return PeerTransport(
        me=ME,
        mesh_id="test",
        disk=bytes(16),
        listen=("127.0.0.1", 0),
        peers={PEER: peer},
        receiver=heard,
        rng=random.Random(1),
    )


def test_a_link_that_ends_as_soon_as_it_is_made_closes_no_file_that_has_its_number_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A peer that has just died resets it. What it closed later was a log, or a connection of Raft."""
    numbers: list[int] = []

    async def connects(*place: Any, timeout_ms: int) -> socket.socket:
        connection = await connected_within(*place, timeout_ms=timeout_ms)
        numbers.append(connection.fileno())
        return connection

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as nobody_accepts:
            owner = broker_that_knows(nobody_accepts.getsockname(), Heard())
            link = DialledPeerLink(owner, PEER, otherwise=lambda: pytest.fail("dialled anew"), quiet_ns=lambda: None)
            link.start(ReceivesNothing())
            assert link._dialling is not None
            await asyncio.wait([link._dialling])
            for _ in range(5):
                await asyncio.sleep(0)  # the loop closes it in a turn of its own
            (number,) = numbers
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            del link
            gc.collect()
            os.fstat(number)  # OSError: somebody has closed it
            for each in {null, number}:
                os.close(each)

    def ends(connection: Any, transport: asyncio.BaseTransport) -> None:
        connection._link.connected(transport)
        cast("asyncio.Transport", transport).abort()

    monkeypatch.setattr(peer_links, "connected_within", connects)
    monkeypatch.setattr(DialledPeerLink, "unanswered", lambda link: link.lost("reset"))
    monkeypatch.setattr(vars(peer_links)["_DialledConnection"], "connection_made", ends)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def test_a_dial_that_fails_in_words_of_the_loop_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else dials a peer: a follower that its leader does not reach never hears what is committed."""
    failures = [RuntimeError("File descriptor 35 is used by transport")] * 2

    async def connects(*place: Any, timeout_ms: int) -> socket.socket:
        if failures:
            raise failures.pop()
        return await connected_within(*place, timeout_ms=timeout_ms)

    monkeypatch.setattr(peer_outgoing, "connected_within", connects)
    heard = Heard()
    with socket.create_server(("127.0.0.1", 0)) as nobody_accepts:
        broker = broker_that_knows(nobody_accepts.getsockname(), heard)
        await broker.start()
        async with asyncio.timeout(10):
            assert {await heard.connected.get(), await heard.connected.get()} == {
                (PEER, Lane.CONTROL),
                (PEER, Lane.APPEND),
            }
        await broker.stop()
