"""DescribeClientQuotas and AlterClientQuotas (KIP-546): quotas of users for Kafka's admin clients.

Rule 1: a quota is a user's, or the default of all users (a null name); quotas of client ids are not served.
Rule 2: rates are whole bytes per second; request_percentage is percent of one core, to four digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from georelay.errors import BadRequest, GeorelayError
from georelay.wire.api import ErrorCode
from georelay.wire.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntryData,
    AlterEntryData,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
    ValueData,
)
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.services import KafkaServices
from region.security.access import Operation, Principal, Resource
from region.security.acl import EVERYBODY, USER_PREFIX
from region.security.administration import SecurityAdmin
from region.security.definition import BYTES_PER_S_MAX, SHARE_PPM_MAX, Quota

USER: Final = "user"
ENTITY_TYPES: Final = frozenset({USER, "client-id", "ip"})
EXACT: Final = 0
DEFAULT: Final = 1
SPECIFIED: Final = 2
PPM_PER_PERCENT: Final = 10_000
KEYS: Final = {  # Kafka's name -> (ours, units of ours per unit of Kafka's, maximum of ours)
    "producer_byte_rate": ("produce_bytes_per_s", 1, BYTES_PER_S_MAX),
    "consumer_byte_rate": ("fetch_bytes_per_s", 1, BYTES_PER_S_MAX),
    "request_percentage": ("request_share_ppm", PPM_PER_PERCENT, SHARE_PPM_MAX),
}
DISABLED: Final = "this broker keeps no quotas"


class QuotasHandler:
    """Answers both requests."""

    def __init__(self, services: KafkaServices) -> None:
        self._admin = services.security
        self._access = services.access

    def describe(self, slot: Slot, request: DescribeClientQuotasRequest) -> None:
        """Answer with the quotas that match."""
        if self._admin is None:
            slot.answer(_described_error(ErrorCode.SECURITY_DISABLED, DISABLED))
            return
        try:
            quotas = self._admin.quotas(slot.connection.principal)
            entries = [_entry(quota) for quota in quotas if _matches(quota, request.components)]
        except GeorelayError as error:
            slot.answer(_described_error(kafka_code(error), str(error)))
            return
        slot.answer(DescribeClientQuotasResponse(entries=entries))

    def alter(self, slot: Slot, request: AlterClientQuotasRequest) -> None:
        """Change quotas, one entity after the other; each has its own outcome."""
        if self._admin is None:
            rows = [AlteredEntryData(ErrorCode.SECURITY_DISABLED, DISABLED, entry.entity) for entry in request.entries]
            slot.answer(AlterClientQuotasResponse(entries=rows))
        else:
            slot.spawn(self._altered(self._admin, slot.connection.principal, request))

    async def _altered(
        self, admin: SecurityAdmin, principal: Principal, request: AlterClientQuotasRequest
    ) -> AlterClientQuotasResponse:
        rows = []
        for entry in request.entries:
            try:
                await self._alter(admin, principal, entry, validate_only=request.validate_only)
            except GeorelayError as error:
                rows.append(AlteredEntryData(kafka_code(error), str(error), entry.entity))
            else:
                rows.append(AlteredEntryData(entity=entry.entity))
        return AlterClientQuotasResponse(entries=rows)

    async def _alter(
        self, admin: SecurityAdmin, principal: Principal, entry: AlterEntryData, *, validate_only: bool
    ) -> None:
        self._access.check(principal, Operation.ALTER, Resource.CLUSTER)
        of = _principal_of(entry.entity)
        values = _values(entry.ops)
        if validate_only:
            return
        await admin.set_quota(
            principal,
            of,
            produce_bytes_per_s=values.get("produce_bytes_per_s"),
            fetch_bytes_per_s=values.get("fetch_bytes_per_s"),
            request_share_ppm=values.get("request_share_ppm"),
        )


def _described_error(code: ErrorCode, text: str) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=code, error_message=text, entries=None)


def _entry(quota: Quota) -> EntryData:
    name = None if quota.principal == EVERYBODY else quota.principal.removeprefix(USER_PREFIX)
    values = [
        ValueData(key, getattr(quota, ours) / units) for key, (ours, units, _) in KEYS.items() if getattr(quota, ours)
    ]
    return EntryData(entity=[EntityData(USER, name)], values=values)


def _matches(quota: Quota, components: Sequence[ComponentData]) -> bool:
    """Return whether a quota is among those asked for. Raises BadRequest."""
    is_default = quota.principal == EVERYBODY
    for component in components:
        if component.entity_type not in ENTITY_TYPES:
            raise BadRequest(f"entity type {component.entity_type[:40]!r} is unknown")
        if component.entity_type != USER:
            return False  # nothing here has a client id or an address
        if component.match_type == EXACT:
            matches = not is_default and quota.principal == f"{USER_PREFIX}{component.match}"
        elif component.match_type == DEFAULT:
            matches = is_default
        elif component.match_type == SPECIFIED:
            matches = True
        else:
            raise BadRequest(f"match type {component.match_type} is unknown")
        if not matches:
            return False
    return True


def _principal_of(entity: Sequence[EntityData]) -> str:
    if len(entity) != 1 or entity[0].entity_type != USER:
        raise BadRequest("quotas are of one user, or of the default user: client ids and addresses have none here")
    name = entity[0].entity_name
    return EVERYBODY if name is None else USER_PREFIX + name


def _values(ops: Sequence[OpData]) -> dict[str, int]:
    values: dict[str, int] = {}
    for op in ops:
        if op.key not in KEYS:
            raise BadRequest(f"quota {op.key[:40]!r} is unknown; known are {', '.join(KEYS)}")
        ours, units, high = KEYS[op.key]
        if op.remove:
            values[ours] = 0
        elif not math.isfinite(op.value) or not 1 <= op.value * units <= high:
            raise BadRequest(f"{op.key} must be in {1 / units:g}..{high // units}")
        else:
            values[ours] = round(op.value * units)
    return values
