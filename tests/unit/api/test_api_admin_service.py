"""georelay.v1.Admin against the in-memory region."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from georelay._pb import admin_pb2
from georelay.errors import HomeUnreachable, OutcomeUnknown
from region.api.admin_service import AdminService, spec_of
from region.api.grpc_calls import GrpcCalls
from region.api.grpc_listener import GrpcListener
from region.api.metrics import BrokerMetrics
from region.controller.topic import Homes, TopicSpec
from region.kafka.counters import KafkaCounters

REGIONS = {1: "us", 2: "eu"}


class Stub:
    """One attribute per method, with the messages of the contract."""

    def __init__(self, channel: Any) -> None:
        self.create = self._method(channel, "CreateTopic", admin_pb2.CreateTopicRequest, admin_pb2.Topic)
        self.describe = self._method(channel, "DescribeTopic", admin_pb2.DescribeTopicRequest, admin_pb2.Topic)
        self.list = self._method(channel, "ListTopics", admin_pb2.ListTopicsRequest, admin_pb2.ListTopicsResponse)
        self.delete = self._method(channel, "DeleteTopic", admin_pb2.DeleteTopicRequest, admin_pb2.DeleteTopicResponse)

    def _method(self, channel: Any, name: str, request: Any, answer: Any) -> Any:
        return channel.unary_unary(
            f"/georelay.v1.Admin/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )


@pytest.fixture
def metrics(cluster: Any) -> BrokerMetrics:
    return BrokerMetrics(cluster, KafkaCounters())


@pytest.fixture
async def admin(cluster: Any, credentials: Any, metrics: BrokerMetrics) -> AsyncIterator[Stub]:
    service = AdminService(cluster=cluster, calls=GrpcCalls(credentials, metrics), region_name=REGIONS.__getitem__)
    listener = GrpcListener([service.handler()], host="127.0.0.1", port=0)
    port = await listener.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.enable_http_proxy", 0),)) as channel:
        yield Stub(channel)
    await listener.close()


async def refusal(call: Any) -> tuple[str, dict[str, str]]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, dict(caught.value.trailing_metadata())


async def test_a_topic_is_created_listed_described_and_deleted(cluster: Any, admin: Stub) -> None:
    created = await admin.create(admin_pb2.CreateTopicRequest(name="orders", partitions=2))
    assert (created.name, created.partitions, created.homes, created.home) == ("orders", 2, admin_pb2.HOMES_ONE, "us")
    assert created.topic_id == cluster.views["orders"].topic_id
    assert (created.retention_ms, created.retention_bytes) == (-1, -1)
    listed = (await admin.list(admin_pb2.ListTopicsRequest())).topics
    assert [(topic.name, len(topic.partition_states)) for topic in listed] == [("orders", 0)]
    assert await admin.describe(admin_pb2.DescribeTopicRequest(name="orders")) == created
    await admin.delete(admin_pb2.DeleteTopicRequest(name="orders"))
    assert not cluster.views


async def test_a_description_has_leaders_replicas_and_the_bounds_of_hosted_partitions(
    cluster: Any, admin: Stub
) -> None:
    cluster.add_topic("orders", 2)
    cluster.stream("orders", 0).add(b"a", b"b")
    del cluster.streams["orders", 1]
    hosted, other = (await admin.describe(admin_pb2.DescribeTopicRequest(name="orders"))).partition_states
    assert (hosted.partition, hosted.leader, list(hosted.replicas), hosted.epoch) == (0, 1001, [1001], 1)
    assert (hosted.log_start, hosted.high_watermark) == (0, 2)
    assert hosted.HasField("log_start")  # 0, and known to be 0
    assert (other.partition, list(other.replicas)) == (1, [1001])
    assert not any(other.HasField(field) for field in ("leader", "log_start", "high_watermark"))


async def test_names_of_a_topic_at_home_everywhere_tell_their_regions(cluster: Any, admin: Stub) -> None:
    for name, mirror_of in (("clicks", ""), ("us.clicks", "clicks"), ("eu.clicks", "clicks")):
        cluster.add_topic(name, homes=Homes.EVERY, mirror_of=mirror_of)
    topics = (await admin.list(admin_pb2.ListTopicsRequest())).topics
    assert {topic.homes for topic in topics} == {admin_pb2.HOMES_EVERY}
    assert [(topic.name, topic.home, topic.is_mirror_name) for topic in topics] == [
        ("clicks", "us", False),
        ("us.clicks", "us", False),
        ("eu.clicks", "eu", True),
    ]


def test_what_is_absent_is_the_default_and_what_is_given_is_taken() -> None:
    assert spec_of(admin_pb2.CreateTopicRequest(name="a")) == TopicSpec(name="a")
    given = admin_pb2.CreateTopicRequest(
        name="a", partitions=7, replication_factor=2, homes=admin_pb2.HOMES_EVERY, retention_ms=0, retention_bytes=5
    )
    assert spec_of(given) == TopicSpec(
        name="a", partitions=7, replication_factor=2, homes=Homes.EVERY, retention_ms=0, retention_bytes=5
    )
    assert spec_of(admin_pb2.CreateTopicRequest(name="a", homes=admin_pb2.HOMES_ONE, home="eu")).home == "eu"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "name"),
        ({"name": "a", "partitions": 0}, "partitions: must be in 1..1000"),
        ({"name": "a", "partitions": 1001}, "partitions"),
        ({"name": "a", "replication_factor": -1}, "replication_factor: must be in 1..999"),
        ({"name": "a", "retention_ms": -2}, "retention_ms"),
        ({"name": "a", "retention_bytes": -2}, "retention_bytes"),
        ({"name": "a", "homes": 3}, "homes: 3 is unknown"),
    ],
)
async def test_a_bad_topic_is_refused_with_the_name_of_its_field(
    cluster: Any, admin: Stub, fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
        await admin.create(admin_pb2.CreateTopicRequest(**fields))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not cluster.views


async def test_errors_have_the_status_and_the_metadata_of_their_row(
    cluster: Any, admin: Stub, metrics: BrokerMetrics
) -> None:
    cluster.add_topic("orders")
    create = admin_pb2.CreateTopicRequest(name="orders")
    assert (await refusal(admin.create(create)))[0] == "ALREADY_EXISTS"
    assert (await refusal(admin.describe(admin_pb2.DescribeTopicRequest(name="x"))))[0] == "NOT_FOUND"
    assert (await refusal(admin.delete(admin_pb2.DeleteTopicRequest(name="x"))))[0] == "NOT_FOUND"
    assert (await refusal(admin.delete(admin_pb2.DeleteTopicRequest())))[0] == "INVALID_ARGUMENT"
    cluster.create_errors += [HomeUnreachable("no home"), OutcomeUnknown("lost")]
    for status, code, outcome in (
        ("UNAVAILABLE", "HOME_UNREACHABLE", "not_stored"),
        ("DEADLINE_EXCEEDED", "OUTCOME_UNKNOWN", "unknown"),
    ):
        name, trailing = await refusal(admin.create(create))
        assert (name, trailing["georelay-code"], trailing["georelay-outcome"]) == (status, code, outcome)
    counted = metrics.edge_requests.labels("grpc", "create_topic", "OUTCOME_UNKNOWN")
    assert counted._value.get() == 1


async def test_a_defect_is_internal_and_its_text_stays_in_the_log(cluster: Any, admin: Stub) -> None:
    cluster.topics = None
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await admin.list(admin_pb2.ListTopicsRequest())
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "NoneType" not in str(caught.value.details())


@pytest.mark.parametrize("password", [None, "wrong"])
async def test_with_users_nothing_is_answered_without_credentials(
    cluster: Any, credentials: Any, admin: Stub, password: str | None
) -> None:
    credentials.users["ann"] = "secret"
    metadata = () if password is None else (("authorization", header("ann", password)),)
    cluster.add_topic("orders")
    for call in (
        admin.create(admin_pb2.CreateTopicRequest(name="new"), metadata=metadata),
        admin.describe(admin_pb2.DescribeTopicRequest(name="orders"), metadata=metadata),
        admin.list(admin_pb2.ListTopicsRequest(), metadata=metadata),
        admin.delete(admin_pb2.DeleteTopicRequest(name="orders"), metadata=metadata),
    ):
        assert (await refusal(call))[0] == "UNAUTHENTICATED"
    assert list(cluster.views) == ["orders"]
    good = (("authorization", header("ann", "secret")),)
    assert len((await admin.list(admin_pb2.ListTopicsRequest(), metadata=good)).topics) == 1


def header(user: str, password: str) -> str:
    return "basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
