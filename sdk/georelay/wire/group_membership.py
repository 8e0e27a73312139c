"""Finding a coordinator, and joining, keeping and leaving a consumer group: requests and responses as tables.

Field names are Kafka's (schemas FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup). A member's metadata
and assignment are bytes that only members understand; no broker looks inside to decide anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from georelay.wire.schema import I8, I16, I32, At, Bool, Bytes, Str, struct


@struct
class FindCoordinatorRequest:
    """Who coordinates this group (type 0) or transactional id (type 1)? Several at once from version 4 on."""

    key: Annotated[Str, At(until=3)] = ""
    key_type: Annotated[I8, At(since=1)] = 0
    coordinator_keys: Annotated[Sequence[Str], At(since=4)] = ()


@struct
class Coordinator:
    """Where the coordinator of one key listens; -1, "" and -1 with an error."""

    key: Str
    node_id: I32 = -1
    host: Str = ""
    port: I32 = -1
    error_code: I16 = 0
    error_message: Str | None = None


@struct
class FindCoordinatorResponse:
    """One coordinator in the fields themselves (up to version 3), or one per key."""

    throttle_time_ms: Annotated[I32, At(since=1)] = 0
    error_code: Annotated[I16, At(until=3)] = 0
    error_message: Annotated[Str | None, At(since=1, until=3)] = None
    node_id: Annotated[I32, At(until=3)] = -1
    host: Annotated[Str, At(until=3)] = ""
    port: Annotated[I32, At(until=3)] = -1
    coordinators: Annotated[Sequence[Coordinator], At(since=4)] = ()


@struct
class JoinGroupRequestProtocol:
    """One way of sharing partitions that the member knows, best first, and its subscription for it."""

    name: Str
    metadata: Bytes


@struct
class JoinGroupRequest:
    """Become a member, or stay one in the next generation; "" is a member id that is not given yet."""

    group_id: Str
    session_timeout_ms: I32
    rebalance_timeout_ms: Annotated[I32, At(since=1)] = -1
    member_id: Str = ""
    group_instance_id: Annotated[Str | None, At(since=5, nullable=5)] = None
    protocol_type: Str = ""
    protocols: Sequence[JoinGroupRequestProtocol] = ()
    reason: Annotated[Str | None, At(since=8, nullable=8)] = None


@struct
class JoinGroupResponseMember:
    """A member as its leader sees it; only the leader is told of the others."""

    member_id: Str
    group_instance_id: Annotated[Str | None, At(since=5, nullable=5)] = None
    metadata: Bytes = b""


@struct
class JoinGroupResponse:
    """The generation that all members have joined; with `skip_assignment` the leader need not assign again."""

    throttle_time_ms: Annotated[I32, At(since=2)] = 0
    error_code: I16 = 0
    generation_id: I32 = -1
    protocol_type: Annotated[Str | None, At(since=7, nullable=7)] = None
    protocol_name: Annotated[Str | None, At(nullable=7)] = ""
    leader: Str = ""
    skip_assignment: Annotated[Bool, At(since=9)] = False
    member_id: Str = ""
    members: Sequence[JoinGroupResponseMember] = ()


@struct
class SyncGroupRequestAssignment:
    """What the leader gives to one member."""

    member_id: Str
    assignment: Bytes


@struct
class SyncGroupRequest:
    """Ask for one's own assignment; the leader brings everybody's."""

    group_id: Str
    generation_id: I32
    member_id: Str
    group_instance_id: Annotated[Str | None, At(since=3, nullable=3)] = None
    protocol_type: Annotated[Str | None, At(since=5, nullable=5)] = None
    protocol_name: Annotated[Str | None, At(since=5, nullable=5)] = None
    assignments: Sequence[SyncGroupRequestAssignment] = ()


@struct
class SyncGroupResponse:
    """The member's assignment."""

    throttle_time_ms: Annotated[I32, At(since=1)] = 0
    error_code: I16 = 0
    protocol_type: Annotated[Str | None, At(since=5, nullable=5)] = None
    protocol_name: Annotated[Str | None, At(since=5, nullable=5)] = None
    assignment: Bytes = b""


@struct
class HeartbeatRequest:
    """The member is alive."""

    group_id: Str
    generation_id: I32
    member_id: Str
    group_instance_id: Annotated[Str | None, At(since=3, nullable=3)] = None


@struct
class HeartbeatResponse:
    """Error 27 tells the member to join again."""

    throttle_time_ms: Annotated[I32, At(since=1)] = 0
    error_code: I16 = 0


@struct
class MemberIdentity:
    """A member that leaves, or is made to leave by its instance id."""

    member_id: Str
    group_instance_id: Annotated[Str | None, At(since=3, nullable=3)] = None
    reason: Annotated[Str | None, At(since=5, nullable=5)] = None


@struct
class LeaveGroupRequest:
    """Leave: one member up to version 2, several after."""

    group_id: Str
    member_id: Annotated[Str, At(until=2)] = ""
    members: Annotated[Sequence[MemberIdentity], At(since=3)] = ()


@struct
class MemberResponse:
    """What became of one member."""

    member_id: Str
    group_instance_id: Annotated[Str | None, At(since=3, nullable=3)] = None
    error_code: I16 = 0


@struct
class LeaveGroupResponse:
    """Answer to LeaveGroup."""

    throttle_time_ms: Annotated[I32, At(since=1)] = 0
    error_code: I16 = 0
    members: Annotated[Sequence[MemberResponse], At(since=3)] = ()
