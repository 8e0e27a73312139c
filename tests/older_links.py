"""A broker of the version before framed links: it dials and serves links with gRPC alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc.aio

from georelay.tls import TlsContexts, call_names
from georelay.tls_grpc import server_credentials
from mesh.replication.link import Link
from mesh.replication.link_grpc import METHOD, AcceptedLink, DialledGrpcLink
from mesh.replication.settings import BrokerAddress


class OlderListener(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc ships no types
    """Implements mesh.replication.link.Listener."""

    def __init__(self, accept: Callable[[Link], None], *, tls: TlsContexts | None = None) -> None:
        self._accept = accept
        self._tls = tls
        self._server: Any = None

    async def start(self, listen: str) -> int:
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self,))
        if self._tls is None:
            port = self._server.add_insecure_port(listen)
        else:
            port = self._server.add_secure_port(listen, server_credentials(self._tls))
        await self._server.start()
        return int(port)

    async def stop(self) -> None:
        await self._server.stop(0.1)

    def service(self, handler_call_details: Any) -> Any:
        is_ours = handler_call_details.method == METHOD
        return grpc.stream_stream_rpc_method_handler(self._serve) if is_ours else None

    async def _serve(self, _requests: Any, context: Any) -> None:
        names = None if self._tls is None else call_names(context.auth_context())
        link = AcceptedLink(peer=context.peer(), peer_names=names)
        self._accept(link)
        await link.serve(context)


def dial_as_older(target: BrokerAddress) -> Link:
    """Dial as that version did, in plain text."""
    return DialledGrpcLink(target)
