"""`broker.Broker` and `georelay.v1.Admin` for clients of the gateway: bytes are carried, never decoded.

Rule 1: what changes something is handed to another broker only while no connection to the first came about; after it
was sent, a lost answer is reported as a broker reports an unknown outcome (DEADLINE_EXCEEDED, OUTCOME_UNKNOWN), never
retried. What only reads (DescribeTopic, ListTopics) is asked of another broker whenever an answer is lost.
Rule 2: a Subscribe may move to another broker until its first record; later the client resumes by timestamp.
Rule 3: status, details and trailing metadata of the broker go back as they are; cancelling goes through.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import grpc.aio
import structlog

from gateway.authentication import SignIn
from gateway.metrics import GatewayMetrics
from gateway.routing.endpoints import BrokerEndpoints
from gateway.routing.router import Router
from georelay.errors import BadRequest, GeorelayError, OutcomeUnknown, Unauthenticated, Unavailable
from georelay.limits import KIB, RECORD_BATCH_BYTES_MAX

BROKER_SERVICE: Final = "broker.Broker"
ADMIN_SERVICE: Final = "georelay.v1.Admin"
ADMIN_METHODS: Final = (
    "CreateTopic",
    "DeleteTopic",
    "DescribeTopic",
    "ListTopics",
    "AlterTopic",
    "DeleteRecords",
    "ReassignTopic",
    "ListBrokers",
    "AddBroker",
    "DrainBroker",
    "RemoveBroker",
)
READS: Final = frozenset({"DescribeTopic", "ListTopics", "ListBrokers"})
REGION_METADATA: Final = "georelay-region"  # restricts a call to one region, as ?region= does over HTTP
CONNECT_TIMEOUT_S: Final = 2.0
ANSWER_TIMEOUT_S: Final = 30.0  # of a unary call
MESSAGE_BYTES_MAX: Final = RECORD_BATCH_BYTES_MAX + 64 * KIB
CALLS_AT_ONCE_MAX: Final = 10_000
CHANNEL_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),  # the default of two minutes would shun a restarted broker
)
SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),  # a taken port must be an error
)
# grpcio answers these itself when a connection breaks or the time is over, and does not say so; but only a broker adds
# trailing metadata.
_MADE_UP_CODES: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)

log = structlog.get_logger()


class BrokerPassthrough:
    """Server side and the channels behind it."""

    def __init__(self, router: Router, metrics: GatewayMetrics, sign_in: SignIn) -> None:
        self._router = router
        self._metrics = metrics
        self._sign_in = sign_in
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str) -> int:
        """Listen; returns the port (RuntimeError: it is taken)."""
        self._server = grpc.aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=CALLS_AT_ONCE_MAX)
        self._server.add_generic_rpc_handlers(self._handlers())
        port: int = self._server.add_insecure_port(address)
        await self._server.start()
        return port

    async def close(self) -> None:
        """End every call and close the channels."""
        if self._server is not None:
            await self._server.stop(grace=None)
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    def _handlers(self) -> tuple[Any, ...]:
        broker = {
            "Publish": self._unary(BROKER_SERVICE, "Publish"),
            "Subscribe": grpc.unary_stream_rpc_method_handler(self._subscribe),
        }
        admin = {method: self._unary(ADMIN_SERVICE, method) for method in ADMIN_METHODS}
        return (
            grpc.method_handlers_generic_handler(BROKER_SERVICE, broker),
            grpc.method_handlers_generic_handler(ADMIN_SERVICE, admin),
        )

    def _unary(self, service: str, method: str) -> Any:
        async def carry(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            return await self._carry(service, method, request, context)

        return grpc.unary_unary_rpc_method_handler(carry)

    async def _carry(self, service: str, method: str, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        metadata = await self._admit(method, context)
        region = next((str(v) for k, v in context.invocation_metadata() or () if k == REGION_METADATA), None)
        try:
            candidates = self._router.candidates(region)
        except BadRequest as error:
            await self._abort(method, context, grpc.StatusCode.INVALID_ARGUMENT, str(error), _trailing_of(error))
        for broker in candidates:
            channel = self._channel(broker)
            if not await _connected(channel):
                self._metrics.failovers.labels("grpc").inc()
                continue
            try:
                answer: bytes = await channel.unary_unary(f"/{service}/{method}")(
                    request, metadata=metadata, timeout=ANSWER_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as error:
                if method in READS and _made_up(error):
                    self._metrics.failovers.labels("grpc").inc()
                    continue
                await self._refuse(method, context, broker, error)
                raise  # not reached: refusing ends the call
            self._count(method, grpc.StatusCode.OK)
            return answer
        return await self._abort_unavailable(method, context)

    async def _subscribe(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        metadata = await self._admit("Subscribe", context)
        for broker in self._router.candidates():
            channel = self._channel(broker)
            if not await _connected(channel):
                self._metrics.failovers.labels("grpc").inc()
                continue
            call = channel.unary_stream(f"/{BROKER_SERVICE}/Subscribe")(request, metadata=metadata)
            begun = False
            try:
                async for answer in call:
                    begun = True
                    yield answer
            except grpc.aio.AioRpcError as error:
                if begun or error.code() is not grpc.StatusCode.UNAVAILABLE:
                    await self._abort("Subscribe", context, error.code(), error.details() or "", _trailing(error))
                self._metrics.failovers.labels("grpc").inc()
                continue
            finally:
                call.cancel()  # the client left, or nothing is left to cancel
            self._count("Subscribe", grpc.StatusCode.OK)
            return
        await self._abort_unavailable("Subscribe", context)

    async def _admit(self, method: str, context: grpc.aio.ServicerContext) -> tuple[tuple[str, str], ...]:
        """Check the credentials; returns the metadata to pass on."""
        authorization = next((v for k, v in context.invocation_metadata() or () if k == "authorization"), None)
        if self._sign_in.required:
            try:
                await self._sign_in.authenticate_header(authorization)
            except Unauthenticated as error:
                await self._abort(method, context, grpc.StatusCode.UNAUTHENTICATED, str(error), _trailing_of(error))
        return (("authorization", authorization),) if authorization is not None else ()

    async def _refuse(
        self, method: str, context: grpc.aio.ServicerContext, broker: BrokerEndpoints, error: grpc.aio.AioRpcError
    ) -> None:
        if not _made_up(error):
            await self._abort(method, context, error.code(), error.details() or "", _trailing(error))
        log.warning("answer.lost", broker=broker.id, method=method, code=error.code().name)
        await self._abort(
            method,
            context,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            f"the answer of broker {broker.id} was lost or is late: {_what_may_be(method)}",
            _trailing_of(OutcomeUnknown()),
        )

    async def _abort_unavailable(self, method: str, context: grpc.aio.ServicerContext) -> bytes:
        await self._abort(
            method,
            context,
            grpc.StatusCode.UNAVAILABLE,
            "no region is ready; try again",
            _trailing_of(Unavailable()),
        )
        return b""  # not reached: abort raises

    async def _abort(
        self,
        method: str,
        context: grpc.aio.ServicerContext,
        code: grpc.StatusCode,
        details: str,
        trailing: tuple[tuple[str, str | bytes], ...],
    ) -> None:
        self._count(method, code)
        await context.abort(code, details, trailing)

    def _count(self, method: str, code: grpc.StatusCode) -> None:
        self._metrics.grpc_calls.labels(method, code.name).inc()

    def _channel(self, broker: BrokerEndpoints) -> grpc.aio.Channel:
        """Return the one channel per broker; their number is bounded by the configuration."""
        if broker.grpc not in self._channels:
            self._channels[broker.grpc] = grpc.aio.insecure_channel(broker.grpc, options=CHANNEL_OPTIONS)
        return self._channels[broker.grpc]


async def _connected(channel: grpc.aio.Channel) -> bool:
    """Wait for a connection; False means that surely nothing was sent."""
    state = channel.get_state(try_to_connect=True)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            while state is not grpc.ChannelConnectivity.READY:
                if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                    return False
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        return False
    return True


def _made_up(error: grpc.aio.AioRpcError) -> bool:
    """Return whether grpcio itself said this, instead of a broker."""
    return error.code() in _MADE_UP_CODES and not _trailing(error)


def _what_may_be(method: str) -> str:
    return "the record may be stored" if method == "Publish" else "the request may have taken effect"


def _trailing_of(error: GeorelayError) -> tuple[tuple[str, str], ...]:
    """Return what a broker would add to its status."""
    return (("georelay-code", error.code), ("georelay-outcome", error.outcome.value))


def _trailing(error: grpc.aio.AioRpcError) -> tuple[tuple[str, str | bytes], ...]:
    return tuple((key, value) for key, value in error.trailing_metadata() or () if not key.startswith("grpc-"))
