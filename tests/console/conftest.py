"""The console in a real browser, before a mesh with real delays. `make console` runs these tests and says what is
missing; other runs do not collect them."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.http_body import body_of
from loadtest.wan.wan_mesh import WanMesh
from tests.console.browser import Browser, BrowserFailed

collect_ignore_glob = [] if os.environ.get("GEORELAY_CONSOLE") else ["test_*.py"]
AXE = Path("build/console/node_modules/axe-core/axe.min.js")
PICTURES = Path("build/console/pictures")


class ConsoleMesh(WanMesh):
    """The mesh, and requests to its gateway beside the browser."""

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request as the mesh's user."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.gateway + path, method=method, data=data, headers=self.headers)
        context = self.ssl_context or ssl.create_default_context()
        return json.loads(body_of(request, timeout_s=30, context=context) or "null")


@pytest.fixture(scope="session")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleMesh]:
    """Three regions of one broker, with a topic, records, a group, a queue, a user."""
    mesh = ConsoleMesh(tmp_path_factory.mktemp("console"), brokers_per_region=1)
    asyncio.run(mesh.__aenter__())
    try:
        mesh.ask("POST", "/v1/topics", {"name": "orders", "partitions": 3, "home": "us"})
        mesh.ask("POST", "/v1/topics", {"name": "clicks", "partitions": 2, "homes": "every"})
        mesh.ask("POST", "/v1/topics/orders/records", [{"key": f"k{n}", "value": f"order {n}"} for n in range(60)])
        mesh.ask("POST", "/v1/topics/orders/consumers/bills?region=us", {"start": "earliest"})
        mesh.ask("POST", "/v1/queues?region=us", {"name": "jobs", "topic": "orders"})
        mesh.ask("POST", "/v1/users", {"name": "ann", "password": "ann-secret-1"})
        yield mesh
    finally:
        mesh.stop()


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    """One browser for all tests."""
    try:
        browser = Browser()
    except BrowserFailed as error:
        pytest.fail(str(error))
    yield browser
    browser.close()


@pytest.fixture
def browser(window: Browser, mesh: ConsoleMesh) -> Iterator[Browser]:
    """The browser, signed in, on a desk; afterwards it must not have complained."""
    window.look(width=1280)
    sign_in(window, mesh)
    window.complaints()
    yield window
    assert window.complaints() == []


def sign_in(browser: Browser, mesh: ConsoleMesh, *, only_look: bool = False) -> None:
    """Sign in as the one who may do everything, on the first screen."""
    assert mesh.user is not None, "a test bed has one"
    user, password = mesh.user
    browser.open(f"{mesh.gateway}/console/")
    browser.until("document.querySelector('form.sign-in, svg.map')")
    if browser.js("return Boolean(document.querySelector('svg.map'))"):
        browser.click("Sign out")
    browser.type("input[name=user]", user)
    browser.type("input[name=password]", password)
    if only_look:
        browser.js("document.querySelector('input[name=read_only]').click()")
    browser.click("Sign in", "form.sign-in")
    browser.until("document.querySelector('svg.map .region')")
