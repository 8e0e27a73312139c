"""A connection between brokers is what its newest dial says, however late an earlier one is heard of."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import cast

import pytest
import structlog.testing

from georelay.ids import BrokerId
from mesh.listening.addresses_core import Addresses, Source
from mesh.listening.mesh_secret import MeshSecret
from region.multiraft import peer_outgoing
from region.multiraft.peer_outgoing import Dial, OutgoingConnection
from region.multiraft.peers import Lane, PeerTransport
from region.multiraft.transport import Address
from tests.unit.multiraft.test_multiraft_peers import ME, PEER, Heard


class Stream:
    """What the loop makes for a dial, and its own socket."""

    def __init__(self) -> None:
        self.aborted = False

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def get_extra_info(self, name: str) -> object:
        return self

    def setsockopt(self, *settings: int) -> None: ...

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None:
        self.aborted = True


def stream() -> asyncio.Transport:
    return cast("asyncio.Transport", Stream())


def connection(secret: MeshSecret | None = None) -> tuple[OutgoingConnection, Heard]:
    heard, nowhere = Heard(), ("127.0.0.1", 9)
    owner = PeerTransport(
        me=ME,
        mesh_id="test",
        disk=bytes(16),
        listen=nowhere,
        peers={},
        receiver=heard,
        rng=random.Random(1),
        secret=secret,
    )
    return OutgoingConnection(owner, PEER, Lane.CONTROL, Addresses[Address](nowhere, Source.CONFIGURATION)), heard


async def test_the_end_of_an_older_dial_takes_no_newer_one_down() -> None:
    """The accepting side ends the older of two: each dial would end the one before it, and so itself, for ever."""
    lane, heard = connection()
    older = lane.new_dial()
    older.connection_made(stream())
    lane.new_dial().connection_made(kept := stream())
    older.connection_lost(None)
    assert lane.is_up and heard.lost.empty()
    lane.close()
    assert cast("Stream", kept).aborted


async def test_a_dial_whose_handshake_ends_after_it_was_given_up_is_ended() -> None:
    lane, heard = connection()
    late = lane.new_dial()
    await lane.stop()
    late.connection_made(made := stream())
    assert cast("Stream", made).aborted
    assert not lane.is_up and heard.connected.empty()


async def test_a_dial_that_was_made_when_its_time_was_up_is_ended_and_told() -> None:
    lane, heard = connection()
    dial = lane.new_dial()
    dial.connection_made(made := stream())
    await lane.stop()
    assert cast("Stream", made).aborted
    dial.connection_lost(None)
    assert heard.lost.get_nowait() == (BrokerId(PEER), Lane.CONTROL)


async def test_each_handshake_that_had_no_answer_gives_the_next_one_twice_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_outgoing, "ANSWER_MS", 5)
    monkeypatch.setattr(peer_outgoing, "REDIAL_MS", 0)
    lane, heard = connection()
    loop, waited_ms = asyncio.get_running_loop(), list[float]()

    async def connected_within(*_address: object, timeout_ms: int) -> None:
        assert timeout_ms == peer_outgoing.CONNECT_TIMEOUT_MS  # TCP's time does not grow

    async def handshake(new_dial: Callable[[], Dial], _connection: object, **_options: object) -> None:
        begun = loop.time()
        if len(waited_ms) == 3:
            new_dial().connection_made(stream())
            return
        try:
            await asyncio.Event().wait()
        finally:
            waited_ms.append((loop.time() - begun) * 1000)

    monkeypatch.setattr(peer_outgoing, "connected_within", connected_within)
    monkeypatch.setattr(peer_outgoing, "carried", handshake)
    lane.start()
    async with asyncio.timeout(5):
        await heard.connected.get()
    assert [took > 0.8 * least for took, least in zip(waited_ms, (5, 10, 20), strict=True)] == [True] * 3
    assert lane._patience.ms == 5  # who has answered is expected to be as fast as at first
    await lane.stop()


async def test_who_does_not_prove_the_secret_in_time_is_not_called_a_stranger_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine without an idle moment answers late: the operator shall not look for a wrong secret first."""
    monkeypatch.setattr(peer_outgoing, "ANSWER_MS", 5)
    lane, _ = connection(MeshSecret(key=b"the secret of this mesh"))
    with structlog.testing.capture_logs() as logs:
        lane.new_dial().connection_made(made := stream())
        async with asyncio.timeout(5):
            while not cast("Stream", made).aborted:
                await asyncio.sleep(0)
    (told,) = logs
    assert told["event"] == "peer.not_proved"
    assert told["reason"].startswith("no proof of the mesh secret within 5 ms: it is cut off, too busy, or has another")
