"""The gateway's HTTP in front of fake brokers: choice, fail-over, honesty about outcomes, errors, sign-in."""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from gateway import app
from gateway.passthrough.broker_service import CALLS_AT_ONCE_MAX
from gateway.rest import leaving, proxy
from georelay.limits import HTTP_BODY_BYTES_MAX
from mesh.distance import spread_core
from mesh.listening.grpc_requests import REQUESTS_BYTES_MAX

ANN = "basic " + base64.b64encode(b"ann:secret").decode()
BOB = "basic " + base64.b64encode(b"bob:secret").decode()


async def busy(request: web.Request) -> web.Response:
    return web.json_response({"code": "UNAVAILABLE"}, status=503)


async def cut(request: web.Request) -> web.Response:
    """Read the request and break the connection instead of answering."""
    await request.read()
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def distant(seconds: float, body: str) -> Any:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(seconds)
        return web.Response(text=body)

    return answer


async def test_resolve_names_every_region_with_addresses_distance_and_readiness(
    start_mesh: Any, start_broker: Any
) -> None:
    us, eu = await start_broker(), await start_broker()
    us.kafka, us.grpc, eu.ready = "127.0.0.1:11", "127.0.0.1:12", False
    mesh = await start_mesh(us=[us], eu=[eu], ready=1)
    await mesh.until(lambda seen: seen["us"]["rtt_ms"] is not None)
    async with mesh.client.get(mesh.url("/v1/resolve")) as answer:
        document = await answer.json()
    assert document["mesh"] == "mesh-1"
    assert document["ttl_s"] == 30
    first, second = document["regions"]
    assert (first["region"], first["ready"], first["kafka"], first["grpc"], first["http"]) == (
        "us",
        True,
        ["127.0.0.1:11"],
        ["127.0.0.1:12"],
        [us.admin],
    )
    assert 0 < first["rtt_ms"] < 1000
    assert (second["region"], second["ready"]) == ("eu", False)


async def test_resolve_of_one_region_answers_only_it_and_an_unknown_one_is_a_problem(
    start_mesh: Any, start_broker: Any
) -> None:
    mesh = await start_mesh(us=[await start_broker()], eu=[await start_broker()])
    async with mesh.client.get(mesh.url("/v1/resolve?region=eu")) as answer:
        assert [region["region"] for region in (await answer.json())["regions"]] == ["eu"]
    async with mesh.client.get(mesh.url("/v1/resolve?region=mars")) as answer:
        assert answer.status == 400
        assert (await answer.json(content_type="application/problem+json"))["code"] == "BAD_REQUEST"


async def test_a_publish_reaches_the_broker_as_it_was_sent_and_the_answer_comes_back(
    start_mesh: Any, start_broker: Any
) -> None:
    seen: dict[str, str] = {}

    async def answer(request: web.Request) -> web.Response:
        seen.update(
            body=(await request.read()).decode(), type=request.content_type, who=request.headers["Authorization"]
        )
        return web.json_response({"records": []}, status=201)

    us = await start_broker(answer)
    mesh = await start_mesh(us=[us])
    url = mesh.url("/v1/topics/a%2Fb/records?region=us&trace=1")
    async with mesh.client.post(
        URL(url, encoded=True), json=[{"value": "ü"}], headers={"Authorization": "basic x"}
    ) as reply:
        assert (reply.status, await reply.json()) == (201, {"records": []})
    assert seen == {"body": '[{"value": "\\u00fc"}]', "type": "application/json", "who": "basic x"}
    assert us.requests == ["POST /v1/topics/a%2Fb/records?trace=1"]


async def test_a_publish_fails_over_when_no_connection_came_about(start_mesh: Any, start_broker: Any) -> None:
    gone, us = await start_broker(), await start_broker()
    mesh = await start_mesh(us=[gone, us])
    await mesh.until(lambda seen: seen["us"]["rtt_ms"] is not None)
    await gone.stop()
    for _ in range(2):  # whichever broker's turn it is
        async with mesh.client.post(mesh.url("/v1/topics/t/records"), data=b"once") as answer:
            assert (await answer.json())["body"] == "once"
    assert len(us.requests) == 2


async def test_a_publish_whose_answer_is_lost_is_504_outcome_unknown_and_never_sent_twice(
    start_mesh: Any, start_broker: Any
) -> None:
    first, second = await start_broker(cut), await start_broker(cut)
    mesh = await start_mesh(us=[first, second])
    async with mesh.client.post(mesh.url("/v1/topics/t/records"), data=b"{}") as answer:
        problem = await answer.json(content_type="application/problem+json")
    assert (answer.status, problem["code"], problem["outcome"]) == (504, "OUTCOME_UNKNOWN", "unknown")
    assert len(first.requests) + len(second.requests) == 1


async def test_a_read_whose_answer_is_lost_is_asked_again_elsewhere(start_mesh: Any, start_broker: Any) -> None:
    first, second = await start_broker(cut), await start_broker()
    mesh = await start_mesh(us=[first, second])
    for _ in range(2):  # whichever broker's turn it is
        async with mesh.client.get(mesh.url("/v1/topics/t/records?partition=0&offset=7")) as answer:
            assert (await answer.json())["path"] == "/v1/topics/t/records?partition=0&offset=7"
    assert first.requests


async def test_what_is_the_same_everywhere_is_asked_in_another_region_too(start_mesh: Any, start_broker: Any) -> None:
    mesh = await start_mesh(us=[await start_broker(cut)], eu=[await start_broker()])
    async with mesh.client.get(mesh.url("/v1/topics/t")) as answer:
        assert (await answer.json())["path"] == "/v1/topics/t"


@pytest.mark.parametrize("failure", ["answer lost", "no connection"])
async def test_records_are_never_read_in_another_region_than_the_nearest_unless_it_is_named(
    start_mesh: Any, start_broker: Any, failure: str
) -> None:
    near, far = await start_broker(cut), await start_broker()
    mesh = await start_mesh(us=[near], eu=[far])
    if failure == "no connection":
        await near.stop()
    async with mesh.client.get(mesh.url("/v1/topics/t/records?offset=7")) as answer:
        problem = await answer.json(content_type="application/problem+json")
    assert (answer.status, problem["code"], problem["outcome"]) == (503, "UNAVAILABLE", "not_stored")
    assert "us" in problem["detail"]
    assert "give region=" in problem["detail"]
    assert not far.requests
    async with mesh.client.get(mesh.url("/v1/topics/t/records?offset=7&region=eu")) as answer:
        assert (await answer.json())["path"] == "/v1/topics/t/records?offset=7"


async def test_a_busy_region_says_so_itself_when_records_are_read_there(start_mesh: Any, start_broker: Any) -> None:
    near, far = await start_broker(busy), await start_broker()
    mesh = await start_mesh(us=[near], eu=[far])
    async with mesh.client.get(mesh.url("/v1/topics/t/records")) as answer:
        assert (answer.status, await answer.json()) == (503, {"code": "UNAVAILABLE"})
    assert not far.requests


async def test_a_busy_broker_is_passed_over_for_reads_and_reported_for_publishes(
    start_mesh: Any, start_broker: Any
) -> None:
    mesh = await start_mesh(us=[await start_broker(busy)], eu=[await start_broker()])
    async with mesh.client.get(mesh.url("/v1/topics")) as answer:
        assert answer.status == 200
    async with mesh.client.post(mesh.url("/v1/topics"), json={}) as answer:
        assert (answer.status, await answer.json()) == (503, {"code": "UNAVAILABLE"})


async def test_a_named_region_is_never_left(start_mesh: Any, start_broker: Any) -> None:
    us, eu = await start_broker(), await start_broker(busy)
    mesh = await start_mesh(us=[us], eu=[eu])
    async with mesh.client.get(mesh.url("/v1/topics?region=eu")) as answer:
        assert answer.status == 503
    assert not us.requests


async def test_without_a_ready_region_requests_are_unavailable_and_readyz_says_so(
    start_mesh: Any, start_broker: Any
) -> None:
    us = await start_broker()
    us.ready = False
    mesh = await start_mesh(us=[us], ready=0)
    async with mesh.client.get(mesh.url("/readyz")) as answer:
        assert answer.status == 503
    async with mesh.client.post(mesh.url("/v1/topics/t/records"), json={}) as answer:
        problem = await answer.json(content_type="application/problem+json")
    assert (answer.status, problem["code"], problem["outcome"], problem["retry"]) == (
        503,
        "UNAVAILABLE",
        "not_stored",
        "later",
    )
    assert not us.requests


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit_is_refused_with_or_without_a_declared_length(
    start_mesh: Any, start_broker: Any, declared: bool
) -> None:
    processed = []

    async def take(request: web.Request) -> web.Response:
        async for _ in request.content.iter_any():
            pass
        processed.append(request)
        return web.Response()

    mesh = await start_mesh(us=[await start_broker(take)])

    async def chunks() -> Any:
        for _ in range(HTTP_BODY_BYTES_MAX // 2**20 + 1):
            yield bytes(2**20)

    body: Any = io.BytesIO(bytes(HTTP_BODY_BYTES_MAX + 1)) if declared else chunks()
    async with mesh.client.post(mesh.url("/v1/topics/t/records"), data=body) as answer:
        problem = await answer.json(content_type="application/problem+json")
    assert (answer.status, problem["code"], problem["outcome"]) == (413, "TOO_LARGE", "not_stored")
    assert not processed


async def test_a_large_answer_is_streamed_back_whole(start_mesh: Any, start_broker: Any) -> None:
    mesh = await start_mesh(us=[await start_broker(distant(0, "x" * 3_000_000))])
    async with mesh.client.get(mesh.url("/v1/topics/t/records")) as answer:
        assert len(await answer.read()) == 3_000_000


async def test_an_event_stream_lasts_and_the_last_event_that_was_seen_is_passed_on(
    start_mesh: Any, start_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "ANSWER_TIMEOUT_S", 0.02)

    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        await response.write(f"id: {request.headers['Last-Event-ID']}\n\n".encode())
        await asyncio.sleep(0.1)
        await response.write(b"data: late\n\n")
        return response

    mesh = await start_mesh(us=[await start_broker(events)])
    url = mesh.url("/v1/topics/orders/consumers/bills/events")
    async with mesh.client.get(url, headers={"Last-Event-ID": "0:7"}) as answer:
        assert (answer.headers["Content-Type"], answer.headers["Cache-Control"]) == ("text/event-stream", "no-cache")
        assert await answer.text() == "id: 0:7\n\ndata: late\n\n"


async def test_event_streams_end_when_their_region_is_drained_unless_they_asked_for_it_and_go_on_elsewhere(
    start_mesh: Any, start_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spread_core, "SPREAD_S", 0.0)
    monkeypatch.setattr(leaving, "LOOK_EVERY_S", 0.01)

    async def events(request: web.Request) -> web.StreamResponse:
        if request.path.startswith("/v1/routes"):
            return web.json_response({"by": "ann"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"id: {request.headers.get('Last-Event-ID', '0:7')}\n\ndata: ha".encode())
        await asyncio.Event().wait()
        return response

    brokers = {"us": await start_broker(events), "eu": await start_broker(events)}
    mesh = await start_mesh(us=[brokers["us"]], eu=[brokers["eu"]])
    url = mesh.url("/v1/topics/orders/events")
    async with mesh.client.get(url) as tail:
        assert (await tail.content.readline()) == b"id: 0:7\n"
        here = next(name for name, broker in brokers.items() if broker.requests)
        async with mesh.client.get(f"{url}?region={here}") as staying:
            await staying.content.readline()
            drain = {"subject": here, "value": "clients"}
            assert (await mesh.client.post(mesh.url("/v1/routes/drain"), json=drain)).status == 200
            assert await asyncio.wait_for(tail.content.read(), 5) == b"\ndata: ha", "it does not end, or is broken off"
            assert not staying.content.at_eof()
            async with mesh.client.get(url, headers={"Last-Event-ID": "0:7"}) as again:
                assert (await again.content.readline()) == b"id: 0:7\n"
            other = next(name for name in brokers if name != here)
            assert [line for line in brokers[other].requests if "/events" in line]


async def test_an_answer_without_a_body_comes_back_without_one(start_mesh: Any, start_broker: Any) -> None:
    async def nothing(_: web.Request) -> web.Response:
        return web.Response(status=204)

    mesh = await start_mesh(us=[await start_broker(nothing)])
    for _ in range(2):  # on one connection: what is behind a wrong body would be read as the next answer
        async with mesh.client.get(mesh.url("/v1/topics/orders/consumers/bills/records")) as answer:
            assert (answer.status, await answer.read(), "Content-Type" in answer.headers) == (204, b"", False)


async def test_an_answer_that_breaks_off_midway_does_not_look_complete(start_mesh: Any, start_broker: Any) -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"[1,2")
        assert request.transport is not None
        request.transport.close()
        return response

    mesh = await start_mesh(us=[await start_broker(half)])
    with pytest.raises(aiohttp.ClientPayloadError):
        async with mesh.client.get(mesh.url("/v1/topics/t/records")) as answer:
            await answer.read()


async def test_wrong_paths_and_methods_are_problems_too(start_mesh: Any, start_broker: Any) -> None:
    mesh = await start_mesh(us=[await start_broker()])
    async with mesh.client.get(mesh.url("/v2")) as answer:
        assert (answer.status, answer.content_type) == (404, "application/problem+json")
    async with mesh.client.put(mesh.url("/v1/topics")) as answer:
        assert (answer.status, answer.content_type) == (405, "application/problem+json")
        assert answer.headers["Allow"] == "GET,POST"


async def test_without_credentials_nothing_under_v1_answers_and_nothing_is_proxied(
    start_mesh: Any, start_broker: Any
) -> None:
    us = await start_broker()
    mesh = await start_mesh(us=[us], users=True)
    for headers in ({}, {"Authorization": "basic d3Jvbmc6"}):
        for path in ("/v1/resolve", "/v1/status", "/v1/topics", "/v1/topics/t/records", "/nowhere"):
            async with mesh.client.get(mesh.url(path), headers=headers) as answer:
                problem = await answer.json(content_type="application/problem+json")
            assert (answer.status, problem["code"]) == (401, "UNAUTHENTICATED")
            assert "Basic" in answer.headers["WWW-Authenticate"]
    assert not us.requests


@pytest.mark.parametrize(
    "path", ["/metrics", "/v1/status", "/v1/live", "/v1/traces", "/v1/traces/outcome", "/v1/traces/outcome/end"]
)
async def test_what_is_about_the_whole_mesh_is_denied_to_users_who_may_not_describe_the_cluster(
    start_mesh: Any, start_broker: Any, path: str
) -> None:
    mesh = await start_mesh(us=[await start_broker()], users=True)
    async with mesh.client.get(mesh.url(path), headers={"Authorization": BOB}) as answer:
        assert (answer.status, (await answer.json())["code"]) == (403, "ACCESS_DENIED")
    async with mesh.client.get(mesh.url(path), headers={"Authorization": ANN}) as answer:
        assert answer.status != 403
    async with mesh.client.get(mesh.url("/v1/resolve"), headers={"Authorization": BOB}) as answer:
        assert answer.status == 200  # whoever publishes has to find a broker


async def test_with_credentials_requests_pass_and_health_needs_none(start_mesh: Any, start_broker: Any) -> None:
    mesh = await start_mesh(us=[await start_broker()], users=True)
    async with mesh.client.get(mesh.url("/v1/topics"), headers={"Authorization": ANN}) as answer:
        assert answer.status == 200
    async with mesh.client.get(mesh.url("/readyz")) as answer:
        assert answer.status == 200


async def test_status_gathers_every_broker_and_says_which_did_not_answer(
    start_mesh: Any, start_broker: Any, dead_address: str
) -> None:
    async def status(request: web.Request) -> web.Response:
        return web.json_response({"streams": [{"topic": "t"}]})

    us, gone = await start_broker(status), await start_broker(status)
    mesh = await start_mesh(us=[us], eu=[gone])
    await gone.stop()
    async with mesh.client.get(mesh.url("/v1/status")) as answer:
        regions = {region["region"]: region for region in (await answer.json())["regions"]}
    (good,), (bad,) = regions["us"]["brokers"], regions["eu"]["brokers"]
    assert (good["id"], good["status"], good["error"]) == (1001, {"streams": [{"topic": "t"}]}, "")
    assert (bad["id"], bad["status"]) == (2001, None)
    assert bad["error"]


async def test_metrics_show_regions_and_counted_requests(start_mesh: Any, start_broker: Any) -> None:
    mesh = await start_mesh(us=[await start_broker()])
    async with mesh.client.get(mesh.url("/v1/topics/t")):
        pass
    async with mesh.client.get(mesh.url("/metrics")) as answer:
        text = await answer.text()
    assert 'georelay_gateway_region_ready{region="us"} 1.0' in text
    assert 'georelay_gateway_http_requests_total{route="GET /v1/topics/{topic}",status="200"} 1.0' in text


async def test_metrics_show_what_grpc_calls_hold_and_may_hold(start_mesh: Any, start_broker: Any) -> None:
    mesh = await start_mesh(us=[await start_broker()])
    async with mesh.client.get(mesh.url("/metrics")) as answer:
        rows = (await answer.text()).splitlines()
    shown = {row.rpartition(" ")[0]: float(row.rpartition(" ")[2]) for row in rows if row.startswith("georelay_listen")}
    assert {
        "calls": 0,
        "calls_max": CALLS_AT_ONCE_MAX,
        "calls_refused_total": 0,
        "request_bytes": 0,
        "request_bytes_max": REQUESTS_BYTES_MAX,
    }.items() <= {
        name.removeprefix("georelay_listener_").partition("{")[0]: value
        for name, value in shown.items()
        if name.endswith('{listener="grpc"}')
    }.items()


async def test_a_client_that_leaves_ends_its_long_poll_at_the_broker(start_mesh: Any, start_broker: Any) -> None:
    polling, ended = asyncio.Event(), asyncio.Event()

    async def poll(request: web.Request) -> web.Response:
        polling.set()
        while request.transport is not None and not request.transport.is_closing():
            await asyncio.sleep(0.01)
        ended.set()
        return web.Response()

    mesh = await start_mesh(us=[await start_broker(poll)])
    waiting = asyncio.create_task(mesh.client.get(mesh.url("/v1/topics/t/records?wait_ms=60000")))
    await polling.wait()
    waiting.cancel()
    async with asyncio.timeout(5):
        await ended.wait()


async def test_long_polls_leave_publishes_their_connections_and_who_gets_none_was_not_processed(
    start_mesh: Any, start_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    polling, release = asyncio.Event(), asyncio.Event()

    async def poll(request: web.Request) -> web.Response:
        if request.method == "GET":
            polling.set()
            await release.wait()
        return web.Response()

    monkeypatch.setattr(app, "BROKER_CONNECTIONS_MAX", 1)
    monkeypatch.setattr(proxy, "CONNECT_TIMEOUT_S", 0.2)
    broker = await start_broker(poll)
    mesh = await start_mesh(us=[broker])
    url = mesh.url("/v1/topics/t/records?wait_ms=60000")
    waiting = asyncio.create_task(mesh.client.get(url))
    await polling.wait()
    async with asyncio.timeout(5), mesh.client.post(mesh.url("/v1/topics/t/records"), data=b"{}") as answer:
        assert answer.status == 200
    async with asyncio.timeout(5), mesh.client.get(url) as answer:
        problem = await answer.json()
    assert (answer.status, problem["code"], problem["outcome"]) == (503, "BUSY", "not_stored")
    release.set()
    (await waiting).release()


async def test_long_polls_of_one_user_leave_other_users_their_first_request(
    start_mesh: Any, start_broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, polling = asyncio.Event(), 0

    async def poll(request: web.Request) -> web.Response:
        nonlocal polling
        if "wait_ms" in request.query:
            polling += 1
            await release.wait()
        return web.Response()

    monkeypatch.setattr(app, "BROKER_CONNECTIONS_MAX", 4)
    monkeypatch.setattr(proxy, "CONNECT_TIMEOUT_S", 0.5)
    mesh = await start_mesh(us=[await start_broker(poll)], users=True)
    headers = {"Authorization": ANN}
    async with mesh.client.get(mesh.url("/v1/topics"), headers=headers) as answer:
        assert answer.status == 200
    url = mesh.url("/v1/topics/t/records?wait_ms=60000")
    polls = [asyncio.create_task(mesh.client.get(url, headers=headers)) for _ in range(6)]
    async with asyncio.timeout(5):
        while polling < 2:
            await asyncio.sleep(0.01)
    async with asyncio.timeout(0.4), mesh.client.get(mesh.url("/v1/topics"), headers={"Authorization": BOB}) as answer:
        assert answer.status == 200
    release.set()
    assert sorted(answer.status for answer in await asyncio.gather(*polls)) == [200] * 6


async def test_only_who_was_judged_by_a_broker_is_a_caller_of_its_own(start_mesh: Any, start_broker: Any) -> None:
    status = 200

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status)

    mesh = await start_mesh(us=[await start_broker(answer)], users=True)
    callers = mesh.gateway._callers
    for status, caller in ((401, "address 127.0.0.1"), (503, "address 127.0.0.1"), (404, "user ann")):
        for method in ("GET", "POST"):
            async with mesh.client.request(method, mesh.url("/v1/topics"), headers={"Authorization": ANN}) as answered:
                assert answered.status == status
        assert callers.of(ANN, "127.0.0.1") == caller


async def test_the_nearer_region_is_chosen_by_measured_time(start_mesh: Any, start_broker: Any) -> None:
    far, near = await start_broker(), await start_broker()

    async def slow_readyz(request: web.Request) -> web.Response:
        await asyncio.sleep(0.08)
        return web.Response()

    far._readyz = slow_readyz
    await far.stop()
    await far.start()
    mesh = await start_mesh(far=[far], near=[near])
    await mesh.until(lambda seen: next(iter(seen)) == "near" and seen["far"]["rtt_ms"] is not None)
    async with mesh.client.get(mesh.url("/v1/topics")) as answer:
        assert answer.status == 200
    assert near.requests
    assert not far.requests
