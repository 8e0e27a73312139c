"""Clients that ask a running gateway for their region, and operators who decide: between real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from gateway.kafka.bootstrap_core import client_id_of
from mesh.distance.tcp_info import decode, sample_of


async def judging(request: web.Request) -> web.Response:
    """Answer as a broker does that lets ann alter the cluster."""
    if request.path.startswith("/v1/routes"):
        if request.headers.get("Authorization") == "bearer bob":
            return web.json_response({"detail": "no"}, status=403)
        return web.json_response({"by": "User:ann"})
    return web.json_response({"home": "eu", "homes": "one"})


async def two_regions(start_mesh: Any, start_broker: Any) -> Any:
    mesh = await start_mesh(us=[await start_broker(judging)], eu=[await start_broker(judging)])
    await mesh.until(lambda seen: all(region["rtt_ms"] is not None for region in seen.values()))
    return mesh


async def ask(mesh: Any, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    async with mesh.client.request(method, mesh.url(path), json=body, headers=headers) as answer:
        return answer.status, await answer.json(content_type=None)


async def test_a_client_gets_its_regions_with_addresses_the_estimate_and_where_that_is_from(
    start_mesh: Any, start_broker: Any
) -> None:
    mesh = await two_regions(start_mesh, start_broker)
    status, answer = await ask(mesh, "POST", "/v1/resolve", {"client": "ann"})
    assert status == 200
    assert 24 <= answer["ttl_s"] <= 36
    assert {row["source"] for row in answer["regions"]} <= {"kernel", "links"}  # a busy machine is 2 ms from itself
    assert 0 < answer["regions"][0]["estimate_ms"] < 1000
    assert answer["regions"][0]["kafka"]
    assert (answer["degraded"], answer["must_move"]) == (False, False)


async def test_what_a_client_observed_never_counts_before_the_kernel(start_mesh: Any, start_broker: Any) -> None:
    mesh = await two_regions(start_mesh, start_broker)
    lie = [{"region": "eu", "rtt_us": 1, "samples": 9}, {"region": "us", "rtt_us": 9_000_000, "samples": 9}]
    _, answer = await ask(mesh, "POST", "/v1/resolve", {"client": "liar", "observed": lie})
    believed = {row["region"]: row["estimate_ms"] for row in answer["regions"] if row["source"] == "observed"}
    assert believed.get("us", 0) < 1000  # a far region of three legs, not nine seconds
    assert all(row["estimate_ms"] < 1000 for row in answer["regions"])


async def test_a_client_that_left_while_its_gateway_was_cut_off_comes_back_slowly(
    start_mesh: Any, start_broker: Any
) -> None:
    us, eu = await start_broker(), await start_broker()
    mesh = await start_mesh(us=[us], eu=[eu])
    for rule in ({"subject": "ann", "value": "us"}, {"subject": "ann", "value": ""}):
        await ask(mesh, "POST", "/v1/routes/pin", rule)
        assert (await ask(mesh, "POST", "/v1/resolve", {"client": "ann"}))[1]["region"] == "us"
    us.ready = False
    await mesh.until(lambda seen: not seen["us"]["ready"])
    us.ready = True
    await mesh.until(lambda seen: seen["us"]["ready"])
    assert (await ask(mesh, "POST", "/v1/resolve", {"client": "ann"}))[1]["region"] == "us", "it did not say"
    assert (await ask(mesh, "POST", "/v1/resolve", {"client": "ann", "region": "eu"}))[1]["region"] == "eu"


@pytest.mark.parametrize(
    "body",
    [
        {"client": "x" * 129},
        {"intent": "fly"},
        {"region": "x" * 41},
        {"observed": [{"region": "eu"}]},
        {"observed": [{"region": "eu", "rtt_us": -1, "samples": 3}]},
        {"observed": [{"region": "eu", "rtt_us": 1, "samples": 3}] * 65},
        {"unknown": 1},
        ["no object"],
    ],
)
async def test_a_question_that_is_none_is_refused(start_mesh: Any, start_broker: Any, body: Any) -> None:
    mesh = await start_mesh(us=[await start_broker()])
    status, answer = await ask(mesh, "POST", "/v1/resolve", body)
    assert (status, answer["code"]) == (400, "BAD_REQUEST")


async def test_who_publishes_to_a_topic_of_another_home_pays_the_way_there(start_mesh: Any, start_broker: Any) -> None:
    mesh = await two_regions(start_mesh, start_broker)
    _, explained = await ask(mesh, "GET", "/v1/routes/explain?client=ann&topic=orders")
    homes = {row["region"]: row["home_ms"] for row in explained["regions"]}
    assert homes["eu"] == 0 < homes["us"]


async def test_a_pin_a_drain_and_a_freeze_are_judged_by_a_broker_and_hold_from_then_on(
    start_mesh: Any, start_broker: Any
) -> None:
    mesh = await two_regions(start_mesh, start_broker)
    pin = {"subject": "ann", "value": "eu"}
    assert (await ask(mesh, "POST", "/v1/routes/pin", pin, Authorization="bearer bob"))[0] == 403
    assert (await ask(mesh, "GET", "/v1/routes"))[1]["rules"] == []
    assert (await ask(mesh, "POST", "/v1/routes/pin", pin))[1] == {"kind": "pin", "by": "User:ann", **pin}
    assert (await ask(mesh, "GET", "/v1/resolve?client=ann"))[1]["region"] == "eu"
    assert "pinned" not in (await ask(mesh, "GET", "/v1/resolve?client=bob"))[1]["reason"]
    await ask(mesh, "POST", "/v1/routes/pin", {"subject": "ann", "value": ""})
    await ask(mesh, "POST", "/v1/routes/drain", {"subject": "us", "value": "clients"})
    assert (await ask(mesh, "GET", "/v1/resolve?client=new"))[1]["region"] == "eu"
    await ask(mesh, "POST", "/v1/routes/freeze", {"subject": "switching", "value": "frozen"})
    listed = (await ask(mesh, "GET", "/v1/routes"))[1]
    assert listed["frozen"]
    assert [(rule["kind"], rule["subject"], rule["by"]) for rule in listed["rules"]] == [
        ("drain", "us", "User:ann"),
        ("freeze", "switching", "User:ann"),
    ]


async def test_metrics_count_clients_their_moves_and_the_decisions_in_force(start_mesh: Any, start_broker: Any) -> None:
    mesh = await two_regions(start_mesh, start_broker)
    regions = [(await ask(mesh, "GET", f"/v1/resolve?client={name}"))[1]["region"] for name in ("ann", "bob")]
    other = {"us": "eu", "eu": "us"}[regions[0]]
    await ask(mesh, "POST", "/v1/routes/pin", {"subject": "ann", "value": other})
    assert (await ask(mesh, "GET", "/v1/resolve?client=ann"))[1]["region"] == other
    await ask(mesh, "POST", "/v1/routes/pin", {"subject": "ann", "value": ""})
    await ask(mesh, "POST", "/v1/routes/drain", {"subject": other, "value": "clients"})
    async with mesh.client.get(mesh.url("/metrics")) as answer:
        rows = dict(line.rsplit(" ", 1) for line in (await answer.text()).splitlines() if line.startswith("georelay_"))
    assert rows["georelay_gateway_clients"] == "2.0"
    assert rows["georelay_gateway_clients_without_place_total"] == "0.0"
    assert rows['georelay_gateway_client_moves_total{why="pinned"}'] == "1.0"
    assert rows['georelay_gateway_client_moves_total{why="forced"}'] == "0.0"
    kinds = {kind: rows[f'georelay_gateway_rules{{kind="{kind}"}}'] for kind in ("pin", "drain", "freeze")}
    assert kinds == {"pin": "0.0", "drain": "1.0", "freeze": "0.0"}


@pytest.mark.parametrize(
    ("kind", "subject", "value"),
    [("fly", "x", ""), ("pin", "ann", "mars"), ("drain", "mars", "clients"), ("drain", "us", "x"), ("freeze", "x", "")],
)
async def test_a_decision_that_could_have_no_effect_is_refused(
    start_mesh: Any, start_broker: Any, kind: str, subject: str, value: str
) -> None:
    mesh = await start_mesh(us=[await start_broker(judging)])
    status, _ = await ask(mesh, "POST", f"/v1/routes/{kind}", {"subject": subject, "value": value})
    assert status == 400


async def test_a_decision_needs_brokers_that_can_judge_it(start_mesh: Any, start_broker: Any) -> None:
    async def older(_: web.Request) -> web.Response:
        return web.json_response({"code": "NOT_FOUND"}, status=404)

    mesh = await start_mesh(us=[await start_broker(older)])
    status, answer = await ask(mesh, "POST", "/v1/routes/drain", {"subject": "us", "value": "clients"})
    assert (status, "older version" in answer["detail"]) == (400, True)


async def test_a_kafka_client_is_joined_with_the_region_that_its_client_id_is_pinned_to(
    start_mesh: Any, start_broker: Any
) -> None:
    reached: list[str] = []

    async def listen(name: str) -> str:
        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reached.append(name)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        servers.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    servers: list[asyncio.Server] = []
    us, eu = await start_broker(judging), await start_broker(judging)
    us.kafka, eu.kafka = await listen("us"), await listen("eu")
    mesh = await start_mesh(us=[us], eu=[eu])
    for subject, value in (("ann", "eu"), ("bob", "us")):
        await ask(mesh, "POST", "/v1/routes/pin", {"subject": subject, "value": value})
    for name in (b"ann", b"bob"):
        reader, writer = await asyncio.open_connection("127.0.0.1", mesh.ports.kafka)
        body = struct.pack(">hhih", 18, 0, 1, len(name)) + name
        writer.write(struct.pack(">i", len(body)) + body)
        assert await reader.read() == b""
        writer.close()
    assert reached == ["eu", "us"]
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (struct.pack(">ihhih", 13, 18, 3, 1, 3) + b"ann", "ann"),
        (struct.pack(">ihhih", 10, 18, 3, 1, -1), ""),
        (struct.pack(">ihhih", 13, 18, 3, 1, 9) + b"ann", ""),
        (b"\0\0", ""),
    ],
)
def test_the_first_request_names_the_client(data: bytes, name: str) -> None:
    assert client_id_of(data) == name


def test_the_kernel_measures_a_connection_of_ours_and_nothing_of_what_is_none() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as served:
            client.sendall(b"x")
            served.recv(1)
            sample = sample_of(served)
    assert sample is not None
    assert 0 < sample.min_rtt_ms < 1000
    assert sample.is_young
    assert sample_of(None) is None
    assert sample_of(served) is None  # closed
    assert decode(bytes(100)) is None


async def test_a_region_sheds_what_its_brokers_say_with_their_answers_to_probes(
    start_mesh: Any, start_broker: Any
) -> None:
    us, eu = await start_broker(judging), await start_broker(judging)
    us.shed, eu.shed = "0.500", "much"
    mesh = await start_mesh(us=[us], eu=[eu])
    async with asyncio.timeout(10):
        shed: dict[str, float] = {}
        while not shed.get("us"):
            _, told = await ask(mesh, "GET", "/v1/routes/explain?client=ann")
            shed = {row["region"]: row["shed"] for row in told["regions"]}
            await asyncio.sleep(0.02)
    assert shed == {"us": 0.5, "eu": 0.0}


async def test_a_pinned_client_is_carried_to_its_region_by_the_name_in_its_header(
    start_mesh: Any, start_broker: Any
) -> None:
    async def at(name: str, request: web.Request) -> web.Response:
        return web.json_response({"by": "User:ann"} if "routes" in request.path else {"region": name})

    brokers = [await start_broker(partial(at, name)) for name in ("us", "eu")]
    mesh = await start_mesh(us=[brokers[0]], eu=[brokers[1]])
    for pinned in ("us", "eu"):
        assert (await ask(mesh, "POST", "/v1/routes/pin", {"subject": "billing", "value": pinned}))[0] == 200
        for path in ("/v1/topics", "/v1/topics/orders/records?partition=0", "/v1/groups"):
            _, told = await ask(mesh, "GET", path, **{"Georelay-Client-Name": "billing"})
            assert told == {"region": pinned}, path
