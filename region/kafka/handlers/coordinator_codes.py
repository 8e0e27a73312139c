"""Kafka's codes for errors of coordinators: other ones than for partitions make a client ask again, or elsewhere."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from georelay import errors
from georelay.errors import GeorelayError, ProducerFenced
from georelay.wire.api import ErrorCode
from region.kafka.error_map import kafka_code

FENCED_SINCE: Final = 2  # version from which most APIs of transactions tell PRODUCER_FENCED (KIP-588)
_AGAIN: Final = (errors.OutcomeUnknown, errors.Busy, errors.DiskFull, errors.HomeUnreachable)
_BY_CODE: Final = MappingProxyType(
    {
        kind.code: kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, GeorelayError) and kind is not GeorelayError
    }
)


def coordinator_code(error: GeorelayError, *, version: int = 0, fenced_since: int = FENCED_SINCE) -> ErrorCode:
    """Return the code of an error; older versions of an API know only one code for a fenced producer."""
    if isinstance(error, ProducerFenced) and version >= fenced_since:
        return ErrorCode.PRODUCER_FENCED
    if isinstance(error, errors.NotLeader):
        return ErrorCode.NOT_COORDINATOR
    if isinstance(error, _AGAIN) or type(error) is errors.Unavailable:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return kafka_code(error)


def named_code(name: str | None) -> ErrorCode:
    """Return the code of an error that another broker told by its name, NONE for None."""
    if name is None:
        return ErrorCode.NONE
    kind = _BY_CODE.get(name)
    return ErrorCode.UNKNOWN_SERVER_ERROR if kind is None else kafka_code(kind(""))
