"""The admin port: health, topics, metrics, problems, and who may see them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from georelay.errors import BadRequest
from mesh.distance.shed_core import SHED_HEADER
from region.api.topics_http import parse_topic
from tests.unit.api.edge_in_memory import Edge, basic, post


async def test_readiness_means_can_commit(edge: Edge, http: Any) -> None:
    assert (await http.get("/readyz")).status == 200
    edge.cluster.is_ready = False
    assert (await http.get("/readyz")).status == 503
    assert (await http.get("/healthz")).status == 200


async def test_topics_are_created_listed_described_and_deleted(http: Any) -> None:
    body = {"name": "orders", "partitions": 2, "homes": "one"}
    assert (await http.post("/v1/topics", json=body)).status == 201
    assert (await http.post("/v1/topics", json=body)).status == 409
    assert [row["name"] for row in (await (await http.get("/v1/topics")).json())["topics"]] == ["orders"]
    described = await (await http.get("/v1/topics/orders")).json()
    assert [row["leader"] for row in described["partition_states"]] == [1001, 1001]
    assert [row["size_bytes"] for row in described["partition_states"]] == [100, 101]
    assert (await http.delete("/v1/topics/orders")).status == 204
    assert (await http.get("/v1/topics/orders")).status == 404


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ([], "object"),
        ({}, "topic.name"),
        ({"name": 1}, "topic.name"),
        ({"name": "x", "partitions": 0}, "topic.partitions"),
        ({"name": "x", "replication_factor": "3"}, "topic.replication_factor"),
        ({"name": "x", "homes": "two"}, "topic.homes"),
        ({"name": "x", "home": 1}, "topic.home"),
        ({"name": "x", "retention_ms": -2}, "topic.retention_ms"),
        ({"name": "x", "retention": 1}, "topic.retention"),
    ],
)
def test_a_bad_topic_is_refused_with_the_name_of_its_field(body: Any, text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        parse_topic(json.dumps(body).encode())


async def test_metrics_show_streams_and_requests(edge: Edge, http: Any) -> None:
    await post(http, {"value": "x"})
    text = await (await http.get("/metrics")).text()
    assert 'georelay_stream_high_watermark{origin="us",partition="0",topic="orders"} 1.0' in text
    assert 'georelay_edge_records_total{direction="in",listener="http"} 1.0' in text


@pytest.mark.parametrize(("method", "path"), [("GET", "/nowhere"), ("PUT", "/v1/topics")])
async def test_unknown_paths_and_methods_are_problems(http: Any, method: str, path: str) -> None:
    response = await http.request(method, path)
    assert response.status in (404, 405)
    assert response.content_type == "application/problem+json"


async def test_a_bug_is_a_problem_without_a_traceback(edge: Edge, http: Any) -> None:
    edge.cluster.status = None
    response = await http.get("/v1/status")
    assert (response.status, (await response.json())["code"]) == (500, "INTERNAL")


@pytest.mark.parametrize("path", ["/metrics", "/v1/status", "/v1/topics", "/v1/topics/x/records", "/nowhere"])
async def test_with_users_only_health_answers_without_credentials(edge: Edge, http: Any, path: str) -> None:
    edge.credentials.users["ann"] = "secret"
    response = await http.get(path)
    assert response.status == 401
    assert response.headers["WWW-Authenticate"].startswith("Basic ")
    assert not edge.cluster.views
    assert (await http.get(path, headers={"Authorization": basic("ann", "wrong")})).status == 401
    assert (await http.get(path, headers={"Authorization": basic("ann", "secret")})).status != 401
    assert (await http.get("/readyz")).status == 200


async def raw_answer(edge: Edge, after: Callable[[], None]) -> bytes:
    """Return all bytes that a GET is answered with whose handler has sent "PAGE" itself, then calls `after`."""

    async def page(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        answer.content_length = 4
        await answer.prepare(request)
        await answer.write(b"PAGE")
        after()
        return answer

    app = edge.admin.app()
    app.router.add_get("/page", page)
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /page HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        async with asyncio.timeout(10):
            raw = await reader.read()
        writer.close()
    return raw


async def test_a_sign_in_that_ends_while_a_page_is_sent_ends_the_connection_behind_it(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = edge.admin._sign_in_service
    raw = await raw_answer(edge, lambda: monkeypatch.setattr(service, "is_still_valid", lambda _: False))
    assert raw.startswith(b"HTTP/1.1 200 OK\r\n") and raw.endswith(b"\r\n\r\nPAGE")


@pytest.mark.parametrize("error", [BadRequest("late"), ValueError("a bug"), web.HTTPGone()])
async def test_no_second_answer_follows_one_that_has_begun(edge: Edge, error: Exception) -> None:
    def fail() -> None:
        raise error

    raw = await raw_answer(edge, fail)
    assert raw.count(b"HTTP/1.1") <= 1 and not raw.partition(b"PAGE")[2]


async def test_readiness_says_which_share_of_its_clients_the_broker_wants_elsewhere(edge: Edge, http: Any) -> None:
    assert SHED_HEADER not in (await http.get("/readyz")).headers
    edge.admin._shed = lambda: 0.125
    edge.credentials.users["ann"] = "secret"  # gateways probe without credentials
    answer = await http.get("/readyz")
    assert (answer.status, answer.headers[SHED_HEADER]) == (200, "0.125")
