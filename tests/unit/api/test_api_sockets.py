"""Sockets of a broker: records out by credit, publishes in, by the rights, budgets and sign-in of REST."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from georelay.errors import NotLeader
from georelay.ids import Epoch
from georelay.wire.batch import build_batch, iterate_records
from georelay.wire.control_batch import build_marker
from mesh.listening import http_site
from mesh.listening.http_site import HttpSite
from region.api import socket, sockets_http
from region.api.bodies import Bodies
from region.api.socket_messages import PublishBatch, decode_deliver_batch, encode_publish_batch
from region.kafka.request_memory import RequestMemory
from region.security.access import Access
from region.security.acl_core import AclIndex
from tests.unit.api.edge_in_memory import Edge, basic
from tests.unit.gateway.test_gateway_asyncapi import judge


class NothingAllowed:
    version = 1
    enforced = True
    index = AclIndex()


class Client:
    """A client of one socket."""

    def __init__(self, ws: Any) -> None:
        self.ws = ws

    async def say(self, **message: Any) -> None:
        await self.ws.send_str(json.dumps(message))

    async def next(self) -> Any:
        """Return the next message: an object, or bytes."""
        message = await self.ws.receive(timeout=5)
        assert message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY), message
        if message.type is aiohttp.WSMsgType.BINARY:
            return message.data
        judge(found := json.loads(message.data))
        return found

    async def ask(self, **message: Any) -> Any:
        await self.say(**message)
        return await self.next()

    async def subscribe(self, **fields: Any) -> Any:
        defaults = {"id": 1, "topic": "orders", "credit_bytes": 100_000, "from": "earliest"}
        return await self.ask(type="subscribe", **(defaults | fields))


@pytest.fixture
def orders(cluster: Any) -> Callable[..., None]:
    cluster.add_topic("orders", 2)

    def store(*rows: tuple[int, bytes]) -> None:
        for partition, value in rows:
            cluster.streams["orders", partition].add(value)

    return store


Open = Callable[..., Any]


@pytest.fixture
async def open_socket(edge: Edge) -> AsyncIterator[Open]:
    """Open a socket at a listener of its own; its first message is read."""
    clients: list[Any] = []

    async def open_one(path: str = "/v1/socket", headers: Any = None, **settings: Any) -> Client:
        client = TestClient(TestServer(edge.whole_admin(**settings).app()))
        await client.start_server()
        clients.append(client)
        socket_client = Client(await client.ws_connect(path, headers=headers))
        hello = await socket_client.next()
        assert (hello["type"], hello["region"], hello["broker"]) == ("hello", "us", 1001)
        return socket_client

    yield open_one
    for client in clients:
        await client.close()


async def test_what_is_there_is_sent_and_then_what_comes(open_socket: Open, orders: Any) -> None:
    orders((0, b"a"))
    client = await open_socket()
    assert await client.subscribe() == {"type": "subscribed", "id": 1, "topic": "orders", "positions": {}}
    first = await client.next()
    assert [(row["partition"], row["offset"], row["value"]) for row in first["records"]] == [(0, 0, "a")]
    assert (first["id"], first["positions"]) == (1, {"0": 1, "1": 0})
    orders((1, b"b"))
    assert [row["value"] for row in (await client.next())["records"]] == ["b"]


async def test_open_sockets_are_counted(edge: Edge, open_socket: Open) -> None:
    def shown() -> float | None:
        return edge.metrics.registry.get_sample_value("georelay_sockets_open")

    client = await open_socket()
    assert shown() == 1
    await client.ws.close()
    async with asyncio.timeout(5):
        while shown() != 0:  # its end is worked on behind the close
            await asyncio.sleep(0)


async def test_who_comes_back_with_offsets_goes_on_there(open_socket: Open, orders: Any) -> None:
    orders((0, b"a"), (0, b"b"), (1, b"c"))
    client = await open_socket()
    assert (await client.subscribe(**{"from": {"0": 1}}))["positions"] == {"0": 1}
    assert [row["value"] for row in (await client.next())["records"]] == ["b"]


async def test_a_position_has_the_epoch_of_what_lies_before_it_also_where_that_is_a_marker(
    open_socket: Open, orders: Any, cluster: Any
) -> None:
    orders((0, b"a"))
    client = await open_socket()
    await client.subscribe(partitions=[0])
    assert (await client.next())["epochs"] == {"0": 1}
    stream = cluster.streams["orders", 0]
    stream.epoch, stream.epoch_ends = Epoch(2), {1: (1, 1), 2: (2, 3)}
    stream.add_raw(build_marker(producer_id=8, producer_epoch=0, is_commit=False, coordinator_epoch=1, timestamp_ms=1))
    orders((0, b"b"))
    last = await client.next()
    assert (last["positions"], last["epochs"]) == ({"0": 3}, {"0": 2})
    again = await client.subscribe(id=2, **{"from": last["positions"], "epochs": last["epochs"]})
    assert again["type"] == "subscribed"


async def test_who_read_what_the_mesh_gave_up_is_refused_and_who_did_not_goes_on(
    open_socket: Open, orders: Any, cluster: Any
) -> None:
    orders(*((0, b"%d" % number) for number in range(5)))
    stream = cluster.streams["orders", 0]
    stream.epoch, stream.epoch_ends = Epoch(2), {1: (1, 3), 2: (2, 5)}  # a forced move: epoch 1 ended at 3
    client = await open_socket()
    for offset, epochs, kind in ((4, {"0": 1}, "refused"), (3, {"0": 1}, "subscribed"), (4, {"0": 2}, "subscribed")):
        said = await client.subscribe(
            id=offset * 10 + len(kind), credit_bytes=0, epochs=epochs, **{"from": {"0": offset}}
        )
        assert said["type"] == kind
        if kind == "refused":
            assert (said["problem"]["code"], said["problem"]["status"]) == ("DIVERGED", 409)
            assert "at offset 3 (end of epoch 1)" in said["problem"]["detail"]


async def test_without_credit_nothing_is_sent_until_more_is_given(open_socket: Open, orders: Any) -> None:
    orders((0, b"a"))
    client = await open_socket()
    await client.subscribe(credit_bytes=0)
    with pytest.raises(asyncio.TimeoutError):
        await client.ws.receive(timeout=0.05)
    await client.say(type="credit", id=1, bytes=1)
    first = await client.next()
    assert first["size_bytes"] > 1, "the last message may use more than is left"
    orders((0, b"b"))
    await client.say(type="credit", id=1, bytes=first["size_bytes"] - 1)  # as much as was used: none is left
    with pytest.raises(asyncio.TimeoutError):
        await client.ws.receive(timeout=0.05)
    await client.say(type="credit", id=1, bytes=1)
    assert [row["value"] for row in (await client.next())["records"]] == ["b"]


async def test_batches_are_delivered_as_they_are_stored(open_socket: Open, orders: Any) -> None:
    orders((1, b"a"), (1, b"b"))
    client = await open_socket()
    await client.subscribe(batches=True)
    found = [decode_deliver_batch(await client.next()) for _ in range(2)]
    assert [row[:3] for row in found] == [(1, 1, 1), (1, 1, 2)]
    assert [record.value for row in found for record in iterate_records(row[3])] == [b"a", b"b"]


async def test_an_ended_subscription_is_sent_nothing_more(open_socket: Open, orders: Any) -> None:
    client = await open_socket()
    await client.subscribe()
    assert await client.ask(type="unsubscribe", id=1) == {"type": "ended", "id": 1}
    orders((0, b"a"))
    refused = await client.ask(type="credit", id=1, bytes=1)
    assert (refused["type"], refused["problem"]["code"]) == ("refused", "BAD_REQUEST")


async def test_what_retention_removed_is_said(open_socket: Open, orders: Any, cluster: Any) -> None:
    orders((0, b"a"), (0, b"b"), (0, b"c"))
    cluster.streams["orders", 0].log_start = 2
    client = await open_socket()
    await client.subscribe(**{"from": {"0": 1}})
    found = await client.next()
    assert found["skipped"] == [{"partition": 0, "from": 1, "to": 2}]
    assert [row["value"] for row in found["records"]] == ["c"]


async def test_publishes_are_answered_with_their_places(open_socket: Open, orders: Any, cluster: Any) -> None:
    client = await open_socket()
    answer = await client.ask(type="publish", id=7, topic="orders", records=[{"value": "x", "partition": 1}])
    assert answer == {"type": "published", "id": 7, "records": [{"partition": 1, "offset": 0, "epoch": 1}]}
    batch = bytes(build_batch([(b"y", None, ())], timestamps_ms=5))
    await client.ws.send_bytes(encode_publish_batch(PublishBatch(id=8, topic="orders", partition=1, batch=batch)))
    assert (await client.next())["records"] == [{"partition": 1, "offset": 1, "epoch": 1}]
    values = [r.value for entry in cluster.streams["orders", 1].entries for r in iterate_records(entry.payload)]
    assert values == [b"x", b"y"]


async def test_a_refused_publish_says_what_became_of_it(open_socket: Open, orders: Any, cluster: Any) -> None:
    client = await open_socket()
    cluster.publish_errors.append(NotLeader("nobody leads it"))
    batch = bytes(build_batch([(b"y", None, ())], timestamps_ms=5))
    await client.ws.send_bytes(encode_publish_batch(PublishBatch(id=8, topic="orders", partition=1, batch=batch)))
    refused = await client.next()
    assert (refused["type"], refused["id"], refused["problem"]["outcome"]) == ("refused", 8, "not_stored")
    broken = encode_publish_batch(PublishBatch(id=9, topic="orders", partition=1, batch=batch[:-1]))
    await client.ws.send_bytes(broken)
    assert (await client.next())["problem"]["code"] == "CORRUPT_RECORD_BATCH"


async def test_publishes_of_one_socket_keep_their_order(open_socket: Open, orders: Any, cluster: Any) -> None:
    client = await open_socket()
    for number in range(40):
        await client.say(type="publish", id=number, topic="orders", records={"value": str(number), "partition": 0})
    answers = [await client.next() for _ in range(40)]
    assert sorted(answer["id"] for answer in answers) == list(range(40))
    assert {answer["id"]: answer["records"][0]["offset"] for answer in answers} == {n: n for n in range(40)}


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"type": "subscribe", "id": 1, "topic": "orders", "credit_bytes": 1}, "ACCESS_DENIED"),
        ({"type": "publish", "id": 1, "topic": "orders", "records": {"value": "x"}}, "ACCESS_DENIED"),
    ],
)
async def test_rights_are_those_of_rest(open_socket: Open, orders: Any, message: Any, code: str) -> None:
    client = await open_socket(access=Access(NothingAllowed()))
    assert (await client.ask(**message))["problem"]["code"] == code


async def test_a_socket_that_only_reads_publishes_nothing(open_socket: Open, orders: Any) -> None:
    client = await open_socket("/v1/socket?read_only=true")
    refused = await client.ask(type="publish", id=1, topic="orders", records={"value": "x"})
    assert refused["problem"]["code"] == "ACCESS_DENIED"


async def test_an_ended_sign_in_ends_what_it_may_do(open_socket: Open, orders: Any) -> None:
    valid = [True]
    client = await open_socket(is_still_valid=lambda _: valid[0])
    await client.subscribe()
    valid[0] = False
    orders((0, b"a"))
    ended = await client.next()
    assert (ended["type"], ended["problem"]["code"]) == ("ended", "UNAUTHENTICATED")
    refused = await client.ask(type="publish", id=2, topic="orders", records={"value": "x"})
    assert refused["problem"]["code"] == "UNAUTHENTICATED"


async def test_a_socket_that_does_nothing_is_closed_when_its_sign_in_has_ended(
    open_socket: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets_http, "LOOK_S", 0.01)
    valid = True
    client = await open_socket(is_still_valid=lambda _: valid)
    with pytest.raises(asyncio.TimeoutError):
        await client.ws.receive(timeout=0.05)
    valid = False
    closed = await client.ws.receive(timeout=5)
    assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.POLICY_VIOLATION)


async def test_who_does_not_read_why_it_is_closed_is_cut_off_and_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Deaf:
        async def close(self, **_: object) -> None:
            await asyncio.Event().wait()

    cut: list[object] = []
    monkeypatch.setattr(sockets_http, "CLOSE_S", 0.01)
    monkeypatch.setattr(sockets_http, "cut_off", cut.append)
    request: Any = SimpleNamespace(transport="its connection")
    async with asyncio.timeout(5):
        await sockets_http._end(cast("Any", Deaf()), request)
    assert cut == ["its connection"]


async def test_mistakes_are_answered_and_too_many_in_a_row_close_the_socket(open_socket: Open) -> None:
    client = await open_socket()
    for _ in range(socket.MISTAKES_IN_A_ROW_MAX):
        assert (await client.ask(type="nonsense"))["problem"]["code"] == "BAD_REQUEST"
    closed = await client.ws.receive(timeout=5)
    assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, socket.POLICY_CLOSE)


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"topic": "nowhere"}, "UNKNOWN_TOPIC"), ({"partitions": [2]}, "BAD_REQUEST"), ({"id": 1}, "BAD_REQUEST")],
)
async def test_a_subscription_that_cannot_be_is_refused(open_socket: Open, orders: Any, fields: Any, code: str) -> None:
    client = await open_socket()
    await client.subscribe()
    assert (await client.subscribe(**({"id": 2} | fields)))["problem"]["code"] == code


async def test_subscriptions_and_sockets_are_bounded(
    open_socket: Open, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "SUBSCRIPTIONS_MAX", 1)
    monkeypatch.setattr(sockets_http, "SOCKETS_MAX", 0)
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await open_socket()
    assert refused.value.status == 503
    monkeypatch.setattr(sockets_http, "SOCKETS_MAX", 2)
    client = await open_socket()
    await client.subscribe()
    assert (await client.subscribe(id=2))["problem"]["code"] == "BUSY"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/socket?since=1", {}, 400),
        ("/v1/socket?region=eu", {}, 400),
        ("/v1/socket?read_only=yes", {}, 400),
        ("/v1/socket", {"Origin": "http://elsewhere.example"}, 403),
    ],
)
async def test_a_handshake_is_judged_as_every_request(open_socket: Open, path: str, headers: Any, status: int) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await open_socket(path, headers)
    assert refused.value.status == status


async def test_a_plain_request_is_told_what_the_path_is_for(edge: Edge) -> None:
    async with TestClient(TestServer(edge.whole_admin().app())) as client:
        answer = await client.get("/v1/socket")
        assert (answer.status, "websocket.md" in (await answer.json())["detail"]) == (400, True)


async def test_who_must_sign_in_does_so_with_the_handshake(edge: Edge, open_socket: Open, orders: Any) -> None:
    edge.credentials.users["ann"] = "secret"
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await open_socket()
    assert refused.value.status == 401
    client = await open_socket(headers={"Authorization": basic("ann", "secret")})
    assert (await client.subscribe())["type"] == "subscribed"


# --- behind our own listener: pings, budgets --------------------------------------------------------


@pytest.fixture
async def site(edge: Edge) -> AsyncIterator[Callable[..., Any]]:
    """Serve the listener as a broker does, with a budget of so many bytes; open a socket there."""
    opened: list[Any] = []

    async def start(memory: RequestMemory) -> Client:
        admin = edge.whole_admin(bodies=Bodies(memory))
        site = HttpSite(admin.app(), name="admin", shutdown_s=0.1)
        port = await site.start("127.0.0.1", 0)
        session = aiohttp.ClientSession()
        opened.extend((session, site))
        client = Client(await session.ws_connect(f"http://127.0.0.1:{port}/v1/socket", autoping=False))
        await client.next()
        return client

    yield start
    for part in opened:
        await part.close()


async def test_a_silent_client_is_pinged_and_one_that_does_not_answer_is_cut_off(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_site, "SWEEP_S", 0.01)
    monkeypatch.setattr(http_site, "PING_S", 0.02)
    client = await site(RequestMemory())
    ping = await client.ws.receive(timeout=5)
    assert ping.type is aiohttp.WSMsgType.PING
    await client.ws.pong(ping.data)
    assert (await client.ws.receive(timeout=5)).type is aiohttp.WSMsgType.PING, "who answered is asked again"
    monkeypatch.setattr(http_site, "SILENCE_S", 0.05)
    assert (await client.ws.receive(timeout=5)).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)


async def test_messages_take_from_the_budget_of_requests_and_give_it_back(site: Any, orders: Any) -> None:
    memory = RequestMemory(limit_bytes=1)
    client = await site(memory)
    answer = await client.ask(type="publish", id=1, topic="orders", records={"value": "x" * 1000})
    assert (answer["type"], memory.used_bytes) == ("published", 0)
    memory.take(1)
    await client.say(type="publish", id=2, topic="orders", records={"value": "x"})
    closed = await client.ws.receive(timeout=5)
    assert (closed.type, closed.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.TRY_AGAIN_LATER)


async def test_a_request_that_cannot_be_read_is_refused_by_a_problem_document(edge: Edge) -> None:
    site = HttpSite(edge.whole_admin().app(), name="admin", shutdown_s=0.1)
    port = await site.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v1/topics?x=" + b"y" * 9_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
    writer.close()
    await site.close()
    assert b"Content-Type: application/problem+json\r\n" in head + b"\r\n"
    assert json.loads(body)["code"] == "BAD_REQUEST"


async def test_a_partition_without_a_leader_yet_is_waited_for(
    open_socket: Open, orders: Any, edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, left = edge.reader.read, [2]

    async def unled(*arguments: Any, **settings: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise NotLeader
        return await read(*arguments, **settings)

    monkeypatch.setattr(edge.reader, "read", unled)
    client = await open_socket()
    assert (await client.subscribe(**{"from": "latest"}))["positions"] == {"0": 0, "1": 0}


# --- events -----------------------------------------------------------------------------------------


async def event_lines(answer: Any, count: int) -> list[str]:
    """Return so many lines that are not empty."""
    lines: list[str] = []
    async with asyncio.timeout(5):
        while len(lines) < count:
            line = (await answer.content.readline()).decode().rstrip("\n")
            lines += [line] if line else []
    return lines


async def test_events_of_a_topic_begin_where_they_are_asked_to_and_go_on_behind_the_last(
    edge: Edge, orders: Any, cluster: Any
) -> None:
    orders((0, b"a"), (0, b"b"))
    async with TestClient(TestServer(edge.whole_admin().app())) as client:
        async with client.get("/v1/topics/orders/events?offset=earliest") as answer:
            lines = await event_lines(answer, 4)
            assert [json.loads(line[6:])["value"] for line in lines if line.startswith("data: ")] == ["a", "b"]
            assert "id: 0:2:1,1:0" in lines
        async with client.get("/v1/topics/orders/events", headers={"Last-Event-ID": "0:1"}) as answer:
            assert json.loads((await event_lines(answer, 3))[-1][6:])["value"] == "b"
        stream = cluster.streams["orders", 0]
        stream.epoch, stream.epoch_ends = Epoch(2), {1: (1, 1), 2: (2, 2)}
        async with client.get("/v1/topics/orders/events", headers={"Last-Event-ID": "0:2:1,1:0"}) as refused:
            assert (refused.status, (await refused.json(content_type=None))["code"]) == (409, "DIVERGED")
        assert (await client.get("/v1/topics/orders/events?offset=7")).status == 400
        assert (await client.get("/v1/topics/nowhere/events")).status == 404


async def test_events_need_the_right_to_read(edge: Edge, orders: Any) -> None:
    async with TestClient(TestServer(edge.whole_admin(access=Access(NothingAllowed())).app())) as client:
        assert (await client.get("/v1/topics/orders/events")).status == 403


async def test_who_saw_no_event_yet_comes_back_to_where_its_stream_began(edge: Edge, orders: Any) -> None:
    orders((0, b"a"))
    async with TestClient(TestServer(edge.whole_admin().app())) as client:
        async with client.get("/v1/topics/orders/events") as answer:
            first = await event_lines(answer, 2)
        assert first[1] == "id: 0:1,1:0", first
        orders((0, b"b"))
        async with client.get("/v1/topics/orders/events", headers={"Last-Event-ID": first[1][4:]}) as answer:
            assert json.loads((await event_lines(answer, 3))[-1][6:])["value"] == "b"
