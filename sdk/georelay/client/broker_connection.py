"""One connection to a broker over the Kafka protocol: requests in, answers out, in order.

Rule 1: every request ends: with its answer, or with ConnectionError when the connection breaks.
Rule 2: a broken connection stays broken; its owner dials a new one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

from georelay.errors import Unauthenticated
from georelay.tls import TlsContexts
from georelay.wire.api import ApiKey, FrameReader, WireError, decode_response, encode_request, response_frame_bytes_max
from georelay.wire.requests import SaslAuthenticateRequest, SaslHandshakeRequest

CLIENT_ID = "georelay"


class BrokerConnection(asyncio.Protocol):
    """Use `await BrokerConnection.dial(...)`."""

    def __init__(self) -> None:
        self._frames = FrameReader(response_frame_bytes_max)
        self._waiting: deque[tuple[ApiKey, int, int, asyncio.Future[Any]]] = deque()  # api, version, correlation
        self._transport: asyncio.Transport | None = None
        self._correlation = 0
        self._lost: Exception | None = None

    @classmethod
    async def dial(
        cls, host: str, port: int, *, user: tuple[str, str] | None = None, tls: TlsContexts | None = None
    ) -> BrokerConnection:
        """Connect and sign in.

        Raises:
            OSError: nobody listens. Unauthenticated: the credentials were refused.
        """
        _, connection = await asyncio.get_running_loop().create_connection(
            cls, host, port, ssl=None if tls is None else tls.client()
        )
        if user is not None:
            try:
                await connection._sign_in(*user)
            except BaseException:
                connection.close()
                raise
        return connection

    async def _sign_in(self, name: str, password: str) -> None:
        try:
            await self.request(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
            token = b"\0".join((b"", name.encode(), password.encode()))
            answer = await self.request(ApiKey.SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(auth_bytes=token))
        except ConnectionError as error:
            raise Unauthenticated("the broker closed the connection while signing in") from error
        if answer.error_code:
            raise Unauthenticated(f"the broker refused the credentials of '{name}'")

    @property
    def is_open(self) -> bool:
        """Return whether requests can be sent."""
        return self._lost is None and self._transport is not None

    async def request(self, api: ApiKey, version: int, request: Any) -> Any:
        """Send one request and return its decoded answer. Raises ConnectionError."""
        if self._lost is not None or self._transport is None:
            raise ConnectionError("the connection is closed")
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        buffers = encode_request(request, api_version=version, correlation_id=self._correlation, client_id=CLIENT_ID)
        self._waiting.append((api, version, self._correlation, future))
        self._transport.writelines(buffers)
        return await future

    def close(self) -> None:
        """Close now; requests in flight end with ConnectionError."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        # uvloop has transport classes of its own: isinstance would refuse them.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End every request in flight."""
        self._lost = ConnectionError(f"the broker closed the connection{f': {exc}' if exc else ''}")
        while self._waiting:
            *_, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(self._lost)

    def data_received(self, data: bytes) -> None:
        """Answer the oldest request with each whole frame."""
        try:
            for frame in self._frames.feed(data):
                api, version, correlation, future = self._waiting[0]
                answered, answer = decode_response(api, version, frame)
                if answered != correlation:
                    self.close()
                    return
                self._waiting.popleft()  # not before: what cannot be decoded ends with ConnectionError too
                if not future.done():
                    future.set_result(answer)
        except (WireError, IndexError):
            self.close()
