"""Altering, reassigning and trimming topics, and the life of brokers: over HTTP and over gRPC."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import pytest
from aiohttp.test_utils import TestClient, TestServer

from georelay._pb import admin_pb2 as pb
from georelay.errors import BadRequest, HomeUnreachable, InvalidTopic, OutcomeUnknown
from region.api.admin_http import AdminHttp
from region.api.admin_service import AdminService, spec_of
from region.api.brokers_http import broker_json, check_peers, parse_peers
from region.api.grpc_calls import GrpcCalls
from region.api.grpc_listener import GrpcListener
from region.api.metrics import BrokerMetrics
from region.api.records_http import RecordsHttp
from region.api.topic_changes import (
    Deletion,
    Reassignment,
    check_replicas,
    parse_alteration,
    parse_deletion,
    parse_reassignment,
)
from region.api.topics_http import parse_topic
from region.controller.topic import TopicSpec
from region.kafka.counters import KafkaCounters
from region.kafka.ports import BrokerStatus, PartitionReplicas
from tests.tiers import in_one_test


@pytest.fixture
async def http(cluster: Any, credentials: Any) -> AsyncIterator[Any]:
    metrics = BrokerMetrics(cluster, KafkaCounters())
    records = cast("RecordsHttp", type("NoRecords", (), {"read": None, "publish": None, "resolve": None}))
    for name in ("read", "publish", "resolve"):
        setattr(records, name, _no_records)
    admin = AdminHttp(cluster=cluster, credentials=credentials, metrics=metrics, records=records)
    async with TestClient(TestServer(admin.app())) as client:
        yield client


async def _no_records(_: Any) -> Any:
    raise AssertionError("these tests publish and read nothing")


@pytest.fixture
async def call(cluster: Any, credentials: Any) -> AsyncIterator[Any]:
    """Return a function (method, request, answer type) -> answer."""
    calls = GrpcCalls(credentials, BrokerMetrics(cluster, KafkaCounters()))
    service = AdminService(cluster=cluster, calls=calls, region_name={1: "us"}.__getitem__)
    listener = GrpcListener([service.handler()], host="127.0.0.1", port=0)
    port = await listener.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.enable_http_proxy", 0),)) as channel:

        async def call(method: str, request: Any, answer: Any) -> Any:
            stub = channel.unary_unary(
                f"/georelay.v1.Admin/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            return await stub(request)

        yield call
    await listener.close()


async def ask(http: Any, method: str, path: str, body: object = None) -> tuple[int, Any]:
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
    async with http.request(method, path, data=data) as answer:
        raw = await answer.read()
        return answer.status, json.loads(raw) if raw else None


# --- bodies -------------------------------------------------------------------------------------------


def test_an_alteration_is_settings_in_kafkas_words_and_null_is_the_default() -> None:
    body = b'{"retention_ms": 1000, "retention_bytes": null}'
    assert parse_alteration(body) == {"retention.ms": "1000", "retention.bytes": "-1"}


def test_every_setting_of_a_topic_may_be_given_by_its_name() -> None:
    body = b'{"settings": {"cleanup.policy": "compact", "preallocate": true, "min.cleanable.dirty.ratio": 0.1}}'
    named = {"cleanup.policy": "compact", "preallocate": "true", "min.cleanable.dirty.ratio": "0.1"}
    assert parse_alteration(body) == named
    assert parse_alteration(b'{"settings": {"retention.ms": 5, "failover": null}}') == {
        "retention.ms": "5",
        "failover": "manual",
    }
    spec = TopicSpec(name="orders").with_settings(named)
    assert parse_topic(b'{"name": "orders",' + body[1:]) == spec
    assert spec_of(pb.CreateTopicRequest(name="orders", settings=named)) == spec


def test_a_reassignment_names_one_partition_or_all() -> None:
    one = parse_reassignment(b'{"partition": 3, "replicas": [1002, 1001]}')
    assert one == Reassignment(partition=3, replicas=(1002, 1001))
    assert parse_reassignment(b'{"replicas": [1001]}').partition is None


def test_a_deletion_goes_up_to_an_offset_or_to_what_is_committed() -> None:
    assert parse_deletion(b'{"partition": 0, "before": 17}') == Deletion(partition=0, before=17)
    assert parse_deletion(b'{"partition": 0, "before": "latest"}') == Deletion(partition=0, before=-1)


@in_one_test(
    ("parse", "body", "text"),
    [
        (parse_alteration, "[]", "must be an object"),
        (parse_alteration, "{}", "name what changes"),
        (parse_alteration, '{"settings": []}', "settings: must be an object"),
        (parse_alteration, '{"settings": {"failover": []}}', "settings.failover: must be a string"),
        (parse_alteration, '{"retention_ms": 1, "settings": {"retention.ms": 2}}', "is given twice"),
        (parse_alteration, '{"partitions": 3}', "partitions: unknown field"),
        (parse_alteration, '{"retention_ms": "1"}', "retention_ms: must be an integer"),
        (parse_alteration, '{"retention_ms": -2}', "retention_ms: must be an integer"),
        (parse_reassignment, "{}", "replicas: must be a list"),
        (parse_reassignment, '{"replicas": []}', "replicas: must be a list"),
        (parse_reassignment, '{"replicas": "1001"}', "replicas: must be a list"),
        (parse_reassignment, '{"replicas": [true]}', "replicas: must be a list"),
        (parse_reassignment, '{"replicas": [1001, 1001]}', "stands twice"),
        (parse_reassignment, '{"replicas": [1001], "partition": -1}', "partition: must be an integer"),
        (parse_deletion, '{"before": 1}', "partition: must be given"),
        (parse_deletion, '{"partition": 0}', "before: must be an offset"),
        (parse_deletion, '{"partition": 0, "before": -1}', "before: must be an offset"),
        (parse_deletion, '{"partition": 0, "before": true}', "before: must be an offset"),
        (parse_deletion, '{"partition": 0, "before": "earliest"}', "before: must be an offset"),
        (parse_peers, "[]", "must be an object"),
        (parse_peers, '{"address": "x:1"}', "address: unknown field"),
        (parse_peers, '{"peers": "no-port"}', "peers: must be host:port"),
        (parse_peers, '{"peers": "h:0"}', "peers: must be host:port"),
        (parse_peers, '{"peers": "h:65536"}', "peers: must be host:port"),
        (parse_peers, '{"peers": 7}', "peers: must be host:port"),
    ],
)
def test_a_body_that_is_wrong_is_refused_with_the_name_of_the_field(parse: Any, body: str, text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        parse(body.encode())


@pytest.mark.parametrize("peers", ["", "10.0.0.1:9000", "broker-4.example:1", "[::1]:65535"])
def test_a_peer_address_is_host_and_port_or_nothing(peers: str) -> None:
    assert check_peers(peers) == peers


def test_more_replicas_than_a_region_can_have_are_refused() -> None:
    with pytest.raises(BadRequest):
        check_replicas(list(range(1001, 3001)))


def test_an_unknown_number_of_replicas_is_null() -> None:
    assert broker_json(BrokerStatus(id=1001, state="active", alive=True))["replicas"] is None


def test_the_segment_size_of_a_new_topic_is_a_setting_of_its_spec() -> None:
    assert parse_topic(b'{"name": "orders", "segment_bytes": 65536}').config == (("segment.bytes", "65536"),)
    request = pb.CreateTopicRequest(name="orders", segment_bytes=65536)
    assert spec_of(request).config == (("segment.bytes", "65536"),)
    with pytest.raises(InvalidTopic):
        parse_topic(b'{"name": "orders", "segment_bytes": 1}')


# --- HTTP ---------------------------------------------------------------------------------------------


async def test_settings_are_patched(http: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    status, document = await ask(http, "PATCH", "/v1/topics/orders", {"retention_ms": 1000})
    assert (status, document["retention_ms"], document["retention_bytes"]) == (200, 1000, -1)
    assert cluster.changes == [("alter_topic", "orders", {"retention.ms": "1000"})]


async def test_settings_without_a_field_of_their_own_are_shown(http: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    wanted = {"settings": {"cleanup.policy": "compact", "flush.ms": 5, "segment.bytes": 20000}}
    status, document = await ask(http, "PATCH", "/v1/topics/orders", wanted)
    assert (status, document["segment_bytes"]) == (200, 20000)
    assert document["settings"] == {"cleanup.policy": "compact", "flush.ms": "5"}
    status, document = await ask(http, "PATCH", "/v1/topics/orders", {"settings": {"no.such": "1"}})
    assert (status, document["code"]) == (400, "INVALID_TOPIC")


async def test_records_are_deleted_and_the_log_start_is_answered(http: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    for _ in range(5):
        cluster.stream("orders", 0).add(b"x")
    path = "/v1/topics/orders/delete-records"
    assert await ask(http, "POST", path, {"partition": 0, "before": 3}) == (
        200,
        {"topic": "orders", "partition": 0, "log_start": 3},
    )
    assert (await ask(http, "POST", path, {"partition": 0, "before": "latest"}))[1]["log_start"] == 5
    status, document = await ask(http, "POST", path, {"partition": 0, "before": 6})
    assert (status, document["code"]) == (416, "OFFSET_OUT_OF_RANGE")


async def test_a_topic_is_reassigned_as_a_whole_or_by_partition(http: Any, cluster: Any) -> None:
    cluster.add_topic("orders", 2)
    status, document = await ask(http, "POST", "/v1/topics/orders/reassign", {"replicas": [1002, 1001]})
    assert status == 202
    assert [(row["wanted"], row["is_settled"]) for row in document["partition_states"]] == [([1002, 1001], False)] * 2
    await ask(http, "POST", "/v1/topics/orders/reassign", {"partition": 1, "replicas": [1001]})
    _, document = await ask(http, "GET", "/v1/topics/orders")
    assert [(row["wanted"], row["is_settled"]) for row in document["partition_states"]] == [
        ([1002, 1001], False),
        ([1001], True),
    ]


async def test_a_description_shows_how_far_learners_are(
    http: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_topic("orders")

    async def moving(_: str) -> list[PartitionReplicas]:
        return [
            PartitionReplicas(
                partition=0, voters=(1001,), target=(1002,), learners=(1002,), behind_entries=((1002, 77),)
            )
        ]

    monkeypatch.setattr(cluster, "replicas_status", moving)
    _, document = await ask(http, "GET", "/v1/topics/orders")
    (row,) = document["partition_states"]
    assert (row["learners"], row["behind_entries"], row["is_settled"]) == ([1002], {"1002": 77}, False)


async def test_a_broker_is_added_drained_and_removed(http: Any, cluster: Any) -> None:
    status, document = await ask(http, "POST", "/v1/brokers/1004", {"peers": "127.0.0.1:9"})
    assert (status, document["id"], document["state"]) == (200, 1004, "active")
    status, document = await ask(http, "POST", "/v1/brokers/1004/drain")
    assert (status, document["state"]) == (202, "draining")
    status, document = await ask(http, "DELETE", "/v1/brokers/1004")
    assert (status, document["code"]) == (403, "POLICY_VIOLATION")
    cluster.states[1004] = "drained"
    assert await ask(http, "DELETE", "/v1/brokers/1004") == (204, None)
    _, document = await ask(http, "GET", "/v1/brokers")
    assert (document["region"], [row["id"] for row in document["brokers"]]) == ("us", [1001])
    assert cluster.changes[0] == ("add_broker", 1004, "127.0.0.1:9")


@pytest.mark.parametrize("broker", ["us-1", "-1", "0", "12345678", "1001.0"])
async def test_what_is_no_broker_id_is_refused(http: Any, broker: str) -> None:
    status, document = await ask(http, "POST", f"/v1/brokers/{broker}/drain")
    assert (status, document["code"]) == (400, "BAD_REQUEST")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/v1/topics/ghost", {"retention_ms": 1}),
        ("POST", "/v1/topics/ghost/reassign", {"replicas": [1001]}),
        ("POST", "/v1/topics/ghost/delete-records", {"partition": 0, "before": 1}),
    ],
)
async def test_an_unknown_topic_is_not_found(http: Any, method: str, path: str, body: Any) -> None:
    status, document = await ask(http, method, path, body)
    assert (status, document["code"]) == (404, "UNKNOWN_TOPIC")


async def test_failures_of_the_controller_say_what_became_of_it(http: Any, cluster: Any) -> None:
    cluster.add_topic("orders")
    cluster.admin_errors += [HomeUnreachable("gone"), OutcomeUnknown("lost")]
    status, document = await ask(http, "PATCH", "/v1/topics/orders", {"retention_ms": 1})
    assert (status, document["outcome"]) == (503, "not_stored")
    status, document = await ask(http, "POST", "/v1/brokers/1001/drain")
    assert (status, document["outcome"]) == (504, "unknown")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/brokers"),
        ("POST", "/v1/brokers/1004"),
        ("POST", "/v1/brokers/1001/drain"),
        ("DELETE", "/v1/brokers/1001"),
        ("PATCH", "/v1/topics/orders"),
        ("POST", "/v1/topics/orders/reassign"),
        ("POST", "/v1/topics/orders/delete-records"),
    ],
)
async def test_nothing_is_changed_without_signing_in(
    http: Any, cluster: Any, credentials: Any, method: str, path: str
) -> None:
    credentials.users["alice"] = "secret"
    status, document = await ask(http, method, path)
    assert (status, document["code"]) == (401, "UNAUTHENTICATED")
    assert cluster.changes == []


# --- gRPC ---------------------------------------------------------------------------------------------


async def test_a_topic_is_altered_trimmed_and_reassigned_over_grpc(call: Any, cluster: Any) -> None:
    cluster.add_topic("orders", 2)
    for _ in range(5):
        cluster.stream("orders", 1).add(b"x")
    topic = await call("AlterTopic", pb.AlterTopicRequest(name="orders", retention_ms=1000), pb.Topic)
    assert (topic.retention_ms, topic.retention_bytes) == (1000, -1)
    request = pb.DeleteRecordsRequest(name="orders", partition=1, before=3)
    assert (await call("DeleteRecords", request, pb.DeleteRecordsResponse)).log_start == 3
    request = pb.DeleteRecordsRequest(name="orders", partition=1)
    assert (await call("DeleteRecords", request, pb.DeleteRecordsResponse)).log_start == 5
    move = pb.ReassignTopicRequest(name="orders", partition=0, replicas=[1002])
    topic = await call("ReassignTopic", move, pb.Topic)
    assert [list(row.wanted) for row in topic.partition_states] == [[1002], [1001]]
    topic = await call("ReassignTopic", pb.ReassignTopicRequest(name="orders", replicas=[1003]), pb.Topic)
    assert [list(row.wanted) for row in topic.partition_states] == [[1003], [1003]]


async def test_a_broker_is_added_drained_and_removed_over_grpc(call: Any, cluster: Any) -> None:
    broker = await call("AddBroker", pb.AddBrokerRequest(id=1004, peers="h:1"), pb.Broker)
    assert (broker.id, broker.state, broker.HasField("replicas")) == (1004, pb.BROKER_STATE_ACTIVE, False)
    broker = await call("DrainBroker", pb.DrainBrokerRequest(id=1004), pb.Broker)
    assert broker.state == pb.BROKER_STATE_DRAINING
    cluster.states[1004] = "drained"
    await call("RemoveBroker", pb.RemoveBrokerRequest(id=1004), pb.RemoveBrokerResponse)
    listed = await call("ListBrokers", pb.ListBrokersRequest(), pb.ListBrokersResponse)
    assert (listed.region, [row.id for row in listed.brokers]) == ("us", [1001])


@pytest.mark.parametrize(
    ("method", "request_", "code"),
    [
        ("AlterTopic", pb.AlterTopicRequest(name="orders"), "INVALID_ARGUMENT"),
        ("AlterTopic", pb.AlterTopicRequest(name="orders", retention_ms=-2), "INVALID_ARGUMENT"),
        ("AlterTopic", pb.AlterTopicRequest(name="ghost", retention_ms=1), "NOT_FOUND"),
        ("DeleteRecords", pb.DeleteRecordsRequest(name="orders", partition=-1), "INVALID_ARGUMENT"),
        ("DeleteRecords", pb.DeleteRecordsRequest(name="orders", before=-1), "INVALID_ARGUMENT"),
        ("DeleteRecords", pb.DeleteRecordsRequest(name="orders", before=1), "OUT_OF_RANGE"),
        ("ReassignTopic", pb.ReassignTopicRequest(name="orders"), "INVALID_ARGUMENT"),
        ("ReassignTopic", pb.ReassignTopicRequest(name="ghost", replicas=[1001]), "NOT_FOUND"),
        ("AddBroker", pb.AddBrokerRequest(), "INVALID_ARGUMENT"),
        ("AddBroker", pb.AddBrokerRequest(id=1004, peers="nowhere"), "INVALID_ARGUMENT"),
        ("DrainBroker", pb.DrainBrokerRequest(id=1009), "INVALID_ARGUMENT"),
        ("RemoveBroker", pb.RemoveBrokerRequest(id=1001), "PERMISSION_DENIED"),
    ],
)
async def test_a_wrong_call_is_refused_with_its_status(
    call: Any, cluster: Any, method: str, request_: Any, code: str
) -> None:
    cluster.add_topic("orders")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(method, request_, pb.Broker)
    assert refused.value.code().name == code
