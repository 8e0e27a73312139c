"""Connections of listeners that accept by themselves are bounded by address; strangers keep no region from dialling."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from georelay.ids import BrokerId
from mesh.listening import accepted_sockets
from mesh.listening.accepted_sockets import AcceptedSockets, SocketLimits
from mesh.listening.admission_core import AdmissionCounters, Refusal
from mesh.replication import link_grpc
from mesh.replication.link_grpc import DialledLink, LinkListener
from mesh.replication.settings import BrokerAddress


class Listening:
    """A socket that accepts whatever comes."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._socket = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port = self._socket.getsockname()[1]
        self.accepted: list[socket.socket] = []

    def connect(self, count: int) -> list[socket.socket]:
        made = []
        for _ in range(count):
            made.append(self._stack.enter_context(socket.create_connection(("127.0.0.1", self.port))))
            self.accepted.append(self._stack.enter_context(self._socket.accept()[0]))
        return made


def is_cut(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False


def limits(**more: Any) -> SocketLimits:
    return SocketLimits(looked_from=0, **more)


async def test_the_newest_connections_of_an_address_beyond_its_limit_are_cut_off_and_others_stay() -> None:
    counters = AdmissionCounters()
    sockets = AcceptedSockets(limits(per_address_max=3), counters, name="t")
    with ExitStack() as stack:
        listening, other = Listening(stack), Listening(stack)
        theirs = other.connect(5)
        first = listening.connect(2)
        await sockets.look(listening.port)
        second = listening.connect(3)
        await sockets.look(listening.port)
        assert [is_cut(one) for one in (*first, *theirs)] == [False] * 7
        assert sum(map(is_cut, second)) == 2
        assert counters.refused == {Refusal.TOO_MANY_OF_ADDRESS: 2}


async def test_unused_connections_are_few_and_have_an_end_and_used_ones_have_none() -> None:
    counters = AdmissionCounters()
    with ExitStack() as stack:
        listening = Listening(stack)
        made = listening.connect(4)
        used = {made[0].getsockname()}
        kept = AcceptedSockets(
            limits(per_address_max=9, unused_per_address_max=2, unused_s=60), counters, name="t", used=lambda: used
        )
        await kept.look(listening.port)
        assert (is_cut(made[0]), sum(map(is_cut, made))) == (False, 1)
        late = AcceptedSockets(
            limits(per_address_max=9, unused_per_address_max=9, unused_s=0), counters, name="t", used=lambda: used
        )
        for _ in range(2):
            await late.look(listening.port)
            await asyncio.sleep(0.001)
        assert [is_cut(one) for one in made] == [False, True, True, True]
        assert counters.refused == {Refusal.TOO_MANY_OF_ADDRESS: 1, Refusal.NO_SIGN_IN: 3}


async def test_a_process_with_few_descriptors_looks_at_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted_sockets, "descriptor_count", lambda: accepted_sockets.FEW_DESCRIPTORS - 1)
    monkeypatch.setattr(accepted_sockets, "own_sockets", lambda: pytest.fail("it looked"))
    await AcceptedSockets(SocketLimits(per_address_max=1), AdmissionCounters(), name="t").look(1)


class Receiver:
    """The business of a link: none."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed: list[str] = []

    def frame_received(self, frame: bytes) -> None:
        self.frames.put_nowait(frame)

    def link_writable(self) -> None: ...

    def link_closed(self, reason: str) -> None:
        self.closed.append(reason)


async def test_strangers_that_connect_to_the_link_listener_and_say_nothing_keep_no_region_from_dialling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("CONNECTIONS_PER_ADDRESS_MAX", 50), ("UNUSED_PER_ADDRESS_MAX", 2)):
        monkeypatch.setattr(link_grpc, name, value)
    monkeypatch.setattr(accepted_sockets, "descriptor_count", lambda: accepted_sockets.FEW_DESCRIPTORS)
    options = dict(link_grpc._SERVER_OPTIONS) | {"grpc.max_allowed_incoming_connections": 10}
    monkeypatch.setattr(link_grpc, "_SERVER_OPTIONS", tuple(options.items()))
    accepted = Receiver()
    counters = AdmissionCounters()
    listener = LinkListener(lambda link: link.start(accepted), counters=counters)
    port = await listener.start("127.0.0.1:0")
    strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
    target = BrokerAddress(broker_id=BrokerId(1001), address=f"127.0.0.1:{port}")
    async with asyncio.timeout(10):
        while not accepted.frames.qsize():  # as a region does: again and again
            dialled, ended = DialledLink(target), Receiver()

            dialled.start(ended)
            dialled.send(b"open")
            while not accepted.frames.qsize() and not ended.closed:
                await asyncio.sleep(0.01)
    assert accepted.frames.get_nowait() == b"open"
    assert counters.refused[Refusal.TOO_MANY_OF_ADDRESS] >= 8
    dialled.close("done")
    await dialled.closed()
    for _, writer in strangers:
        writer.close()
    await listener.stop()
