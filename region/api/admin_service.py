"""The public gRPC contract `georelay.v1.Admin` (proto/georelay/v1/admin.proto): topics, as /v1/topics has them.

Rule 1: both doors lead to the same methods of the cluster, with the same ranges; none of them keeps a state.
Rule 2: what is not known is absent, never a number that stands for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc

from georelay.errors import BadRequest, GeorelayError, UnknownTopic
from georelay.ids import BROKERS_PER_REGION_MAX
from georelay.limits import PARTITIONS_PER_TOPIC_MAX
from region.api._pb.georelay.v1 import admin_pb2
from region.api.grpc_calls import GrpcCalls
from region.controller.topic import DEFAULT, UNLIMITED, Homes
from region.kafka.ports import Cluster, TopicSpec, TopicView

SERVICE: Final = "georelay.v1.Admin"
INT64_MAX: Final = 2**63 - 1
HOMES_OF: Final = {
    admin_pb2.HOMES_UNSPECIFIED: Homes.ONE,
    admin_pb2.HOMES_ONE: Homes.ONE,
    admin_pb2.HOMES_EVERY: Homes.EVERY,
}
NUMBER_OF: Final = {Homes.ONE: admin_pb2.HOMES_ONE, Homes.EVERY: admin_pb2.HOMES_EVERY}

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class AdminService:
    """The four methods; `handler` registers them on a grpc.aio server.

    Args:
        region_name: region number -> name.
    """

    def __init__(self, *, cluster: Cluster, calls: GrpcCalls, region_name: Callable[[int], str]) -> None:
        self._cluster = cluster
        self._calls = calls
        self._region_name = region_name

    def handler(self) -> Any:
        """Return the generic RPC handler of the service."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "CreateTopic": self._unary("create_topic", self._create, admin_pb2.CreateTopicRequest),
                "DeleteTopic": self._unary("delete_topic", self._delete, admin_pb2.DeleteTopicRequest),
                "DescribeTopic": self._unary("describe_topic", self._describe, admin_pb2.DescribeTopicRequest),
                "ListTopics": self._unary("list_topics", self._list, admin_pb2.ListTopicsRequest),
            },
        )

    def _unary(self, method: str, work: Callable[[Request], Awaitable[Answer]], request_type: Any) -> Any:
        async def answer(request: Request, context: Any) -> Answer:
            try:
                await self._calls.sign_in(context)
                done = await work(request)
            except GeorelayError as error:
                await self._calls.refuse(context, method, error)
            except Exception:  # noqa: BLE001 - logged there; the caller gets INTERNAL instead of its text
                await self._calls.refuse_defect(context, method)
            self._calls.served(method)
            return done

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=request_type.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    async def _create(self, request: admin_pb2.CreateTopicRequest) -> admin_pb2.Topic:
        return self._described(await self._cluster.create_topic(spec_of(request)))

    async def _delete(self, request: admin_pb2.DeleteTopicRequest) -> admin_pb2.DeleteTopicResponse:
        await self._cluster.delete_topic(_named(request.name))
        return admin_pb2.DeleteTopicResponse()

    async def _describe(self, request: admin_pb2.DescribeTopicRequest) -> admin_pb2.Topic:
        view = self._cluster.topic(_named(request.name))
        if view is None:
            raise UnknownTopic(f"topic {request.name!r} does not exist")
        return self._described(view)

    async def _list(self, _: admin_pb2.ListTopicsRequest) -> admin_pb2.ListTopicsResponse:
        return admin_pb2.ListTopicsResponse(topics=[self._topic(view) for view in self._cluster.topics()])

    def _topic(self, view: TopicView) -> admin_pb2.Topic:
        return admin_pb2.Topic(
            name=view.name,
            topic_id=view.topic_id,
            partitions=view.partitions,
            replication_factor=view.replication_factor,
            homes=NUMBER_OF[view.homes],
            home=self._region_name(view.home),
            is_mirror_name=view.is_mirror_name,
            retention_ms=view.definition.retention_ms,
            retention_bytes=view.definition.retention_bytes,
        )

    def _described(self, view: TopicView) -> admin_pb2.Topic:
        topic = self._topic(view)
        topic.partition_states.extend(self._partition(view.name, index) for index in range(view.partitions))
        return topic

    def _partition(self, name: str, index: int) -> admin_pb2.PartitionState:
        stream = self._cluster.stream(name, index)
        return admin_pb2.PartitionState(
            partition=index,
            leader=_known(self._cluster.leader_of(name, index)),
            replicas=self._cluster.replicas_of(name, index),
            epoch=_known(self._cluster.epoch_of(name, index)),
            log_start=None if stream is None else stream.log_start,
            high_watermark=None if stream is None else stream.high_watermark,
        )


def spec_of(request: admin_pb2.CreateTopicRequest) -> TopicSpec:
    """Return the spec of a request (BadRequest: the text names the field)."""
    homes = HOMES_OF.get(request.homes)
    if homes is None:
        raise BadRequest(f"homes: {request.homes} is unknown; known are HOMES_ONE and HOMES_EVERY")
    return TopicSpec(
        name=_named(request.name),
        partitions=_integer(request, "partitions", low=1, high=PARTITIONS_PER_TOPIC_MAX, absent=DEFAULT),
        replication_factor=_integer(request, "replication_factor", low=1, high=BROKERS_PER_REGION_MAX, absent=DEFAULT),
        homes=homes,
        home=request.home,
        retention_ms=_integer(request, "retention_ms", low=UNLIMITED, high=INT64_MAX, absent=UNLIMITED),
        retention_bytes=_integer(request, "retention_bytes", low=UNLIMITED, high=INT64_MAX, absent=UNLIMITED),
    )


def _integer(request: admin_pb2.CreateTopicRequest, field: str, *, low: int, high: int, absent: int) -> int:
    if not request.HasField(field):
        return absent
    number: int = getattr(request, field)
    if not low <= number <= high:
        raise BadRequest(f"{field}: must be in {low}..{high}, or absent for the default")
    return number


def _named(name: str) -> str:
    if not name:
        raise BadRequest("name: must not be empty")
    return name


def _known(number: int) -> int | None:
    """Return what the cluster says, None for its -1."""
    return None if number < 0 else number
