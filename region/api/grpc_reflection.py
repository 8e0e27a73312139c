"""Server reflection `grpc.reflection.v1alpha`: tools such as grpcurl learn the contracts from the broker itself.

Nobody has to sign in: the contracts are public, and there is nothing else here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

from georelay._pb import admin_pb2, carried_pb2, routes_pb2, streams_pb2
from region.api._pb import broker_pb2

SERVICE: Final = "grpc.reflection.v1alpha.ServerReflection"
_CONTRACTS: Final = (broker_pb2, admin_pb2, streams_pb2, carried_pb2, routes_pb2, health_pb2, reflection_pb2)


def contracts_pool() -> DescriptorPool:
    """Return one pool of all contracts: each of our modules has a pool of its own."""
    pool = DescriptorPool()
    for module in _CONTRACTS:
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    return pool


def reflection_handler(services: Sequence[str]) -> Any:
    """Return the generic RPC handler that lists and describes `services`."""
    servicer = ReflectionServicer((*services, SERVICE), pool=contracts_pool())
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(SERVICE, {"ServerReflectionInfo": method})
