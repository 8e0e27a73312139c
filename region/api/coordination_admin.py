"""Groups and queues in `georelay.v1.Admin`: the same operations of their coordinators as /v1/groups and /v1/queues.

Rule 1: they belong to one region: any broker of it answers, none of another region.
Rule 2: of topics that the caller may not describe nothing is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from georelay._pb import admin_pb2 as pb
from georelay.errors import BadRequest
from georelay.wire.api import ErrorCode
from region.api.group_lag import GroupLag, PartitionLag, raise_refusal
from region.coordination.coordinators import Coordinators
from region.coordination.part import JsonObject, Part
from region.kafka.ports import Cluster
from region.queues.definition import DEAD_LETTERS_SUFFIX, MAX_DELIVERIES_DEFAULT
from region.security.access import Access, Operation, Principal, Resource

OFFSETS_MAX: Final = 10_000
_QUEUE_FIELDS: Final = tuple(field.name for field in pb.QueueDefinition.DESCRIPTOR.fields if field.name != "name")


class CoordinationAdmin:
    """The methods; `AdminService` registers them."""

    def __init__(self, *, coordinators: Coordinators, cluster: Cluster, lag: GroupLag, access: Access) -> None:
        self._coordinators = coordinators
        self._cluster = cluster
        self._lag = lag
        self._access = access

    # --- groups ------------------------------------------------------------------------------------

    async def list_groups(self, request: pb.ListGroupsRequest, principal: Principal) -> pb.ListGroupsResponse:
        """Answer with the groups that the caller may describe."""
        answers = await self._coordinators.gather(Part.GROUPS, "list", {"states": list(request.states)})
        rows = sorted((row for answer in answers for row in answer["groups"]), key=lambda row: str(row["group"]))
        sees_all = self._access.allows(principal, Operation.DESCRIBE, Resource.CLUSTER)
        return pb.ListGroupsResponse(
            groups=[
                pb.Group(name=row["group"], state=row["state"], protocol_type=row["protocol_type"] or "")
                for row in rows
                if sees_all or self._access.allows(principal, Operation.DESCRIBE, Resource.GROUP, row["group"])
            ]
        )

    async def describe_group(self, request: pb.DescribeGroupRequest, principal: Principal) -> pb.Group:
        """Answer with members and lag (UnknownGroup)."""
        self._access.check(principal, Operation.DESCRIBE, Resource.GROUP, request.name)
        described, rows = await self._lag.describe(request.name)
        return pb.Group(
            name=request.name,
            state=described["state"],
            protocol_type=described["protocol_type"] or "",
            protocol=described["protocol"] or "",
            generation=described["generation"],
            members=[
                pb.GroupMember(
                    member_id=member["member_id"],
                    instance_id=member.get("instance_id") or "",
                    client_id=member.get("client_id") or "",
                    client_host=member.get("client_host") or "",
                )
                for member in described["members"]
            ],
            partitions=[
                _partition(row)
                for row in rows
                if self._access.allows(principal, Operation.DESCRIBE, Resource.TOPIC, row.topic)
            ],
        )

    async def delete_group(self, request: pb.DeleteGroupRequest, principal: Principal) -> pb.DeleteGroupResponse:
        """Delete a group without members (UnknownGroup, GroupNotEmpty)."""
        self._access.check(principal, Operation.DELETE, Resource.GROUP, request.name)
        with self._access.noted(principal, "group.deleted", group=request.name):
            answer = await self._coordinators.call(Part.GROUPS, request.name, "delete", {"group": request.name})
            raise_refusal(request.name, answer)
        return pb.DeleteGroupResponse()

    async def set_offsets(self, request: pb.SetGroupOffsetsRequest, principal: Principal) -> pb.SetGroupOffsetsResponse:
        """Set offsets of a group without members (GroupNotEmpty, UnknownTopic)."""
        self._access.check(principal, Operation.READ, Resource.GROUP, request.name)
        if not 0 < len(request.offsets) <= OFFSETS_MAX:
            raise BadRequest(f"offsets: 1..{OFFSETS_MAX}, not {len(request.offsets)}")
        for row in request.offsets:
            self._access.check(principal, Operation.READ, Resource.TOPIC, row.topic)
        offsets = [{"topic": row.topic, "partition": row.partition, "offset": row.offset} for row in request.offsets]
        body: JsonObject = {"group": request.name, "offsets": offsets}
        about = {"topics": ", ".join(sorted({row.topic for row in request.offsets})), "partitions": str(len(offsets))}
        with self._access.noted(principal, "group.offsets_set", group=request.name, **about):
            answer = await self._coordinators.call(Part.GROUPS, request.name, "reset_offsets", body)
            raise_refusal(request.name, answer)
            for row in answer["partitions"]:
                raise_refusal(request.name, {**row, "error": ErrorCode(row["error_code"]).name})
        return pb.SetGroupOffsetsResponse()

    # --- queues ------------------------------------------------------------------------------------

    async def list_queues(self, _: pb.ListQueuesRequest, principal: Principal) -> pb.ListQueuesResponse:
        """Answer with the queues that the caller may describe."""
        answers = await self._coordinators.gather(Part.QUEUES, "list", {})
        rows = sorted((row for answer in answers for row in answer["queues"]), key=lambda row: str(row["name"]))
        allows = self._access.allows
        shown = [row for row in rows if allows(principal, Operation.DESCRIBE, Resource.QUEUE, row["name"])]
        return pb.ListQueuesResponse(queues=map(_queue_state, shown))

    async def create_queue(self, request: pb.QueueDefinition, principal: Principal) -> pb.QueueDefinition:
        """Make a queue (QueueExists, UnknownTopic, BadRequest)."""
        if not request.name or not request.topic:
            raise BadRequest("queue: name and topic must not be empty")
        self._access.check(principal, Operation.CREATE, Resource.QUEUE, request.name)
        self._access.check(principal, Operation.READ, Resource.TOPIC, request.topic)
        body = {name: getattr(request, name) for name in _QUEUE_FIELDS if name == "topic" or request.HasField(name)}
        letters = body.get("dead_letter_topic")
        if letters is None and body.get("max_deliveries", MAX_DELIVERIES_DEFAULT):
            letters = f"{request.name}{DEAD_LETTERS_SUFFIX}"
        if letters:
            self._access.check(principal, Operation.WRITE, Resource.TOPIC, letters)
            if self._cluster.topic(letters) is None:
                self._access.check_create_topic(principal, letters)
        with self._access.noted(principal, "queue.created", queue=request.name, topic=request.topic):
            made = await self._ask_queue(request.name, "create", body, principal)
        return _definition(made)

    async def describe_queue(self, request: pb.DescribeQueueRequest, principal: Principal) -> pb.QueueState:
        """Answer with definition and counts (UnknownQueue)."""
        self._access.check(principal, Operation.DESCRIBE, Resource.QUEUE, request.name)
        return _queue_state(await self._ask_queue(request.name, "describe", {}, principal))

    async def delete_queue(self, request: pb.DeleteQueueRequest, principal: Principal) -> pb.DeleteQueueResponse:
        """Delete a queue (UnknownQueue)."""
        self._access.check(principal, Operation.DELETE, Resource.QUEUE, request.name)
        with self._access.noted(principal, "queue.deleted", queue=request.name):
            await self._ask_queue(request.name, "delete", {}, principal)
        return pb.DeleteQueueResponse()

    async def _ask_queue(self, name: str, operation: str, body: JsonObject, principal: Principal) -> JsonObject:
        return await self._coordinators.call(
            Part.QUEUES, name, operation, {**body, "queue": name}, principal=principal.name
        )


def _partition(row: PartitionLag) -> pb.GroupPartition:
    return pb.GroupPartition(
        topic=row.topic,
        partition=row.partition,
        committed=row.committed,
        high_watermark=row.high_watermark,
        lag=row.lag,
        member_id=row.member_id,
    )


def _definition(row: Mapping[str, Any]) -> pb.QueueDefinition:
    known = {name: row[name] for name in _QUEUE_FIELDS if row.get(name) is not None}
    return pb.QueueDefinition(name=row["name"], **known)


def _queue_state(row: Mapping[str, Any]) -> pb.QueueState:
    return pb.QueueState(definition=_definition(row), ready=row["ready"], delayed=row["delayed"], leased=row["leased"])
