"""gRPC channels of one client: one per address, with its credentials, and errors of gRPC as errors of georelay.

Rule 1: an error says what became of the request: a broker says it itself (trailing metadata); what gRPC makes up when
        a connection breaks is an unknown outcome, unless nothing can have been sent.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from georelay import errors
from georelay.errors import GeorelayError
from georelay.limits import MIB, RECORD_BATCH_BYTES_MAX
from georelay.refusals import error_from

if TYPE_CHECKING:
    from georelay.tls import TlsContexts

MESSAGE_BYTES_MAX: Final = RECORD_BATCH_BYTES_MAX + MIB
BROKER_METADATA: Final = "georelay-broker"
KEEPALIVE_MS: Final = 1_000  # a broker that is gone without a word is noticed by this
KEEPALIVE_TIMEOUT_MS: Final = 1_200  # no round trip on this planet is longer; three seconds in all
OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),  # else only two, and then one a minute, on a call that is idle
    # One ping is under way at a time: one that measures the bandwidth would keep the keepalive's back for a minute.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Clients of one process with different credentials or lives must not share a connection.
    ("grpc.use_local_subchannel_pool", 1),
)
_OF_STATUS: Final[Mapping[grpc.StatusCode, type[GeorelayError]]] = MappingProxyType(
    {
        grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
        grpc.StatusCode.UNIMPLEMENTED: errors.BadRequest,
        grpc.StatusCode.INVALID_ARGUMENT: errors.BadRequest,
        grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Busy,
        grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    }
)


class Channels:
    """The channels of one client.

    Args:
        user: (name, password); token: a bearer token, instead. Both are sent with every call.
        tls: None for plain text, which brokers take on loopback only.
    """

    def __init__(
        self, *, user: tuple[str, str] | None = None, token: str | None = None, tls: TlsContexts | None = None
    ) -> None:
        self._authorization = authorization(user, token)
        self._tls = tls
        self._channels: dict[str, Any] = {}

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what every call carries."""
        return () if self._authorization is None else (("authorization", self._authorization),)

    def open(self, address: str) -> Any:
        """Return the grpc.aio channel to host:port; it connects when it is used."""
        channel = self._channels.get(address)
        if channel is None:
            if self._tls is None:
                channel = grpc.aio.insecure_channel(address, options=OPTIONS)
            else:
                from georelay.tls_grpc import channel_credentials

                channel = grpc.aio.secure_channel(address, channel_credentials(self._tls), options=OPTIONS)
            self._channels[address] = channel
        return channel

    async def ask(self, address: str, path: str, request: Any, answer: Any, *, timeout_s: float) -> Any:
        """Call a unary method ("/service/Method") and return its answer, of the class `answer`.

        Raises:
            GeorelayError: what the broker said, or what a broken connection means.
        """
        call = self.open(address).unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        try:
            return await call(request, metadata=self.metadata, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error, address) from error

    def stream(self, address: str, path: str, request: Any, answer: Any, *, broker: int = 0) -> Any:
        """Open a call of a streaming method whose messages are of the classes `request` and `answer`.

        `broker`: the one that a gateway shall choose; brokers themselves take no notice of it.
        """
        method = self.open(address).stream_stream(
            path, request_serializer=request.SerializeToString, response_deserializer=answer.FromString
        )
        wanted = ((BROKER_METADATA, str(broker)),) if broker else ()
        return method(metadata=(*self.metadata, *wanted))

    async def close(self) -> None:
        """Close every channel; calls under way end."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()


def authorization(user: tuple[str, str] | None, token: str | None) -> str | None:
    """Return the `authorization` value, None without credentials."""
    if token is not None:
        return f"bearer {token}"
    if user is None:
        return None
    return "basic " + base64.b64encode(f"{user[0]}:{user[1]}".encode()).decode("ascii")


def error_of_call(error: Any, address: str) -> GeorelayError:
    """Return the error of a call that ended with a status (grpc.aio.AioRpcError)."""
    trailing = {key: value for key, value in error.trailing_metadata() or () if isinstance(value, str)}
    details = error.details() or error.code().name
    if "georelay-code" in trailing:
        return error_from(trailing["georelay-code"], details, outcome=trailing.get("georelay-outcome", ""))
    kind = _OF_STATUS.get(error.code(), errors.OutcomeUnknown)
    return kind(f"{address}: {details}")
