"""Access rules: requests and responses as tables.

Field names are Kafka's (schemas DescribeAcls, CreateAcls, DeleteAcls), numbers are those of its `ResourceType`,
`PatternType` (3 is literal), `AclOperation` and `AclPermissionType`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from georelay.wire.schema import I8, I16, I32, Str, struct

LITERAL: Final = 3


@struct
class DescribeAclsRequest:
    """Show the rules that match; a null name, principal or host matches all."""

    resource_type_filter: I8
    resource_name_filter: Str | None = None
    pattern_type_filter: I8 = LITERAL
    principal_filter: Str | None = None
    host_filter: Str | None = None
    operation: I8 = 1
    permission_type: I8 = 1


@struct
class AclDescription:
    """Who may (or may not) do what, from where."""

    principal: Str
    host: Str
    operation: I8
    permission_type: I8


@struct
class DescribeAclsResource:
    """The rules of one resource or prefix."""

    resource_type: I8
    resource_name: Str
    pattern_type: I8 = LITERAL
    acls: Sequence[AclDescription] = ()


@struct
class DescribeAclsResponse:
    """Answer to DescribeAcls."""

    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Str | None = None
    resources: Sequence[DescribeAclsResource] = ()


@struct
class AclCreation:
    """One rule to add."""

    resource_type: I8
    resource_name: Str
    resource_pattern_type: I8 = LITERAL
    principal: Str = ""
    host: Str = ""
    operation: I8 = 0
    permission_type: I8 = 0


@struct
class CreateAclsRequest:
    """Add rules."""

    creations: Sequence[AclCreation] = ()


@struct
class AclCreationResult:
    """What became of one rule."""

    error_code: I16 = 0
    error_message: Str | None = None


@struct
class CreateAclsResponse:
    """One result per rule, in their order."""

    throttle_time_ms: I32 = 0
    results: Sequence[AclCreationResult] = ()


@struct
class DeleteAclsFilter:
    """Which rules to delete; as in DescribeAcls."""

    resource_type_filter: I8
    resource_name_filter: Str | None = None
    pattern_type_filter: I8 = LITERAL
    principal_filter: Str | None = None
    host_filter: Str | None = None
    operation: I8 = 1
    permission_type: I8 = 1


@struct
class DeleteAclsRequest:
    """Delete the rules that match."""

    filters: Sequence[DeleteAclsFilter] = ()


@struct
class DeleteAclsMatchingAcl:
    """One rule that matched, and whether it is gone."""

    error_code: I16
    error_message: Str | None
    resource_type: I8
    resource_name: Str
    pattern_type: I8 = LITERAL
    principal: Str = ""
    host: Str = ""
    operation: I8 = 0
    permission_type: I8 = 0


@struct
class DeleteAclsFilterResult:
    """The rules that matched one filter."""

    error_code: I16 = 0
    error_message: Str | None = None
    matching_acls: Sequence[DeleteAclsMatchingAcl] = ()


@struct
class DeleteAclsResponse:
    """One result per filter, in their order."""

    throttle_time_ms: I32 = 0
    filter_results: Sequence[DeleteAclsFilterResult] = ()
