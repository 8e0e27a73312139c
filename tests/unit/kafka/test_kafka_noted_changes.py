"""Changes of topics over the Kafka protocol stand in the audit log, with their outcome."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from georelay.errors import Unavailable
from georelay.wire import cluster
from georelay.wire.api import ApiKey
from georelay.wire.requests import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    MetadataRequest,
    MetadataRequestTopic,
)
from region.security.access import Access, Principal

Note = tuple[str, str, dict[str, str]]


@pytest.fixture
def notes(bed: Any) -> list[Note]:
    """Return where changes are noted."""
    found: list[Note] = []

    def note(principal: Principal, what: str, /, *, outcome: str, **detail: str) -> None:
        assert (principal.name, principal.host) == ("User:ANONYMOUS", "127.0.0.1")
        found.append((what, outcome, detail))

    bed.services = dataclasses.replace(bed.services, access=Access.open(changed=note))
    bed.cluster.add_topic("orders")
    return found


REQUESTS = [
    (ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("new", 1, 1)]), "topic.created", {"topic": "new"}),
    (ApiKey.DELETE_TOPICS, 4, DeleteTopicsRequest(topic_names=["orders"]), "topic.deleted", {"topic": "orders"}),
    (
        *(ApiKey.DELETE_RECORDS, 1),
        DeleteRecordsRequest([DeleteRecordsTopic("orders", [DeleteRecordsPartition(0, -1)])]),
        *("records.deleted", {"topic": "orders", "partition": "0", "before": "high watermark"}),
    ),
    (
        *(ApiKey.CREATE_PARTITIONS, 2),
        cluster.CreatePartitionsRequest([cluster.CreatePartitionsTopic("orders", 3)]),
        *("topic.grown", {"topic": "orders", "partitions": "3"}),
    ),
    (
        *(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1),
        IncrementalAlterConfigsRequest(
            [IncrementalAlterConfigsResource(2, "orders", [IncrementalAlterableConfig("retention.ms", 0, "5")])]
        ),
        *("topic.altered", {"topic": "orders", "settings": "retention.ms=5"}),
    ),
    (
        *(ApiKey.METADATA, 8, MetadataRequest([MetadataRequestTopic(name="fresh")], allow_auto_topic_creation=True)),
        *("topic.created", {"topic": "fresh", "how": "automatic"}),
    ),
]


@pytest.mark.parametrize(("key", "version", "request_", "what", "detail"), REQUESTS, ids=lambda part: str(part)[:30])
async def test_a_change_is_noted_when_it_is_done(
    bed: Any, notes: list[Note], key: ApiKey, version: int, request_: Any, what: str, detail: dict[str, str]
) -> None:
    await (await bed.client()).call(request_, key, version)
    assert notes == [(what, "done", detail)]


async def test_a_replacement_of_all_settings_is_noted(bed: Any, notes: list[Note]) -> None:
    wanted = AlterConfigsRequest([AlterConfigsResource(2, "orders", [AlterableConfig("retention.ms", "5")])])
    await (await bed.client()).call(wanted, ApiKey.ALTER_CONFIGS, 2)
    ((what, outcome, detail),) = notes
    assert (what, outcome) == ("topic.altered", "done") and "retention.ms=5" in detail["settings"]


async def test_a_change_that_fails_is_noted_with_its_code(bed: Any, notes: list[Note]) -> None:
    client = await bed.client()
    await client.call(DeleteTopicsRequest(topic_names=["none"]), ApiKey.DELETE_TOPICS, 4)
    bed.cluster.create_errors.append(Unavailable("the definitions home is away"))
    await client.call(CreateTopicsRequest([CreatableTopic("new", 1, 1)]), ApiKey.CREATE_TOPICS, 5)
    assert [note[:2] for note in notes] == [
        ("topic.deleted", "UNKNOWN_TOPIC"),
        ("topic.created", "UNAVAILABLE"),
    ]


async def test_a_request_that_is_only_checked_changes_nothing_and_is_not_noted(bed: Any, notes: list[Note]) -> None:
    wanted = CreateTopicsRequest([CreatableTopic("new", 1, 1)], validate_only=True)
    await (await bed.client()).call(wanted, ApiKey.CREATE_TOPICS, 5)
    assert notes == []
