"""The sockets of a process are found among its descriptors, and its files are left alone."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.listening import own_sockets as module
from mesh.listening.own_sockets import borrowed, descriptor_count, listening_on, own_sockets, socket_of


def listed() -> dict[int, str]:
    """What /proc says of every descriptor that is a socket."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            what = os.readlink(f"/proc/self/fd/{entry}")
            if what.startswith("socket:"):
                found[int(entry)] = what
    return found


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[list[socket.socket]]:
    """Sockets among files, pipes and numbers that are not open."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((tmp_path / str(number)).open("wb")) for number in range(40)]
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        sockets[0].setblocking(False)
        for file in files[::2]:
            file.close()
        sockets += [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        for end in os.pipe():
            stack.callback(os.close, end)
        yield sockets


def test_every_socket_is_found_and_nothing_else(mixed: list[socket.socket]) -> None:
    assert dict(own_sockets()) == listed()
    assert {one.fileno() for one in mixed} <= dict(own_sockets()).keys()


def test_a_socket_behind_many_numbers_that_are_not_open_is_found(
    mixed: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HOLES_MAX", 0)
    high = os.dup2(mixed[0].fileno(), 2 * descriptor_count() + 20)
    try:
        found = list(own_sockets())
        assert high in dict(found) and dict(found) == listed() and len(found) == len(dict(found))
    finally:
        os.close(high)


def test_the_position_of_a_file_is_asked_for_and_not_moved(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b", buffering=0) as file:
        file.write(b"12345")
        list(own_sockets())
        assert file.tell() == 5


def test_a_number_that_is_no_socket_any_more_is_refused_and_nothing_stays_open(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        before = descriptor_count()
        with pytest.raises(OSError, match="non-socket"), borrowed(file.fileno()):
            pass
        assert descriptor_count() == before


def test_what_is_open_is_counted() -> None:
    before = descriptor_count()
    with socket.socket():
        assert descriptor_count() == before + 1


def test_a_socket_has_a_name_while_it_is_open() -> None:
    with socket.socket() as one:
        descriptor, what = one.fileno(), socket_of(one.fileno())
        assert what is not None and what == listed()[descriptor]
    assert socket_of(descriptor) is None


def test_only_what_listens_on_a_port_is_its_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), server.accept()[0]:
            assert listening_on(port) == [(server.fileno(), socket_of(server.fileno()))]
    assert listening_on(port) == []
