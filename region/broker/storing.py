"""Storing one batch at the leader of its home, for clients here and for brokers that forward it.

Rule: what a publish waits for is decided before it is stored, and in this order: its level may be refused, then its
bindings, then the stream decides.
"""

from __future__ import annotations

import asyncio
from functools import partial

from georelay.durability import GEO_REGIONS_MIN
from georelay.errors import PolicyViolation
from georelay.wire.batch import BatchHeader
from mesh.replication.level import AskedLevel
from region.kafka.ports import Published
from region.routing.router import Routing
from region.topics.hosted_stream import HostedStream


def store(
    stream: HostedStream,
    header: BatchHeader,
    raw: bytes | bytearray | memoryview,
    *,
    received_ns: int,
    entry_region: int,
    level: AskedLevel,
    routing: Routing | None,
    transactional_id: str | None = None,
) -> asyncio.Future[Published]:
    """Append one validated batch; the future resolves when its copies are made and its level is reached, or pending.

    Raises:
        PolicyViolation, NotEnoughRegions: the level cannot be given. Others as Stream.publish: not stored.
    """
    geo = stream.geo
    if geo is None and level.is_geo:
        raise PolicyViolation(f"{level.durability}: nobody here counts the regions that have {stream.topic}")
    admission = None if geo is None else geo.admit(level)
    copies = None if routing is None else routing.admit(stream, header)
    publish = partial(
        stream.publish,
        header,
        received_ns=received_ns,
        entry_region=entry_region,
        transactional_id=transactional_id,
        needs_lease=admission is None or admission.level < GEO_REGIONS_MIN,
    )
    stored = stream.held.publish(raw, publish)
    if routing is not None and copies is not None:
        stored = routing.gate(copies, header, stored)
    return stored if geo is None or admission is None else geo.gate(admission, stored, header.record_count)
