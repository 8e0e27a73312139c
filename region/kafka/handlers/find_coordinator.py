"""FindCoordinator: which broker keeps the state of a group or of a transactional id.

Rule 1: the first one who asks makes the coordinators; until one leads, the answer is COORDINATOR_NOT_AVAILABLE, which
        every client asks again.
Rule 2: where the region's coordinators were moved to another region, the answer is a broker there.
Rule 3: librdkafka takes this API as the sign that a broker reads lz4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from georelay.errors import CoordinatorUnavailable
from georelay.wire.api import ErrorCode
from georelay.wire.group_membership import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from region.coordination.part import Part
from region.kafka.connection import Slot
from region.kafka.error_map import kafka_code
from region.kafka.services import KafkaServices
from region.security.access import Operation, Principal, Resource

KEYS_MAX: Final = 1_000  # of one request
WAIT_S: Final = 1.0  # for a leader: shorter than clients wait, longer than an election
BATCH_SINCE: Final = 4  # version from which one request asks for many keys
_RESOURCES: Final = {0: Resource.GROUP, 1: Resource.TRANSACTIONAL_ID}
_PARTS: Final = {0: Part.GROUPS, 1: Part.TRANSACTIONS}


class FindCoordinatorHandler:
    """Answers FindCoordinator."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services

    def handle(self, slot: Slot, request: FindCoordinatorRequest) -> None:
        """Answer at once where every leader is known, else wait a moment for them."""
        is_batch = slot.api_version >= BATCH_SINCE
        keys = list(request.coordinator_keys) if is_batch else [request.key]
        found = self._find(slot.connection.principal, request.key_type, keys)
        if any(row.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE for row in found):
            slot.spawn(self._wait(slot.connection.principal, request.key_type, keys, is_batch=is_batch))
        else:
            slot.answer(_response(found, is_batch=is_batch))

    async def _wait(
        self, principal: Principal, key_type: int, keys: Sequence[str], *, is_batch: bool
    ) -> FindCoordinatorResponse:
        coordinators = self._services.coordinators
        part = _PARTS.get(key_type, Part.GROUPS)
        with suppress(TimeoutError, CoordinatorUnavailable):  # what is known by then is answered
            async with asyncio.timeout(WAIT_S):
                await asyncio.gather(*(coordinators.ready(key, part) for key in keys[:KEYS_MAX]))
        return _response(self._find(principal, key_type, keys), is_batch=is_batch)

    def _find(self, principal: Principal, key_type: int, keys: Sequence[str]) -> list[Coordinator]:
        if len(keys) > KEYS_MAX:
            return [_refused(key, ErrorCode.INVALID_REQUEST, f"ask for at most {KEYS_MAX} at once") for key in keys]
        brokers = {row.id: row for row in self._services.cluster.brokers()}
        rows = []
        for key in keys:
            refusal = self._refusal(principal, key_type, key)
            if refusal is not None:
                rows.append(refusal)
                continue
            leader = self._services.coordinators.leader_of(key, _PARTS[key_type])
            here, elsewhere = brokers.get(leader), self._services.coordinators.elsewhere(leader)
            if here is not None:
                rows.append(Coordinator(key=key, node_id=leader, host=here.kafka_host, port=here.kafka_port))
            elif elsewhere is not None:
                rows.append(Coordinator(key=key, node_id=leader, host=elsewhere.kafka_host, port=elsewhere.kafka_port))
            else:
                text = "no broker is the coordinator at the moment"
                rows.append(_refused(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, text))
        return rows

    def _refusal(self, principal: Principal, key_type: int, key: str) -> Coordinator | None:
        resource = _RESOURCES.get(key_type)
        if resource is None:
            return _refused(key, ErrorCode.INVALID_REQUEST, f"coordinators of type {key_type} are not served")
        if not key:
            code = ErrorCode.INVALID_GROUP_ID if resource is Resource.GROUP else ErrorCode.INVALID_REQUEST
            return _refused(key, code, "the name is empty")
        denied = self._services.access.refusal(principal, Operation.DESCRIBE, resource, key)
        return None if denied is None else _refused(key, kafka_code(denied), str(denied))


def _refused(key: str, code: ErrorCode, text: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=text)


def _response(found: Sequence[Coordinator], *, is_batch: bool) -> FindCoordinatorResponse:
    if is_batch:
        return FindCoordinatorResponse(coordinators=found)
    row = found[0]
    return FindCoordinatorResponse(
        error_code=row.error_code, error_message=row.error_message, node_id=row.node_id, host=row.host, port=row.port
    )
