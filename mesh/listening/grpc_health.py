"""The standard health service `grpc.health.v1.Health` of a broker or a gateway, answered from its own readiness.

Rule 1: every service, and "" for the process, is SERVING while it is ready, as /readyz says, else NOT_SERVING.
Rule 2: nobody has to sign in: a load balancer has no credentials, and it learns one bit.
Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2

SERVICE: Final = "grpc.health.v1.Health"
WATCH_PERIOD_S: Final = 1.0
_UNKNOWN: Final = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class GrpcHealth:
    """Check, List and Watch for the services of one listener."""

    def __init__(self, services: Sequence[str], ready: Callable[[], bool]) -> None:
        self._services = frozenset((*services, ""))
        self._ready = ready

    def handler(self) -> Any:
        """Return the generic RPC handler."""
        asked, answered = health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self.check, asked, answered),
                "Watch": grpc.unary_stream_rpc_method_handler(self.watch, asked, answered),
                "List": grpc.unary_unary_rpc_method_handler(
                    self.list, health_pb2.HealthListRequest.FromString, health_pb2.HealthListResponse.SerializeToString
                ),
            },
        )

    async def check(self, request: Any, context: Any) -> Any:
        """Answer for one service (NOT_FOUND: there is none of that name)."""
        status = self._status(request.service)
        if status == _UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service[:200]!r} here")
        return health_pb2.HealthCheckResponse(status=status)

    async def list(self, _: Any, context: Any) -> Any:
        """Answer for every service."""
        return health_pb2.HealthListResponse(
            statuses={
                name: health_pb2.HealthCheckResponse(status=self._status(name)) for name in sorted(self._services)
            }
        )

    async def watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Tell the status now and whenever it changes, within a second."""
        told = None
        while True:
            status = self._status(request.service)
            if status != told:
                told = status
                yield health_pb2.HealthCheckResponse(status=status)
            await asyncio.sleep(WATCH_PERIOD_S)

    def _status(self, service: str) -> Any:
        if service not in self._services:
            return _UNKNOWN
        serving = self._ready()
        return health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
