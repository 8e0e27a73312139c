"""Sockets through the gateway: messages both ways, who asks, what becomes of the client when the broker goes."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import WSCloseCode, WSMsgType, web

from gateway.rest import leaving, sockets
from gateway.routing.client_book_core import NAME_HEADER
from georelay.credentials import CLIENT_HEADER
from mesh.distance import spread_core
from mesh.listening import http_sockets
from tests.unit.gateway.conftest import ANN, BOB


async def echo(request: web.Request) -> web.StreamResponse:
    """Say how it was asked, then say everything again; "bye" closes, "die" ends without a word."""
    ws = web.WebSocketResponse()
    await ws.prepare(request)
    await ws.send_json({"path": request.path_qs, "headers": {k.lower(): v for k, v in request.headers.items()}})
    async for message in ws:
        if message.data == "bye":
            await ws.close(code=WSCloseCode.GOING_AWAY, message=b"the broker stops")
        elif message.data == "die":
            assert request.transport is not None
            request.transport.abort()
        elif message.type is WSMsgType.TEXT:
            await ws.send_str(message.data)
        else:
            await ws.send_bytes(message.data)
    return ws


async def open_socket(mesh: Any, path: str = "/v1/socket", **headers: str) -> Any:
    ws = await mesh.client.ws_connect(mesh.url(path), headers=headers)
    return ws, await ws.receive_json(timeout=5)


async def test_messages_pass_both_ways_as_they_are(start_mesh: Any, start_broker: Any) -> None:
    mesh = await start_mesh(us=[await start_broker(echo)])
    ws, _ = await open_socket(mesh)
    await ws.send_str("häppy")
    await ws.send_bytes(b"\x00\xff")
    assert [(await ws.receive(timeout=5)).data for _ in range(2)] == ["häppy", b"\x00\xff"]
    await ws.close()


async def test_open_sockets_are_counted(start_mesh: Any, start_broker: Any) -> None:
    mesh = await start_mesh(us=[await start_broker(echo)])

    async def shown() -> str:
        text: str = await (await mesh.client.get(mesh.url("/metrics"))).text()
        return next(row for row in text.splitlines() if row.startswith("georelay_gateway_sockets "))

    ws, _ = await open_socket(mesh)
    assert await shown() == "georelay_gateway_sockets 1.0"
    await ws.close()
    async with asyncio.timeout(5):
        while await shown() != "georelay_gateway_sockets 0.0":  # its end is worked on behind the close
            await asyncio.sleep(0)


async def test_the_broker_learns_who_asks_and_not_for_which_region(start_mesh: Any, start_broker: Any) -> None:
    mesh = await start_mesh(us=[await start_broker()], eu=[await start_broker(echo)])
    ws, hello = await open_socket(mesh, "/v1/socket?region=eu&read_only=true", Authorization=ANN)
    assert hello["path"] == "/v1/socket?read_only=true"
    assert hello["headers"]["authorization"] == ANN
    assert hello["headers"][CLIENT_HEADER.lower()] == "127.0.0.1"
    await ws.close()


@pytest.mark.parametrize(("word", "code"), [("bye", WSCloseCode.GOING_AWAY), ("die", WSCloseCode.SERVICE_RESTART)])
async def test_a_client_is_told_when_its_broker_goes(start_mesh: Any, start_broker: Any, word: str, code: int) -> None:
    mesh = await start_mesh(us=[await start_broker(echo)])
    ws, _ = await open_socket(mesh)
    await ws.send_str(word)
    closed = await ws.receive(timeout=5)
    assert (closed.type, closed.data) == (WSMsgType.CLOSE, code)


async def test_sockets_leave_a_drained_region_unless_they_asked_for_it_and_find_the_other_one(
    start_mesh: Any, start_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def judging(request: web.Request) -> web.StreamResponse:
        return web.json_response({"by": "ann"}) if request.path.startswith("/v1/routes") else await echo(request)

    monkeypatch.setattr(spread_core, "SPREAD_S", 0.0)
    monkeypatch.setattr(leaving, "LOOK_EVERY_S", 0.01)
    brokers = {"us": await start_broker(judging), "eu": await start_broker(judging)}
    mesh = await start_mesh(us=[brokers["us"]], eu=[brokers["eu"]])

    def opened() -> dict[str, int]:
        return {name: sum("/v1/socket" in line for line in each.requests) for name, each in brokers.items()}

    ws, _ = await open_socket(mesh)
    here = next(name for name, count in opened().items() if count)
    other = next(name for name in brokers if name != here)
    staying, _ = await open_socket(mesh, f"/v1/socket?region={here}")
    drain = {"subject": here, "value": "clients"}
    async with mesh.client.post(mesh.url("/v1/routes/drain"), json=drain) as answer:
        assert answer.status == 200
    closed = await ws.receive(timeout=5)
    assert (closed.type, closed.data) == (WSMsgType.CLOSE, WSCloseCode.SERVICE_RESTART)
    assert closed.extra == "the region is drained for clients: come back and go on by offset"
    await staying.send_str("still here")
    assert (await staying.receive(timeout=5)).data == "still here"
    again, _ = await open_socket(mesh)
    assert opened()[other] == 1
    await again.close()
    await staying.close()


async def test_a_pinned_client_has_its_socket_in_its_region(start_mesh: Any, start_broker: Any) -> None:
    async def judging(request: web.Request) -> web.StreamResponse:
        return web.json_response({"by": "ann"}) if request.path.startswith("/v1/routes") else await echo(request)

    brokers = {"us": await start_broker(judging), "eu": await start_broker(judging)}
    mesh = await start_mesh(us=[brokers["us"]], eu=[brokers["eu"]])
    for region, broker in brokers.items():
        before = len(broker.requests)
        await mesh.client.post(mesh.url("/v1/routes/pin"), json={"subject": "till-7", "value": region})
        ws, _ = await open_socket(mesh, **{NAME_HEADER: "till-7"})
        assert any("/v1/socket" in line for line in broker.requests[before:])
        await ws.close()


async def test_another_broker_of_the_region_is_asked_when_one_is_gone(start_mesh: Any, start_broker: Any) -> None:
    gone = await start_broker(echo)
    mesh = await start_mesh(us=[gone, await start_broker(echo)])
    await gone.stop()
    for _ in range(2):  # whichever is the first
        ws, hello = await open_socket(mesh)
        assert hello["path"] == "/v1/socket"
        await ws.close()


@pytest.mark.parametrize(("status", "shown"), [(401, 401), (403, 403), (503, 503), (404, 503)])
async def test_a_refused_handshake_is_an_answer_of_http(
    start_mesh: Any, start_broker: Any, status: int, shown: int
) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status)

    mesh = await start_mesh(us=[await start_broker(refuse)])
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await open_socket(mesh)
    assert refused.value.status == shown


async def test_who_is_refused_is_told_in_the_words_of_the_broker(start_mesh: Any, start_broker: Any) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"detail": "User:ann has 7 sockets here, as many as are free"}, status=503)

    mesh = await start_mesh(us=[await start_broker(refuse)])
    handshake = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    async with mesh.client.get(mesh.url("/v1/socket"), headers=handshake) as answer:
        assert (answer.status, (await answer.json(content_type=None))["detail"]) == (
            503,
            "User:ann has 7 sockets here, as many as are free",
        )


async def test_pages_of_other_sites_open_no_socket(start_mesh: Any, start_broker: Any) -> None:
    mesh = await start_mesh(us=[await start_broker(echo)])
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await open_socket(mesh, Origin="http://elsewhere.example")
    assert refused.value.status == 403
    plain = await mesh.client.get(mesh.url("/v1/socket"))
    assert (plain.status, "websocket.md" in (await plain.json())["detail"]) == (400, True)


async def test_a_session_of_the_console_only_reads(start_mesh: Any, start_broker: Any) -> None:
    mesh = await start_mesh(users=True, us=[await start_broker(echo)])
    answer = await mesh.client.post(mesh.url("/console/session"), json={"user": "ann", "password": "secret"})
    cookie = answer.headers["Set-Cookie"].partition(";")[0]
    ws, hello = await open_socket(mesh, Cookie=cookie)
    assert (hello["path"], hello["headers"]["authorization"]) == ("/v1/socket?read_only=true", ANN)
    await ws.close()
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await open_socket(mesh)
    assert refused.value.status == 401


async def test_what_no_broker_has_taken_is_bounded(
    start_mesh: Any, start_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = await start_mesh(us=[await start_broker(echo)])
    ws, _ = await open_socket(mesh)
    monkeypatch.setattr(sockets, "HELD_BYTES_MAX", 0)
    await ws.send_str("x")
    closed = await ws.receive(timeout=5)
    assert (closed.type, closed.data) == (WSMsgType.CLOSE, WSCloseCode.TRY_AGAIN_LATER)


async def test_a_message_over_the_limit_closes_the_socket(
    start_mesh: Any, start_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_sockets, "MESSAGE_BYTES_MAX", 10)
    mesh = await start_mesh(us=[await start_broker(echo)])
    ws, _ = await open_socket(mesh)
    await ws.send_bytes(bytes(11))
    closed = await ws.receive(timeout=5)
    assert (closed.type, closed.data) == (WSMsgType.CLOSE, WSCloseCode.MESSAGE_TOO_BIG)


async def test_what_clients_of_one_caller_have_not_read_is_bounded_and_leaves_room_for_others(
    start_mesh: Any, start_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def much(request: web.Request) -> web.StreamResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        await ws.send_json({})
        async for message in ws:
            letter, _, count = message.data.partition(" ")
            await ws.send_str(letter * int(count))
        return ws

    held: list[int] = []
    take, unread = sockets.SocketRelay._take, asyncio.Event()

    def counted(relay: Any, caller: str, size_bytes: int) -> bool:
        found = take(relay, caller, size_bytes)
        held.append(relay._held_bytes)
        return found

    send = web.WebSocketResponse.send_frame

    async def not_read(ws: Any, message: bytes, opcode: Any) -> None:
        if message.startswith(b"a"):
            await unread.wait()
        await send(ws, message, opcode)

    monkeypatch.setattr(sockets.SocketRelay, "_take", counted)
    monkeypatch.setattr(sockets, "HELD_BYTES_MAX", 25_000)
    monkeypatch.setattr(web.WebSocketResponse, "send_frame", not_read)
    mesh = await start_mesh(users=True, us=[await start_broker(much)])
    for user in (ANN, BOB):  # known as users from then on
        known, _ = await open_socket(mesh, Authorization=user)
        await known.close()
    bob, ann, more = [(await open_socket(mesh, Authorization=user))[0] for user in (BOB, ANN, ANN)]
    await ann.send_str("a 14000")
    while held[-1] < 14_000:
        await asyncio.sleep(0)
    await more.send_str("a 14000")
    closed = await more.receive(timeout=5)
    assert (closed.type, closed.data) == (WSMsgType.CLOSE, WSCloseCode.TRY_AGAIN_LATER)
    await bob.send_str("b 3000")
    assert (await bob.receive(timeout=5)).data == "b" * 3_000
    assert max(held) < 25_000
    unread.set()
    assert (await ann.receive(timeout=5)).data == "a" * 14_000
    await asyncio.gather(*(ws.close() for ws in (ann, bob)))
    while held[-1]:
        await asyncio.sleep(0)
