"""A connection between brokers is what its newest dial says, however late an earlier one is heard of."""

from __future__ import annotations

import asyncio
import random
from typing import cast

from georelay.ids import BrokerId
from mesh.listening.addresses_core import Addresses, Source
from region.multiraft.peer_outgoing import OutgoingConnection
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


def connection() -> tuple[OutgoingConnection, Heard]:
    heard, nowhere = Heard(), ("127.0.0.1", 9)
    owner = PeerTransport(
        me=ME, mesh_id="test", disk=bytes(16), listen=nowhere, peers={}, receiver=heard, rng=random.Random(1)
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
