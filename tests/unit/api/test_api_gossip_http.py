"""Gossip over HTTP: rights, parameters and texts; the pool is in memory."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from georelay.errors import AccessDenied, GeorelayError
from mesh.gossip.agent_answers import KeyReport, QueryReport, fingerprint
from mesh.gossip.key_queries_core import LIST_KEYS, USE_KEY
from mesh.gossip.pool_member import MemberHealth
from mesh.gossip.serf_core import TooLong
from mesh.gossip.view import MemberStatus, MemberView
from mesh.gossip.watchdog_core import Watchdog
from region.api.bodies import Bodies
from region.api.gossip_http import GossipHttp
from region.api.principal import PRINCIPAL
from region.api.problem import problem_response
from region.security.access import ANONYMOUS, Operation

KEY = b"k" * 32
OTHER = b"o" * 32


def text(key: bytes) -> str:
    return base64.b64encode(key).decode()


class FakePool:
    name, own_name = "lan", "1001"

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def members(self) -> Sequence[MemberView]:
        row = {"address": ("127.0.0.1", 7946), "status": MemberStatus.ALIVE}
        return [
            MemberView(name="1001", tags={"rg": "us"}, rtt_s=0.0, **row),  # type: ignore[arg-type]
            MemberView(name="1002", tags={"rg": "us"}, **row),  # type: ignore[arg-type]
        ]

    def health(self) -> MemberHealth:
        return MemberHealth(awareness=1, encrypted=True)

    async def rtt(self, first: str, second: str) -> float | None:
        return 0.0123 if second == "1002" else None

    async def keys(self, action: str, key: bytes = b"") -> KeyReport:
        self.calls.append((action, key))
        listed = {text(KEY): 2, text(OTHER): 1} if action == LIST_KEYS else {}
        return KeyReport(members=2, answered=2, done=2, faults={}, keys=listed, primaries={text(KEY): 2})

    async def tell(self, name: str, payload: bytes, *, coalesce: bool = False) -> None:
        if len(payload) > 100:
            raise TooLong("the event takes too much")
        self.calls.append((name, payload, coalesce))

    async def query(self, name: str, payload: bytes, **options: Any) -> QueryReport:
        self.calls.append((name, payload, options))
        return QueryReport(acknowledged=("1001", "1002"), answers={"1002": b"up"})

    async def make_leave(self, name: str, *, prune: bool = False) -> None:
        self.calls.append((name, prune))


class Rights:
    def __init__(self, *granted: Operation) -> None:
        self.granted = set(granted)

    def check(self, principal: Any, operation: Operation, resource: Any, name: str = "") -> None:
        if operation not in self.granted:
            raise AccessDenied(resource.value)

    @contextmanager
    def noted(self, principal: Any, what: str, **detail: str) -> Iterator[None]:
        assert what == "gossip.changed" and not set(detail) - {"pool", "action", "of"}
        yield


@web.middleware
async def around(request: web.Request, handler: Any) -> web.StreamResponse:
    request[PRINCIPAL] = ANONYMOUS
    try:
        response: web.StreamResponse = await handler(request)
    except GeorelayError as error:
        response = problem_response(error)
    return response


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


@pytest.fixture
def rights() -> Rights:
    return Rights(Operation.DESCRIBE, Operation.ALTER)


@pytest.fixture
async def client(pool: FakePool, rights: Rights) -> AsyncIterator[TestClient[Any, Any]]:
    pools: Any = SimpleNamespace(pools={"lan": pool}, watchdog=Watchdog(0.0))
    app = web.Application(middlewares=[around])
    Bodies().install(app)
    app.add_routes(GossipHttp(pools, rights).routes())  # type: ignore[arg-type]
    async with TestClient(TestServer(app)) as client:
        yield client


async def test_members_are_listed_with_what_the_asked_one_thinks_of_itself(client: Any) -> None:
    answer = await (await client.get("/v1/gossip/members")).json()
    assert (answer["pool"], answer["self"], answer["awareness"], answer["encrypted"]) == ("lan", "1001", 1, True)
    assert answer["main_loop"] == {"pulse": "steady", "lag_ms": 0.0}
    assert answer["members"][1] == {
        "name": "1002",
        "address": "127.0.0.1:7946",
        "status": "alive",
        "rtt_ms": None,
        "tags": {"rg": "us"},
    }


async def test_keys_are_shown_by_fingerprint_and_never_whole(client: Any) -> None:
    raw = await (await client.get("/v1/gossip/keys")).text()
    assert fingerprint(KEY) in raw
    assert text(KEY) not in raw


async def test_a_listed_fingerprint_names_a_key(client: Any, pool: FakePool) -> None:
    response = await client.post("/v1/gossip/keys", json={"action": "use", "key": fingerprint(OTHER)})
    assert response.status == 200
    assert pool.calls[-1] == (USE_KEY, OTHER)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"action": "use", "key": "abcdef0123"}, "0 keys of the pool"),
        ({"action": "burn", "key": "x"}, "one of install, use, remove"),
        ({"action": "install", "key": fingerprint(KEY)}, "key:"),
        ({"action": "install"}, "key: base64"),
        ({"what": 1}, "unknown field"),
        ([], "must be an object"),
    ],
)
async def test_a_wrong_key_request_is_refused_with_what_is_wrong(client: Any, body: Any, says: str) -> None:
    response = await client.post("/v1/gossip/keys", json=body)
    assert response.status == 400
    assert says in (await response.json())["detail"]


async def test_an_event_is_told_and_one_too_long_refused(client: Any, pool: FakePool) -> None:
    response = await client.post("/v1/gossip/events", json={"name": "deploy", "payload": "7"})
    assert (response.status, pool.calls) == (202, [("deploy", b"7", False)])
    assert (await client.post("/v1/gossip/events", json={"name": "deploy", "payload": "x" * 200})).status == 400
    assert (await client.post("/v1/gossip/events", json={"name": "_serf_ping"})).status == 400
    assert (await client.post("/v1/gossip/events", json={"name": "deploy", "payload": "\ud800"})).status == 400


async def test_a_query_hands_back_who_answered_what(client: Any, pool: FakePool) -> None:
    body = {"name": "mesh-status", "timeout_ms": 500, "members": ["1002"], "tags": {"rg": "^us$"}}
    answer = await (await client.post("/v1/gossip/queries", json=body)).json()
    assert answer == {"acknowledged": ["1001", "1002"], "answers": {"1002": "up"}}
    assert len(pool.calls[-1][2]["filters"]) == 2


async def test_who_is_no_member_cannot_be_made_to_leave_nor_the_asked_one(client: Any, pool: FakePool) -> None:
    assert (await client.post("/v1/gossip/force-leave", json={"member": "nobody"})).status == 400
    assert (await client.post("/v1/gossip/force-leave", json={"member": "1001"})).status == 400
    assert (await client.post("/v1/gossip/force-leave", json={"member": "1002", "prune": True})).status == 202
    assert pool.calls == [("1002", True)]


async def test_an_unknown_round_trip_is_null_and_an_unknown_name_refused(client: Any) -> None:
    assert (await (await client.get("/v1/gossip/rtt?to=1002")).json())["rtt_ms"] == 12.3
    assert (await (await client.get("/v1/gossip/rtt?to=1001")).json())["rtt_ms"] is None
    assert (await client.get("/v1/gossip/rtt?to=nobody")).status == 400
    assert (await client.get("/v1/gossip/members?pool=wan")).status == 400


@pytest.mark.parametrize(
    ("method", "path", "needs"),
    [
        ("GET", "members", Operation.DESCRIBE),
        ("GET", "rtt?to=1002", Operation.DESCRIBE),
        ("GET", "keys", Operation.DESCRIBE),
        ("POST", "keys", Operation.ALTER),
        ("POST", "events", Operation.ALTER),
        ("POST", "queries", Operation.ALTER),
        ("POST", "force-leave", Operation.ALTER),
    ],
)
async def test_every_route_asks_for_its_right_first(
    client: Any, pool: FakePool, rights: Rights, method: str, path: str, needs: Operation
) -> None:
    rights.granted.discard(needs)
    response = await client.request(method, f"/v1/gossip/{path}", json=None if method == "GET" else {})
    assert (response.status, pool.calls) == (403, [])


async def test_a_broker_without_gossip_says_so() -> None:
    app = web.Application(middlewares=[around])
    Bodies().install(app)
    app.add_routes(GossipHttp(None, Rights(Operation.DESCRIBE)).routes())  # type: ignore[arg-type]
    async with TestClient(TestServer(app)) as client:
        response = await client.get("/v1/gossip/members")
        assert response.status == 503
        assert "no [gossip]" in (await response.json())["detail"]
