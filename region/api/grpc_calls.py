"""What every gRPC method of a broker does around its work: sign the caller in, refuse with a status, count.

Rule 1: an error of georelay.errors leaves as the status of its row; code and outcome stand in the trailing metadata.
Rule 2: anything else is a defect: it leaves as INTERNAL, and only the log has its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn

import grpc
import structlog

from georelay import errors
from georelay.errors import GeorelayError
from region.api.metrics import BrokerMetrics
from region.kafka.ports import CredentialCheck

log = structlog.get_logger()

GRPC_STATUS: Final[Mapping[type[GeorelayError], str]] = MappingProxyType(
    {
        errors.BadRequest: "INVALID_ARGUMENT",
        errors.CorruptRecordBatch: "INVALID_ARGUMENT",
        errors.TooLarge: "INVALID_ARGUMENT",
        errors.InvalidTopic: "INVALID_ARGUMENT",
        errors.Unauthenticated: "UNAUTHENTICATED",
        errors.PolicyViolation: "PERMISSION_DENIED",
        errors.UnknownTopic: "NOT_FOUND",
        errors.TopicExists: "ALREADY_EXISTS",
        errors.OffsetOutOfRange: "OUT_OF_RANGE",
        errors.OutOfOrderSequence: "ABORTED",
        errors.ProducerFenced: "ABORTED",
        errors.Fenced: "ABORTED",
        errors.Busy: "RESOURCE_EXHAUSTED",
        errors.DiskFull: "RESOURCE_EXHAUSTED",
        errors.NotLeader: "UNAVAILABLE",
        errors.NotHome: "UNAVAILABLE",
        errors.HomeUnreachable: "UNAVAILABLE",
        errors.Unavailable: "UNAVAILABLE",
        # gRPC documents this status as "may have completed": exactly an unknown outcome.
        errors.OutcomeUnknown: "DEADLINE_EXCEEDED",
    }
)


def grpc_status(error: GeorelayError) -> str:
    """Return the name of the gRPC status code for an error; INTERNAL for what has no row."""
    return next((GRPC_STATUS[kind] for kind in type(error).__mro__ if kind in GRPC_STATUS), "INTERNAL")


class GrpcCalls:
    """Shared by the services of one listener; `method` is the label of georelay_edge_requests."""

    def __init__(self, credentials: CredentialCheck, metrics: BrokerMetrics) -> None:
        self._credentials = credentials
        self._requests = metrics.edge_requests

    async def sign_in(self, context: Any) -> None:
        """Check the credentials of a call (Unauthenticated: missing or wrong, though users are set)."""
        if not self._credentials.required:
            return
        metadata = {key.lower(): value for key, value in context.invocation_metadata() or ()}
        await self._credentials.authenticate_header(metadata.get("authorization"))

    def served(self, method: str) -> None:
        """Count a call that went well."""
        self._requests.labels("grpc", method, "OK").inc()

    async def refuse(self, context: Any, method: str, error: GeorelayError) -> NoReturn:
        """End a call with the status of `error`."""
        self._requests.labels("grpc", method, error.code).inc()
        trailers = (("georelay-code", error.code), ("georelay-outcome", error.outcome.value))
        await context.abort(getattr(grpc.StatusCode, grpc_status(error)), str(error), trailers)
        raise error  # abort has raised already; this says so to the type checker

    async def refuse_defect(self, context: Any, method: str) -> NoReturn:
        """End a call that met a defect of ours; called while the exception is handled."""
        log.exception("grpc_call.broke", method=method)
        await self.refuse(context, method, GeorelayError("internal error; the broker's log has the cause"))
