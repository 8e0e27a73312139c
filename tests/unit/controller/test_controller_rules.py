"""What a definition may say, and what the refusal says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import InvalidTopic
from region.controller.definition_rules import alter, define
from region.controller.topic import Homes, TopicSpec

Make = Callable[..., Any]


def test_defaults_are_one_partition_and_three_replicas(topology: Make) -> None:
    defined = define(TopicSpec(name="orders", home="eu"), topic_id=bytes(16), topology=topology(1, brokers=5))
    assert (defined.partitions, defined.replication_factor, defined.home) == (1, 3, 2)


def test_default_replication_is_not_cut_to_what_a_small_region_has_now(topology: Make) -> None:
    defined = define(TopicSpec(name="orders", home="us"), topic_id=bytes(16), topology=topology(1, brokers=1))
    assert defined.replication_factor == 3


def test_replication_is_judged_by_the_brokers_that_the_region_has_now(topology: Make) -> None:
    spec = TopicSpec(name="orders", home="us", replication_factor=5)
    grown = define(spec, topic_id=bytes(16), topology=topology(1, brokers=3), own_brokers=5)
    assert grown.replication_factor == 5
    with pytest.raises(InvalidTopic, match="region us has 1 broker"):
        define(spec, topic_id=bytes(16), topology=topology(1, brokers=5), own_brokers=1)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"retention.ms": "5"}, (5, 7, (("segment.bytes", "65536"),))),
        ({"retention.ms": None}, (-1, 7, (("segment.bytes", "65536"),))),
        ({"retention.bytes": "9", "cleanup.policy": "delete"}, (3, 9, (("segment.bytes", "65536"),))),
        ({"segment.bytes": None}, (3, 7, ())),
        ({"segment.bytes": "16384"}, (3, 7, (("segment.bytes", "16384"),))),
        ({}, (3, 7, (("segment.bytes", "65536"),))),
    ],
)
def test_altering_changes_what_is_named_and_nothing_else(
    definition: Make, settings: dict[str, str | None], expected: tuple[Any, ...]
) -> None:
    before = replace(definition(), retention_ms=3, retention_bytes=7, config=(("segment.bytes", "65536"),))
    after = alter(before, settings)
    assert (after.retention_ms, after.retention_bytes, after.config) == expected
    assert replace(after, retention_ms=3, retention_bytes=7, config=before.config) == before


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"georelay.homes": "every"}, "cannot be changed"),
        ({"georelay.home": "eu"}, "cannot be changed"),
        ({"no.such": "1"}, "is unknown; known are cleanup.policy"),
        ({"retention.ms": "0"}, "positive number, or -1"),
        ({"retention.ms": "soon"}, "whole number"),
        ({"segment.bytes": "1"}, r"in 16384\.\."),
        ({"segment.bytes": "1000000000"}, r"in 16384\.\."),
        ({"cleanup.policy": "shred"}, "use a list of compact, delete"),
        ({"remote.storage.enable": "true"}, "bound a topic by retention.ms"),
        ({"min.insync.replicas": "3"}, "2 of 3 replicas.*use min.insync.regions"),
    ],
)
def test_what_cannot_be_altered_is_refused_by_name(definition: Make, settings: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidTopic, match=says):
        alter(definition(), settings)


def test_partitions_only_grow(definition: Make) -> None:
    assert alter(definition(partitions=2), {}, partitions=5).partitions == 5
    for count in (1, 1001):
        with pytest.raises(InvalidTopic, match=r"use 2\.\.1000"):
            alter(definition(partitions=2), {}, partitions=count)


def test_segment_size_is_the_settings_or_the_default(definition: Make) -> None:
    assert definition().segment_bytes == 128 * 1024 * 1024
    assert alter(definition(), {"segment.bytes": "65536"}).segment_bytes == 65536


@pytest.mark.parametrize("name", ["a", "a.b", "usa.x", "x.us.y", "_-.", "a" * 249])
def test_kafka_names_are_allowed(topology: Make, name: str) -> None:
    assert define(TopicSpec(name=name, home="us"), topic_id=bytes(16), topology=topology(1)).name == name


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (TopicSpec(name="", home="us"), "use 1..249"),
        (TopicSpec(name=".", home="us"), "use 1..249"),
        (TopicSpec(name="..", home="us"), "use 1..249"),
        (TopicSpec(name="a/b", home="us"), "use 1..249"),
        (TopicSpec(name="ä", home="us"), "use 1..249"),
        (TopicSpec(name="a\n", home="us"), "use 1..249"),
        (TopicSpec(name="a" * 250, home="us"), "use 1..249"),
        (TopicSpec(name="eu.orders", home="us"), "'eu.'"),
        (TopicSpec(name="t", home="us", partitions=0), "use 1..1000"),
        (TopicSpec(name="t", home="us", partitions=1001), "use 1..1000"),
        (TopicSpec(name="t", home="us", replication_factor=0), "use 1..3"),
        (TopicSpec(name="t", home="us", replication_factor=5), "region us has 3 broker"),
        (TopicSpec(name="t", home="mars"), "the regions are us, eu"),
        (TopicSpec(name="t", home="us", homes=Homes.EVERY), "leave home out"),
        (TopicSpec(name="t", home="us", retention_ms=0), "retention_ms=0"),
        (TopicSpec(name="t", home="us", retention_bytes=-2), "retention_bytes=-2"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_refusal_says_what_to_write_instead(topology: Make, spec: TopicSpec, says: str) -> None:
    with pytest.raises(InvalidTopic) as refused:
        define(spec, topic_id=bytes(16), topology=topology(1))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_settings_become_part_of_the_spec() -> None:
    spec = TopicSpec(name="t").with_settings(
        {"retention.ms": "1000", "retention.bytes": "-1", "georelay.homes": "every", "cleanup.policy": "delete"}
    )
    assert (spec.retention_ms, spec.retention_bytes, spec.homes) == (1000, -1, Homes.EVERY)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "soon"),
        ("georelay.homes", "two"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "delete,delete"),
        ("flush.ms", "-1"),
        ("preallocate", "yes"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("message.timestamp.type", "createtime"),
        ("max.message.bytes", "8388609"),
        ("max.message.bytes", "127"),
        ("leader.replication.throttled.replicas", "x" * 257),
        ("message.format.version", "2.0"),
    ],
)
def test_wrong_setting_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidTopic, match=name):
        TopicSpec(name="t").with_settings({name: value})
