"""DescribeAcls, CreateAcls, DeleteAcls (KIP-140, KIP-290): access control lists for Kafka's admin clients.

Rule 1: lists of queues have no number in Kafka's protocol: they are neither shown nor changed here.
Rule 2: every entry has its own outcome; a wrong one does not keep the others from being added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from georelay.errors import BadRequest, GeorelayError
from georelay.fields import FieldError
from georelay.wire.acls import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from georelay.wire.api import ErrorCode
from region.controller.security_wishes import BINDINGS_PER_WISH_MAX, binding_to_json, read_binding
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.services import KafkaServices
from region.security.access import Principal
from region.security.acl import KAFKA_RESOURCE, AclEntry, Operation, Pattern, Permission, Resource, ResourcePattern
from region.security.administration import Binding, SecurityAdmin
from region.security.definition import AclList

ANY: Final = 1  # of resource, pattern, operation and permission in a filter
MATCH: Final = 2  # a pattern in a filter: every list that is about the name
RESOURCES: Final = {code: resource for resource, code in KAFKA_RESOURCE.items()}
PATTERNS: Final = {pattern.value: pattern for pattern in Pattern}
OPERATIONS: Final = {operation.value: operation for operation in Operation}
PERMISSIONS: Final = {permission.value: permission for permission in Permission}
DISABLED: Final = "this broker keeps no access control lists"

_Filter = DescribeAclsRequest | DeleteAclsFilter


class AclsHandler:
    """Answers the three requests."""

    def __init__(self, services: KafkaServices) -> None:
        self._admin = services.security

    def describe(self, slot: Slot, request: DescribeAclsRequest) -> None:
        """Answer with the entries that match."""
        if self._admin is None:
            slot.answer(DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=DISABLED))
            return
        try:
            _check_filter(request)
            found = _matching(self._admin.lists(slot.connection.principal), request)
        except GeorelayError as error:
            slot.answer(DescribeAclsResponse(error_code=kafka_code(error), error_message=str(error)))
            return
        rows: dict[ResourcePattern, list[AclDescription]] = {}
        for pattern, entry in found:
            row = AclDescription(entry.principal, entry.host, entry.operation.value, entry.permission.value)
            rows.setdefault(pattern, []).append(row)
        resources = [
            DescribeAclsResource(KAFKA_RESOURCE[pattern.resource], pattern.name, pattern.pattern.value, acls)
            for pattern, acls in rows.items()
        ]
        slot.answer(DescribeAclsResponse(resources=resources))

    def create(self, slot: Slot, request: CreateAclsRequest) -> None:
        """Add entries."""
        if self._admin is None:
            result = AclCreationResult(ErrorCode.SECURITY_DISABLED, DISABLED)
            slot.answer(CreateAclsResponse(results=[result for _ in request.creations]))
        else:
            slot.spawn(self._created(self._admin, slot.connection.principal, request.creations))

    async def _created(
        self, admin: SecurityAdmin, principal: Principal, creations: Sequence[AclCreation]
    ) -> CreateAclsResponse:
        results: list[AclCreationResult | None] = []
        bindings: list[Binding] = []
        for creation in creations:
            try:
                if len(bindings) >= BINDINGS_PER_WISH_MAX:
                    raise BadRequest(f"use at most {BINDINGS_PER_WISH_MAX} entries per request")
                bindings.append(_binding(creation))
                results.append(None)
            except GeorelayError as error:
                results.append(AclCreationResult(kafka_code(error), str(error)))
        outcome = AclCreationResult()
        try:
            await admin.add_acls(principal, bindings)
        except GeorelayError as error:
            outcome = AclCreationResult(kafka_code(error), str(error))
        return CreateAclsResponse(results=[outcome if result is None else result for result in results])

    def delete(self, slot: Slot, request: DeleteAclsRequest) -> None:
        """Remove the entries that match."""
        if self._admin is None:
            result = DeleteAclsFilterResult(ErrorCode.SECURITY_DISABLED, DISABLED)
            slot.answer(DeleteAclsResponse(filter_results=[result for _ in request.filters]))
        else:
            slot.spawn(self._deleted(self._admin, slot.connection.principal, request.filters))

    async def _deleted(
        self, admin: SecurityAdmin, principal: Principal, filters: Sequence[DeleteAclsFilter]
    ) -> DeleteAclsResponse:
        results = []
        for wanted in filters:
            try:
                _check_filter(wanted)
                found = _matching(admin.lists(principal), wanted)
                for start in range(0, max(len(found), 1), BINDINGS_PER_WISH_MAX):
                    await admin.remove_acls(principal, found[start : start + BINDINGS_PER_WISH_MAX])
            except GeorelayError as error:
                results.append(DeleteAclsFilterResult(kafka_code(error), str(error)))
            else:
                results.append(DeleteAclsFilterResult(matching_acls=[_removed(*binding) for binding in found]))
        return DeleteAclsResponse(filter_results=results)


def _removed(pattern: ResourcePattern, entry: AclEntry) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=ErrorCode.NONE,
        error_message=None,
        resource_type=KAFKA_RESOURCE[pattern.resource],
        resource_name=pattern.name,
        pattern_type=pattern.pattern.value,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation.value,
        permission_type=entry.permission.value,
    )


def _binding(creation: AclCreation) -> Binding:
    """Return the entry to add. Raises BadRequest."""
    resource = RESOURCES.get(creation.resource_type)
    pattern = PATTERNS.get(creation.resource_pattern_type)
    operation, permission = OPERATIONS.get(creation.operation), PERMISSIONS.get(creation.permission_type)
    if resource is None or pattern is None or operation is None or permission is None:
        raise BadRequest("resource type, pattern type, operation or permission is none that can be added")
    entry = AclEntry(principal=creation.principal, host=creation.host, operation=operation, permission=permission)
    try:
        return read_binding(
            binding_to_json(ResourcePattern(resource=resource, name=creation.resource_name, pattern=pattern), entry)
        )
    except FieldError as error:
        raise BadRequest(str(error)) from error


def _check_filter(wanted: _Filter) -> None:
    """Raise BadRequest for a filter with numbers that mean nothing."""
    known = (
        (wanted.resource_type_filter, RESOURCES),
        (wanted.pattern_type_filter, {**PATTERNS, MATCH: None}),
        (wanted.operation, OPERATIONS),
        (wanted.permission_type, PERMISSIONS),
    )
    if any(code != ANY and code not in codes for code, codes in known):
        raise BadRequest("resource type, pattern type, operation or permission of the filter is unknown")


def _matching(lists: Sequence[AclList], wanted: _Filter) -> list[Binding]:
    return [
        (acls.pattern, entry)
        for acls in lists
        if acls.pattern.resource in KAFKA_RESOURCE and _is_about(acls.pattern, wanted)
        for entry in acls.entries
        if _is_meant(entry, wanted)
    ]


def _is_about(pattern: ResourcePattern, wanted: _Filter) -> bool:
    if wanted.resource_type_filter not in (ANY, KAFKA_RESOURCE.get(pattern.resource, Resource)):
        return False
    name, kind = wanted.resource_name_filter, wanted.pattern_type_filter
    if kind == MATCH:
        return name is None or pattern.matches(name)
    return kind in (ANY, pattern.pattern.value) and name in (None, pattern.name)


def _is_meant(entry: AclEntry, wanted: _Filter) -> bool:
    return (
        wanted.principal_filter in (None, entry.principal)
        and wanted.host_filter in (None, entry.host)
        and wanted.operation in (ANY, entry.operation.value)
        and wanted.permission_type in (ANY, entry.permission.value)
    )
