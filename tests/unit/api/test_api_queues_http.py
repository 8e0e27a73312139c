"""Queues and bindings over HTTP: rights, parameters and texts; the coordinator is in memory."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from georelay.errors import AccessDenied, BadRequest, GeorelayError
from region.api import queues_http
from region.api.bindings_http import binding_json, parse_binding
from region.api.bodies import Bodies
from region.api.principal import PRINCIPAL
from region.api.problem import problem_response
from region.api.queues_http import QueuesHttp
from region.api.record_json import record_json
from region.security.access import ANONYMOUS, Access, Operation, Principal, Resource


class Asked:
    """Coordinators that write down what they are asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, dict[str, Any], float]] = []
        self.answer: dict[str, Any] = {}

    def leader_of(self, key: str, part: Any) -> int:
        return 1001

    async def call(
        self, part: Any, key: str, operation: str, body: Any, *, principal: str = "", timeout_s: float = 10
    ) -> dict[str, Any]:
        self.calls.append((key, operation, body, timeout_s))
        return dict(self.answer)

    async def gather(self, part: Any, operation: str, body: Any, **_: Any) -> list[dict[str, Any]]:
        return [{"queues": [{"name": "mine"}, {"name": "other"}]}]


class Rights:
    """Allows what was granted; everything else is denied."""

    def __init__(self, *granted: tuple[Operation, Resource, str]) -> None:
        self._granted = set(granted)

    def allows(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> bool:
        return (operation, resource, name) in self._granted

    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str = "") -> None:
        if not self.allows(principal, operation, resource, name):
            raise AccessDenied(resource.value)

    def check_any(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        if not any(granted[:2] == (operation, resource) for granted in self._granted):
            raise AccessDenied(resource.value)

    @contextmanager
    def noted(self, principal: Principal, what: str, **detail: str) -> Iterator[None]:
        yield

    def check_create_topic(self, principal: Principal, name: str) -> None:
        self.check(principal, Operation.CREATE, Resource.TOPIC, name)


class NoTopics:
    """A cluster without topics."""

    region = "us"

    def topic(self, name: str) -> None:
        return None


async def _client(asked: Asked, rights: Any) -> TestClient[Any, Any]:
    @web.middleware
    async def around(request: web.Request, handler: Any) -> web.StreamResponse:
        request[PRINCIPAL] = ANONYMOUS
        try:
            response: web.StreamResponse = await handler(request)
        except GeorelayError as error:
            response = problem_response(error)
        return response

    app = web.Application(middlewares=[around])
    Bodies().install(app)
    app.add_routes(QueuesHttp(coordinators=asked, cluster=NoTopics(), access=rights).routes())  # type: ignore[arg-type]
    client = TestClient(TestServer(app))
    await client.start_server()
    return client


RECORD = {
    "lease": "1.0.0.1",
    "partition": 0,
    "offset": 3,
    "timestamp_ms": 5,
    "key": None,
    "value": "aMOk",
    "headers": [["h", "/w=="]],
    "deliveries": 1,
    "leased_until_ms": 9,
}


async def test_a_receive_passes_its_parameters_on_and_shows_text() -> None:
    asked = Asked()
    asked.answer = {"records": [RECORD], "visibility_timeout_ms": 1}
    client = await _client(asked, Access.open())
    answer = await client.post("/v1/queues/q/records?consumer=c&max=5&wait_ms=2000")
    (row,) = (await answer.json())["records"]
    assert (row["value"], row["headers_b64"], row["lease"]) == ("hä", {"h": "/w=="}, "1.0.0.1")
    assert asked.calls == [("q", "receive", {"consumer": "c", "max": 5, "wait_ms": 2000, "queue": "q"}, 12.0)]
    await client.close()


async def test_large_records_of_a_receive_are_written_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def noted(*given: Any) -> Any:
        threads.append(threading.get_ident())
        return record_json(*given)

    monkeypatch.setattr(queues_http, "record_json", noted)
    asked = Asked()
    client = await _client(asked, Access.open())
    for value in ("aMOk", "AAAA" * 25_000):
        asked.answer = {"records": [RECORD | {"value": value}], "visibility_timeout_ms": 1}
        answer = await client.post("/v1/queues/q/records?consumer=c")
        (row,) = (await answer.json())["records"]
        assert row["value"] == base64.b64decode(value).decode()
    await client.close()
    assert threads[0] == threading.get_ident() != threads[1]


@pytest.mark.parametrize("query", ["consumer=c&nothing=1", "consumer=c&max=x", "consumer=c&max=1&max=2", "region=eu"])
async def test_wrong_parameters_of_a_receive_are_refused(query: str) -> None:
    client = await _client(Asked(), Access.open())
    assert (await client.post(f"/v1/queues/q/records?{query}")).status == 400
    await client.close()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/queues/q", None),
        ("PATCH", "/v1/queues/q", {"ttl_ms": 1}),
        ("DELETE", "/v1/queues/q", None),
        ("POST", "/v1/queues/q/purge", {}),
        ("POST", "/v1/queues/q/records?consumer=c", {}),
        ("POST", "/v1/queues/q/leases", {"action": "acknowledge", "leases": []}),
        ("POST", "/v1/queues", {"name": "q", "topic": "t"}),
    ],
)
async def test_nothing_is_asked_for_a_caller_without_rights(method: str, path: str, body: Any) -> None:
    asked = Asked()
    client = await _client(asked, Rights())
    answer = await client.request(method, path, json=body)
    assert answer.status == 403
    assert "q" not in json.loads(await answer.text())["detail"].split()
    assert not asked.calls
    await client.close()


async def test_a_queue_needs_rights_to_its_topic_and_its_dead_letter_topic() -> None:
    asked = Asked()
    granted = [(Operation.CREATE, Resource.QUEUE, "q"), (Operation.READ, Resource.TOPIC, "t")]
    letters = [
        (Operation.WRITE, Resource.TOPIC, "q-dead-letters"),
        (Operation.CREATE, Resource.TOPIC, "q-dead-letters"),
    ]
    body = {"name": "q", "topic": "t"}
    client = await _client(asked, Rights(*granted))
    assert (await client.post("/v1/queues", json=body)).status == 403
    await client.close()
    client = await _client(asked, Rights(*granted, *letters))
    assert (await client.post("/v1/queues", json=body)).status == 201
    assert asked.calls == [("q", "create", {"topic": "t", "queue": "q"}, 10.0)]
    await client.close()


async def test_the_list_shows_what_the_caller_may_describe() -> None:
    client = await _client(Asked(), Rights((Operation.DESCRIBE, Resource.QUEUE, "mine")))
    rows = (await (await client.get("/v1/queues")).json())["queues"]
    assert [row["name"] for row in rows] == ["mine"]
    await client.close()


@pytest.mark.parametrize("action", ["delete", "create", None, 5])
async def test_leases_take_their_own_actions_only(action: Any) -> None:
    asked = Asked()
    client = await _client(asked, Access.open())
    assert (await client.post("/v1/queues/q/leases", json={"action": action, "leases": []})).status == 400
    assert not asked.calls
    await client.close()


def test_a_binding_is_read_and_shown() -> None:
    body = {"name": "b", "source": "orders.*", "queue": "bills", "headers": [{"name": "h", "value": "1"}]}
    shown = binding_json(parse_binding(json.dumps(body).encode()))
    assert shown == {**body, "match": "all", "topic": "unresolved"}


@pytest.mark.parametrize(
    "body",
    [
        {"name": "b", "source": "orders"},
        {"name": "b", "source": "orders", "topic": "t", "queue": "q"},
        {"name": "b", "source": "a..b", "topic": "t"},
        {"name": "b", "source": "orders", "topic": "t", "index": 5},
        {"name": "b", "source": "orders", "topic": "t", "unknown": 5},
        {"name": "b b", "source": "orders", "topic": "t"},
        [],
    ],
)
def test_wrong_bindings_are_refused(body: Any) -> None:
    with pytest.raises(BadRequest):
        parse_binding(json.dumps(body).encode())
