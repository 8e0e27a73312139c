"""`georelay.v1.Routes` at a broker: it ranks no regions, as its HTTP has no /v1/resolve, and says who does."""

from __future__ import annotations

from typing import Any, Final

import grpc

from georelay.errors import BadRequest
from mesh.listening.grpc_limits import trailers_of

SERVICE: Final = "georelay.v1.Routes"
WHO_DOES: Final = "a broker ranks no regions: ask a gateway, at its gRPC address or by POST /v1/resolve"


class RoutesService:
    """The service, so that reflection shows its contract; every call ends with UNIMPLEMENTED."""

    name: Final = SERVICE

    def handler(self) -> Any:
        """Return the generic RPC handler."""
        return grpc.method_handlers_generic_handler(SERVICE, {"Resolve": grpc.unary_unary_rpc_method_handler(_refuse)})


async def _refuse(_: bytes, context: grpc.aio.ServicerContext) -> bytes:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, WHO_DOES, trailers_of(BadRequest()))
    return b""  # not reached: abort raises
