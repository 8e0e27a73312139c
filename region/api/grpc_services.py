"""All handlers of a broker's gRPC listener: its own services, and the standard ones about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mesh.listening import grpc_health
from region.api import grpc_reflection


class Service(Protocol):
    """A service of ours. `name` is that of its contract."""

    @property
    def name(self) -> str:
        """Package and service, such as georelay.v1.Streams."""

    def handler(self) -> Any:
        """Return the generic RPC handler."""


def grpc_handlers(services: Sequence[Service], *, ready: Callable[[], bool]) -> list[Any]:
    """Return the handlers of `services`, of grpc.health.v1.Health and of reflection."""
    names = [service.name for service in services]
    return [
        *(service.handler() for service in services),
        grpc_health.GrpcHealth(names, ready).handler(),
        grpc_reflection.reflection_handler((*names, grpc_health.SERVICE)),
    ]
