"""Coalescer shell, partitioning, REST and gRPC against the in-memory region."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from aiohttp.test_utils import TestClient, TestServer

from georelay import errors
from georelay.durability import Durability
from georelay.errors import BadRequest, NotLeader, OutcomeUnknown, PolicyViolation, TooLarge
from georelay.lane_core import LaneLimits
from georelay.wire.batch import Record
from mesh.replication.level import REGION_LEVEL, AskedLevel
from region.api._pb import broker_pb2
from region.api.admin_http import AdminHttp
from region.api.broker_service import BrokerService
from region.api.coalescer import Coalescer, NewRecord
from region.api.grpc_calls import GRPC_STATUS, GrpcCalls, grpc_status
from region.api.grpc_listener import GrpcListener
from region.api.metrics import BrokerMetrics
from region.api.partitioning import Partitioner
from region.api.publishing import RecordPublisher
from region.api.reading import StreamReader
from region.api.record_json import parse_records, record_json
from region.api.records_http import RecordsHttp
from region.api.topics_http import parse_topic
from region.controller.topic import Homes
from region.kafka.counters import KafkaCounters


class Clock:
    """Monotonic and wall time that only tests move."""

    now_ns = 1_700_000_000_000_000_000

    def __call__(self) -> int:
        return self.now_ns


class Edge:
    """Coalescer, gRPC and HTTP over the fakes."""

    def __init__(self, cluster: Any, credentials: Any, recorder: Any) -> None:
        self.cluster = cluster
        self.credentials = credentials
        self.recorder = recorder
        self.clock = Clock()
        self.coalescer = Coalescer(
            cluster, entry_region=1, wall_ns=self.clock, monotonic_ns=self.clock, limits=LaneLimits(backoff_ns=0)
        )
        self.publisher = RecordPublisher(cluster, self.coalescer)
        self.reader = StreamReader(cluster)
        self.metrics = BrokerMetrics(cluster, KafkaCounters())
        records = RecordsHttp(
            cluster=cluster,
            publisher=self.publisher,
            reader=self.reader,
            recorder=recorder,
            metrics=self.metrics,
            wall_ns=self.clock,
        )
        self.admin = AdminHttp(cluster=cluster, credentials=credentials, metrics=self.metrics, records=records)
        self.service = BrokerService(
            cluster=cluster,
            publisher=self.publisher,
            reader=self.reader,
            calls=GrpcCalls(credentials, self.metrics),
            recorder=recorder,
            metrics=self.metrics,
            wall_ns=self.clock,
        )


@pytest.fixture
async def edge(cluster: Any, credentials: Any, recorder: Any) -> AsyncIterator[Edge]:
    edge = Edge(cluster, credentials, recorder)
    yield edge
    await edge.coalescer.close()


@pytest.fixture
async def http(edge: Edge) -> AsyncIterator[Any]:
    async with TestClient(TestServer(edge.admin.app())) as client:
        yield client


@pytest.fixture
async def stub(edge: Edge) -> AsyncIterator[Any]:
    listener = GrpcListener([edge.service.handler()], host="127.0.0.1", port=0)
    port = await listener.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.enable_http_proxy", 0),)) as channel:

        class Stub:
            publish = channel.unary_unary(
                "/broker.Broker/Publish",
                request_serializer=broker_pb2.PublishRequest.SerializeToString,
                response_deserializer=broker_pb2.PublishResponse.FromString,
            )
            subscribe = channel.unary_stream(
                "/broker.Broker/Subscribe",
                request_serializer=broker_pb2.SubscribeRequest.SerializeToString,
                response_deserializer=broker_pb2.MessageResponse.FromString,
            )

        yield Stub
    await listener.close()


# --- partitioning --------------------------------------------------------------------------------


def test_records_without_a_key_go_round_the_partitions_of_their_topic() -> None:
    partitioner = Partitioner()
    assert [partitioner.choose("a", None, 3) for _ in range(4)] == [0, 1, 2, 0]
    assert partitioner.choose("b", None, 3) == 0


def test_a_key_always_goes_to_one_partition_even_an_empty_key() -> None:
    partitioner = Partitioner()
    assert len({partitioner.choose("a", b"k", 7) for _ in range(5)}) == 1
    assert len({partitioner.choose("a", b"", 7) for _ in range(5)}) == 1


# --- coalescer -----------------------------------------------------------------------------------


def records(*values: bytes) -> list[NewRecord]:
    return [NewRecord(value) for value in values]


async def test_publishes_of_one_turn_travel_in_one_batch(edge: Edge) -> None:
    edge.cluster.add_topic("orders")
    futures = [edge.coalescer.publish("orders", 0, records(b"%d" % n))[0] for n in range(50)]
    answers = await asyncio.gather(*futures)
    assert [answer.base_offset for answer in answers] == list(range(50))
    assert len(edge.cluster.stream("orders", 0).entries) == 1


async def test_a_resend_after_a_lost_answer_stores_once(edge: Edge) -> None:
    edge.cluster.add_topic("orders")
    stream = edge.cluster.stream("orders", 0)
    stream.auto_commit = False
    (future,) = edge.coalescer.publish("orders", 0, records(b"a"))
    while not stream.entries:
        await asyncio.sleep(0)
    stream.auto_commit = True
    stream.fail_pending(OutcomeUnknown("leader changed"))
    assert (await future).base_offset == 0
    assert len(edge.cluster.published) == 2
    assert len(stream.entries) == 1


async def test_a_leader_change_is_ridden_out_in_order(edge: Edge) -> None:
    edge.cluster.add_topic("orders")
    edge.cluster.publish_errors += [NotLeader(), NotLeader()]
    futures = [edge.coalescer.publish("orders", 0, records(b"%d" % n))[0] for n in range(3)]
    assert [(await future).base_offset for future in futures] == [0, 1, 2]


async def test_a_hopeless_publish_fails_at_once(edge: Edge) -> None:
    edge.cluster.add_topic("orders")
    edge.cluster.publish_errors.append(PolicyViolation("no"))
    (future,) = edge.coalescer.publish("orders", 0, records(b"a"))
    with pytest.raises(PolicyViolation):
        await future
    (after,) = edge.coalescer.publish("orders", 0, records(b"b"))
    assert (await after).base_offset == 0


async def test_a_failed_producer_id_is_asked_for_again(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region.api.coalescer.ALLOCATE_RETRY_S", 0)
    edge.cluster.add_topic("orders")
    edge.cluster.producer_errors.append(NotLeader())
    (future,) = edge.coalescer.publish("orders", 0, records(b"a"))
    assert (await future).base_offset == 0


async def test_a_record_larger_than_a_batch_is_refused(edge: Edge) -> None:
    with pytest.raises(TooLarge, match="record 0"):
        edge.coalescer.publish("orders", 0, records(b"x" * 9_000_000))


async def test_a_large_call_is_cut_into_batches_with_dense_offsets(edge: Edge) -> None:
    edge.cluster.add_topic("orders")
    places = await edge.publisher.publish("orders", [(record, 0) for record in records(*[b"x" * 1000] * 1000)])
    assert [place.offset for place in places] == list(range(1000))
    assert len(edge.cluster.stream("orders", 0).entries) == 4


async def test_closing_tells_those_who_wait_and_bytes_are_given_back(edge: Edge) -> None:
    edge.cluster.add_topic("orders")
    edge.cluster.stream("orders", 0).auto_commit = False
    (future,) = edge.coalescer.publish("orders", 0, records(b"a"))
    await asyncio.sleep(0)
    await edge.coalescer.close()
    with pytest.raises(OutcomeUnknown):
        await future
    await asyncio.sleep(0)
    assert edge.coalescer.pending_bytes == 0


async def test_some_stored_and_some_not_is_an_unknown_outcome(edge: Edge) -> None:
    edge.cluster.add_topic("orders", 2)
    edge.cluster.publish_errors.append(PolicyViolation("no"))
    with pytest.raises(OutcomeUnknown, match="1 of 2"):
        await edge.publisher.publish("orders", [(NewRecord(b"a"), 0), (NewRecord(b"b"), 1)])


# --- REST records --------------------------------------------------------------------------------


async def post(http: Any, body: Any, topic: str = "orders") -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await http.post(f"/v1/topics/{topic}/records", data=data)


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
        (b"[" * 100_000, "nested"),
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


# --- admin HTTP ----------------------------------------------------------------------------------


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


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


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


# --- gRPC ----------------------------------------------------------------------------------------


async def receive(call: Any, count: int) -> list[Any]:
    async with asyncio.timeout(5):
        return [await call.read() for _ in range(count)]


async def test_published_records_are_delivered_in_order_with_their_ids(edge: Edge, stub: Any) -> None:
    call = stub.subscribe(broker_pb2.SubscribeRequest(topics={"orders": 0}))
    ids = [
        (await stub.publish(broker_pb2.PublishRequest(topic="orders", body=b"%d" % number))).id for number in range(3)
    ]
    got = await receive(call, 3)
    call.cancel()
    assert ids == ["orders/0/0", "orders/0/1", "orders/0/2"]
    assert [(item.id, item.body, item.topic) for item in got] == [
        (identity, b"%d" % number, "orders") for number, identity in enumerate(ids)
    ]
    assert [item.timestamp for item in got] == [1_000_000] * 3


async def test_a_subscription_starts_at_its_timestamp(edge: Edge, stub: Any) -> None:
    edge.cluster.add_topic("orders")
    stream = edge.cluster.stream("orders", 0)
    for number in range(9):
        stream.now_us = 1000 + number * 10
        stream.add(b"%d" % number, b"again")
    call = stub.subscribe(broker_pb2.SubscribeRequest(topics={"orders": 1035}))
    got = await receive(call, 3)
    call.cancel()
    assert [(item.body, item.timestamp) for item in got] == [(b"4", 1040), (b"again", 1040), (b"5", 1050)]


async def test_a_timestamp_in_the_future_waits_for_records_of_that_time(edge: Edge, stub: Any) -> None:
    edge.cluster.add_topic("orders")
    stream = edge.cluster.stream("orders", 0)
    stream.add(b"old")
    call = stub.subscribe(broker_pb2.SubscribeRequest(topics={"orders": 5_000_000}))
    while not stream.waiter_count:
        await asyncio.sleep(0.001)
    stream.add(b"early")
    stream.now_us = 5_000_000
    stream.add(b"due")
    (got,) = await receive(call, 1)
    call.cancel()
    assert got.body == b"due"


async def test_all_origins_are_merged_and_timestamps_never_go_back(edge: Edge, stub: Any) -> None:
    edge.cluster.add_topic("clicks", homes=Homes.EVERY)
    for name, at_us in (("us.clicks", 2000), ("eu.clicks", 1000)):
        edge.cluster.add_topic(name, homes=Homes.EVERY, mirror_of="clicks")
        edge.cluster.stream(name, 0).now_us = at_us
        edge.cluster.stream(name, 0).add(name.encode())
    call = stub.subscribe(broker_pb2.SubscribeRequest(topics={"clicks": 0}))
    got = await receive(call, 2)
    call.cancel()
    assert {item.id for item in got} == {"us.clicks/0/0", "eu.clicks/0/0"}
    assert got[0].timestamp <= got[1].timestamp
    assert {topic for topic, *_ in edge.recorder.sessions} == {"clicks"}


async def test_cancelling_a_subscription_leaves_nothing_behind(edge: Edge, stub: Any) -> None:
    edge.cluster.add_topic("orders")
    stream = edge.cluster.stream("orders", 0)
    call = stub.subscribe(broker_pb2.SubscribeRequest(topics={"orders": 0}))
    while not stream.waiter_count:
        await asyncio.sleep(0.001)
    call.cancel()
    async with asyncio.timeout(5):
        while stream.waiter_count:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("topics", "status"), [({}, "INVALID_ARGUMENT"), ({"": 0}, "INVALID_ARGUMENT"), ({"ghost": 0}, "NOT_FOUND")]
)
async def test_a_bad_subscription_has_a_status(edge: Edge, stub: Any, topics: dict[str, int], status: str) -> None:
    edge.cluster.auto_create_topics = False
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stub.subscribe(broker_pb2.SubscribeRequest(topics=topics)):
            pass
    assert caught.value.code().name == status


async def test_a_failed_publish_tells_its_outcome(edge: Edge, stub: Any) -> None:
    edge.cluster.add_topic("orders")
    edge.cluster.publish_errors.append(PolicyViolation("no"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.publish(broker_pb2.PublishRequest(topic="orders", body=b"x"))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert dict(caught.value.trailing_metadata())["georelay-outcome"] == "not_stored"


@pytest.mark.parametrize("authorization", [None, basic("ann", "wrong"), "Bearer x", "basic %"])
async def test_with_users_nothing_is_served_without_credentials(
    edge: Edge, stub: Any, authorization: str | None
) -> None:
    edge.credentials.users["ann"] = "secret"
    metadata = () if authorization is None else (("authorization", authorization),)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.publish(broker_pb2.PublishRequest(topic="orders", body=b"x"), metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with pytest.raises(grpc.aio.AioRpcError):
        await stub.subscribe(broker_pb2.SubscribeRequest(topics={"orders": 0}), metadata=metadata).read()
    assert not edge.cluster.views


async def test_the_right_credentials_are_accepted(edge: Edge, stub: Any) -> None:
    edge.credentials.users["ann"] = "secret"
    metadata = (("authorization", basic("ann", "secret")),)
    answer = await stub.publish(broker_pb2.PublishRequest(topic="orders", body=b"x"), metadata=metadata)
    assert answer.id == "orders/0/0"


def test_every_status_is_one_of_grpc_and_unknown_outcomes_are_never_unavailable() -> None:
    for kind, name in GRPC_STATUS.items():
        assert hasattr(grpc.StatusCode, name)
        may_have_completed = kind.outcome in (errors.Outcome.UNKNOWN, errors.Outcome.PENDING)
        assert may_have_completed == (name == "DEADLINE_EXCEEDED")
    assert grpc_status(errors.StorageFailed("disk")) == "INTERNAL"


# --- geo levels ----------------------------------------------------------------------------------


async def test_rest_publishes_at_a_level_and_says_what_it_reached(http: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    path = "/v1/topics/orders/records?durability=geo:2&deadline_ms=700"
    answer = await http.post(path, json={"value": "a"})
    assert answer.status == 200
    (row,) = (await answer.json())["records"]
    assert (row["outcome"], row["level"], row["regions"], row["offset"]) == ("stored", 3, ["1", "2", "3"], 0)
    cluster.regions_reached = 1
    answer = await http.post(path, json=[{"value": "b"}, {"value": "c"}])
    assert answer.status == 202
    assert [(row["outcome"], row["offset"]) for row in (await answer.json())["records"]] == [
        ("pending", 1),
        ("pending", 2),
    ]
    assert {(str(level.durability), level.deadline_ms) for level in cluster.levels} == {("geo:2", 704)}


@pytest.mark.parametrize("query", ["durability=geo:1", "durability=all", "durability=geo:2&deadline_ms=0", "level=2"])
async def test_rest_refuses_a_level_that_is_none_and_stores_nothing(http: Any, cluster: Any, query: str) -> None:
    cluster.add_topic("orders")
    answer = await http.post(f"/v1/topics/orders/records?{query}", json={"value": "a"})
    assert answer.status == 400
    assert cluster.published == []


async def test_rest_resolves_a_record_by_its_position(http: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    path = "/v1/topics/orders/resolve?partition=0&epoch={}&offset=0&durability=geo:2"
    answer = await (await http.get(path.format(1))).json()
    assert (answer["outcome"], answer["level"]) == ("stored", 3)
    cluster.regions_reached = 1
    assert (await (await http.get(path.format(1))).json())["outcome"] == "pending"
    assert (await (await http.get(path.format(7))).json())["outcome"] == "lost"


async def test_records_of_different_levels_take_lanes_of_their_own(edge: Edge, cluster: Any) -> None:
    cluster.add_topic("orders")
    geo = AskedLevel(durability=Durability(2))
    for level in (geo, REGION_LEVEL, geo):
        await edge.publisher.publish("orders", [(NewRecord(b"v"), None)], level)
    assert [level.durability for level in cluster.levels] == [Durability(2), Durability.REGION, Durability(2)]
    producers = [header.producer_id for _, _, header, _, _ in cluster.published]
    assert producers[0] == producers[2] != producers[1]


async def test_deadlines_of_nearly_the_same_length_share_a_lane(edge: Edge, cluster: Any) -> None:
    cluster.add_topic("orders")
    for deadline_ms in range(1_900, 2_000):
        level = AskedLevel(durability=Durability(2), deadline_ms=deadline_ms)
        await edge.publisher.publish("orders", [(NewRecord(b"v"), None)], level)
    assert {level.deadline_ms for level in cluster.levels} == {1_920, 2_048}  # never earlier than asked
    assert len({header.producer_id for _, _, header, _, _ in cluster.published}) == 2


async def test_the_small_contract_takes_a_level_as_metadata_and_tells_in_the_trailers(stub: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    asked = (("georelay-durability", "geo:3"), ("georelay-deadline-ms", "700"))
    call = stub.publish(broker_pb2.PublishRequest(topic="orders", body=b"v"), metadata=asked)
    assert (await call).id == "orders/0/0"
    told = dict(await call.trailing_metadata())
    assert (told["georelay-epoch"], told["georelay-offset"], told["georelay-regions"]) == ("1", "0", "1,2,3")
    cluster.regions_reached = 2
    with pytest.raises(grpc.aio.AioRpcError) as pending:
        await stub.publish(broker_pb2.PublishRequest(topic="orders", body=b"v"), metadata=asked)
    assert pending.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    told = dict(pending.value.trailing_metadata())
    assert (told["georelay-code"], told["georelay-outcome"]) == ("DURABILITY_PENDING", "pending")
    assert (told["georelay-id"], told["georelay-regions"]) == ("orders/0/1", "1,2")
    for wrong in (("georelay-durability", "geo:x"), ("georelay-deadline-ms", "soon")):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.publish(broker_pb2.PublishRequest(topic="orders", body=b"v"), metadata=(wrong,))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(cluster.published) == 2
