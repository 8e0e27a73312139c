"""Records over REST: what is posted is read back, a bad body or parameter is refused by name, reading waits."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from georelay.errors import NotLeader
from georelay.wire.batch import Record
from region.api import records_http
from region.api.coalescer import NewRecord
from region.api.record_json import parse_records, record_json
from region.controller.topic import Homes
from tests.unit.api.edge_in_memory import Edge, post


async def test_records_posted_are_read_back_exactly(http: Any) -> None:
    sent = [
        {"key": "k", "value": "v", "headers": {"trace": "1"}, "timestamp_ms": 5, "partition": 0},
        {"key_b64": "/w==", "value_b64": "/wA="},
        {"key": None, "value": None},
        {"value": "naïve ☃"},
    ]
    response = await post(http, sent)
    assert response.status == 200
    assert (await response.json())["records"] == [{"partition": 0, "offset": n, "epoch": 1} for n in range(4)]
    answer = await (await http.get("/v1/topics/orders/records?offset=0&max=10")).json()
    assert answer["records"][0] == {
        "offset": 0,
        "timestamp_ms": 5,
        "key": "k",
        "value": "v",
        "headers": {"trace": "1"},
    }
    assert (answer["records"][1]["key_b64"], answer["records"][1]["value_b64"]) == ("/w==", "/wA=")
    assert answer["records"][2]["value"] is None
    assert answer["records"][3]["value"] == "naïve ☃"
    assert (answer["next_offset"], answer["high_watermark"], answer["log_start"]) == (4, 4, 0)


@pytest.fixture
def never_led(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the next reads of a partition find no leader; the number that is left."""
    left = [0]
    read = edge.reader.read

    async def unled(*arguments: Any, **settings: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise NotLeader
        return await read(*arguments, **settings)

    monkeypatch.setattr(edge.reader, "read", unled)
    monkeypatch.setattr(records_http, "LEADER_RETRY_S", 0.001)
    return left


async def test_reading_a_topic_that_has_no_leader_yet_waits_for_one(http: Any, never_led: list[int]) -> None:
    await post(http, {"value": "v"})
    never_led[0] = 3
    response = await http.get("/v1/topics/orders/records?offset=earliest")
    assert [row["value"] for row in (await response.json())["records"]] == ["v"]
    never_led[0] = 3
    response = await http.get("/v1/topics/orders/records?offset=0")
    assert [row["value"] for row in (await response.json())["records"]] == ["v"]


async def test_a_reader_that_finds_no_leader_in_its_time_is_told_so(
    http: Any, never_led: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    await post(http, {"value": "v"})
    monkeypatch.setattr(records_http, "LEADER_WAIT_MS", 0)
    never_led[0] = 50
    response = await http.get("/v1/topics/orders/records?offset=earliest")
    assert (response.status, (await response.json())["code"]) == (503, "NOT_LEADER")
    never_led[0] = 50
    response = await http.get("/v1/topics/orders/records?offset=earliest&wait_ms=30000")
    assert (response.status, never_led[0]) == (200, 0)


async def test_one_record_may_be_posted_without_an_array(http: Any) -> None:
    assert (await (await post(http, {"value": "v"})).json())["records"][0]["offset"] == 0


async def test_max_cuts_inside_a_batch_and_next_offset_continues(http: Any) -> None:
    await post(http, [{"value": str(n), "partition": 0} for n in range(5)])
    first = await (await http.get("/v1/topics/orders/records?offset=1&max=2")).json()
    assert ([row["value"] for row in first["records"]], first["next_offset"]) == (["1", "2"], 3)
    rest = await (await http.get("/v1/topics/orders/records?offset=3")).json()
    assert [row["value"] for row in rest["records"]] == ["3", "4"]


async def test_what_a_reader_was_handed_is_counted_once_also_when_max_cuts_a_batch(edge: Edge, http: Any) -> None:
    await post(http, [{"value": str(n), "partition": 0} for n in range(5)])
    for query in ("offset=0&max=2", "offset=2&max=2", "offset=4"):
        await http.get(f"/v1/topics/orders/records?{query}")
    sessions = [session for *_, session in edge.recorder.sessions]
    assert [(session.first_offset, session.batches) for session in sessions] == [
        (0, [(0, 2)]),
        (2, [(0, 4)]),  # a session counts what lies at or behind its first offset
        (4, [(0, 5)]),
    ]


async def test_reading_creates_no_topic_and_waits_for_one_that_is_not_known_yet(
    edge: Edge, http: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records_http, "NEW_TOPIC_MS", 0)
    answer = await http.get("/v1/topics/orders/records")
    assert (answer.status, (await answer.json())["code"]) == (404, "UNKNOWN_TOPIC")
    assert edge.cluster.topic("orders") is None
    waiting = asyncio.ensure_future(http.get("/v1/topics/orders/records?wait_ms=5000"))
    await asyncio.sleep(0.03)
    edge.cluster.add_topic("orders")
    await post(http, {"value": "first"})
    assert [record["value"] for record in (await (await waiting).json())["records"]] == ["first"]


async def test_reading_waits_for_the_next_commit(edge: Edge, http: Any) -> None:
    edge.cluster.add_topic("orders")
    stream = edge.cluster.stream("orders", 0)
    waiting = asyncio.ensure_future(http.get("/v1/topics/orders/records?offset=latest&wait_ms=30000"))
    while not stream.waiter_count:
        await asyncio.sleep(0)
    stream.add(b"news")
    answer = await (await waiting).json()
    assert [row["value"] for row in answer["records"]] == ["news"]


async def test_what_a_long_poll_waited_for_counts_and_what_lay_there_does_not(edge: Edge, http: Any) -> None:
    edge.cluster.add_topic("orders")
    stream = edge.cluster.stream("orders", 0)
    stream.add(b"backlog")

    async def live_of(query: str) -> bool:
        """Whether the session of a GET that news may wait for counted as caught up before the news came."""
        reading = asyncio.ensure_future(http.get(f"/v1/topics/orders/records?{query}&wait_ms=30000"))
        while not stream.waiter_count and not reading.done():
            await asyncio.sleep(0)
        session = edge.recorder.sessions[-1][3]
        is_live = session.caught_up_count == 1 and not session.batches
        stream.add(b"news")
        assert (await (await reading).json())["records"]
        assert session.batches
        return is_live

    assert await live_of("offset=1")
    assert await live_of("offset=latest")
    for query in ("offset=0", "offset=earliest"):
        assert not await live_of(query)
        assert edge.recorder.sessions[-1][3].caught_up_count == 0


async def test_a_replica_that_is_behind_is_waited_at_too(edge: Edge, http: Any) -> None:
    edge.cluster.add_topic("orders")
    stream = edge.cluster.stream("orders", 0)
    stream.is_leader = False
    await http.get("/v1/topics/orders/records?offset=5")
    ((*_, session),) = edge.recorder.sessions
    assert (session.first_offset, session.caught_up_count) == (5, 1)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[NaN]", "NaN"),
        (b'{"value":"a","value":"b"}', "value: the field stands twice"),
        (b"3", "object"),
        ([], "empty"),
        ([1], "records[0]: must be an object"),
        ({"valeu": "x"}, "record.valeu: unknown field"),
        ({"value": 1}, "record.value: must be a string or null"),
        ({"key": {}}, "record.key: must be"),
        ({"value_b64": "%"}, "record.value_b64: is not base64"),
        ({"value": "a", "value_b64": "YQ=="}, "not both"),
        ({"headers": []}, "record.headers: must be an object"),
        ({"headers": {"h": 1}}, "record.headers.h: must be a string"),
        ([{}, {"partition": -1}], "records[1].partition: must be an integer"),
        ({"partition": True}, "record.partition: must be an integer"),
        ({"partition": 1.5}, "record.partition"),
        ({"timestamp_ms": "now"}, "record.timestamp_ms"),
        (b'{"value":"\\ud800"}', "surrogate"),
        (b"[" * 50_000, "nested"),
    ],
)
async def test_a_bad_record_is_refused_with_the_name_of_its_field(edge: Edge, http: Any, body: Any, text: str) -> None:
    edge.cluster.add_topic("orders")
    response = await post(http, body)
    assert response.status == 400
    assert response.content_type == "application/problem+json"
    problem = await response.json()
    assert text in problem["detail"]
    assert (problem["code"], problem["type"]) == ("BAD_REQUEST", "urn:georelay:error:BAD_REQUEST")
    assert not edge.cluster.published


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("partition=x", 400, "partition"),
        ("partition=-1", 400, "partition"),
        ("partition=1", 404, "partitions 0..0"),
        ("offset=-5", 400, "offset"),
        ("offset=9", 416, "beyond"),
        ("offset=٣", 400, "offset"),
        ("max=0", 400, "max"),
        ("max=10001", 400, "max"),
        ("wait_ms=30001", 400, "wait_ms"),
        ("region=eu", 400, "region"),
        ("offst=1", 400, "offst"),
        ("max=1&max=2", 400, "twice"),
    ],
)
async def test_a_bad_parameter_is_refused_by_name(edge: Edge, http: Any, query: str, status: int, text: str) -> None:
    edge.cluster.add_topic("orders")
    response = await http.get(f"/v1/topics/orders/records?{query}")
    assert response.status == status
    assert text in (await response.json())["detail"]


async def test_ten_thousand_and_one_records_are_too_many(http: Any) -> None:
    response = await post(http, [{}] * 10_001)
    assert (response.status, (await response.json())["code"]) == (413, "TOO_LARGE")


async def test_a_body_over_the_limit_is_a_problem_too(http: Any) -> None:
    response = await http.post("/v1/topics/orders/records", data=io.BytesIO(b" " * (17 * 1024 * 1024)))
    assert (response.status, response.content_type) == (413, "application/problem+json")


async def test_publishing_to_a_mirror_name_is_refused(edge: Edge, http: Any) -> None:
    edge.cluster.add_topic("eu.clicks", homes=Homes.EVERY, mirror_of="clicks")
    response = await post(http, {"value": "x"}, "eu.clicks")
    assert (response.status, (await response.json())["outcome"]) == (403, "not_stored")


def test_a_header_that_is_not_text_is_given_in_base64() -> None:
    item = record_json(Record(1, 2, None, b"v", (("a", b"\xff"), ("b", None))))
    assert item["headers_b64"] == {"a": "/w=="}
    assert item["headers"] == {"b": None}


def test_what_is_written_can_be_parsed_again() -> None:
    item = record_json(Record(1, 2, b"\xfe", b"v", (("a", b"\xff"),)))
    del item["offset"]
    ((record, _),) = parse_records(json.dumps(item).encode())
    assert record == NewRecord(b"v", b"\xfe", (("a", b"\xff"),), 2)
