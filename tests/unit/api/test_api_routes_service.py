"""`georelay.v1.Routes` at a broker: it says clearly that a gateway is to be asked."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from region.api.grpc_listener import GrpcListener
from region.api.grpc_services import grpc_handlers
from region.api.routes_service import RoutesService
from tests.unit.api.test_api_security import Guarded, guarded

__all__ = ["guarded"]


async def test_a_broker_ranks_no_regions_and_says_who_does() -> None:
    listener = GrpcListener(grpc_handlers([RoutesService()], ready=lambda: True), host="127.0.0.1", port=0)
    port = await listener.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.enable_http_proxy", 0),)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/georelay.v1.Routes/Resolve")(b"", timeout=10)
    await listener.close()
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "ask a gateway" in (refused.value.details() or "")
    assert dict(refused.value.trailing_metadata())["georelay-outcome"] == "not_stored"


async def test_a_stranger_is_not_told_even_that(guarded: Guarded) -> None:
    handlers: Any = grpc_handlers([RoutesService()], ready=lambda: True)
    listener = GrpcListener(handlers, host="127.0.0.1", port=0, admit=guarded.calls.admit)
    port = await listener.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.enable_http_proxy", 0),)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/georelay.v1.Routes/Resolve")(b"", timeout=10)
    await listener.close()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
