"""A broker of the region that moved is found by whichever address still leads to it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import cast

import pytest

from georelay.ids import BrokerId
from mesh.listening.addresses_core import Source
from region.multiraft import peer_outgoing
from region.multiraft.peer_hello import encode_hello
from region.multiraft.peer_incoming import IncomingConnection
from region.multiraft.peers import FrameKind, Lane, PeerTransport
from region.multiraft.transport import Address
from tests.conditions import until
from tests.free_ports import free_port

ME, PEER, OTHER = BrokerId(1001), BrokerId(1002), BrokerId(1003)


class Deaf:
    """A host that only waits to be connected."""

    def frame_received(self, peer: BrokerId, kind: FrameKind, body: memoryview, connection: object) -> None: ...

    def peer_connected(self, peer: BrokerId, lane: Lane) -> None: ...

    def peer_lost(self, peer: BrokerId, lane: Lane) -> None: ...

    def connection_closed(self, connection: object) -> None: ...


def address() -> Address:
    return "127.0.0.1", free_port()


def transport(me: BrokerId, listen: Address, peers: dict[BrokerId, Address]) -> PeerTransport:
    return PeerTransport(
        me=me, mesh_id="test", disk=bytes(16), listen=listen, peers=peers, receiver=Deaf(), rng=random.Random(1)
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_outgoing, "REDIAL_MS", 5)


@pytest.fixture
async def peer() -> AsyncIterator[PeerTransport]:
    """The broker that is looked for; it knows a wrong address of the one that looks."""
    made = transport(PEER, address(), {ME: address()})
    await made.start()
    yield made
    await made.stop()


async def test_where_another_broker_answers_the_next_address_is_dialled(peer: PeerTransport) -> None:
    other = transport(OTHER, address(), {})
    await other.start()
    me = transport(ME, address(), {PEER: other._listen})
    await me.start()
    me.add_peer(PEER, peer._listen, Source.GOSSIP)
    await until(lambda: peer.hears(ME) and me.peers[PEER] == peer._listen)
    await me.stop()
    await other.stop()


async def test_who_is_dialled_learns_from_the_greeting_where_the_dialling_one_listens(peer: PeerTransport) -> None:
    me = transport(ME, address(), {PEER: peer._listen})
    await me.start()
    await until(lambda: me.hears(PEER) and peer.peers[ME] == me._listen)
    await me.stop()


async def test_a_stranger_that_takes_connections_and_says_nothing_is_left_for_another_address(
    peer: PeerTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_outgoing, "DOUBT_MS", 20)
    met: list[asyncio.StreamWriter] = []
    stranger = await asyncio.start_server(lambda _, writer: met.append(writer), "127.0.0.1", 0)
    me = transport(ME, address(), {PEER: stranger.sockets[0].getsockname()[:2]})
    await me.start()
    await until(lambda: bool(met))
    await asyncio.sleep(0.1)
    assert len(met) == 2  # there is nothing else to try: no connection is given up
    me.add_peer(PEER, peer._listen, Source.REGION)
    await until(lambda: me.hears(PEER) and peer.hears(ME))
    await me.stop()
    stranger.close()
    for writer in met:
        writer.close()


async def test_a_connection_to_a_peer_that_is_heard_is_kept_whatever_is_said(
    peer: PeerTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_outgoing, "DOUBT_MS", 20)
    me = transport(ME, address(), {PEER: peer._listen})
    await me.start()
    await until(lambda: me.hears(PEER) and len(peer.incoming) == 2)
    before = set(peer.incoming)
    me.add_peer(PEER, address(), Source.GOSSIP)
    await asyncio.sleep(0.1)
    assert peer.incoming == before
    await me.stop()


class Gone:
    """The transport of a connection whose other end has gone: nobody can ask any more who that was."""

    def get_extra_info(self, name: str) -> None: ...

    def abort(self) -> None: ...

    def is_closing(self) -> bool:
        return True


async def test_who_has_gone_right_after_its_greeting_is_believed_and_not_looked_for_elsewhere() -> None:
    listen, known = address(), address()
    me = transport(ME, listen, {PEER: known})
    incoming = IncomingConnection(me)
    incoming.connection_made(cast("asyncio.Transport", Gone()))
    hello = encode_hello(lane=Lane.APPEND, sender=PEER, to=ME, disk=bytes(16), mesh_id="test", port=9)
    buffer = memoryview(incoming.get_buffer(-1))
    buffer[: len(hello)] = hello
    incoming.buffer_updated(len(hello))
    assert (incoming.peer, me.peers[PEER]) == (PEER, known)
    incoming.connection_lost(None)
