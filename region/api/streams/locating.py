"""Where topics are led and which offsets they have: what a client asks before it publishes or reads."""

from __future__ import annotations

from typing import Final

from georelay._pb import streams_pb2 as pb
from georelay.errors import BadRequest, GeorelayError
from georelay.refusals import refusal_of
from region.api.publishing import Asker, require_topic
from region.api.reading import LATEST
from region.api.streams.services import StreamsServices
from region.controller.topic import Homes
from region.kafka.ports import TopicView
from region.security.access import Operation, Principal, Resource

TOPICS_MAX: Final = 1_000
PARTITIONS_MAX: Final = 1_000


async def locate(request: pb.LocateRequest, services: StreamsServices, principal: Principal) -> pb.LocateResponse:
    """Answer Locate (BadRequest: too many topics)."""
    if len(request.topics) > TOPICS_MAX:
        raise BadRequest(f"topics: {len(request.topics)} are over {TOPICS_MAX} per request")
    cluster = services.cluster
    return pb.LocateResponse(
        mesh=cluster.mesh_id,
        region=cluster.region,
        broker=cluster.broker_id,
        brokers=[pb.BrokerAddress(id=row.id, grpc=row.grpc, alive=row.alive) for row in cluster.brokers()],
        topics=[await _places(name, services, principal, create=request.create) for name in request.topics],
    )


async def _places(name: str, services: StreamsServices, principal: Principal, *, create: bool) -> pb.TopicPlaces:
    cluster = services.cluster
    try:
        services.access.check(principal, Operation.DESCRIBE, Resource.TOPIC, name)
        view = cluster.topic(name)
        if view is None and create:
            services.access.check_create_topic(principal, name)
            view = await require_topic(cluster, name, Asker(access=services.access, principal=principal))
    except GeorelayError as error:
        return pb.TopicPlaces(name=name, refusal=refusal_of(error))
    if view is None:
        text = f"topic {name!r} does not exist"
        return pb.TopicPlaces(name=name, refusal=pb.Refusal(code="UNKNOWN_TOPIC", text=text, retry="refresh"))
    return pb.TopicPlaces(
        name=name,
        topic_id=view.topic_id,
        home=_home(view, services),
        streams=list(cluster.stream_names(name)),
        leaders=[cluster.leader_of(name, partition) for partition in range(view.partitions)],
    )


def _home(view: TopicView, services: StreamsServices) -> str:
    every = view.homes is Homes.EVERY and view.name == view.definition.name
    return "" if every else services.region_name(view.home)


async def find_offsets(
    request: pb.FindOffsetsRequest, services: StreamsServices, principal: Principal
) -> pb.FindOffsetsResponse:
    """Answer FindOffsets (BadRequest: too many partitions)."""
    if len(request.partitions) > PARTITIONS_MAX:
        raise BadRequest(f"partitions: {len(request.partitions)} are over {PARTITIONS_MAX} per request")
    since_us = request.since_us if request.HasField("since_us") else None
    return pb.FindOffsetsResponse(
        found=[await _find(asked, since_us, services, principal) for asked in request.partitions]
    )


async def _find(
    asked: pb.StreamPartition, since_us: int | None, services: StreamsServices, principal: Principal
) -> pb.FoundOffset:
    try:
        services.access.check(principal, Operation.DESCRIBE, Resource.TOPIC, asked.stream)
        bounds = await services.reader.read(asked.stream, asked.partition, LATEST, max_bytes=1, wait_ms=0)
        found = pb.FoundOffset(log_start=bounds.log_start, high_watermark=bounds.high_watermark)
        if since_us is not None:
            found.first_since = await services.reader.first_offset_since(asked.stream, asked.partition, since_us)
    except GeorelayError as error:
        return pb.FoundOffset(refusal=refusal_of(error))
    return found
