"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs over the wire."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from georelay.errors import HomeUnreachable, OutcomeUnknown
from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.requests import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from region.controller.topic import Homes, TopicDefaults
from region.controller.topic_settings import TOPIC_SETTINGS
from region.kafka.handlers import configs

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


async def describe(bed: Any, *resources: DescribeConfigsResource, version: int = 4, **flags: bool) -> list[Any]:
    client = await bed.client()
    response = await client.call(DescribeConfigsRequest(resources, **flags), ApiKey.DESCRIBE_CONFIGS, version)
    return list(response.results)


async def change(
    bed: Any,
    *settings: tuple[str, int, str | None],
    topic: str = "orders",
    version: int = 1,
    validate_only: bool = False,
) -> Any:
    client = await bed.client()
    rows = [IncrementalAlterableConfig(*setting) for setting in settings]
    request = IncrementalAlterConfigsRequest((IncrementalAlterConfigsResource(TOPIC, topic, rows),), validate_only)
    (row,) = (await client.call(request, ApiKey.INCREMENTAL_ALTER_CONFIGS, version)).responses
    return row


async def replace(bed: Any, version: int = 2, **settings: str | None) -> Any:
    client = await bed.client()
    rows = [AlterableConfig(name.replace("_", "."), value) for name, value in settings.items()]
    request = AlterConfigsRequest((AlterConfigsResource(TOPIC, "orders", rows),))
    (row,) = (await client.call(request, ApiKey.ALTER_CONFIGS, version)).responses
    return row


@pytest.mark.parametrize("version", range(1, 5))
async def test_the_settings_of_a_topic_are_described(bed: Any, version: int) -> None:
    bed.cluster.add_topic("orders")
    await bed.cluster.alter_topic("orders", {"retention.ms": "1000"})
    (result,) = await describe(bed, DescribeConfigsResource(TOPIC, "orders"), version=version)
    assert (result.error_code, result.resource_name) == (0, "orders")
    rows = {row.name: (row.value, row.read_only, row.config_source) for row in result.configs}
    defaults = {name: (row.default, False, 5) for name, row in TOPIC_SETTINGS.items()}
    assert rows == defaults | {
        "georelay.home": ("1", True, 1),
        "georelay.homes": ("one", True, 5),
        "retention.ms": ("1000", False, 1),
    }


async def test_the_documentation_of_a_setting_without_effect_says_so(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    wanted = DescribeConfigsResource(TOPIC, "orders", ("flush.ms", "cleanup.policy"))
    (result,) = await describe(bed, wanted, include_documentation=True)
    texts = {row.name: row.documentation for row in result.configs}
    assert texts["flush.ms"].startswith("Kept and told again, without effect here.")
    assert "With compact everything is kept" in texts["cleanup.policy"]


async def test_a_topic_with_every_home_has_no_home(bed: Any) -> None:
    bed.cluster.add_topic("clicks", homes=Homes.EVERY)
    (result,) = await describe(bed, DescribeConfigsResource(TOPIC, "clicks", ("georelay.home", "georelay.homes")))
    assert [row.value for row in result.configs] == ["", "every"]


async def test_only_the_keys_that_were_asked_for_with_their_synonyms_and_documentation(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    await bed.cluster.alter_topic("orders", {"retention.ms": "1000"})
    wanted = DescribeConfigsResource(TOPIC, "orders", ("retention.ms", "no.such.key"))
    (result,) = await describe(bed, wanted, include_synonyms=True, include_documentation=True)
    (row,) = result.configs
    assert [(each.value, each.source) for each in row.synonyms] == [("1000", 1), ("-1", 5)]
    assert (row.config_type, bool(row.documentation)) == (5, True)
    (result,) = await describe(bed, wanted)
    assert (result.configs[0].synonyms, result.configs[0].documentation) == ((), None)


async def test_a_small_request_makes_no_huge_answer(bed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "DOCUMENTED_MAX", 1)
    for name in ("a", "b"):
        bed.cluster.add_topic(name)
    wanted = [DescribeConfigsResource(TOPIC, name) for name in ("a", "b", "a", "a")]
    first, second = await describe(bed, *wanted, include_documentation=True)
    assert (first.resource_name, second.resource_name) == ("a", "b")
    assert all(row.documentation for row in first.configs)
    assert not any(row.documentation for row in second.configs)


async def test_a_broker_describes_itself_read_only(bed: Any) -> None:
    bed.cluster.topic_defaults = TopicDefaults(partitions=7, replication_factor=2)
    bed.cluster.others = [1002]
    mine, other, defaults, ghost = await describe(
        bed,
        DescribeConfigsResource(BROKER, "1001"),
        DescribeConfigsResource(BROKER, "1002"),
        DescribeConfigsResource(BROKER, ""),
        DescribeConfigsResource(BROKER, "7"),
    )
    assert all(row.read_only for row in mine.configs)
    assert (other.error_code, defaults.error_code, defaults.configs) == (0, 0, ())
    assert (ghost.error_code, "1001, 1002" in ghost.error_message) == (ErrorCode.INVALID_REQUEST, True)
    of_other = {row.name: row.value for row in other.configs}
    assert (of_other["node.id"], of_other["log.cleanup.policy"]) == ("1002", "delete")
    assert "num.partitions" not in of_other  # that stands in its own file
    values = {row.name: row.value for row in mine.configs}
    assert (values["broker.rack"], values["num.partitions"], values["default.replication.factor"]) == ("us", "7", "2")


async def test_what_cannot_be_described_has_an_error_of_its_own(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    ghost, logger, orders = await describe(
        bed,
        DescribeConfigsResource(TOPIC, "ghost"),
        DescribeConfigsResource(8, "1001"),
        DescribeConfigsResource(TOPIC, "orders"),
    )
    assert [row.error_code for row in (ghost, logger, orders)] == [3, 42, 0]
    assert ghost.error_message


@pytest.mark.parametrize("version", range(2))
async def test_single_settings_are_changed_and_the_others_stay(bed: Any, version: int) -> None:
    bed.cluster.add_topic("orders")
    await bed.cluster.alter_topic("orders", {"retention.bytes": "77"})
    assert (await change(bed, ("retention.ms", SET, "1000"), version=version)).error_code == 0
    definition = bed.cluster.views["orders"].definition
    assert (definition.retention_ms, definition.retention_bytes) == (1000, 77)


async def test_a_deleted_setting_has_its_default_again(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    await bed.cluster.alter_topic("orders", {"retention.ms": "1000"})
    assert (await change(bed, ("retention.ms", DELETE, None))).error_code == 0
    assert bed.cluster.views["orders"].definition.retention_ms == -1


@pytest.mark.parametrize("version", range(3))
async def test_alter_configs_gives_back_the_default_of_what_it_does_not_name(bed: Any, version: int) -> None:
    bed.cluster.add_topic("orders")
    await bed.cluster.alter_topic("orders", {"retention.bytes": "77"})
    row = await replace(bed, version, retention_ms="1000", georelay_homes="one")
    assert row.error_code == 0
    definition = bed.cluster.views["orders"].definition
    assert (definition.retention_ms, definition.retention_bytes) == (1000, -1)


async def test_validate_only_changes_nothing_but_judges(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    assert (await change(bed, ("retention.ms", SET, "1000"), validate_only=True)).error_code == 0
    wrong = await change(bed, ("retention.ms", SET, "soon"), validate_only=True)
    assert wrong.error_code == ErrorCode.INVALID_CONFIG
    assert bed.cluster.changes == []


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ([("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, "0")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, str(2**63))], ErrorCode.INVALID_CONFIG),
        ([("segment.bytes", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.bytes", SET, None)], ErrorCode.INVALID_CONFIG),
        ([("cleanup.policy", SET, "shred")], ErrorCode.INVALID_CONFIG),
        ([("cleanup.policy", SUBTRACT, "delete")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("remote.storage.enable", SET, "true")], ErrorCode.INVALID_CONFIG),
        ([("georelay.homes", SET, "every")], ErrorCode.INVALID_CONFIG),
        ([("no.such.setting", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("no.such.setting", DELETE, None)], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_wrong_change_is_refused_and_explained(bed: Any, settings: Any, code: ErrorCode) -> None:
    bed.cluster.add_topic("orders")
    row = await change(bed, *settings)
    assert row.error_code == code
    assert row.error_message
    assert bed.cluster.changes == []


async def test_unknown_topics_mirrors_and_failures_have_their_codes(bed: Any) -> None:
    assert (await change(bed, ("retention.ms", SET, "1"))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    bed.cluster.add_topic("eu.clicks", homes=Homes.EVERY, mirror_of="clicks")
    mirror = await change(bed, ("retention.ms", SET, "1"), topic="eu.clicks")
    assert mirror.error_code == ErrorCode.POLICY_VIOLATION
    bed.cluster.add_topic("orders")
    bed.cluster.admin_errors += [HomeUnreachable("gone"), OutcomeUnknown("lost")]
    assert (await change(bed, ("retention.ms", SET, "1"))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert (await change(bed, ("retention.ms", SET, "1"))).error_code == ErrorCode.REQUEST_TIMED_OUT


async def test_brokers_are_not_altered_and_a_resource_stands_once(bed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.cluster.add_topic("orders")
    client = await bed.client()
    rows = (
        AlterConfigsResource(BROKER, "1001"),
        AlterConfigsResource(TOPIC, "orders"),
        AlterConfigsResource(TOPIC, "orders"),
        AlterConfigsResource(9, "x"),
    )
    response = await client.call(AlterConfigsRequest(rows), ApiKey.ALTER_CONFIGS, 2)
    assert [row.error_code for row in response.responses] == [
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    monkeypatch.setattr(configs, "RESOURCES_PER_REQUEST_MAX", 3)
    response = await client.call(AlterConfigsRequest(rows), ApiKey.ALTER_CONFIGS, 2)
    assert {row.error_code for row in response.responses} == {ErrorCode.INVALID_REQUEST}


async def test_a_decision_that_does_not_come_is_an_unknown_outcome(bed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    bed.cluster.add_topic("orders")
    monkeypatch.setattr(configs, "ALTER_TIMEOUT_MS", 1)
    monkeypatch.setattr(bed.cluster, "alter_topic", never)
    assert (await change(bed, ("retention.ms", SET, "1"))).error_code == ErrorCode.REQUEST_TIMED_OUT


async def test_settings_about_regions_are_described(bed: Any) -> None:
    view = bed.cluster.add_topic("orders")
    config = (("failover", "auto"), ("min.insync.regions", "2"))
    definition = dataclasses.replace(view.definition, config=config)
    bed.cluster.views["orders"] = dataclasses.replace(view, definition=definition)
    wanted = DescribeConfigsResource(TOPIC, "orders", ("min.insync.regions", "failover"))
    (result,) = await describe(bed, wanted)
    assert {row.name: (row.value, row.config_source) for row in result.configs} == {
        "min.insync.regions": ("2", 1),
        "failover": ("auto", 1),
    }


async def test_items_are_added_to_a_list_and_taken_from_it(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    assert (await change(bed, ("cleanup.policy", APPEND, "compact"))).error_code == 0
    assert bed.cluster.views["orders"].definition.setting("cleanup.policy") == "delete,compact"
    assert (await change(bed, ("cleanup.policy", SUBTRACT, "delete"))).error_code == 0
    assert bed.cluster.views["orders"].definition.setting("cleanup.policy") == "compact"


async def test_alter_configs_names_only_what_changes_to_whoever_orders_it(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    assert (await replace(bed, retention_ms="1000")).error_code == 0
    assert bed.cluster.changes == [("alter_topic", "orders", {"retention.ms": "1000"})]
