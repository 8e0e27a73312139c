"""Named consumers over REST: the broker keeps the position, an acknowledgement moves it, and sleepers get events."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from georelay.errors import NotLeader
from georelay.wire.batch import Record
from region.api import events_http, tails
from region.api.answer_room import AnswerRoom
from region.api.consumer_requests import event_id
from region.api.reading import read_stream
from region.api.record_answers import RecordTexts
from region.api.unfolding import Unreadable
from region.coordination.in_memory import InMemoryCoordinators
from region.coordination.part import Part
from region.groups.factory import groups_factory
from region.groups.group_client import GroupClient
from region.groups.settings import GroupSettings
from region.groups.topic_names import TopicNames
from region.security.access import Access
from region.security.acl_core import AclIndex
from tests.unit.api.edge_in_memory import Edge

BILLS = "/v1/topics/orders/consumers/bills"


class NothingAllowed:
    version = 1
    enforced = True
    index = AclIndex()


@pytest.fixture
def coordinators(cluster: Any) -> InMemoryCoordinators:
    """The groups of the region: they outlive a broker."""
    made = InMemoryCoordinators()
    names = TopicNames(
        topic=cluster.topic, topics=cluster.topics, version=lambda: cluster.metadata_epoch, is_deleted=lambda _: False
    )
    settings = GroupSettings(initial_rebalance_delay_ms=0)
    made.register(Part.GROUPS, groups_factory(names, settings, rng=random.Random(1)))
    return made


Serve = Callable[..., Any]


@pytest.fixture
async def serve(edge: Edge, cluster: Any, coordinators: InMemoryCoordinators) -> AsyncIterator[Serve]:
    """Start a broker's HTTP listener; each call is another broker over the same region."""
    clients = []

    async def start(*, access: Access | None = None, is_still_valid: Any = lambda _: True) -> Any:
        admin = edge.whole_admin(access=access, coordinators=coordinators, is_still_valid=is_still_valid)
        client = TestClient(TestServer(admin.app()))
        await client.start_server()
        clients.append(client)
        return client

    yield start
    for client in clients:
        await client.close()


@pytest.fixture
async def http(serve: Serve) -> Any:
    return await serve()


@pytest.fixture
def orders(cluster: Any) -> Callable[..., None]:
    """Store records: (partition, value)."""
    cluster.add_topic("orders", 2)

    def store(*rows: tuple[int, bytes]) -> None:
        for partition, value in rows:
            cluster.streams["orders", partition].add(value)

    return store


async def read(http: Any, query: str = "") -> Any:
    answer = await http.get(f"{BILLS}/records{query}")
    assert answer.status == 200, await answer.text()
    return await answer.json()


async def acknowledge(http: Any, positions: dict[str, int]) -> Any:
    return await http.post(f"{BILLS}/acknowledge", data=json.dumps({"positions": positions}))


def values(found: Any) -> list[tuple[int, str]]:
    return sorted((row["partition"], row["value"]) for row in found["records"])


async def test_what_was_acknowledged_is_not_handed_out_again_and_the_rest_is(http: Any, orders: Any) -> None:
    orders((0, b"a"), (0, b"b"), (1, b"c"))
    first = await read(http)
    assert values(first) == [(0, "a"), (0, "b"), (1, "c")]
    assert first["positions"] == {"0": 2, "1": 1}
    assert values(await read(http)) == values(first)  # nothing was acknowledged
    answer = await acknowledge(http, {"0": 1})
    assert (answer.status, (await answer.json())["positions"]) == (200, {"0": 1})
    assert values(await read(http)) == [(0, "b"), (1, "c")]


async def test_when_there_is_nothing_the_answer_has_no_body(http: Any, orders: Any) -> None:
    answer = await http.get(f"{BILLS}/records")
    assert (answer.status, await answer.read()) == (204, b"")


async def test_another_broker_goes_on_where_the_last_acknowledgement_was(serve: Serve, orders: Any) -> None:
    orders((0, b"a"), (0, b"b"))
    one = await serve()
    await acknowledge(one, {"0": 1})
    await one.close()
    assert values(await read(await serve())) == [(0, "b")]


async def test_a_reader_that_waits_is_woken_by_a_record_of_any_partition(http: Any, orders: Any, edge: Edge) -> None:
    orders((0, b"a"))
    await acknowledge(http, {"0": 1})
    waiting = asyncio.ensure_future(read(http, "?wait_ms=20000"))
    while not edge.cluster.streams["orders", 1]._waiters:
        await asyncio.sleep(0)
    orders((1, b"b"))
    found = await waiting
    assert (values(found), found["positions"]) == ([(1, "b")], {"1": 1})


async def test_a_partition_that_other_brokers_have_is_looked_at_and_never_waited_for_there(
    http: Any, orders: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, waited = cluster.streams["orders", 1], []

    async def elsewhere(
        name: str, partition: int, offset: int, max_bytes: int, wait_ms: int, *, read_uncommitted: bool = False
    ) -> Any:
        waited.append(wait_ms)
        if len(waited) == 3:
            far.add(b"c")
        return await read_stream(far, offset, max_bytes=max_bytes, wait_ms=0)

    monkeypatch.setattr(tails, "ELSEWHERE_MS", 1)
    monkeypatch.setattr(cluster, "stream", lambda name, partition: None if partition else cluster.streams[name, 0])
    monkeypatch.setattr(cluster, "read_records", elsewhere)
    assert values(await read(http, "?wait_ms=20000")) == [(1, "c")]
    assert set(waited) == {0}
    far.log_start = far.high_watermark
    await acknowledge(http, {"1": 1})
    monkeypatch.setattr(tails, "ELSEWHERE_MS", 60_000)
    waited.clear()
    async with http.get(f"{BILLS}/events") as answer:
        for value in (b"a", b"b", b"c"):
            orders((0, value))
            await event(answer)
    assert len(waited) <= 3  # not once for each record of another partition


async def test_max_is_of_all_partitions_and_each_has_its_turn(http: Any, orders: Any) -> None:
    orders((0, b"a"), (0, b"b"), (1, b"c"), (1, b"d"))
    first, second = await read(http, "?max=1"), await read(http, "?max=1")
    assert {values(first)[0][0], values(second)[0][0]} == {0, 1}
    assert values(await read(http, "?partitions=1&max=9")) == [(1, "c"), (1, "d")]


async def test_an_acknowledgement_never_goes_back(http: Any, orders: Any) -> None:
    orders((0, b"a"), (0, b"b"))
    await acknowledge(http, {"0": 2})
    answer = await acknowledge(http, {"0": 1})
    assert (answer.status, (await answer.json())["positions"]) == (200, {"0": 2})
    assert (await http.get(f"{BILLS}/records")).status == 204


async def test_what_nobody_was_handed_cannot_be_acknowledged(http: Any, orders: Any) -> None:
    orders((0, b"a"))
    answer = await acknowledge(http, {"0": 2})
    assert (answer.status, (await answer.json())["code"]) == (416, "OFFSET_OUT_OF_RANGE")
    assert values(await read(http)) == [(0, "a")]


async def test_who_starts_at_the_end_gets_what_comes_from_then_on(http: Any, orders: Any) -> None:
    orders((0, b"a"))
    answer = await http.post(BILLS, data=b'{"start": "latest"}')
    assert (answer.status, (await answer.json())["positions"]) == (200, {"0": 1, "1": 0})
    orders((0, b"b"))
    assert values(await read(http)) == [(0, "b")]
    again = await http.post(BILLS, data=b'{"start": "earliest"}')  # what is kept stays
    assert (await again.json())["positions"] == {"0": 1, "1": 0}


async def test_what_retention_removed_is_said_and_read_over(http: Any, orders: Any, cluster: Any) -> None:
    orders((0, b"a"), (0, b"b"), (0, b"c"))
    await acknowledge(http, {"0": 1})
    cluster.streams["orders", 0].log_start = 2
    found = await read(http)
    assert (values(found), found["skipped"]) == ([(0, "c")], [{"partition": 0, "from": 1, "to": 2}])
    assert found["positions"] == {"0": 3}


async def test_a_partition_without_a_leader_is_waited_for_and_then_named(
    http: Any, orders: Any, edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders((0, b"a"))
    read_stream, left = edge.reader.read, [2]

    async def unled(*arguments: Any, **settings: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise NotLeader
        return await read_stream(*arguments, **settings)

    monkeypatch.setattr(edge.reader, "read", unled)
    monkeypatch.setattr(tails, "RETRY_S", 0.001)
    refused = await http.get(f"{BILLS}/records?partitions=0")
    assert (refused.status, (await refused.json())["code"]) == (503, "NOT_LEADER")
    assert values(await read(http, "?partitions=0&wait_ms=20000")) == [(0, "a")]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("GET", "/records?max=0", None, 400, "max"),
        ("GET", "/records?offset=3", None, 400, "offset: unknown parameter"),
        ("GET", "/records?partitions=0,x", None, 400, "partitions"),
        ("GET", "/records?partitions=2", None, 404, "partitions 0..1, not 2"),
        ("GET", "/events?max=3", None, 400, "max: unknown parameter"),
        ("POST", "", b'{"start": "now"}', 400, "earliest"),
        ("POST", "/acknowledge", b"{}", 400, "positions"),
        ("POST", "/acknowledge", b'{"positions": {"2": 1}}', 400, "'2' is no partition"),
        ("POST", "/acknowledge", b'{"positions": {"0": -1}}', 400, "must be an offset"),
        ("POST", "/acknowledge", b'{"positions": {"0": true}}', 400, "must be an offset"),
    ],
)
async def test_a_wrong_request_is_refused_by_name(
    http: Any, orders: Any, method: str, path: str, body: bytes | None, status: int, says: str
) -> None:
    answer = await http.request(method, f"{BILLS}{path}", data=body)
    assert (answer.status, says in (await answer.json())["detail"]) == (status, True), await answer.text()


async def test_nothing_is_made_by_reading(http: Any, cluster: Any) -> None:
    answer = await http.get("/v1/topics/ghost/consumers/bills/records")
    assert (answer.status, (await answer.json())["code"]) == (404, "UNKNOWN_TOPIC")
    assert list(cluster.views) == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/records"), ("GET", "/events"), ("POST", ""), ("POST", "/acknowledge")],
)
async def test_who_may_not_read_is_refused_before_anything_is_looked_up(
    serve: Serve, orders: Any, method: str, path: str
) -> None:
    http = await serve(access=Access(NothingAllowed()))
    answer = await http.request(method, f"{BILLS}{path}", data=b"not json" if method == "POST" else None)
    assert answer.status == 403


async def test_positions_of_a_group_that_has_members_are_theirs(
    http: Any, orders: Any, coordinators: InMemoryCoordinators
) -> None:
    orders((0, b"a"))
    member = {
        "member_id": "",
        "instance_id": None,
        "client_id": "c",
        "client_host": "h",
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": ""}],
        "needs_member_id": False,
        "can_skip_assignment": False,
    }
    await GroupClient(coordinators, "bills", "User:a").ask("join", member)
    answer = await acknowledge(http, {"0": 1})
    assert (answer.status, "has members" in (await answer.json())["detail"]) == (403, True)


# --- events ---------------------------------------------------------------------------------------


async def event(answer: Any) -> dict[str, str]:
    """Return the next event by field; comments are skipped."""
    fields: dict[str, str] = {}
    async with asyncio.timeout(5):
        while True:
            line = (await answer.content.readline()).decode()
            assert line, "the stream has ended"
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif fields:
                return fields


async def test_a_sleeper_is_sent_what_is_there_and_what_comes(http: Any, orders: Any) -> None:
    orders((0, b"a"))
    async with http.get(f"{BILLS}/events") as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        first = await event(answer)
        assert (json.loads(first["data"])["value"], first["id"]) == ("a", "0:1:1,1:0")
        orders((1, b"b"))
        second = await event(answer)
        assert (json.loads(second["data"])["partition"], second["id"]) == (1, "0:1:1,1:1:1")
    assert values(await read(http)) == [(0, "a"), (1, "b")]  # nothing was acknowledged


async def test_a_sleeper_that_comes_back_goes_on_behind_the_last_event_it_saw(http: Any, orders: Any) -> None:
    orders((0, b"a"), (0, b"b"))
    async with http.get(f"{BILLS}/events", headers={"Last-Event-ID": "0:1:1,1:0"}) as answer:
        assert json.loads((await event(answer))["data"])["value"] == "b"
    refused = await http.get(f"{BILLS}/events", headers={"Last-Event-ID": "yesterday"})
    assert refused.status == 400


async def test_a_stream_says_that_it_lives_and_ends_with_the_reason(
    serve: Serve, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_http, "SILENCE_MS", 50)
    valid = [True]
    http = await serve(is_still_valid=lambda _: valid[0])
    async with http.get(f"{BILLS}/events") as answer:
        assert (await answer.content.readline()) == b": georelay\n"
        assert (await answer.content.readline()) == b"\n"
        assert (await answer.content.readline()) == b": nothing\n"
        valid[0] = False
        last = await event(answer)
    assert (last["event"], json.loads(last["data"])["code"]) == ("error", "UNAUTHENTICATED")


async def test_streams_of_a_principal_beyond_as_many_as_are_free_are_refused(
    serve: Serve, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_http, "EVENT_STREAMS_MAX", 2)
    http = await serve()
    async with http.get(f"{BILLS}/events") as answer:
        await answer.content.readline()
        refused = await http.get(f"{BILLS}/events")
        said = await refused.json()
        assert (refused.status, said["code"]) == (503, "BUSY")
        assert "User:ANONYMOUS has 1 event streams here" in said["detail"]


async def test_the_last_of_several_events_has_the_id() -> None:
    out = RecordTexts(records_max=9, room=AnswerRoom("ann"))
    assert out.events("0:1") == b": nothing\n\n"
    await out.add([Record(1, 5, None, b"a\nb", ()), Record(2, 5, None, b"c", ())], {"partition": 0})
    out.pass_over(Unreadable(3, 4, "it is damaged"), {"partition": 0})
    first, second, third = out.events(event_id({0: 4, 1: -1}, {})).decode().removesuffix("\n\n").split("\n\n")
    assert json.loads(first.removeprefix("data: "))["value"] == "a\nb"
    assert json.loads(second.removeprefix("data: "))["partition"] == 0
    assert third.startswith('id: 0:4\nevent: passed_over\ndata: {"first":3,"following":4,')
