"""Checks that Fetch, ListOffsets and OffsetForLeaderEpoch share: which stream, and does the client know its epoch."""

from __future__ import annotations

from georelay.wire.api import ErrorCode
from mesh.distance.spread_core import client_key
from region.kafka.connection import Slot
from region.kafka.ports import Cluster, Stream

NO_EPOCH = -1


def is_leaving(cluster: Cluster, slot: Slot) -> bool:
    """Return whether the client of a request is sent to another region now."""
    if not cluster.drain.is_open:
        return False
    return cluster.drain.sends(client_key(slot.header.client_id or "", slot.connection.principal.host))


def led_stream(cluster: Cluster, name: str, partition: int, *, is_leaving: bool) -> Stream | ErrorCode:
    """Return the stream if this broker leads it for a client, else the error that the client is answered.

    Args:
        is_leaving: it is sent to another region; see the function of this name.
    """
    stream = cluster.stream(name, partition)
    if stream is not None:
        is_led = stream.is_leader and not (is_leaving and _is_led_elsewhere(cluster, name, partition))
        return stream if is_led else ErrorCode.NOT_LEADER_OR_FOLLOWER
    view = cluster.topic(name)
    if view is None or not 0 <= partition < view.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NOT_LEADER_OR_FOLLOWER


def _is_led_elsewhere(cluster: Cluster, name: str, partition: int) -> bool:
    """Return whether the region that clients are sent to leads a partition as well."""
    view = cluster.topic(name)
    return view is not None and cluster.drain.leader(view, partition) is not None


def epoch_error(stream: Stream, client_epoch: int) -> ErrorCode:
    """Compare the client's home epoch with the stream's; NONE when it fits or the client knows none.

    Home epochs begin at 1: 0 is what librdkafka sends after Metadata has told it -1.
    """
    if client_epoch <= 0 or client_epoch == stream.epoch:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if client_epoch < stream.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
