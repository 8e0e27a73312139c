"""`broker.Broker`, `georelay.v1.Admin` and `georelay.v1.Streams` for clients of the gateway: bytes, never decoded.

Rule 1: what changes something is handed to another broker only while it was surely not sent to the first; after it
was sent, a lost answer is reported as a broker reports an unknown outcome (DEADLINE_EXCEEDED, OUTCOME_UNKNOWN), never
retried. What only reads (DescribeTopic, ListTopics) is asked of another broker whenever an answer is lost.
Rule 2: a Subscribe of `broker.Broker` may move to another broker until its first record; later the client resumes by
timestamp. A call that streams both ways stays with the broker that took it; a new call goes to the nearest region.
Rule 3: a connection to a broker carries so many calls, and a broker lets so many of one address in: streaming calls
take STREAMS_PER_BROKER_MAX of these, and no caller takes those of all others (gateway.routing.places).
Rule 4: publishes of a few bytes go by one stream to each broker (gateway.passthrough.carried_publishes), with the same
outcomes.
Rule 5: status, details and trailing metadata of the broker go back as they are; cancelling goes through.
Beside them it answers `georelay.v1.Routes` itself (gateway.passthrough.routes_service), with the rights of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import grpc
import grpc.aio
import structlog
from prometheus_client import Counter

from gateway.authentication import SignIn
from gateway.metrics import GatewayMetrics
from gateway.passthrough import routes_service
from gateway.passthrough.carried_publishes import REQUEST_BYTES_MAX, CarriedPublishes, Lost, PublishStreams
from gateway.passthrough.carried_stream import CarriedStream
from gateway.routing.client_book_core import NAME_CHARS_MAX, NAME_HEADER, ClientKey
from gateway.routing.endpoints import BrokerEndpoints
from gateway.routing.places import Callers, Places
from gateway.routing.resolving import Resolving
from gateway.routing.router import Router
from georelay.credentials import CLIENT_HEADER
from georelay.errors import BadRequest, Busy, GeorelayError, OutcomeUnknown, Unavailable
from georelay.limits import KIB, RECORD_BATCH_BYTES_MAX
from georelay.tls import TlsContexts
from georelay.tls_grpc import channel_credentials
from mesh.listening.admission_core import AdmissionCounters, AdmissionLimits
from mesh.listening.grpc_health import SERVICE as HEALTH_SERVICE
from mesh.listening.grpc_health import GrpcHealth
from mesh.listening.grpc_limits import (
    CallLimits,
    address_of,
    calls_at_once,
    connection_options,
    connections_of,
    host_of,
    trailers_of,
)
from mesh.listening.grpc_requests import WINDOW_OPTIONS, RequestBudget, RequestLimits
from mesh.listening.grpc_server import GrpcServer
from mesh.listening.grpc_status import grpc_status
from mesh.listening.limited_handlers import LimitedHandlers
from mesh.listening.listeners import ListenerParts
from mesh.listening.pending_calls import newest_server

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
    "ListGroups",
    "DescribeGroup",
    "DeleteGroup",
    "SetGroupOffsets",
    "ListQueues",
    "CreateQueue",
    "DescribeQueue",
    "DeleteQueue",
)
STREAMS_SERVICE: Final = "georelay.v1.Streams"
STREAMS_METHODS: Final = ("Locate", "FindOffsets", "Resolve", "InitProducer", "AddToTransaction", "EndTransaction")
REFLECTION_SERVICE: Final = "grpc.reflection.v1alpha.ServerReflection"
QUICK_METHODS: Final = frozenset({f"/{BROKER_SERVICE}/Publish"})
OPEN_SERVICES: Final = frozenset({HEALTH_SERVICE, REFLECTION_SERVICE})  # nobody has to sign in
STREAMED_BOTH_WAYS: Final = (
    (STREAMS_SERVICE, "PublishStream"),
    (STREAMS_SERVICE, "Subscribe"),
    (REFLECTION_SERVICE, "ServerReflectionInfo"),
)
READS: Final = frozenset(
    {
        *("DescribeTopic", "ListTopics", "ListBrokers", "Locate", "FindOffsets", "Resolve"),
        *("ListGroups", "DescribeGroup", "ListQueues", "DescribeQueue"),
    }
)
REGION_METADATA: Final = "georelay-region"  # restricts a call to one region, as ?region= does over HTTP
BROKER_METADATA: Final = "georelay-broker"  # the broker id that a call that streams both ways wants
CONNECT_TIMEOUT_S: Final = 2.0
ANSWER_TIMEOUT_S: Final = 30.0  # of a unary call
GEO_TIMEOUT_S: Final = 330.0  # of one that may wait for other regions: their longest deadline, and an answer
AUTHORIZATION: Final = "authorization"
DURABILITY_METADATA: Final = "georelay-durability"
PASSED_METADATA: Final = frozenset({DURABILITY_METADATA, "georelay-deadline-ms"})
MESSAGE_BYTES_MAX: Final = RECORD_BATCH_BYTES_MAX + 64 * KIB
CALLS_AT_ONCE_MAX: Final = 10_000
STAY_NS: Final = 20_000_000  # publishes of one moment go to one broker, which gathers them
STREAMS_PER_BROKER_MAX: Final = 800  # of CALLS_PER_ADDRESS_MAX that it lets in; the rest is for calls that end
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
NOT_CONNECTED: Final = "failed to connect to all addresses"
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

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}

log = structlog.get_logger()


class BrokerPassthrough:
    """Server side and the channels behind it."""

    def __init__(
        self,
        router: Router,
        metrics: GatewayMetrics,
        sign_in: SignIn,
        *,
        callers: Callers,
        resolving: Resolving,
        parts: ListenerParts | None = None,
        upstream: TlsContexts | None = None,
    ) -> None:
        self._parts = parts
        self._upstream = upstream
        self._router = router
        self._metrics = metrics
        self._sign_in = sign_in
        self._counts: dict[tuple[str, grpc.StatusCode], Counter] = {}
        self._callers = callers
        self._resolving = resolving
        self._stream_places: dict[str, Places] = {}  # by the broker's address
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._publishes = PublishStreams()
        self._channels_version = 0
        self.budget = RequestBudget(calls_max=CALLS_AT_ONCE_MAX)
        self._server: GrpcServer | None = None

    async def start(self, address: str) -> int:
        """Listen; returns the port (RuntimeError: it is taken)."""
        counters = AdmissionCounters() if self._parts is None else self._parts.counters
        tls = None if self._parts is None else self._parts.contexts
        limits = AdmissionLimits() if self._parts is None else self._parts.limits
        connections = connections_of(limits, counters, name="grpc")
        self._server = GrpcServer(
            lambda: self._made(counters), address, tls=tls, counters=counters, connections=connections
        )
        return await self._server.start()

    def _made(self, counters: AdmissionCounters) -> grpc.aio.Server:
        limits = AdmissionLimits() if self._parts is None else self._parts.limits
        calls = CallLimits(
            limits,
            counters,
            open_services=OPEN_SERVICES,
            quick_methods=QUICK_METHODS,
            calls_max=CALLS_AT_ONCE_MAX,
        )
        requests = RequestLimits(
            self.budget, counters, message_bytes_max=MESSAGE_BYTES_MAX, open_services=OPEN_SERVICES
        )
        server = grpc.aio.server(
            options=(*SERVER_OPTIONS, *connection_options(limits), *WINDOW_OPTIONS),
            maximum_concurrent_rpcs=calls_at_once(CALLS_AT_ONCE_MAX),
        )
        calls.watch(newest_server())
        server.add_generic_rpc_handlers((LimitedHandlers(self._handlers(), calls, requests),))
        return server

    async def close(self) -> None:
        """End every call and close the channels."""
        if self._server is not None:
            await self._server.stop(None)
        await self._publishes.close()
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    def keep_channels(self, addresses: Collection[str]) -> None:
        """Forget the channels of brokers at other addresses; calls that run on one keep it until they end."""
        self._publishes.keep(addresses)
        self._channels = {address: channel for address, channel in self._channels.items() if address in addresses}
        self._stream_places = {
            address: places for address, places in self._stream_places.items() if address in addresses
        }

    def _handlers(self) -> tuple[Any, ...]:
        broker = {
            "Publish": self._unary(BROKER_SERVICE, "Publish"),
            "Subscribe": grpc.unary_stream_rpc_method_handler(self._subscribe),
        }
        methods: dict[str, dict[str, Any]] = {
            BROKER_SERVICE: broker,
            ADMIN_SERVICE: {method: self._unary(ADMIN_SERVICE, method) for method in ADMIN_METHODS},
            STREAMS_SERVICE: {method: self._unary(STREAMS_SERVICE, method) for method in STREAMS_METHODS},
            REFLECTION_SERVICE: {},
            routes_service.SERVICE: {routes_service.METHOD: grpc.unary_unary_rpc_method_handler(self._resolve)},
        }
        for service, method in STREAMED_BOTH_WAYS:
            methods[service][method] = self._both_ways(service, method)
        health = GrpcHealth((*methods, HEALTH_SERVICE), lambda: self._router.ready)
        return (
            *(grpc.method_handlers_generic_handler(service, table) for service, table in methods.items()),
            health.handler(),
        )

    def _unary(self, service: str, method: str) -> Any:
        async def carry(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            return await self._carry(service, method, request, context)

        return grpc.unary_unary_rpc_method_handler(carry)

    async def _carry(self, service: str, method: str, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        given = _given(context)
        metadata = await self._admit(method, context, given)
        region = given.get(REGION_METADATA)
        waits = method == "Resolve" or DURABILITY_METADATA in given
        timeout_s = GEO_TIMEOUT_S if waits else ANSWER_TIMEOUT_S
        try:
            stay_ns = STAY_NS if method == "Publish" else 0
            candidates = self._router.candidates(region, stay_ns=stay_ns, client=_client(context, given))
        except BadRequest as error:
            await self._abort(method, context, grpc.StatusCode.INVALID_ARGUMENT, str(error), trailers_of(error))
        is_carried = method == "Publish" and len(request) <= REQUEST_BYTES_MAX and PASSED_METADATA.isdisjoint(given)
        for broker in candidates:
            channel = self._channel(broker)
            stream = self._publishes.of(broker.grpc, channel) if is_carried else None
            if stream is not None:
                response = await self._by_stream(stream, broker, request, context, given)
                if response is not None:
                    self._succeeded(method, given)
                    return response
            if not await _connected(channel):
                self._metrics.failovers.labels("grpc").inc()
                continue
            try:
                call = channel.unary_unary(f"/{service}/{method}")(request, metadata=metadata, timeout=timeout_s)
                answer: bytes = await call
                context.set_trailing_metadata(_of_broker(await call.trailing_metadata()))
            except grpc.aio.AioRpcError as error:
                if _was_not_sent(error) or (method in READS and _made_up(error)):
                    self._metrics.failovers.labels("grpc").inc()
                    continue
                await self._refuse(method, context, broker, error)
                raise  # not reached: refusing ends the call
            self._succeeded(method, given)
            if is_carried:
                self._publishes.succeeded(broker.grpc, channel, metadata)
            return answer
        return await self._abort_unavailable(method, context)

    async def _resolve(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Answer georelay.v1.Routes/Resolve: no broker judges it, so whoever asks is judged here."""
        label = f"Routes.{routes_service.METHOD}"  # "Resolve" alone is that of Streams
        given = _given(context)
        authorization, peer = given.get(AUTHORIZATION), context.peer()
        try:
            await self._sign_in.authenticate_header(authorization, host_of(peer))
            name = _client(context, given).name
            port = 0 if self._server is None else self._server.port
            answer = await routes_service.resolve(
                self._resolving, request, port=port, peer=peer, name=name, authorization=authorization
            )
        except GeorelayError as error:
            status = grpc.StatusCode[grpc_status(error)]
            await self._abort(label, context, status, str(error), trailers_of(error))
            raise  # not reached: the call has ended
        self._succeeded(label, given)
        return answer

    def _succeeded(self, method: str, given: Mapping[str, str]) -> None:
        self._callers.let_in(given.get(AUTHORIZATION))
        self._count(method, grpc.StatusCode.OK)

    async def _by_stream(
        self,
        stream: CarriedPublishes,
        broker: BrokerEndpoints,
        request: bytes,
        context: grpc.aio.ServicerContext,
        given: Mapping[str, str],
    ) -> bytes | None:
        """Return what a broker answers to a publish by its stream; None when nothing was sent."""
        client = host_of(context.peer())
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await stream.publish(request, authorization=given.get(AUTHORIZATION), client=client)
        except (Lost, TimeoutError) as error:
            await self._lost("Publish", context, broker, type(error).__name__)
            raise  # not reached: the call has ended
        if answer is not None and answer.status:
            code = _CODES.get(answer.status, grpc.StatusCode.UNKNOWN)
            await self._abort("Publish", context, code, answer.details, tuple(answer.trailing.items()))
        return None if answer is None else bytes(answer.response)

    def _both_ways(self, service: str, method: str) -> Any:
        async def carry(_: Any, context: grpc.aio.ServicerContext) -> None:
            await self._carry_stream(service, method, context)

        return grpc.stream_stream_rpc_method_handler(carry)

    async def _carry_stream(self, service: str, method: str, context: grpc.aio.ServicerContext) -> None:
        label = f"{service.rpartition('.')[2]}.{method}"  # "Subscribe" alone is that of broker.Broker
        given = _given(context)
        metadata = await self._admit(label, context, given)
        region = given.get(REGION_METADATA)
        try:
            candidates = self._router.candidates(region, client=_client(context, given))
        except BadRequest as error:
            await self._abort(label, context, grpc.StatusCode.INVALID_ARGUMENT, str(error), trailers_of(error))
        for broker in self._preferred(candidates, given.get(BROKER_METADATA)):
            channel = self._channel(broker)
            if not await _connected(channel):
                self._metrics.failovers.labels("grpc").inc()
                continue
            with self._metrics.grpc_streams.labels(label).track_inprogress():
                try:
                    async with self._place(broker, context, given):
                        call = channel.stream_stream(f"/{service}/{method}")(metadata=metadata)
                        code, details, trailing = await CarriedStream(context, call).run()
                except Busy as error:
                    code, details, trailing = grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), trailers_of(error)
                except asyncio.CancelledError:  # the client left
                    self._count(label, grpc.StatusCode.CANCELLED)
                    raise
            if code is grpc.StatusCode.OK:
                if service not in OPEN_SERVICES:  # there a broker has judged nobody
                    self._callers.let_in(given.get(AUTHORIZATION))
                self._count(label, code)
                return
            carried = tuple((key, value) for key, value in trailing or () if not key.startswith("grpc-"))
            if code in _MADE_UP_CODES and not carried:
                log.warning("stream.lost", broker=broker.id, method=label, code=code.name)
                code, details = grpc.StatusCode.UNAVAILABLE, f"the connection to broker {broker.id} broke: {details}"
                carried = trailers_of(Unavailable())
            await self._abort(label, context, code, details, carried)
        await self._abort_unavailable(label, context)

    def _preferred(self, candidates: Sequence[BrokerEndpoints], wanted: str | None) -> Sequence[BrokerEndpoints]:
        """Put the broker that a client asks for first, if it is ready: the leader of what it will publish to."""
        for region in self._router.ranking() if wanted else ():
            for broker in region.ready_brokers:
                if str(broker.endpoints.id) == wanted:
                    return (broker.endpoints, *(other for other in candidates if other is not broker.endpoints))
        return candidates

    async def _subscribe(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        given = _given(context)
        metadata = await self._admit("Subscribe", context, given)
        for broker in self._router.candidates(client=_client(context, given)):
            channel = self._channel(broker)
            if not await _connected(channel):
                self._metrics.failovers.labels("grpc").inc()
                continue
            begun = False
            try:
                async with self._place(broker, context, given):
                    call = channel.unary_stream(f"/{BROKER_SERVICE}/Subscribe")(request, metadata=metadata)
                    try:
                        async for answer in call:
                            begun = True
                            yield answer
                    finally:
                        call.cancel()  # the client left, or nothing is left to cancel
            except Busy as error:
                await self._abort(
                    "Subscribe", context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), trailers_of(error)
                )
            except grpc.aio.AioRpcError as error:
                if begun or error.code() is not grpc.StatusCode.UNAVAILABLE:
                    await self._abort("Subscribe", context, error.code(), error.details() or "", _trailing(error))
                self._metrics.failovers.labels("grpc").inc()
                continue
            except (asyncio.CancelledError, GeneratorExit):  # the client left
                self._count("Subscribe", grpc.StatusCode.CANCELLED)
                raise
            self._count("Subscribe", grpc.StatusCode.OK)
            return
        await self._abort_unavailable("Subscribe", context)

    def _place(
        self, broker: BrokerEndpoints, context: grpc.aio.ServicerContext, given: Mapping[str, str]
    ) -> AbstractAsyncContextManager[None]:
        """Return what holds a place at a broker for a streaming call (Busy: there is none for this caller)."""
        places = self._stream_places.setdefault(broker.grpc, Places(STREAMS_PER_BROKER_MAX))
        caller = self._callers.of(given.get(AUTHORIZATION), address_of(context.peer()))
        return places.of(caller, patience_s=CONNECT_TIMEOUT_S)

    async def _admit(
        self, method: str, context: grpc.aio.ServicerContext, given: Mapping[str, str]
    ) -> tuple[tuple[str, str], ...]:
        """Check the credentials; returns the metadata to pass on."""
        authorization = given.get(AUTHORIZATION)
        client = host_of(context.peer())
        if self._sign_in.checks_forwarded:
            try:
                await self._sign_in.authenticate_header(authorization, client)
            except GeorelayError as error:
                await self._abort(method, context, grpc.StatusCode[grpc_status(error)], str(error), trailers_of(error))
        # What a publish asks of its home must arrive: dropped here it would be lowered silently.
        passed = [(name, value) for name, value in given.items() if name in PASSED_METADATA]
        asked = (*passed, (CLIENT_HEADER.lower(), client))
        return (*asked, (AUTHORIZATION, authorization)) if authorization is not None else asked

    async def _refuse(
        self, method: str, context: grpc.aio.ServicerContext, broker: BrokerEndpoints, error: grpc.aio.AioRpcError
    ) -> None:
        if not _made_up(error):
            await self._abort(method, context, error.code(), error.details() or "", _trailing(error))
        await self._lost(method, context, broker, error.code().name)

    async def _lost(self, method: str, context: grpc.aio.ServicerContext, broker: BrokerEndpoints, code: str) -> None:
        log.warning("answer.lost", broker=broker.id, method=method, code=code)
        await self._abort(
            method,
            context,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            f"the answer of broker {broker.id} was lost or is late: {_what_may_be(method)}",
            trailers_of(OutcomeUnknown()),
        )

    async def _abort_unavailable(self, method: str, context: grpc.aio.ServicerContext) -> bytes:
        await self._abort(
            method,
            context,
            grpc.StatusCode.UNAVAILABLE,
            "no region is ready; try again",
            trailers_of(Unavailable()),
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
        counter = self._counts.get((method, code))
        if counter is None:
            counter = self._counts[method, code] = self._metrics.grpc_calls.labels(method, code.name)
        counter.inc()

    def _channel(self, broker: BrokerEndpoints) -> grpc.aio.Channel:
        """Return the one channel per broker; their number is bounded by that of the known brokers."""
        if self._upstream is not None and self._upstream.pem()[0] != self._channels_version:
            # What runs keeps its channel until it ends; from now on the new files are used.
            self._channels_version, self._channels = self._upstream.pem()[0], {}
        if broker.grpc not in self._channels:
            self._channels[broker.grpc] = self._new_channel(broker.grpc)
        return self._channels[broker.grpc]

    def _new_channel(self, address: str) -> grpc.aio.Channel:
        if self._upstream is None:
            return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(address, channel_credentials(self._upstream), options=CHANNEL_OPTIONS)


def _of_broker(metadata: Iterable[tuple[str, str | bytes]] | None) -> tuple[tuple[str, str | bytes], ...]:
    """Return what a broker wrote of the trailing metadata of a call."""
    return tuple((key, value) for key, value in metadata or () if not key.startswith("grpc-"))


def _given(context: grpc.aio.ServicerContext) -> dict[str, str]:
    """Return the metadata of a call, the first value of each name; once per call, since grpcio makes them anew."""
    return {name: str(value) for name, value in reversed(tuple(context.invocation_metadata() or ()))}


def _client(context: grpc.aio.ServicerContext, given: Mapping[str, str]) -> ClientKey:
    """Return who calls: the name it gives itself, at the address it calls from."""
    name = given.get(NAME_HEADER.lower(), "")[:NAME_CHARS_MAX]
    return ClientKey(name, host_of(context.peer()))


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


def _was_not_sent(error: grpc.aio.AioRpcError) -> bool:
    """Return whether a call found its connection gone and no other one came about: a broker stopped just then.

    grpcio has no other sign of it than its text; it repeats by itself what a server says it has not processed (GOAWAY).
    """
    is_so = error.code() is grpc.StatusCode.UNAVAILABLE and (error.details() or "").startswith(NOT_CONNECTED)
    return is_so and not _trailing(error)


def _what_may_be(method: str) -> str:
    return "the record may be stored" if method == "Publish" else "the request may have taken effect"


def _trailing(error: grpc.aio.AioRpcError) -> tuple[tuple[str, str | bytes], ...]:
    return _of_broker(error.trailing_metadata())
