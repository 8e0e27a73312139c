"""Connections of listeners that accept by themselves are bounded by address; strangers keep no region from dialling."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from mesh.listening import accepted_sockets, own_sockets
from mesh.listening.accepted_sockets import AcceptedSockets, SocketLimits
from mesh.listening.admission_core import AdmissionCounters, Refusal


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


async def test_a_connection_that_nobody_could_look_at_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sockets = AcceptedSockets(limits(per_address_max=1), AdmissionCounters(), name="t")
    borrowed = own_sockets.borrowed

    def without_descriptors(_: int) -> Any:
        raise OSError(errno.EMFILE, "too many open files")

    with ExitStack() as stack:
        listening = Listening(stack)
        theirs = listening.connect(2)
        monkeypatch.setattr(accepted_sockets, "borrowed", without_descriptors)
        with pytest.raises(OSError, match="too many"):
            await sockets.look(listening.port)
        monkeypatch.setattr(accepted_sockets, "borrowed", borrowed)
        await sockets.look(listening.port)
        assert sum(map(is_cut, theirs)) == 1


async def test_a_process_with_few_descriptors_looks_at_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepted_sockets, "descriptor_count", lambda: accepted_sockets.FEW_DESCRIPTORS - 1)
    monkeypatch.setattr(accepted_sockets, "own_sockets", lambda: pytest.fail("it looked"))
    await AcceptedSockets(SocketLimits(per_address_max=1), AdmissionCounters(), name="t").look(1)
