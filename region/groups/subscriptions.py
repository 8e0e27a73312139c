"""What members of a consumer group subscribe to and are assigned, read from the bytes that they brought."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from georelay.errors import BadRequest
from georelay.wire.consumer_protocol import decode_assignment, decode_subscription

CONSUMER: Final = "consumer"  # the protocol type of consumers; others (Kafka Connect's) have bytes of their own


def subscribed_topics(protocol_type: str | None, metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Return the names that members subscribe to, None when that cannot be read: then any may be."""
    if protocol_type != CONSUMER:
        return None
    names: set[str] = set()
    for raw in metadata:
        try:
            names.update(decode_subscription(raw).topics)
        except BadRequest:
            return None
    return frozenset(names)


def assigned_partitions(protocol_type: str | None, assignment: bytes) -> dict[str, tuple[int, ...]]:
    """Return topic -> partitions of one member; {} when that cannot be read, or nothing is assigned."""
    if protocol_type != CONSUMER or not assignment:
        return {}
    try:
        return dict(decode_assignment(assignment))
    except BadRequest:
        return {}
