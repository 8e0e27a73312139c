"""What tests ask with leaves no connection open where it fails: the collector would tell so in another test."""

from __future__ import annotations

import socket
import urllib.error
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.http_body import body_of
from tests.closing_clients import kafka, started


class Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(503)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"not")

    def log_message(self, *_: object) -> None:
        pass


def test_an_answer_that_refuses_leaves_no_connection() -> None:
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        answering = Thread(target=server.handle_request)
        answering.start()
        with pytest.raises(urllib.error.HTTPError) as refused:
            body_of(f"http://127.0.0.1:{server.server_port}/", timeout_s=10)
        answering.join()
    assert refused.value.code == 503
    answer: Any = refused.value.fp
    assert answer.isclosed()


async def test_a_client_that_fails_while_it_starts_is_stopped() -> None:
    done: list[str] = []

    async def start() -> None:
        raise ConnectionError("nobody there")

    async def stop() -> None:
        done.append("stopped")

    with pytest.raises(ConnectionError, match="nobody there"):
        async with started(SimpleNamespace(start=start, stop=stop)):
            pass
    assert done == ["stopped"]


def test_a_socket_of_kafka_python_that_is_not_told_in_time_that_it_is_connected_is_closed() -> None:
    class Waited:
        async def wait_write(self, *_: object, **__: object) -> None:
            raise kafka.errors.KafkaTimeoutError("a busy machine")

    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as connection:
        connection.setblocking(False)
        connecting = kafka.net.inet.KafkaNetSocket().sock_connect(Waited(), connection, server.getsockname())
        with pytest.raises(kafka.errors.KafkaTimeoutError):
            connecting.send(None)
        assert connection.fileno() == -1
