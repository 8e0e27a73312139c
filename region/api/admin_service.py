"""The public gRPC contract `georelay.v1.Admin` (proto/georelay/v1/admin.proto): topics and brokers, as /v1 has them.

Rule 1: both doors lead to the same methods of the cluster, with the same ranges; none of them keeps a state.
Rule 2: what is not known is absent, never a number that stands for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc

from georelay._pb import admin_pb2
from georelay.errors import BadRequest, GeorelayError, UnknownTopic
from georelay.ids import BROKERS_PER_REGION_MAX
from georelay.limits import ADMIN_BODY_BYTES_MAX, PARTITIONS_PER_TOPIC_MAX
from mesh.listening.bounded_messages import reader_of
from region.api.brokers_http import check_broker_id, check_peers
from region.api.coordination_admin import CoordinationAdmin
from region.api.grpc_calls import GrpcCalls
from region.api.topic_changes import SETTING_OF, check_replicas, given_settings, settings_of
from region.controller.topic import DEFAULT, UNLIMITED, Homes
from region.controller.topic_settings import SEGMENT_BYTES
from region.kafka.ports import (
    BEFORE_HIGH_WATERMARK,
    BrokerStatus,
    Cluster,
    PartitionReplicas,
    TopicSpec,
    TopicView,
)
from region.security.access import Operation, Principal, Resource
from region.security.change_details import shown_before, shown_numbers, shown_settings

SERVICE: Final = "georelay.v1.Admin"
INT64_MAX: Final = 2**63 - 1
HOMES_OF: Final = {
    admin_pb2.HOMES_UNSPECIFIED: Homes.ONE,
    admin_pb2.HOMES_ONE: Homes.ONE,
    admin_pb2.HOMES_EVERY: Homes.EVERY,
}
NUMBER_OF: Final = {Homes.ONE: admin_pb2.HOMES_ONE, Homes.EVERY: admin_pb2.HOMES_EVERY}

STATE_OF: Final = {
    "active": admin_pb2.BROKER_STATE_ACTIVE,
    "draining": admin_pb2.BROKER_STATE_DRAINING,
    "drained": admin_pb2.BROKER_STATE_DRAINED,
    "absent": admin_pb2.BROKER_STATE_ABSENT,
    "removed": admin_pb2.BROKER_STATE_REMOVED,
}

Request = TypeVar("Request")
Answer = TypeVar("Answer")
_Optional = admin_pb2.CreateTopicRequest | admin_pb2.AlterTopicRequest | admin_pb2.DeleteRecordsRequest


class AdminService:
    """The methods of the contract; `handler` registers them on a grpc.aio server.

    Args:
        region_name: region number -> name.
    """

    name: Final = SERVICE

    def __init__(
        self,
        *,
        cluster: Cluster,
        calls: GrpcCalls,
        region_name: Callable[[int], str],
        coordination: CoordinationAdmin | None = None,
    ) -> None:
        """Without `coordination` there are no methods for groups and queues."""
        self._coordination = coordination
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
                "AlterTopic": self._unary("alter_topic", self._alter, admin_pb2.AlterTopicRequest),
                "DeleteRecords": self._unary("delete_records", self._delete_records, admin_pb2.DeleteRecordsRequest),
                "ReassignTopic": self._unary("reassign_topic", self._reassign, admin_pb2.ReassignTopicRequest),
                "ListBrokers": self._unary("list_brokers", self._list_brokers, admin_pb2.ListBrokersRequest),
                "AddBroker": self._unary("add_broker", self._add_broker, admin_pb2.AddBrokerRequest),
                "DrainBroker": self._unary("drain_broker", self._drain_broker, admin_pb2.DrainBrokerRequest),
                "RemoveBroker": self._unary("remove_broker", self._remove_broker, admin_pb2.RemoveBrokerRequest),
                **({} if self._coordination is None else self._coordinated(self._coordination)),
            },
        )

    def _coordinated(self, admin: CoordinationAdmin) -> dict[str, Any]:
        return {
            "ListGroups": self._unary("list_groups", admin.list_groups, admin_pb2.ListGroupsRequest),
            "DescribeGroup": self._unary("describe_group", admin.describe_group, admin_pb2.DescribeGroupRequest),
            "DeleteGroup": self._unary("delete_group", admin.delete_group, admin_pb2.DeleteGroupRequest),
            "SetGroupOffsets": self._unary("set_group_offsets", admin.set_offsets, admin_pb2.SetGroupOffsetsRequest),
            "ListQueues": self._unary("list_queues", admin.list_queues, admin_pb2.ListQueuesRequest),
            "CreateQueue": self._unary("create_queue", admin.create_queue, admin_pb2.QueueDefinition),
            "DescribeQueue": self._unary("describe_queue", admin.describe_queue, admin_pb2.DescribeQueueRequest),
            "DeleteQueue": self._unary("delete_queue", admin.delete_queue, admin_pb2.DeleteQueueRequest),
        }

    def _unary(self, method: str, work: Callable[[Request, Principal], Awaitable[Answer]], request_type: Any) -> Any:
        async def answer(request: Request, context: Any) -> Answer:
            try:
                done = await work(request, await self._calls.sign_in(context))
            except GeorelayError as error:
                await self._calls.refuse(context, method, error)
            except Exception:  # noqa: BLE001 - logged there; the caller gets INTERNAL instead of its text
                await self._calls.refuse_defect(context, method)
            self._calls.served(method)
            return done

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=reader_of(request_type, bytes_max=ADMIN_BODY_BYTES_MAX),
            response_serializer=lambda message: message.SerializeToString(),
        )

    async def _create(self, request: admin_pb2.CreateTopicRequest, principal: Principal) -> admin_pb2.Topic:
        spec = spec_of(request)
        self._calls.access.check_create_topic(principal, spec.name)
        with self._calls.access.noted(principal, "topic.created", topic=spec.name):
            view = await self._cluster.create_topic(spec, by=self._calls.access.share_of(principal))
        return await self._described(view)

    async def _delete(
        self, request: admin_pb2.DeleteTopicRequest, principal: Principal
    ) -> admin_pb2.DeleteTopicResponse:
        self._check_topic(principal, Operation.DELETE, request.name)
        with self._calls.access.noted(principal, "topic.deleted", topic=request.name):
            await self._cluster.delete_topic(_named(request.name))
        return admin_pb2.DeleteTopicResponse()

    async def _describe(self, request: admin_pb2.DescribeTopicRequest, principal: Principal) -> admin_pb2.Topic:
        self._check_topic(principal, Operation.DESCRIBE, request.name)
        return await self._described(self._view(request.name))

    async def _list(self, _: admin_pb2.ListTopicsRequest, principal: Principal) -> admin_pb2.ListTopicsResponse:
        allows = self._calls.access.allows
        shown = [v for v in self._cluster.topics() if allows(principal, Operation.DESCRIBE, Resource.TOPIC, v.name)]
        return admin_pb2.ListTopicsResponse(topics=map(self._topic, shown))

    async def _alter(self, request: admin_pb2.AlterTopicRequest, principal: Principal) -> admin_pb2.Topic:
        self._check_topic(principal, Operation.ALTER_CONFIGS, request.name)
        named = [name for name in SETTING_OF if request.HasField(name)]
        given = given_settings(request.settings)
        if not named and not given:
            raise BadRequest(f"name what changes: {', '.join(sorted(SETTING_OF))} or settings")
        values = {name: _integer(request, name, low=UNLIMITED, high=INT64_MAX, absent=UNLIMITED) for name in named}
        settings = settings_of(values) | given
        about = {"topic": request.name, "settings": shown_settings(settings)}
        with self._calls.access.noted(principal, "topic.altered", **about):
            view = await self._cluster.alter_topic(_named(request.name), settings)
        return await self._described(view)

    async def _delete_records(
        self, request: admin_pb2.DeleteRecordsRequest, principal: Principal
    ) -> admin_pb2.DeleteRecordsResponse:
        self._check_topic(principal, Operation.DELETE, request.name)
        partition = _partition_of(request.partition)
        before = _integer(request, "before", low=0, high=INT64_MAX, absent=BEFORE_HIGH_WATERMARK)
        about = {"topic": request.name, "partition": str(partition), "before": shown_before(before)}
        with self._calls.access.noted(principal, "records.deleted", **about):
            log_start = await self._cluster.delete_records(_named(request.name), partition, before)
        return admin_pb2.DeleteRecordsResponse(log_start=log_start)

    async def _reassign(self, request: admin_pb2.ReassignTopicRequest, principal: Principal) -> admin_pb2.Topic:
        self._calls.access.check(principal, Operation.ALTER, Resource.CLUSTER)
        view = self._view(request.name)
        replicas = check_replicas(list(request.replicas))
        one = request.HasField("partition")
        partitions = (_partition_of(request.partition),) if one else range(view.partitions)
        about = {"partitions": shown_numbers(partitions), "replicas": shown_numbers(replicas)}
        with self._calls.access.noted(principal, "topic.reassigned", topic=view.name, **about):
            for partition in partitions:
                await self._cluster.reassign(view.name, partition, replicas)
        return await self._described(view)

    async def _list_brokers(
        self, _: admin_pb2.ListBrokersRequest, principal: Principal
    ) -> admin_pb2.ListBrokersResponse:
        self._calls.access.check(principal, Operation.DESCRIBE, Resource.CLUSTER)
        rows = await self._cluster.brokers_status()
        return admin_pb2.ListBrokersResponse(region=self._cluster.region, brokers=map(_broker, rows))

    async def _add_broker(self, request: admin_pb2.AddBrokerRequest, principal: Principal) -> admin_pb2.Broker:
        self._calls.access.check(principal, Operation.ALTER, Resource.CLUSTER)
        broker, peers = check_broker_id(request.id), check_peers(request.peers)
        with self._calls.access.noted(principal, "broker.added", broker=str(broker), peers=peers):
            await self._cluster.add_broker(broker, peers)
        return await self._listed(request.id)

    async def _drain_broker(self, request: admin_pb2.DrainBrokerRequest, principal: Principal) -> admin_pb2.Broker:
        self._calls.access.check(principal, Operation.ALTER, Resource.CLUSTER)
        broker = check_broker_id(request.id)
        with self._calls.access.noted(principal, "broker.drained", broker=str(broker)):
            await self._cluster.drain_broker(broker)
        return await self._listed(request.id)

    async def _remove_broker(
        self, request: admin_pb2.RemoveBrokerRequest, principal: Principal
    ) -> admin_pb2.RemoveBrokerResponse:
        self._calls.access.check(principal, Operation.ALTER, Resource.CLUSTER)
        broker = check_broker_id(request.id)
        with self._calls.access.noted(principal, "broker.removed", broker=str(broker)):
            await self._cluster.remove_broker(broker)
        return admin_pb2.RemoveBrokerResponse()

    async def _listed(self, broker: int) -> admin_pb2.Broker:
        """Return the broker as it is listed now; only its id when it is not."""
        rows = await self._cluster.brokers_status()
        return next((_broker(row) for row in rows if row.id == broker), admin_pb2.Broker(id=broker))

    def _check_topic(self, principal: Principal, operation: Operation, name: str) -> None:
        self._calls.access.check(principal, operation, Resource.TOPIC, _named(name))

    def _view(self, name: str) -> TopicView:
        view = self._cluster.topic(_named(name))
        if view is None:
            raise UnknownTopic(f"topic {name!r} does not exist")
        return view

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
            segment_bytes=view.definition.segment_bytes,
            settings=view.definition.shown_settings,
        )

    async def _described(self, view: TopicView) -> admin_pb2.Topic:
        topic = self._topic(view)
        replicas = {row.partition: row for row in await self._cluster.replicas_status(view.name)}
        rows = (self._partition(view.name, index, replicas.get(index)) for index in range(view.partitions))
        topic.partition_states.extend(rows)
        return topic

    def _partition(self, name: str, index: int, status: PartitionReplicas | None) -> admin_pb2.PartitionState:
        stream = self._cluster.stream(name, index)
        return admin_pb2.PartitionState(
            partition=index,
            leader=_known(self._cluster.leader_of(name, index)),
            replicas=self._cluster.replicas_of(name, index),
            epoch=_known(self._cluster.epoch_of(name, index)),
            log_start=None if stream is None else stream.log_start,
            high_watermark=None if stream is None else stream.high_watermark,
            wanted=() if status is None else status.target,
            learners=() if status is None else status.learners,
        )


def spec_of(request: admin_pb2.CreateTopicRequest) -> TopicSpec:
    """Return the spec of a request (BadRequest: the text names the field)."""
    homes = HOMES_OF.get(request.homes)
    if homes is None:
        raise BadRequest(f"homes: {request.homes} is unknown; known are HOMES_ONE and HOMES_EVERY")
    spec = TopicSpec(
        name=_named(request.name),
        partitions=_integer(request, "partitions", low=1, high=PARTITIONS_PER_TOPIC_MAX, absent=DEFAULT),
        replication_factor=_integer(request, "replication_factor", low=1, high=BROKERS_PER_REGION_MAX, absent=DEFAULT),
        homes=homes,
        home=request.home,
        retention_ms=_integer(request, "retention_ms", low=UNLIMITED, high=INT64_MAX, absent=UNLIMITED),
        retention_bytes=_integer(request, "retention_bytes", low=UNLIMITED, high=INT64_MAX, absent=UNLIMITED),
    )
    if request.HasField("segment_bytes"):
        spec = spec.with_settings({SEGMENT_BYTES: str(request.segment_bytes)})
    return spec.with_settings(given_settings(request.settings))


def _broker(row: BrokerStatus) -> admin_pb2.Broker:
    return admin_pb2.Broker(
        id=row.id,
        state=STATE_OF.get(row.state, admin_pb2.BROKER_STATE_UNSPECIFIED),
        alive=row.alive,
        kafka=row.kafka,
        admin=row.admin,
        replicas=_known(row.replicas),
        leaders=row.leaders,
        moving=row.moving,
        detail=row.detail,
    )


def _partition_of(number: int) -> int:
    if not 0 <= number < PARTITIONS_PER_TOPIC_MAX:
        raise BadRequest(f"partition: must be in 0..{PARTITIONS_PER_TOPIC_MAX - 1}")
    return number


def _integer(request: _Optional, field: str, *, low: int, high: int, absent: int) -> int:
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
