"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: members of consumer groups.

Rule 1: a join and a sync hold their slot until the group answers; there is no task for either.
Rule 2: a connection that ends removes nobody: its answers are dropped, the member's session goes on.
Rule 3: while a coordinator loads, a heartbeat is answered with NONE, as Kafka does: the member is not to blame.
"""

from __future__ import annotations

from typing import Final

from georelay.wire.api import ErrorCode
from georelay.wire.group_membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from region.groups.settings import (
    CLIENT_ID_CHARS_MAX,
    INSTANCE_ID_CHARS_MAX,
    MEMBER_ID_CHARS_MAX,
    MEMBERS_MAX,
    PROTOCOL_CHARS_MAX,
    PROTOCOLS_MAX,
    REBALANCE_TIMEOUT_MS_MIN,
)
from region.groups.values import Identity, JoinAnswer, JoinWish, SyncAnswer, SyncWish
from region.kafka.connection import Slot
from region.kafka.handlers.group_parts import LOADING, part_for
from region.kafka.services import KafkaServices
from region.security.access import Operation

REBALANCE_TIMEOUT_SINCE: Final = 1  # JoinGroup: before, the session timeout is meant
MEMBER_ID_REQUIRED_SINCE: Final = 4  # JoinGroup
NULL_PROTOCOL_SINCE: Final = 7  # JoinGroup
SKIP_ASSIGNMENT_SINCE: Final = 9  # JoinGroup
PROTOCOL_CHECKED_SINCE: Final = 5  # SyncGroup
BATCH_SINCE: Final = 3  # LeaveGroup


class GroupsHandler:
    """Answers what members send."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services

    # --- JoinGroup --------------------------------------------------------------------------------

    def join(self, slot: Slot, request: JoinGroupRequest) -> None:
        """Answer when the rebalance is over."""
        part = part_for(self._services, slot, Operation.READ, request.group_id)
        if not isinstance(part, ErrorCode) and not _is_sound(request):
            part = ErrorCode.INVALID_REQUEST
        if isinstance(part, ErrorCode):
            _answer_join(slot, JoinAnswer(error=part, member_id=request.member_id))
        else:
            part.join(
                request.group_id,
                _wish(slot, request, part.new_id()),
                lambda answer: _answer_join(slot, answer),
                principal=slot.connection.principal.name,
            )

    # --- SyncGroup --------------------------------------------------------------------------------

    def sync(self, slot: Slot, request: SyncGroupRequest) -> None:
        """Answer when the leader's assignment is stored."""
        part = part_for(self._services, slot, Operation.READ, request.group_id)
        says_protocol = request.protocol_type is not None and request.protocol_name is not None
        if isinstance(part, ErrorCode):
            _answer_sync(slot, SyncAnswer(error=part))
        elif slot.api_version >= PROTOCOL_CHECKED_SINCE and not says_protocol:
            _answer_sync(slot, SyncAnswer(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        else:
            wish = SyncWish(
                member_id=request.member_id,
                generation=request.generation_id,
                instance_id=request.group_instance_id,
                protocol_type=request.protocol_type,
                protocol=request.protocol_name,
                assignments={row.member_id: bytes(row.assignment) for row in request.assignments},
            )
            part.sync(request.group_id, wish, lambda answer: _answer_sync(slot, answer))

    # --- Heartbeat --------------------------------------------------------------------------------

    def heartbeat(self, slot: Slot, request: HeartbeatRequest) -> None:
        """Answer at once."""
        part = part_for(self._services, slot, Operation.READ, request.group_id)
        if isinstance(part, ErrorCode):
            slot.answer(HeartbeatResponse(error_code=ErrorCode.NONE if part is LOADING else part))
            return
        who = Identity(
            member_id=request.member_id, generation=request.generation_id, instance_id=request.group_instance_id
        )
        slot.answer(HeartbeatResponse(error_code=part.heartbeat(request.group_id, who)))

    # --- LeaveGroup -------------------------------------------------------------------------------

    def leave(self, slot: Slot, request: LeaveGroupRequest) -> None:
        """Answer at once; the others hear of it with their next heartbeats."""
        is_batch = slot.api_version >= BATCH_SINCE
        leaving = request.members if is_batch else (MemberIdentity(member_id=request.member_id),)
        part = part_for(self._services, slot, Operation.READ, request.group_id)
        if not isinstance(part, ErrorCode) and len(leaving) > 2 * MEMBERS_MAX:
            part = ErrorCode.INVALID_REQUEST
        if isinstance(part, ErrorCode):
            slot.answer(LeaveGroupResponse(error_code=part))
            return
        who = [Identity(member_id=row.member_id, instance_id=row.group_instance_id) for row in leaving]
        codes = part.leave(request.group_id, who)
        if not is_batch:
            slot.answer(LeaveGroupResponse(error_code=codes[0]))
            return
        members = [
            MemberResponse(member_id=row.member_id, group_instance_id=row.group_instance_id, error_code=code)
            for row, code in zip(leaving, codes, strict=True)
        ]
        slot.answer(LeaveGroupResponse(members=members))


def _is_sound(request: JoinGroupRequest) -> bool:
    return (
        len(request.member_id) <= MEMBER_ID_CHARS_MAX
        and len(request.group_instance_id or "") <= INSTANCE_ID_CHARS_MAX
        and request.group_instance_id != ""
        and len(request.protocol_type) <= PROTOCOL_CHARS_MAX
        and len(request.protocols) <= PROTOCOLS_MAX
        and all(len(row.name) <= PROTOCOL_CHARS_MAX for row in request.protocols)
    )


def _wish(slot: Slot, request: JoinGroupRequest, random_id: str) -> JoinWish:
    version = slot.api_version
    client_id = (slot.header.client_id or "")[:CLIENT_ID_CHARS_MAX]
    timeout_ms = request.rebalance_timeout_ms if version >= REBALANCE_TIMEOUT_SINCE else request.session_timeout_ms
    return JoinWish(
        member_id=request.member_id,
        new_member_id=f"{request.group_instance_id or client_id}-{random_id}",
        instance_id=request.group_instance_id,
        client_id=client_id,
        client_host=f"/{slot.connection.principal.host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=max(timeout_ms, REBALANCE_TIMEOUT_MS_MIN),
        protocol_type=request.protocol_type,
        protocols=tuple((row.name, bytes(row.metadata)) for row in request.protocols),
        needs_known_id=version >= MEMBER_ID_REQUIRED_SINCE and request.group_instance_id is None,
        can_skip_assignment=version >= SKIP_ASSIGNMENT_SINCE,
    )


def _answer_join(slot: Slot, answer: JoinAnswer) -> None:
    protocol = answer.protocol
    if protocol is None and slot.api_version < NULL_PROTOCOL_SINCE:
        protocol = ""
    members = [
        JoinGroupResponseMember(member_id=row.member_id, group_instance_id=row.instance_id, metadata=row.metadata)
        for row in answer.members
    ]
    slot.answer(
        JoinGroupResponse(
            error_code=answer.error,
            generation_id=answer.generation,
            protocol_type=answer.protocol_type,
            protocol_name=protocol,
            leader=answer.leader,
            skip_assignment=answer.skip_assignment,
            member_id=answer.member_id,
            members=members,
        )
    )


def _answer_sync(slot: Slot, answer: SyncAnswer) -> None:
    slot.answer(
        SyncGroupResponse(
            error_code=answer.error,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol,
            assignment=answer.assignment,
        )
    )
