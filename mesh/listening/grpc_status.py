"""With which status of gRPC an error leaves, at a broker and at a gateway (docs/errors.md)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from georelay import errors
from georelay.errors import GeorelayError

GRPC_STATUS: Final[Mapping[type[GeorelayError], str]] = MappingProxyType(
    {
        errors.BadRequest: "INVALID_ARGUMENT",
        errors.CorruptRecordBatch: "INVALID_ARGUMENT",
        errors.TooLarge: "INVALID_ARGUMENT",
        errors.InvalidTopic: "INVALID_ARGUMENT",
        errors.Unauthenticated: "UNAUTHENTICATED",
        errors.AccessDenied: "PERMISSION_DENIED",
        errors.PolicyViolation: "PERMISSION_DENIED",
        errors.UnknownTopic: "NOT_FOUND",
        errors.TopicExists: "ALREADY_EXISTS",
        errors.UnknownGroup: "NOT_FOUND",
        errors.GroupNotEmpty: "FAILED_PRECONDITION",
        errors.UnknownQueue: "NOT_FOUND",
        errors.QueueExists: "ALREADY_EXISTS",
        errors.LeaseExpired: "ABORTED",
        errors.UnknownBinding: "NOT_FOUND",
        errors.OffsetOutOfRange: "OUT_OF_RANGE",
        errors.TracesExpired: "OUT_OF_RANGE",
        errors.OutOfOrderSequence: "ABORTED",
        errors.ProducerFenced: "ABORTED",
        errors.ConcurrentTransactions: "UNAVAILABLE",
        errors.InvalidTransactionState: "ABORTED",
        errors.UnknownTransactionalId: "NOT_FOUND",
        errors.InvalidTransactionTimeout: "INVALID_ARGUMENT",
        errors.Fenced: "ABORTED",
        errors.Busy: "RESOURCE_EXHAUSTED",
        errors.Throttled: "RESOURCE_EXHAUSTED",
        errors.DiskFull: "RESOURCE_EXHAUSTED",
        errors.NotLeader: "UNAVAILABLE",
        errors.NotCoordinator: "UNAVAILABLE",
        errors.NotHome: "UNAVAILABLE",
        errors.HomeUnreachable: "UNAVAILABLE",
        errors.ControlUnavailable: "UNAVAILABLE",
        errors.Unavailable: "UNAVAILABLE",
        errors.NotEnoughRegions: "UNAVAILABLE",
        errors.DurabilityPending: "DEADLINE_EXCEEDED",
        # gRPC documents this status as "may have completed": exactly an unknown outcome.
        errors.OutcomeUnknown: "DEADLINE_EXCEEDED",
    }
)


def grpc_status(error: GeorelayError) -> str:
    """Return the name of the gRPC status code for an error; INTERNAL for what has no row."""
    return next((GRPC_STATUS[kind] for kind in type(error).__mro__ if kind in GRPC_STATUS), "INTERNAL")
