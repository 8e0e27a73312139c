"""Kafka's error numbers in the answers of the group coordinator, as errors of georelay."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from georelay import errors
from georelay.errors import GeorelayError
from georelay.wire.api import ErrorCode

_ERROR: Final[Mapping[int, type[GeorelayError]]] = MappingProxyType(
    {
        ErrorCode.ILLEGAL_GENERATION: errors.Fenced,
        ErrorCode.UNKNOWN_MEMBER_ID: errors.Fenced,
        ErrorCode.FENCED_INSTANCE_ID: errors.Fenced,
        ErrorCode.REBALANCE_IN_PROGRESS: errors.Fenced,
        ErrorCode.COORDINATOR_NOT_AVAILABLE: errors.Unavailable,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: errors.Unavailable,
        ErrorCode.NOT_COORDINATOR: errors.Unavailable,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: errors.UnknownTopic,
        ErrorCode.INVALID_PRODUCER_EPOCH: errors.ProducerFenced,
    }
)
_TEXT: Final[Mapping[int, str]] = MappingProxyType(
    {
        ErrorCode.ILLEGAL_GENERATION: "the group has rebalanced since this member's assignment",
        ErrorCode.UNKNOWN_MEMBER_ID: "the group does not know this member any more: it was silent for too long",
        ErrorCode.FENCED_INSTANCE_ID: "another member has joined with this instance id",
        ErrorCode.REBALANCE_IN_PROGRESS: "the group rebalances",
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the members have no assignor in common",
    }
)


def error_of_code(code: int, what: str) -> GeorelayError:
    """Return the error for a code other than 0; `what` was asked of the group."""
    name = ErrorCode(code).name if code in ErrorCode._value2member_map_ else str(code)
    kind = _ERROR.get(code, errors.BadRequest)
    return kind(f"{what}: {_TEXT.get(code, 'refused by the coordinator')} ({name})")


def check(answer: Mapping[str, Any], what: str) -> None:
    """Raise the error of an operation's answer, if it has one."""
    if answer.get("error_code"):
        raise error_of_code(int(answer["error_code"]), what)
