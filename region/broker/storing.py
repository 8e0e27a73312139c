"""Storing one batch at the leader of its home, for clients here and for brokers that forward it.

Rule: what a publish waits for is decided before it is stored, and in this order: its level may be refused, then its
bindings, then the stream decides.
"""

from __future__ import annotations

import asyncio

from georelay.durability import GEO_REGIONS_MIN
from georelay.errors import PolicyViolation
from region.kafka.ports import Publish, Published
from region.routing.router import Routing
from region.topics.hosted_stream import HostedStream


def store(stream: HostedStream, publish: Publish, routing: Routing | None) -> asyncio.Future[Published]:
    """Append one batch; the future resolves when its copies are made and its level is reached, or pending.

    Raises:
        PolicyViolation, NotEnoughRegions: the level cannot be given. Others as Stream.publish: not stored.
    """
    geo, level, header = stream.geo, publish.level, publish.header
    if geo is None and level.is_geo:
        raise PolicyViolation(f"{level.durability}: nobody here counts the regions that have {stream.topic}")
    admission = None if geo is None else geo.admit(level)
    copies = None if routing is None else routing.admit(stream, header)
    if admission is not None and admission.level >= GEO_REGIONS_MIN:
        publish = publish._replace(needs_lease=False)
    stored = stream.held.publish(publish)
    if routing is not None and copies is not None:
        stored = routing.gate(copies, header, stored)
    return stored if geo is None or admission is None else geo.gate(admission, stored, header.record_count)
