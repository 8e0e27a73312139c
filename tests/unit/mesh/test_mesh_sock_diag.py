"""Round trips of a connection that a library keeps to itself, found by its two ends."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mesh.distance.sock_diag import sample_between
from mesh.distance.tcp_info import sample_of


@contextmanager
def connected(family: socket.AddressFamily, at: str, to: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Connect to a listener at `at` by the address `to`; both ends have said something."""
    with socket.socket(family) as listener:
        if family is socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((at, 0))
        listener.listen()
        with socket.create_connection((to, listener.getsockname()[1])) as client, listener.accept()[0] as served:
            client.sendall(b"x")
            served.recv(1)
            served.sendall(b"y")
            client.recv(1)
            yield client, served


@pytest.mark.parametrize(
    ("family", "at", "to"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::", "127.0.0.1"),  # as gRPC listens, which names this peer by an IPv4 address
    ],
)
def test_it_is_what_the_socket_itself_says(family: socket.AddressFamily, at: str, to: str) -> None:
    with connected(family, at, to) as (client, served):
        port, peer_port = served.getsockname()[1], client.getsockname()[1]
        found, own = sample_between(port, to, peer_port), sample_of(served)
        assert found is not None
        assert own is not None
        assert (found.min_rtt_ms, found.is_young) == (own.min_rtt_ms, own.is_young)
        if "." in to:
            assert sample_between(port, f"::ffff:{to}", peer_port) is not None


def test_ends_that_no_connection_has_have_no_sample() -> None:
    with connected(socket.AF_INET, "127.0.0.1", "127.0.0.1") as (client, served):
        port, peer_port = served.getsockname()[1], client.getsockname()[1]
        assert sample_between(port, "127.0.0.2", peer_port) is None
        assert sample_between(peer_port, "127.0.0.1", port + 1) is None
    for host in ("", "localhost", "unix:", "1.2.3.4.5", "\0", "fe80::1%nowhere"):
        assert sample_between(port, host, peer_port) is None
    assert sample_between(port, "127.0.0.1", 70_000) is None


def test_a_kernel_that_answers_no_such_question_gives_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(socket.AF_INET, "127.0.0.1", "127.0.0.1") as (client, served):
        port, peer_port = served.getsockname()[1], client.getsockname()[1]
        monkeypatch.setattr("mesh.distance.sock_diag._SOCK_DIAG", 31)  # no such family of netlink
        assert sample_between(port, "127.0.0.1", peer_port) is None
