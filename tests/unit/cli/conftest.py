"""A fake gateway in a thread: the commands run their own event loop in the test's thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from georelay.cli.application import run
from georelay.cli.location import GATEWAY_VARIABLE, USER_VARIABLE

Answer = tuple[int, Any]  # status and JSON; status 0 breaks the connection


def problem(status: int, code: str, detail: str, *, outcome: str = "not_stored", retry: str = "never") -> Answer:
    return status, {"code": code, "detail": detail, "status": status, "outcome": outcome, "retry": retry}


@dataclass
class FakeGateway:
    """Answers by (method, path); a list is consumed one answer per request, a function sees query and body."""

    url: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    seen: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    problem: Callable[..., Answer] = field(default=staticmethod(problem))

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query))
        document = json.loads(body) if body else None
        self.seen.append((f"{method} {parts.path}", query, document))
        self.headers.append(headers)
        found = self.answers.get(f"{method} {parts.path}", problem(404, "NOT_FOUND", "no such path"))
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        answer: Answer = found(query, document) if callable(found) else found
        return answer


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    fake = FakeGateway()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, document = fake.answer(self.command, self.path, dict(self.headers), body)
            if status == 0:
                self.close_connection = True
                return
            raw = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815  http.server calls them so

        def log_message(self, *_: object) -> None:
            """Stay silent: the tests read stderr."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that breaks off is part of the tests."""

    server = Server(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass
class Ran:
    """What a command left."""

    code: int
    out: str
    err: str


Georelay = Callable[..., Ran]


@pytest.fixture
def georelay(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Georelay:
    """Run one command line in an empty directory, without plugins and without the variables of the tester."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(GATEWAY_VARIABLE, raising=False)
    monkeypatch.delenv(USER_VARIABLE, raising=False)

    def georelay(*arguments: str, plugins: Any = ()) -> Ran:
        code = run(arguments, plugins)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return georelay
