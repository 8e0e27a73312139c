"""Resolve: which regions have a record now, or by a deadline, asked in any region and answered by its home."""

from __future__ import annotations

from typing import Final

from georelay._pb import streams_pb2 as pb
from georelay.durability import Durability
from georelay.errors import BadRequest
from region.api.streams.services import StreamsServices
from region.security.access import Operation, Principal, Resource

DEADLINE_MS_MAX: Final = 30_000


async def resolve(request: pb.ResolveRequest, services: StreamsServices, principal: Principal) -> pb.ResolveResponse:
    """Answer Resolve (BadRequest: a field that is out of range; others as region.kafka.ports Cluster.resolve)."""
    services.access.check(principal, Operation.DESCRIBE, Resource.TOPIC, request.topic)
    if request.offset < 0 or request.epoch < 0 or request.partition < 0:
        raise BadRequest("partition, epoch and offset: must not be negative")
    if not 0 <= request.deadline_ms <= DEADLINE_MS_MAX:
        raise BadRequest(f"deadline_ms: {request.deadline_ms} is outside 0..{DEADLINE_MS_MAX}")
    is_geo = request.level == pb.LEVEL_GEO
    resolved = await services.cluster.resolve(
        request.topic,
        request.partition,
        epoch=request.epoch,
        offset=request.offset,
        durability=Durability.of_wire(request.regions) if is_geo else Durability.REGION,
        wait_ms=request.deadline_ms,
    )
    holders = resolved.holders
    outcome = pb.OUTCOME_NOT_STORED if holders.is_lost else pb.OUTCOME_PENDING
    return pb.ResolveResponse(
        outcome=pb.OUTCOME_STORED if resolved.is_reached else outcome,
        level=pb.LEVEL_GEO if holders.level > 1 else pb.LEVEL_REGION,
        regions=[services.region_name(region) for region in holders.regions],
        regions_count=holders.level,
        epoch=holders.epoch,
    )
