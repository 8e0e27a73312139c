"""The table of topic settings: what each does, what a definition keeps of it, and when a mesh may be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import InvalidTopic, PolicyViolation
from georelay.ids import RegionNumber
from region.controller import definition_orders
from region.controller.command_kinds import MESH_LEVEL, SETTINGS_LEVEL
from region.controller.definition_orders import until_understood
from region.controller.definition_rules import alter, define
from region.controller.mesh_rows import RegionRow, RegionState
from region.controller.topic import TopicDefinition, TopicSpec
from region.controller.topic_settings import ALTERABLE, TOPIC_SETTINGS, Effect, SettingType
from tests.tiers import in_one_test

Make = Callable[..., Any]
# org.apache.kafka.common.config.TopicConfig of kafka-clients 4.4, and the two throttles of QuotaConfig.
KAFKA_4: frozenset[str] = frozenset(
    {
        "cleanup.policy",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delete.retention.ms",
        "errors.deadletterqueue.group.enable",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "index.interval.bytes",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "max.decompressed.message.bytes",
        "max.message.bytes",
        "message.downconversion.enable",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "remote.copy.lag.bytes",
        "remote.copy.lag.ms",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)
OTHER_VALUES = {
    SettingType.BOOLEAN: "true",
    SettingType.DOUBLE: "0.25",
    SettingType.LONG: "12345",
    SettingType.LIST: "0:1001",
}


def test_the_table_has_every_setting_of_kafka_and_says_what_it_does() -> None:
    assert set(TOPIC_SETTINGS) >= KAFKA_4
    ours = set(TOPIC_SETTINGS) - KAFKA_4
    assert all(TOPIC_SETTINGS[name].effect is Effect.ENFORCED for name in ours)
    assert all(len(row.text) > 10 for row in TOPIC_SETTINGS.values())


@in_one_test("name", sorted(TOPIC_SETTINGS))
def test_a_default_is_taken_and_not_kept(name: str) -> None:
    row = TOPIC_SETTINGS[name]
    assert TopicSpec(name="t").with_settings({name: row.default}) == TopicSpec(name="t")


@pytest.mark.parametrize("name", sorted(name for name, row in TOPIC_SETTINGS.items() if row.effect is Effect.KEPT))
def test_a_setting_without_effect_is_kept_and_told_again(definition: Make, name: str) -> None:
    row = TOPIC_SETTINGS[name]
    value = row.words[0] if row.words else OTHER_VALUES.get(row.type, "7" if row.low == 4 else "2")
    altered = alter(definition(), {name: value})
    assert altered.setting(name) == value == altered.shown_settings[name]
    assert replace(altered, config=()) == definition()
    assert alter(altered, {name: None}) == definition()


def test_a_topic_that_names_compact_keeps_everything(definition: Make) -> None:
    for policy in ("compact", "compact,delete", "delete, compact"):
        topic = alter(definition(), {"cleanup.policy": policy, "retention.ms": "1000"})
        assert topic.keeps_everything
        assert TopicDefinition.from_json(topic.to_json()) == topic
        assert not alter(topic, {"cleanup.policy": "delete"}).keeps_everything
    assert not definition().keeps_everything


def test_timestamps_and_batch_size_are_the_topics(definition: Make) -> None:
    topic = alter(definition(), {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "1000"})
    assert (topic.uses_append_time, topic.max_message_bytes) == (True, 1000)
    assert (definition().uses_append_time, definition().max_message_bytes) == (False, 8 * 1024 * 1024)


def test_replicas_up_to_the_majority_may_be_asked_for(topology: Make) -> None:
    spec = TopicSpec(name="t", home="us").with_settings({"min.insync.replicas": "2"})
    assert define(spec, topic_id=bytes(16), topology=topology(1)).setting("min.insync.replicas") == "2"
    with pytest.raises(InvalidTopic, match="1 of 1 replicas"):
        define(replace(spec, replication_factor=1), topic_id=bytes(16), topology=topology(1))


def test_who_orders_judges_what_another_version_let_through(topology: Make) -> None:
    for config in ((("no.such", "1"),), (("retention.days", "7"),), (("max.message.bytes", "-5"),)):
        with pytest.raises(InvalidTopic):
            define(TopicSpec(name="t", home="us", config=config), topic_id=bytes(16), topology=topology(1))


def test_more_settings_than_a_definition_holds_are_refused(definition: Make) -> None:
    numbers = [name for name in ALTERABLE if TOPIC_SETTINGS[name].type in (SettingType.LONG, SettingType.BOOLEAN)]
    many = {name: OTHER_VALUES[TOPIC_SETTINGS[name].type] for name in numbers if name != "remote.storage.enable"}
    many |= dict.fromkeys(("index.interval.bytes", "compression.gzip.level", "compression.lz4.level"), "2")
    many |= {"segment.bytes": "20000", "max.message.bytes": "1000", "failover": "auto", "cleanup.policy": "compact"}
    many |= {name: "0:1" for name in ALTERABLE if name.endswith("throttled.replicas")}
    many |= {"compression.type": "zstd", "compression.zstd.level": "4", "segment.index.bytes": "99"}
    many |= {"message.timestamp.type": "LogAppendTime", "min.cleanable.dirty.ratio": "0.1", "min.insync.replicas": "2"}
    with pytest.raises(InvalidTopic, match="use at most 32"):
        alter(definition(), many)


@pytest.mark.parametrize(
    ("config", "level"),
    [
        ((("cleanup.policy", "compact"),), SETTINGS_LEVEL),
        ((("message.timestamp.type", "LogAppendTime"),), SETTINGS_LEVEL),
        ((("failover", "auto"), ("max.message.bytes", "1000")), SETTINGS_LEVEL),
        ((("failover", "auto"),), MESH_LEVEL),
        ((("flush.ms", "1"), ("segment.bytes", "20000")), 0),
    ],
)
async def test_what_older_brokers_do_not_enforce_waits_until_every_region_does(
    config: tuple[tuple[str, str], ...], level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definition_orders, "LEVELS_WAIT_S", 0)
    for at in range(1, SETTINGS_LEVEL + 1):

        def older(needed: int, at: int = at) -> list[str]:
            return ["eu"] if at < needed else []

        if at < level:
            with pytest.raises(PolicyViolation, match="eu did not say so"):
                await until_understood(config, (), older)
        else:
            await until_understood(config, (), older)
        await until_understood(config, config, older)  # it was so before


async def test_a_region_with_an_older_broker_asks_for_nothing_that_it_would_not_enforce(
    mesh_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definition_orders, "LEVELS_WAIT_S", 0)
    levels = dict.fromkeys((1001, 1002, 2001, 2002), SETTINGS_LEVEL)
    mesh = await mesh_of(levels=levels | {1002: MESH_LEVEL})
    us, eu = mesh.services[1001], mesh.services[2001]
    await mesh.until(lambda: (us.feature_level, eu.feature_level) == (MESH_LEVEL, SETTINGS_LEVEL))
    await mesh.until(lambda: all(service.is_settled for service in mesh.services.values()))
    compact = TopicSpec(name="state").with_settings({"cleanup.policy": "compact"})
    with pytest.raises(PolicyViolation, match="us did not say so"):
        await us.create_topic(compact)
    assert us.catalog.topic("state") is None
    await us.create_topic(TopicSpec(name="state"))
    with pytest.raises(PolicyViolation, match=r"max\.message\.bytes.*us did not say so"):
        await us.alter_topic("state", {"max.message.bytes": "1000"})
    await us.alter_topic("state", {"flush.ms": "1", "cleanup.policy": "delete", "max.message.bytes": None})


async def test_what_mesh_control_said_of_other_regions_counts_as_well(mesh: Any) -> None:
    us = mesh.services[1001]
    assert us.feature_level < SETTINGS_LEVEL
    rows = (
        RegionRow(number=RegionNumber(1), name="us", level=0),  # of its own region a broker knows better
        RegionRow(number=RegionNumber(2), name="eu", level=SETTINGS_LEVEL),
        RegionRow(number=RegionNumber(3), name="ap", level=MESH_LEVEL),
        RegionRow(number=RegionNumber(4), name="wit", level=0, witness=True),
        RegionRow(number=RegionNumber(5), name="gone", level=0, state=RegionState.REMOVED),
    )
    us.state.mesh.regions.update({row.number: row for row in rows})
    assert us._definitions._older_regions(SETTINGS_LEVEL) == ["us", "ap"]
