"""Certificates of a mesh in a temporary directory, a clock that stands, and somebody to talk to over TLS."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvloop

from georelay.pki.directory import PkiDirectory
from georelay.tls import ClientAuth, TlsContexts, TlsSettings

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
MESH = "test-mesh"
NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    """Run the tests of accepting on both loops: they differ in how they tell that a handshake failed."""
    return LOOPS if "acceptor" in item.nodeid else {"asyncio": asyncio.new_event_loop}


@dataclass(slots=True)
class StoppedClock:
    """Monotonic and wall clock that only tests move."""

    now_s: float = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Mesh:
    """An authority with helpers that give contexts."""

    def __init__(self, path: Path, mesh_id: str = MESH) -> None:
        self.pki = PkiDirectory.create(path, mesh_id=mesh_id)
        self.path = path

    def settings(self, name: str, client_auth: ClientAuth = ClientAuth.NONE, **more: Any) -> TlsSettings:
        """Return the settings with certificate NAME, issued when it is not there; "" for none."""
        if name and not (self.path / f"{name}.crt").exists():
            kind, _, rest = name.partition("-")
            issue = {"broker": self.pki.issue_broker, "gateway": self.pki.issue_gateway}.get(
                kind, self.pki.issue_client
            )
            issue(int(rest) if kind == "broker" else rest)  # type: ignore[operator]
        return TlsSettings(
            cert_file=self.path / f"{name}.crt" if name else None,
            key_file=self.path / f"{name}.key" if name else None,
            ca_file=self.path / "bundle.crt",
            client_auth=client_auth,
            **more,
        )

    def contexts(self, name: str, client_auth: ClientAuth = ClientAuth.NONE, **more: Any) -> TlsContexts:
        """Return contexts with that certificate; their files are looked at every time."""
        return TlsContexts(self.settings(name, client_auth), name=name or "client", check_s=0, **more)


@pytest.fixture
def mesh(tmp_path: Path) -> Mesh:
    """A mesh with its authority."""
    return Mesh(tmp_path / "pki")


@pytest.fixture
def other_mesh(tmp_path: Path) -> Mesh:
    """Another mesh of the same name, with another authority."""
    return Mesh(tmp_path / "other")


@pytest.fixture
def clock() -> StoppedClock:
    """A clock that stands."""
    return StoppedClock()


Handshake = Callable[[TlsContexts, TlsContexts], Any]


@pytest.fixture
def handshake() -> Handshake:
    """Shake hands in memory: returns the server's ssl object; raises ssl.SSLError."""

    def shake(server: TlsContexts, client: TlsContexts, server_hostname: str = "localhost") -> ssl.SSLObject:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        there = server.server().wrap_bio(to_server, to_client, server_side=True)
        here = client.client().wrap_bio(to_client, to_server, server_hostname=server_hostname)
        left = [here, there]
        for _ in range(10):
            for side in list(left):
                try:
                    side.do_handshake()
                    left.remove(side)
                except ssl.SSLWantReadError:
                    continue
            if not left:
                break
        assert not left, "the handshake did not end"
        return there

    return shake


class Echo(asyncio.Protocol):
    """Answers what it hears."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@pytest.fixture
def echo() -> type[Echo]:
    """A protocol that answers what it hears."""
    return Echo
