"""Consumer groups as operators see them: requests and responses as tables.

Field names are Kafka's (schemas ListGroups, DescribeGroups, DeleteGroups).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from georelay.wire.responses import NO_OPERATIONS
from georelay.wire.schema import I16, I32, At, Bool, Bytes, Str, struct


@struct
class ListGroupsRequest:
    """Which groups does this broker coordinate? Empty filter: in any state."""

    states_filter: Annotated[Sequence[Str], At(since=4)] = ()


@struct
class ListedGroup:
    """One group."""

    group_id: Str
    protocol_type: Str = ""
    group_state: Annotated[Str, At(since=4)] = ""


@struct
class ListGroupsResponse:
    """The groups of one coordinator."""

    throttle_time_ms: Annotated[I32, At(since=1)] = 0
    error_code: I16 = 0
    groups: Sequence[ListedGroup] = ()


@struct
class DescribeGroupsRequest:
    """Show these groups."""

    groups: Sequence[Str] = ()
    include_authorized_operations: Annotated[Bool, At(since=3)] = False


@struct
class DescribedGroupMember:
    """A member, where it is, what it asked for and what it got."""

    member_id: Str
    group_instance_id: Annotated[Str | None, At(since=4, nullable=4)] = None
    client_id: Str = ""
    client_host: Str = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


@struct
class DescribedGroup:
    """A group; state "Dead" when there is none of that name."""

    error_code: I16
    group_id: Str
    group_state: Str = ""
    protocol_type: Str = ""
    protocol_data: Str = ""
    members: Sequence[DescribedGroupMember] = ()
    authorized_operations: Annotated[I32, At(since=3)] = NO_OPERATIONS


@struct
class DescribeGroupsResponse:
    """Answer to DescribeGroups."""

    throttle_time_ms: Annotated[I32, At(since=1)] = 0
    groups: Sequence[DescribedGroup] = ()


@struct
class DeleteGroupsRequest:
    """Delete groups that have no members, with their offsets."""

    groups_names: Sequence[Str] = ()


@struct
class DeletableGroupResult:
    """What became of one group."""

    group_id: Str
    error_code: I16 = 0


@struct
class DeleteGroupsResponse:
    """Answer to DeleteGroups."""

    throttle_time_ms: I32 = 0
    results: Sequence[DeletableGroupResult] = ()
