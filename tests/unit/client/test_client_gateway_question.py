"""One request without an event loop: every failure is one of the gateway client's errors, TLS is checked."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from georelay.client import gateway_question
from georelay.client.gateway_http import GatewayError
from georelay.client.gateway_question import GatewayPlace, ask_once
from georelay.errors import Outcome, Retry
from georelay.pki.directory import BUNDLE, PkiDirectory
from georelay.tls import client_contexts


class Handler(BaseHTTPRequestHandler):
    """Says what it was asked; `/broken` is not answered."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/broken":
            self.close_connection = True
            return
        said = {"path": self.path, "body": json.loads(body), "by": self.headers.get("Authorization", "")}
        raw = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that does not trust us is part of the tests."""


Serve = Callable[..., int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server and return its port."""
    servers = []

    def start(context: ssl.SSLContext | None = None) -> int:
        server = Server(("127.0.0.1", 0), Handler)
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        servers.append((server, thread))
        return int(server.server_address[1])

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def asked(place: GatewayPlace, path: str = "/v1/topics") -> Any:
    return ask_once(place, "POST", path, query={"region": "us"}, body={"name": "größer"})


def test_a_request_arrives_with_its_query_its_body_and_its_credentials(serve: Serve) -> None:
    place = GatewayPlace(f"http://127.0.0.1:{serve()}", "ann:secret", "", None)
    answer = asked(place, "/v1/regions/s a/drain")
    assert (answer["path"], answer["body"]) == ("/v1/regions/s%20a/drain?region=us", {"name": "größer"})
    assert answer["by"].startswith("basic ")


def test_an_answer_that_is_lost_or_too_large_is_unknown_and_no_gateway_at_all_is_not_stored(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = GatewayPlace(f"http://127.0.0.1:{serve()}", "", "", None)
    with pytest.raises(GatewayError, match="did not answer") as lost:
        ask_once(place, "POST", "/broken", query={}, body={})
    assert lost.value.outcome is Outcome.UNKNOWN
    monkeypatch.setattr(gateway_question, "ANSWER_BYTES_MAX", 10)
    with pytest.raises(GatewayError, match="over 10 bytes"):
        asked(place)
    with pytest.raises(
        GatewayError, match=r"cannot reach the gateway at http://127\.0\.0\.1:1: connection refused"
    ) as none:
        asked(GatewayPlace("http://127.0.0.1:1", "", "", None))
    assert none.value.outcome is Outcome.NOT_STORED


def test_a_gateway_is_asked_only_where_its_certificate_is_trusted(serve: Serve, tmp_path: Path) -> None:
    pki = PkiDirectory.create(tmp_path / "pki", mesh_id="m", days=2)
    cert = pki.issue_gateway("front", hosts=("127.0.0.1",), days=1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, cert.with_suffix(".key"))
    url = f"https://127.0.0.1:{serve(context)}"
    trusted = GatewayPlace(url, "", "token", client_contexts(ca=pki.path / BUNDLE))
    assert asked(trusted)["by"] == "bearer token"
    with pytest.raises(GatewayError, match=r"is not trusted: .*; name its authority with --ca") as refused:
        asked(GatewayPlace(url, "", "", None))
    assert (refused.value.outcome, refused.value.retry) == (Outcome.NOT_STORED, Retry.NEVER)
