"""Bodies of HTTP requests: rights first, small where they administer, counted with Kafka's, of few values."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from georelay.credentials import basic
from georelay.errors import Busy, TooLarge
from georelay.limits import ADMIN_BODY_BYTES_MAX, ADMIN_VALUES_MAX, KIB, REST_VALUES_MAX
from region.api import json_values_core
from region.api.bodies import ON_LOOP_BYTES_MAX, Bodies, Handler
from region.api.json_values_core import has_more_values, values_at_most
from region.api.principal import PRINCIPAL
from region.kafka.request_memory import RequestMemory
from region.security.access import Operation, Principal, Resource
from tests.unit.api.test_api_security import Guarded, guarded

__all__ = ["guarded"]

ANN = {"Authorization": basic("ann", "correct horse")}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='\\",[]{}aé'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='\\",[', max_size=3), inner),
)


def values_of(value: Any) -> int:
    """Return how many values there are in a JSON value; an empty object or array is two."""
    if isinstance(value, dict | list):
        inner = list(value.values()) if isinstance(value, dict) else value
        return 1 + (sum(map(values_of, inner)) or 1)
    return 1


@given(value=JSON, is_ascii=st.booleans(), window=st.integers(1, 7))
def test_values_of_a_text_are_counted_exactly_wherever_the_windows_cut_it(
    value: Any, is_ascii: bool, window: int
) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    count = values_of(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_values_core, "WINDOW_BYTES", window)
        assert not has_more_values(text, count)
        assert has_more_values(text, count - 1)
    assert values_at_most(text) >= count


def test_a_text_of_many_values_is_given_up_after_its_first_window() -> None:
    class Counted(bytes):
        looked_at = 0

        def __getitem__(self, part: Any) -> Any:
            Counted.looked_at += 1
            return super().__getitem__(part)

    assert has_more_values(Counted(b"[" + b"{}," * 1_000_000), 10_000)
    assert Counted.looked_at == 1


@pytest.fixture
async def http(guarded: Guarded) -> AsyncIterator[Any]:
    async with TestClient(TestServer(guarded.http.app())) as client:
        yield client


@pytest.mark.parametrize(
    "where",
    [
        "POST /v1/topics",
        "PATCH /v1/topics/orders",
        "POST /v1/topics/orders/records",
        "POST /v1/topics/orders/delete-records",
        "POST /v1/topics/orders/reassign",
        "POST /v1/groups/g/reset-offsets",
        "POST /v1/queues",
        "PATCH /v1/queues/q",
        "POST /v1/queues/q/leases",
        "POST /v1/bindings",
        "POST /v1/brokers/1002",
        "POST /v1/users",
        "PATCH /v1/users/bob",
        "POST /v1/users/bob/tokens",
        "POST /v1/acls",
        "POST /v1/acls/remove",
        "POST /v1/quotas",
    ],
)
async def test_who_has_no_right_is_refused_before_a_byte_of_the_body_is_looked_at(http: Any, where: str) -> None:
    method, path = where.split()
    answer = await http.request(method, path, data=b"no JSON at all", headers=ANN)
    assert (answer.status, (await answer.json())["code"]) == (403, "ACCESS_DENIED")


async def test_a_body_that_administers_is_small_and_has_few_values(guarded: Guarded, http: Any) -> None:
    guarded.allow("User:ann", Operation.CREATE, Resource.CLUSTER)
    answer = await http.post("/v1/topics", data=b" " * (ADMIN_BODY_BYTES_MAX + 1), headers=ANN)
    assert (answer.status, str(ADMIN_BODY_BYTES_MAX) in (await answer.json())["detail"]) == (413, True)

    answer = await http.post("/v1/topics", data=b"[" + b"{}," * ADMIN_VALUES_MAX + b"{}]", headers=ANN)
    assert (answer.status, str(ADMIN_VALUES_MAX) in (await answer.json())["detail"]) == (413, True)


async def test_a_publish_of_millions_of_values_is_refused_without_making_one(
    guarded: Guarded, http: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded.allow("User:ann", Operation.WRITE, Resource.TOPIC, "orders")
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was read"))
    answer = await http.post(
        "/v1/topics/orders/records", data=b'{"value":[' + b"[]," * REST_VALUES_MAX + b"0]}", headers=ANN
    )
    assert (answer.status, (await answer.json())["code"]) == (413, "TOO_LARGE")


async def test_a_value_may_hold_as_much_punctuation_as_it_likes(guarded: Guarded, http: Any) -> None:
    guarded.allow("User:ann", Operation.WRITE, Resource.TOPIC, "orders")
    record = {"value": '{"a":[1,2,3]},' * (REST_VALUES_MAX // 10)}
    answer = await http.post("/v1/topics/orders/records", json=record, headers=ANN)
    assert answer.status == 200


class Reader:
    """An application that reads a body, and what it counts in. Who asks says so by a name.

    Attributes:
        waits: once set, an answer waits for it.
    """

    waits: asyncio.Event | None = None

    def __init__(self, limit_bytes: int) -> None:
        self.memory = RequestMemory(limit_bytes)
        self.bodies = Bodies(self.memory)
        self.seen: list[int] = []
        self.app = web.Application(middlewares=[self._sign_in])
        self.app.router.add_post("/", self._read)
        self.bodies.install(self.app)

    @web.middleware
    async def _sign_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        request[PRINCIPAL] = Principal.of_user(request.headers.get("Name", ""))
        return await handler(request)

    async def _read(self, request: web.Request) -> web.Response:
        try:
            body = await self.bodies.read(request, bytes_max=64 * KIB)
        except Busy as error:
            return web.Response(status=503, text=str(error))
        self.seen.append(self.memory.used_bytes)
        if self.waits is not None:
            await self.waits.wait()
        return web.Response(text=str(len(body)))


async def test_a_body_counts_in_the_budget_of_all_requests_until_it_is_answered() -> None:
    reader = Reader(1_000)
    async with TestClient(TestServer(reader.app)) as client:
        assert await (await client.post("/", data=bytes(700))).text() == "700"
    assert (reader.seen, reader.memory.used_bytes, reader.bodies.held_bytes) == ([700], 0, 0)


async def test_bodies_of_one_principal_leave_as_much_to_others_as_they_take() -> None:
    reader = Reader(1_000)
    reader.waits = asyncio.Event()
    async with TestClient(TestServer(reader.app)) as client:

        def post(name: str, size: int) -> asyncio.Task[Any]:
            return asyncio.ensure_future(client.post("/", data=bytes(size), headers={"Name": name}))

        first = post("ann", 600)
        while not reader.seen:
            await asyncio.sleep(0)
        refused = await post("ann", 100)
        assert (refused.status, "600 of them yours" in await refused.text()) == (503, True)
        other = post("bob", 100)
        while len(reader.seen) < 2:
            await asyncio.sleep(0)
        reader.waits.set()
        assert [await (await answer).text() for answer in (first, other)] == ["600", "100"]
        assert await (await post("ann", 100)).text() == "100"
    assert (reader.memory.used_bytes, reader.memory.held_by("User:ann"), reader.bodies.held_bytes) == (0, 0, 0)


async def test_where_kafkas_frames_take_the_whole_budget_a_publish_over_http_is_told_to_come_again(
    guarded: Guarded,
) -> None:
    guarded.allow("User:ann", Operation.WRITE, Resource.TOPIC, "orders")
    memory = RequestMemory(1_000)
    guarded.http._bodies = Bodies(memory)
    async with TestClient(TestServer(guarded.http.app())) as http:
        memory.take(1_000)
        answer = await http.post("/v1/topics/orders/records", json={"value": "v"}, headers=ANN)
        assert (answer.status, (await answer.json())["code"]) == (503, "BUSY")
        memory.take(-1)
        answer = await http.post("/v1/topics/orders/records", json={"value": "v"}, headers=ANN)
        assert answer.status == 200
    assert memory.used_bytes == 999


async def test_large_bodies_are_read_as_json_off_the_loop_small_ones_at_once() -> None:
    bodies = Bodies()
    here = threading.get_ident()
    small = await bodies.parse(b" " * ON_LOOP_BYTES_MAX, lambda _: threading.get_ident(), values_max=1)
    large = await bodies.parse(b" " * (ON_LOOP_BYTES_MAX + 1), lambda _: threading.get_ident(), values_max=1)
    assert (small == here, large == here) == (True, False)
    with pytest.raises(TooLarge, match="more than 2 values"):
        await bodies.parse(b"[1,2,3]", bytes.decode, values_max=2)
    bodies.close()
