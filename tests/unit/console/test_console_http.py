"""The console over HTTP: what its pages may do, who is let in, and what a cookie is good for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.console import collector
from gateway.console.pages import load_pages
from tests.unit.console.world import heard
from tests.unit.gateway.conftest import ANN, FakeBroker, Mesh, start_broker, start_mesh

__all__ = ["start_broker", "start_mesh"]
TOKEN = "Georelay-Console"
TURNS = 4
Start = Callable[..., Awaitable[Any]]


async def answer(request: web.Request) -> web.StreamResponse:
    """Answer as a broker that lets ann in."""
    if request.headers.get("Authorization") != ANN:
        return web.json_response({"code": "UNAUTHENTICATED"}, status=401, headers={"WWW-Authenticate": "Basic"})
    if request.path == "/v1/status":
        return web.json_response(heard("us").status)
    return web.json_response({"method": request.method, "path": request.path})


async def answer_to_all(_: web.Request) -> web.StreamResponse:
    return web.json_response(heard("us").status)


@pytest.fixture
async def mesh(start_mesh: Start, start_broker: Start) -> tuple[Mesh, FakeBroker]:
    broker = await start_broker(answer)
    return await start_mesh(users=True, us=[broker]), broker


async def ask(
    mesh: Mesh, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, dict[str, Any], aiohttp.ClientResponse]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with mesh.client.request(method, mesh.url(path), json=body, headers=named, allow_redirects=False) as got:
        raw = await got.read()
        is_json = "json" in got.headers.get("Content-Type", "")
        return got.status, json.loads(raw) if raw and is_json else {}, got


async def sign_in(mesh: Mesh, **more: object) -> tuple[str, str]:
    """Return (cookie header, token)."""
    user: dict[str, object] = {"user": "ann", "password": "secret"}
    status, shown, got = await ask(mesh, "POST", "/console/session", user | more)
    mesh.client.cookie_jar.clear()
    assert status == 200, shown
    cookie = got.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Secure" not in cookie
    return cookie.partition(";")[0], shown["token"]


async def test_every_file_has_a_strict_policy_and_loads_without_a_sign_in(mesh: tuple[Mesh, FakeBroker]) -> None:
    for path in ("/console/", "/console/app.js", "/console/console.css", "/console/icon.svg"):
        status, _, got = await ask(mesh[0], "GET", path)
        policy = got.headers["Content-Security-Policy"]
        assert status == 200
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert got.headers["X-Content-Type-Options"] == "nosniff"
    assert (await ask(mesh[0], "GET", "/console"))[2].headers["Location"] == "/console/"
    assert (await ask(mesh[0], "GET", "/console/..%2fpages.py"))[0] == 404


async def test_a_browser_that_has_a_file_is_not_sent_it_again(mesh: tuple[Mesh, FakeBroker]) -> None:
    tag = (await ask(mesh[0], "GET", "/console/app.js"))[2].headers["ETag"]
    status, _, got = await ask(mesh[0], "GET", "/console/app.js", If_None_Match=tag)
    assert (status, got.content_length or 0) == (304, 0)


def test_pages_name_only_files_that_are_there_and_no_other_site() -> None:
    pages = load_pages()
    for name, page in pages.items():
        text = page.raw.decode()
        for found in ("https://", "innerHTML", "eval(", 'style="'):
            assert found not in text, (name, found)
        imported = {line.rpartition('"./')[2].rstrip('";') for line in text.splitlines() if line.startswith("import ")}
        assert imported <= set(pages), name


async def test_nobody_sees_the_mesh_without_signing_in_and_no_window_pops_up(mesh: tuple[Mesh, FakeBroker]) -> None:
    status, _, got = await ask(mesh[0], "GET", "/v1/overview", **{TOKEN: ""})
    assert (status, "WWW-Authenticate" in got.headers) == (401, False)
    status, _, got = await ask(mesh[0], "GET", "/v1/overview")
    assert (status, "WWW-Authenticate" in got.headers) == (401, True), "programs are challenged as before"
    status, shown, _ = await ask(mesh[0], "POST", "/console/session", {"user": "ann", "password": "wrong"})
    assert (status, shown["code"]) == (401, "UNAUTHENTICATED")


async def test_a_cookie_stands_for_the_credentials_it_was_given_for(mesh: tuple[Mesh, FakeBroker]) -> None:
    cookie, token = await sign_in(mesh[0])
    status, overview, _ = await ask(mesh[0], "GET", "/v1/overview", Cookie=cookie)
    assert (status, overview["regions"][0]["name"], overview["verdict"]) == (200, "us", "ok")
    assert (await ask(mesh[0], "GET", "/v1/topics", Cookie=cookie))[:2] == (
        200,
        {"method": "GET", "path": "/v1/topics"},
    )
    status, shown, _ = await ask(mesh[0], "GET", "/console/session", Cookie=cookie)
    assert (status, shown["user"], shown["token"], shown["read_only"]) == (200, "ann", token, False)
    assert (await ask(mesh[0], "DELETE", "/console/session", Cookie=cookie))[0] == 204
    assert (await ask(mesh[0], "GET", "/v1/overview", Cookie=cookie))[0] == 401


async def test_a_cookie_alone_changes_nothing(mesh: tuple[Mesh, FakeBroker]) -> None:
    gateway, broker = mesh
    cookie, token = await sign_in(gateway)
    broker.requests.clear()
    status, problem, _ = await ask(gateway, "POST", "/v1/topics", {}, Cookie=cookie)
    assert (status, problem["code"], broker.requests) == (403, "POLICY_VIOLATION", [])
    assert (await ask(gateway, "POST", "/v1/topics", {}, Cookie=cookie, **{TOKEN: token}))[0] == 200
    foreign = {"Origin": "http://evil.example", "Sec_Fetch_Site": "cross-site"}
    assert (await ask(gateway, "POST", "/v1/topics", {}, Cookie=cookie, **{TOKEN: token}, **foreign))[0] == 403


async def test_a_read_only_session_looks_and_changes_nothing(mesh: tuple[Mesh, FakeBroker]) -> None:
    cookie, token = await sign_in(mesh[0], read_only=True)
    assert (await ask(mesh[0], "GET", "/v1/topics", Cookie=cookie))[0] == 200
    status, problem, _ = await ask(mesh[0], "DELETE", "/v1/topics/t", Cookie=cookie, **{TOKEN: token})
    assert (status, "read-only" in problem["detail"]) == (403, True)


@pytest.mark.parametrize(
    "body", [[], {"user": ""}, {"user": 1}, {"user": "a:b", "password": "x"}, {"token": "a\nb"}, {"read_only": 1}]
)
async def test_a_sign_in_that_says_nothing_is_told_what_to_say(mesh: tuple[Mesh, FakeBroker], body: Any) -> None:
    status, problem, _ = await ask(mesh[0], "POST", "/console/session", body)
    assert (status, problem["code"]) == (400, "BAD_REQUEST")


async def test_brackets_without_end_are_no_sign_in_and_no_defect_either(mesh: tuple[Mesh, FakeBroker]) -> None:
    async with mesh[0].client.post(mesh[0].url("/console/session"), data=b"[" * 4_096) as got:
        assert (got.status, (await got.json(content_type=None))["code"]) == (400, "BAD_REQUEST")


async def test_where_nobody_signs_in_the_page_says_so(start_mesh: Start, start_broker: Start) -> None:
    mesh = await start_mesh(us=[await start_broker()])
    status, shown, _ = await ask(mesh, "GET", "/console/session")
    assert (status, shown["sign_in_required"], shown["user"]) == (200, False, None)
    assert (await ask(mesh, "POST", "/console/session", {"user": "ann", "password": "secret"}))[0] == 400


async def test_however_many_look_one_broker_per_region_is_asked_per_turn(
    start_mesh: Start, start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "PERIOD_S", 60.0)  # one turn
    brokers = [await start_broker() for _ in range(3)]
    mesh = await start_mesh(us=brokers)
    for broker in brokers:
        broker.requests.clear()
    for _ in range(20):
        assert (await ask(mesh, "GET", "/v1/overview"))[0] == 200
    asked = [request for broker in brokers for request in broker.requests if request == "GET /v1/status"]
    assert len(asked) == 1


async def test_who_knows_an_overview_waits_for_the_next_one(
    start_mesh: Start, start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "PERIOD_S", 0.1)
    mesh = await start_mesh(us=[await start_broker(answer_to_all)])
    first = (await ask(mesh, "GET", "/v1/overview"))[1]["version"]
    waited = await asyncio.gather(*(ask(mesh, "GET", f"/v1/overview?after={first}") for _ in range(5)))
    assert [row[1]["version"] for row in waited] == [first + 1] * 5
    assert (await ask(mesh, "GET", "/v1/overview?after=-1"))[0] == 400


async def test_an_overview_says_how_many_look_so_that_their_pages_ask_less_often_the_more_they_are(
    start_mesh: Start, start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "PERIOD_S", 0.1)
    mesh = await start_mesh(us=[await start_broker(answer_to_all)])

    async def look_until(viewers: int, *, many: int) -> None:
        overview: dict[str, Any] = {"version": 0, "viewers": 0}
        while overview["viewers"] != viewers:  # one that is late is counted with the next document
            path = f"/v1/overview?after={overview['version']}"
            overview = (await asyncio.gather(*(ask(mesh, "GET", path) for _ in range(many))))[0][1]

    async with asyncio.timeout(60):
        await look_until(5, many=5)
        await look_until(1, many=1)


async def test_a_region_that_is_slow_to_answer_is_not_asked_again_meanwhile(
    start_mesh: Start, start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "PERIOD_S", 0.02)
    monkeypatch.setattr(collector, "FIRST_S", 0.05)
    monkeypatch.setattr(collector, "ANSWER_S", 60.0)  # nobody gives up while the test runs, however slow the machine
    waiting: list[str] = []

    async def never(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/status":
            waiting.append(request.path)
            await asyncio.Event().wait()
        return await answer_to_all(request)

    mesh = await start_mesh(us=[await start_broker(never)])
    version = 0
    while version < TURNS:
        status, overview, _ = await ask(mesh, "GET", f"/v1/overview?after={version}")
        version = overview["version"] if status == 200 else 0  # 503 before the first turn is over
    assert overview["regions"][0]["words"] == "not asked yet"
    assert waiting == ["/v1/status"]
