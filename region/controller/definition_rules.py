"""What a topic definition may say; judged once, in the definitions home, so that every region gets the same answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from georelay.errors import InvalidTopic
from georelay.fields import INT64_MAX
from georelay.ids import RegionNumber
from georelay.limits import PARTITIONS_PER_TOPIC_MAX, REGIONS_MAX, TOPIC_NAME_CHARS_MAX
from region.controller.geo_settings import GEO_DEFAULTS, check_together, with_raise_noted
from region.controller.topic import (
    DEFAULT,
    REPLICATION_FACTOR_DEFAULT,
    TOPIC_NAME,
    Homes,
    TopicDefinition,
    TopicSpec,
)
from region.controller.topic_settings import ALTERABLE, MIN_INSYNC_REPLICAS, SETTINGS_MAX, TOPIC_SETTINGS, setting_named
from region.controller.topology import RegionInfo, Topology


def define(spec: TopicSpec, *, topic_id: bytes, topology: Topology, own_brokers: int | None = None) -> TopicDefinition:
    """Return the definition of a topic as `spec` wants it, not ordered yet (index 0).

    Args:
        own_brokers: how many brokers the own region has now; without it, as many as the configuration names.

    Raises:
        InvalidTopic: the text names what is not allowed and what to write instead.
    """
    check_name(spec.name, topology)
    home = _home_of(spec, topology)
    partitions = 1 if spec.partitions == DEFAULT else spec.partitions
    if not 1 <= partitions <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidTopic(f"{partitions} partitions: use 1..{PARTITIONS_PER_TOPIC_MAX}")
    for name, value in spec.config:  # whoever asks may be of another version
        setting_named(name).judge(value)
    check_together(spec.config, regions=len(topology.data_regions))
    return _checked(
        TopicDefinition(
            name=spec.name,
            topic_id=topic_id,
            partitions=partitions,
            replication_factor=_replication_factor(spec, home, topology, own_brokers),
            homes=spec.homes,
            home=RegionNumber(0) if home is None else home.number,
            retention_ms=_retention("retention_ms", spec.retention_ms),
            retention_bytes=_retention("retention_bytes", spec.retention_bytes),
            config=spec.config,
            index=0,
        )
    )


def alter(
    topic: TopicDefinition,
    settings: Mapping[str, str | None],
    *,
    partitions: int | None = None,
    regions: int = REGIONS_MAX,
) -> TopicDefinition:
    """Return a definition with other settings (None: back to the default) and perhaps more partitions, same index.

    Args:
        regions: how many hold the topic.

    Raises:
        InvalidTopic: a setting that is unknown, fixed or has a value that is not allowed; fewer partitions.
    """
    for name in sorted(set(settings) - set(ALTERABLE)):
        setting_named(name)
        raise InvalidTopic(f"setting {name} cannot be changed: it is chosen when a topic is created")
    given = {name: value for name, value in settings.items() if value is not None}
    wished = TopicSpec(name=topic.name).with_settings(given)
    config = {name: value for name, value in topic.config if name not in settings} | dict(wished.config)
    count = topic.partitions if partitions is None else partitions
    if not topic.partitions <= count <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidTopic(f"{count} partitions: use {topic.partitions}..{PARTITIONS_PER_TOPIC_MAX}; they only grow")
    if not GEO_DEFAULTS.keys().isdisjoint(settings):
        check_together(tuple(config.items()), regions=regions)
    kept_ms = topic.retention_ms if "retention.ms" not in settings else wished.retention_ms
    kept_bytes = topic.retention_bytes if "retention.bytes" not in settings else wished.retention_bytes
    altered = replace(
        topic,
        partitions=count,
        retention_ms=_retention("retention_ms", kept_ms),
        retention_bytes=_retention("retention_bytes", kept_bytes),
        config=with_raise_noted(config, before=topic.config),
    )
    return altered if altered.config == topic.config else _checked(altered)


def _checked(topic: TopicDefinition) -> TopicDefinition:
    """Return a topic whose settings hold together (InvalidTopic)."""
    majority = topic.replication_factor // 2 + 1
    if int(topic.setting(MIN_INSYNC_REPLICAS)) > majority:
        raise InvalidTopic(
            f"setting {MIN_INSYNC_REPLICAS}={topic.setting(MIN_INSYNC_REPLICAS)}: {majority} of "
            f"{topic.replication_factor} replicas are waited for. {TOPIC_SETTINGS[MIN_INSYNC_REPLICAS].text}"
        )
    if len(topic.config) > SETTINGS_MAX:
        raise InvalidTopic(f"{len(topic.config)} settings are not at their default: use at most {SETTINGS_MAX}")
    return topic


def check_name(name: str, topology: Topology) -> None:
    """Raise InvalidTopic unless `name` is a Kafka topic name that no region's qualified names can collide with."""
    if name in (".", "..") or TOPIC_NAME.fullmatch(name) is None:
        raise InvalidTopic(f"topic name {name[:60]!r}: use 1..{TOPIC_NAME_CHARS_MAX} of letters, digits, '.', '_', '-'")
    prefix = region_prefix(name, topology)
    if prefix is not None:
        raise InvalidTopic(
            f"topic name {name[:60]!r}: names that start with a region's name and a dot ('{prefix}.') are its mirrors"
        )


def region_prefix(name: str, topology: Topology) -> str | None:
    """Return the known region whose name and a dot `name` starts with."""
    head, dot, _ = name.partition(".")
    return head if dot and topology.by_name(head) is not None else None


def _home_of(spec: TopicSpec, topology: Topology) -> RegionInfo | None:
    if spec.homes is Homes.EVERY:
        if spec.home:
            raise InvalidTopic(f"home={spec.home!r} and homes=every exclude each other; leave home out")
        return None
    home = topology.by_name(spec.home)
    if home is None or not home.holds_topics:
        known = ", ".join(region.name for region in topology.data_regions)
        raise InvalidTopic(f"home region {spec.home!r} is unknown; the regions are {known}")
    return home


def _replication_factor(spec: TopicSpec, home: RegionInfo | None, topology: Topology, own_brokers: int | None) -> int:
    """Judge against the home; a mirror region with fewer brokers keeps as many replicas as it has brokers.

    The default is not cut to what a region has now: the topic gets the missing replicas when brokers come.
    """
    if spec.replication_factor == DEFAULT:
        return REPLICATION_FACTOR_DEFAULT

    def brokers_of(region: RegionInfo) -> int:
        known = len(region.brokers)
        return known if own_brokers is None or region.number != topology.region else own_brokers

    homes = topology.data_regions if home is None else (home,)
    homes = tuple(region for region in homes if region.brokers) or (topology.own,)
    smallest = min(homes, key=brokers_of)
    brokers = brokers_of(smallest)
    if not 1 <= spec.replication_factor <= brokers:
        raise InvalidTopic(
            f"replication factor {spec.replication_factor}: region {smallest.name} has {brokers} broker(s); "
            f"use 1..{brokers}, or -1 for the default"
        )
    return spec.replication_factor


def _retention(name: str, value: int) -> int:
    if value == -1 or 0 < value <= INT64_MAX:
        return value
    raise InvalidTopic(f"{name}={value}: use a positive number, or -1 to keep everything")
