"""The public gRPC contract `georelay.v1.Streams`: registration of its methods, sign-in, statuses, counting.

What a method does stands in the module of its name; this one is the same around each of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import grpc
import structlog

from georelay._pb import streams_pb2 as pb
from georelay.errors import GeorelayError
from georelay.limits import ADMIN_BODY_BYTES_MAX
from mesh.listening.bounded_messages import reader_of
from region.api.grpc_calls import GrpcCalls
from region.api.streams.locating import find_offsets, locate
from region.api.streams.producers import Producers
from region.api.streams.publish_call import PublishCall
from region.api.streams.resolving import resolve
from region.api.streams.services import StreamsServices
from region.api.streams.subscribe_call import SubscribeCall
from region.kafka.refused_publishes import RefusedPublishes
from region.security.access import Principal

log = structlog.get_logger()

SERVICE: Final = "georelay.v1.Streams"

Q = TypeVar("Q")
A = TypeVar("A")


class StreamsService:
    """All methods; `handler` registers them on a grpc.aio server."""

    name: Final = SERVICE

    def __init__(self, services: StreamsServices, calls: GrpcCalls) -> None:
        self._services = services
        self._calls = calls
        self._producers = Producers(services)

    def handler(self) -> Any:
        """Return the generic RPC handler of the service."""
        services, producers = self._services, self._producers
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Locate": self._unary(
                    "locate", pb.LocateRequest, pb.LocateResponse, lambda asked, who: locate(asked, services, who)
                ),
                "FindOffsets": self._unary(
                    "find_offsets",
                    pb.FindOffsetsRequest,
                    pb.FindOffsetsResponse,
                    lambda asked, who: find_offsets(asked, services, who),
                ),
                "Resolve": self._unary(
                    "resolve", pb.ResolveRequest, pb.ResolveResponse, lambda asked, who: resolve(asked, services, who)
                ),
                "InitProducer": self._unary(
                    "init_producer", pb.InitProducerRequest, pb.InitProducerResponse, producers.init
                ),
                "AddToTransaction": self._unary(
                    "add_to_transaction", pb.AddToTransactionRequest, pb.AddToTransactionResponse, producers.add
                ),
                "EndTransaction": self._unary(
                    "end_transaction", pb.EndTransactionRequest, pb.EndTransactionResponse, producers.end
                ),
                "PublishStream": grpc.stream_stream_rpc_method_handler(
                    self._publish_stream,
                    request_deserializer=reader_of(pb.PublishStreamRequest),
                    response_serializer=pb.PublishStreamResponse.SerializeToString,
                ),
                "Subscribe": grpc.stream_stream_rpc_method_handler(
                    self._subscribe,
                    request_deserializer=reader_of(pb.SubscribeRequest),
                    response_serializer=pb.SubscribeResponse.SerializeToString,
                ),
            },
        )

    def _unary(self, name: str, asked: Any, answered: Any, work: Callable[[Any, Principal], Awaitable[Any]]) -> Any:
        async def serve(request: Any, context: Any) -> Any:
            answer = None

            async def answer_it(principal: Principal) -> None:
                nonlocal answer
                answer = await work(request, principal)

            await self._guarded(name, context, answer_it)
            return answer

        return grpc.unary_unary_rpc_method_handler(
            serve,
            request_deserializer=reader_of(asked, bytes_max=ADMIN_BODY_BYTES_MAX),
            response_serializer=answered.SerializeToString,
        )

    async def _publish_stream(self, _: Any, context: Any) -> None:
        services = self._services

        async def serve(principal: Principal) -> None:
            await PublishCall(
                context,
                cluster=services.cluster,
                publisher=services.publisher,
                access=services.access,
                principal=principal,
                metrics=services.metrics,
                wall_ns=services.wall_ns,
                monotonic_ns=services.monotonic_ns,
                region_name=services.region_name,
                quotas=services.quotas,
                refused=RefusedPublishes(services.cluster, services.recorder),
                still_valid=partial(self._calls.check_still_valid, principal),
            ).run()

        await self._guarded("publish_stream", context, serve)

    async def _subscribe(self, _: Any, context: Any) -> None:
        async def serve(principal: Principal) -> None:
            await SubscribeCall(
                context,
                self._services,
                principal,
                peer=principal.host or str(context.peer()),
                still_valid=partial(self._calls.check_still_valid, principal),
            ).run()

        await self._guarded("subscribe_stream", context, serve)

    async def _guarded(self, name: str, context: Any, work: Callable[[Principal], Awaitable[None]]) -> None:
        """Sign the caller in, do the work, turn its error into a status."""
        try:
            principal = await self._calls.sign_in(context)
            await work(principal)
        except GeorelayError as error:
            await self._calls.refuse(context, name, error)
        except Exception:  # noqa: BLE001 - logged there; the caller gets INTERNAL instead of its text
            await self._calls.refuse_defect(context, name)
        self._calls.served(name)
