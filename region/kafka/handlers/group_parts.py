"""Where a request about a group is answered, and whether this client may ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from georelay.errors import GeorelayError
from georelay.wire.api import ErrorCode
from region.coordination.part import Part
from region.groups.part import GroupsPart
from region.groups.settings import GROUP_ID_CHARS_MAX
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.services import KafkaServices
from region.security.access import Operation, Resource

LOADING: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def part_for(
    services: KafkaServices, slot: Slot, operation: Operation, group_id: str, *, may_be_unnamed: bool = False
) -> GroupsPart | ErrorCode:
    """Return the part that answers for a group, else what the client is answered.

    Args:
        may_be_unnamed: offsets may be kept under the empty group id; nobody can be a member of it.
    """
    refused = services.access.refusal(slot.connection.principal, operation, Resource.GROUP, group_id)
    if refused is not None:
        return kafka_code(refused)
    if len(group_id) > GROUP_ID_CHARS_MAX or not (group_id or may_be_unnamed):
        return ErrorCode.INVALID_GROUP_ID
    try:
        part = services.coordinators.part_here(group_id, Part.GROUPS)
    except GeorelayError as error:
        return kafka_code(error)
    assert isinstance(part, GroupsPart)
    return part


def parts_here(services: KafkaServices) -> Iterator[GroupsPart]:
    """Return the parts that this broker leads."""
    for part in services.coordinators.parts_here(Part.GROUPS):
        assert isinstance(part, GroupsPart)
        yield part
