"""ListGroups, DescribeGroups and DeleteGroups.

Rule 1: a broker lists the groups that it coordinates; clients ask every broker and put the lists together.
Rule 2: of groups that a client may not describe it learns nothing.
Rule 3: a group that nobody knows is described as Dead, as Kafka does.
Rule 4: a coordinator that was just elected, or made by this very client's question, is waited for a moment: operators'
        clients take "loading" for an answer and do not ask again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from georelay.wire.api import ErrorCode
from georelay.wire.group_admin import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from georelay.wire.responses import NO_OPERATIONS
from region.groups.group_core import Group, GroupState
from region.groups.part import GroupsPart
from region.kafka.connection import Slot
from region.kafka.handlers.group_parts import LOADING, part_for, parts_here
from region.kafka.services import KafkaServices
from region.security.access import DONE, Operation, Resource

GROUPS_PER_REQUEST_MAX: Final = 1_000
LOADING_WAIT_S: Final = 2.0
LOADING_LOOK_S: Final = 0.02


class GroupAdminHandler:
    """Answers what operators ask."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services

    def list_groups(self, slot: Slot, request: ListGroupsRequest) -> None:
        """Answer with the groups that this broker coordinates and the client may describe."""
        access, principal = self._services.access, slot.connection.principal
        sees_all = access.allows(principal, Operation.DESCRIBE, Resource.CLUSTER)
        states = {state.lower() for state in request.states_filter}
        groups = [
            ListedGroup(
                group_id=live.group.group_id,
                protocol_type=live.group.protocol_type or "",
                group_state=live.group.state.value,
            )
            for part in parts_here(self._services)
            for live in part.groups()
            if (not states or live.group.state.value.lower() in states)
            and (sees_all or access.allows(principal, Operation.DESCRIBE, Resource.GROUP, live.group.group_id))
        ]
        slot.answer(ListGroupsResponse(groups=groups))

    def describe(self, slot: Slot, request: DescribeGroupsRequest) -> None:
        """Answer with groups and members."""
        wanted = list(dict.fromkeys(request.groups))[:GROUPS_PER_REQUEST_MAX]
        slot.spawn(self._describe(slot, wanted, with_operations=request.include_authorized_operations))

    async def _describe(self, slot: Slot, group_ids: list[str], *, with_operations: bool) -> DescribeGroupsResponse:
        rows = [
            self._described(
                slot, group_id, await self._part(slot, Operation.DESCRIBE, group_id), with_operations=with_operations
            )
            for group_id in group_ids
        ]
        return DescribeGroupsResponse(groups=rows)

    async def _part(self, slot: Slot, operation: Operation, group_id: str) -> GroupsPart | ErrorCode:
        loop = asyncio.get_running_loop()
        until = loop.time() + LOADING_WAIT_S
        while True:
            part = part_for(self._services, slot, operation, group_id, may_be_unnamed=True)
            if part is not LOADING or loop.time() >= until:
                return part
            await asyncio.sleep(LOADING_LOOK_S)

    def _described(
        self, slot: Slot, group_id: str, part: GroupsPart | ErrorCode, *, with_operations: bool
    ) -> DescribedGroup:
        if isinstance(part, ErrorCode):
            return DescribedGroup(error_code=part, group_id=group_id)
        operations = NO_OPERATIONS
        if with_operations:
            principal = slot.connection.principal
            operations = self._services.access.authorized_operations(principal, Resource.GROUP, group_id)
        group = part.group(group_id)
        if group is None:
            return DescribedGroup(
                error_code=ErrorCode.NONE,
                group_id=group_id,
                group_state=GroupState.DEAD.value,
                authorized_operations=operations,
            )
        return DescribedGroup(
            error_code=ErrorCode.NONE,
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol or "") if group.state is GroupState.STABLE else "",
            members=_members(group),
            authorized_operations=operations,
        )

    def delete(self, slot: Slot, request: DeleteGroupsRequest) -> None:
        """Delete groups without members."""
        slot.spawn(self._delete(slot, list(dict.fromkeys(request.groups_names))[:GROUPS_PER_REQUEST_MAX]))

    async def _delete(self, slot: Slot, group_ids: list[str]) -> DeleteGroupsResponse:
        codes = await asyncio.gather(*(self._delete_one(slot, group_id) for group_id in group_ids))
        return DeleteGroupsResponse(
            results=[
                DeletableGroupResult(group_id=group_id, error_code=code)
                for group_id, code in zip(group_ids, codes, strict=True)
            ]
        )

    async def _delete_one(self, slot: Slot, group_id: str) -> ErrorCode:
        part = await self._part(slot, Operation.DELETE, group_id)
        if isinstance(part, ErrorCode):
            return part
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        part.delete(group_id, lambda code: None if done.done() else done.set_result(code))
        code = await done
        outcome = DONE if code is ErrorCode.NONE else code.name
        self._services.access.note(slot.connection.principal, "group.deleted", outcome=outcome, group=group_id)
        return code


def _members(group: Group) -> list[DescribedGroupMember]:
    """Return the members; metadata and assignments only while they belong to one generation, as Kafka does."""
    is_stable = group.state is GroupState.STABLE
    return [
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata_for(group.protocol) if is_stable else b"",
            member_assignment=member.assignment if is_stable else b"",
        )
        for member in group.members
    ]
