"""The table from Kafka requests to their handlers; it has a row for every API that is advertised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from georelay.wire.requests import (
    AlterConfigsRequest,
    ApiVersionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    FetchRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from region.kafka.connection import Slot
from region.kafka.handlers.api_versions import handle_api_versions
from region.kafka.handlers.configs import AlterConfigsHandler, DescribeConfigsHandler
from region.kafka.handlers.fetch import FetchHandler
from region.kafka.handlers.metadata import MetadataHandler
from region.kafka.handlers.offsets import ListOffsetsHandler, OffsetForLeaderEpochHandler
from region.kafka.handlers.produce import ProduceHandler
from region.kafka.handlers.producer_ids import InitProducerIdHandler
from region.kafka.handlers.records import DeleteRecordsHandler
from region.kafka.handlers.sasl import SaslHandler
from region.kafka.handlers.topics import CreateTopicsHandler, DeleteTopicsHandler
from region.kafka.services import KafkaServices

Handle = Callable[[Slot, Any], None]


def handler_table(services: KafkaServices, sasl: SaslHandler) -> Mapping[type, Handle]:
    """Return the handler of every request class."""
    configs = AlterConfigsHandler(services)
    return {
        ProduceRequest: ProduceHandler(services).handle,
        FetchRequest: FetchHandler(services).handle,
        ListOffsetsRequest: ListOffsetsHandler(services).handle,
        MetadataRequest: MetadataHandler(services).handle,
        SaslHandshakeRequest: sasl.handshake,
        ApiVersionsRequest: handle_api_versions,
        CreateTopicsRequest: CreateTopicsHandler(services).handle,
        DeleteTopicsRequest: DeleteTopicsHandler(services).handle,
        DeleteRecordsRequest: DeleteRecordsHandler(services).handle,
        InitProducerIdRequest: InitProducerIdHandler(services).handle,
        OffsetForLeaderEpochRequest: OffsetForLeaderEpochHandler(services).handle,
        DescribeConfigsRequest: DescribeConfigsHandler(services).handle,
        AlterConfigsRequest: configs.replace,
        IncrementalAlterConfigsRequest: configs.change,
        SaslAuthenticateRequest: sasl.authenticate,
    }
