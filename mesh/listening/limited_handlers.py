"""The handlers of a gRPC server within its limits: each is looked up and wrapped once, not with every call.

grpcio's interceptors would do the same by a coroutine and a look-up in every table for each call and interceptor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from mesh.listening.grpc_limits import CallLimits
from mesh.listening.grpc_requests import RequestLimits


class LimitedHandlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc ships no types
    """The one generic handler of a server, in front of those that know the methods."""

    def __init__(self, handlers: Sequence[Any], calls: CallLimits, requests: RequestLimits | None = None) -> None:
        """Put `calls` around `requests` around every method of `handlers`, which stay as they are."""
        self._handlers = tuple(handlers)
        self._calls = calls
        self._requests = requests
        self._wrapped: dict[str, Any] = {}  # by method; only those that there are

    def service(self, handler_call_details: Any) -> Any:
        """Return what serves a call, None: there is no such method."""
        self._calls.seen()
        method = handler_call_details.method
        wrapped = self._wrapped.get(method)
        if wrapped is not None:
            return wrapped
        served = (handler.service(handler_call_details) for handler in self._handlers)
        found = next((one for one in served if one is not None), None)
        if found is None:
            return None
        if self._requests is not None:
            found = self._requests.within(found, method)
        wrapped = self._wrapped[method] = self._calls.within(found, method)
        return wrapped
