"""Producer ids and transactions for clients of the native API: the same coordinators as Kafka's clients have.

Positions of a group that belong to a transaction are known to the transaction before the group hears of them: so that
its end, whoever brings it about, ends them too.
"""

from __future__ import annotations

from typing import Any, Final

from georelay._pb import streams_pb2 as pb
from georelay.errors import BadRequest
from region.api.streams.group_codes import check, error_of_code
from region.api.streams.group_source import offset_json
from region.api.streams.services import StreamsServices
from region.coordination.part import JsonObject, Part
from region.security.access import Operation, Principal, Resource

TRANSACTION_TIMEOUT_MS: Final = 60_000
TRANSACTION_TIMEOUT_MS_MAX: Final = 900_000
END_TIMEOUT_S: Final = 30.0  # markers go to every partition
NO_ID: Final = -1


class Producers:
    """InitProducer, AddToTransaction and EndTransaction."""

    def __init__(self, services: StreamsServices) -> None:
        self._services = services

    async def init(self, request: pb.InitProducerRequest, principal: Principal) -> pb.InitProducerResponse:
        """Return a producer id; with a transactional id its older producers are fenced."""
        access = self._services.access
        if not request.transactional_id:
            if not access.allows_any(principal, Operation.WRITE, Resource.TOPIC):
                access.check(principal, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER)
            return pb.InitProducerResponse(producer_id=await self._services.cluster.allocate_producer_id())
        timeout_ms = request.transaction_timeout_ms or TRANSACTION_TIMEOUT_MS
        if not 1 <= timeout_ms <= TRANSACTION_TIMEOUT_MS_MAX:
            raise BadRequest(f"transaction_timeout_ms: {timeout_ms} is outside 1..{TRANSACTION_TIMEOUT_MS_MAX}")
        body = {
            "timeout_ms": timeout_ms,
            "producer_id": request.producer_id if request.HasField("producer_id") else NO_ID,
            "producer_epoch": request.producer_epoch if request.HasField("producer_epoch") else NO_ID,
        }
        answer = await self._ask("init", request.transactional_id, body, principal)
        return pb.InitProducerResponse(producer_id=answer["producer_id"], producer_epoch=answer["producer_epoch"])

    async def add(self, request: pb.AddToTransactionRequest, principal: Principal) -> pb.AddToTransactionResponse:
        """Make partitions, and positions of a group, part of the open transaction."""
        producer = {"producer_id": request.producer_id, "producer_epoch": request.producer_epoch}
        if request.partitions:
            for at in request.partitions:
                self._services.access.check(principal, Operation.WRITE, Resource.TOPIC, at.stream)
            rows = [[at.stream, at.partition] for at in request.partitions]
            answer = await self._ask(
                "add_partitions", request.transactional_id, {**producer, "partitions": rows}, principal
            )
            for place, code in answer.get("errors", {}).items():
                raise error_of_code(int(code), f"partition {place}")
        if request.group:
            await self._add_offsets(request, producer, principal)
        return pb.AddToTransactionResponse()

    async def _add_offsets(
        self, request: pb.AddToTransactionRequest, producer: JsonObject, principal: Principal
    ) -> None:
        group = request.group
        access = self._services.access
        access.check(principal, Operation.READ, Resource.GROUP, group)
        for topic in {offset.topic for offset in request.offsets}:
            access.check(principal, Operation.READ, Resource.TOPIC, topic)
        await self._ask("add_offsets", request.transactional_id, {**producer, "group_id": group}, principal)
        verified = await self._ask("verify", request.transactional_id, {**producer, "group_id": group}, principal)
        body: dict[str, Any] = {
            **producer,
            "group": group,
            "number": verified["number"],
            "member_id": request.member_id,
            "instance_id": request.instance_id or None,
            "generation": request.generation,
            "offsets": [offset_json(offset) for offset in request.offsets],
        }
        coordinators = self._services.require_coordinators()
        answer = await coordinators.call(Part.GROUPS, group, "txn_commit", body, principal=principal.name)
        check(answer, "positions in a transaction")
        for row in answer.get("partitions", ()):
            if row["error_code"]:
                raise error_of_code(int(row["error_code"]), f"position of {row['topic']}/{row['partition']}")

    async def end(self, request: pb.EndTransactionRequest, principal: Principal) -> pb.EndTransactionResponse:
        """Commit or abort the open transaction; safe to repeat."""
        body = {
            "producer_id": request.producer_id,
            "producer_epoch": request.producer_epoch,
            "is_commit": request.commit,
        }
        await self._ask("end", request.transactional_id, body, principal, timeout_s=END_TIMEOUT_S)
        return pb.EndTransactionResponse()

    async def _ask(
        self, operation: str, name: str, body: JsonObject, principal: Principal, *, timeout_s: float = 10.0
    ) -> JsonObject:
        if not name:
            raise BadRequest("transactional_id: is empty")
        self._services.access.check(principal, Operation.WRITE, Resource.TRANSACTIONAL_ID, name)
        coordinators = self._services.require_coordinators()
        return await coordinators.call(
            Part.TRANSACTIONS,
            name,
            operation,
            {"transactional_id": name, **body},
            principal=principal.name,
            timeout_s=timeout_s,
        )
