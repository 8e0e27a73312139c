"""What Kafka's clients are told of the settings of a topic, and how their wishes are read.

Rule 1: every setting of the table (region.controller.topic_settings) is shown, so that a client finds what it looks
        for; the documentation of one without effect says so.
Rule 2: homes and home are chosen when a topic is created and never change (a changed home is another operation).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final

from georelay.errors import InvalidTopic
from georelay.wire.responses import (
    CreatableTopicConfigs,
    DescribeConfigsResourceResult,
    DescribeConfigsSynonym,
)
from region.controller.topic import Homes, TopicDefinition, TopicSpec
from region.controller.topic_settings import (
    ALTERABLE,
    HOME,
    HOMES,
    RETENTION_BYTES,
    RETENTION_MS,
    TOPIC_SETTINGS,
    Change,
    Effect,
    Setting,
    SettingType,
    setting_named,
)

RegionName = Callable[[int], str]
ROWS_KEPT: Final = 1_024  # of answers: nearly all are defaults, the same for every topic
SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3
_WITHOUT_EFFECT: Final = "Kept and told again, without effect here. "


class Source(enum.IntEnum):
    """Kafka's number for where a value comes from."""

    TOPIC = 1
    BROKER_FILE = 4
    DEFAULT = 5


def values_of(topic: TopicDefinition, region_name: RegionName) -> dict[str, str]:
    """Return the value of every setting of a topic."""
    return _values(topic, region_name(topic.home) if topic.home else "")


def values_wished(spec: TopicSpec) -> dict[str, str]:
    """Return the value of every setting that a topic would have."""
    return _values(spec, "" if spec.homes is Homes.EVERY else spec.home)


def _values(topic: TopicDefinition | TopicSpec, home: str) -> dict[str, str]:
    given = dict(topic.config) | {
        HOME: home,
        HOMES: str(topic.homes),
        RETENTION_BYTES: str(topic.retention_bytes),
        RETENTION_MS: str(topic.retention_ms),
    }
    return {name: given.get(name, row.default) for name, row in TOPIC_SETTINGS.items()}


def created_rows(values: Mapping[str, str]) -> list[CreatableTopicConfigs]:
    """Return what CreateTopics answers of a topic with these values (KIP-525)."""
    return [_created_row(name, values[name]) for name in TOPIC_SETTINGS]


def described_rows(
    values: Mapping[str, str], *, synonyms: bool, documentation: bool
) -> list[DescribeConfigsResourceResult]:
    """Return what DescribeConfigs answers of a topic with these values."""
    return [_described_row(name, values[name], synonyms, documentation) for name in TOPIC_SETTINGS]


@lru_cache(maxsize=ROWS_KEPT)
def _created_row(name: str, value: str) -> CreatableTopicConfigs:
    row = TOPIC_SETTINGS[name]
    return CreatableTopicConfigs(name=name, value=value, read_only=_is_fixed(row), config_source=_source(row, value))


@lru_cache(maxsize=ROWS_KEPT)
def _described_row(name: str, value: str, synonyms: bool, documentation: bool) -> DescribeConfigsResourceResult:
    row = TOPIC_SETTINGS[name]
    return DescribeConfigsResourceResult(
        name=name,
        value=value,
        read_only=_is_fixed(row),
        config_source=_source(row, value),
        synonyms=_synonyms(row, value) if synonyms else (),
        config_type=row.type,
        documentation=_documentation(row) if documentation else None,
    )


def _is_fixed(row: Setting) -> bool:
    return row.change is not Change.ANY_TIME


def _source(row: Setting, value: str) -> Source:
    return Source.DEFAULT if value == row.default else Source.TOPIC


def _synonyms(row: Setting, value: str) -> list[DescribeConfigsSynonym]:
    own = [] if value == row.default else [DescribeConfigsSynonym(row.name, value, Source.TOPIC)]
    return [*own, DescribeConfigsSynonym(row.name, row.default, Source.DEFAULT)]


def _documentation(row: Setting) -> str:
    return row.text if row.effect is Effect.ENFORCED else _WITHOUT_EFFECT + row.text


def wished(rows: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Return the settings that a new topic is to have (InvalidTopic: without a value, or given twice)."""
    settings: dict[str, str] = {}
    for name, value in rows:
        if value is None:
            raise InvalidTopic(f"setting {name[:64]} has no value")
        if name in settings:
            raise InvalidTopic(f"setting {name[:64]} is given twice")
        settings[name] = value
    return settings


def replaced(values: Mapping[str, str], named: Iterable[tuple[str, int, str | None]]) -> dict[str, str]:
    """Return what AlterConfigs changes: what is named, and the default of what is set and not named.

    A setting that is fixed may be named with the value it has.
    """
    settings = {name: row.default for name, row in TOPIC_SETTINGS.items() if row.default != values[name]}
    settings = {name: value for name, value in settings.items() if name in ALTERABLE}
    for name, _, value in named:
        if value is None:
            raise InvalidTopic(f"setting {name[:64]} has no value")
        if name in TOPIC_SETTINGS and name not in ALTERABLE and value == values[name]:
            continue
        settings[name] = value
    return settings


def changed(values: Mapping[str, str], named: Iterable[tuple[str, int, str | None]]) -> dict[str, str]:
    """Return what IncrementalAlterConfigs changes: set, deleted to the default, added to or taken from a list."""
    settings = {}
    for name, operation, value in named:
        row = setting_named(name)
        if operation == DELETE:
            settings[name] = row.default
        elif value is None:
            raise InvalidTopic(f"setting {name} has no value")
        elif operation == SET:
            settings[name] = value
        elif operation in (APPEND, SUBTRACT) and row.type is SettingType.LIST:
            settings[name] = _edited(values[name], value, is_append=operation == APPEND)
        else:
            raise InvalidTopic(f"setting {name}: operation {operation} is for lists; use set (0) or delete (1)")
    return settings


def _edited(known: str, value: str, *, is_append: bool) -> str:
    items = [item for item in known.split(",") if item]
    given = [item.strip() for item in value.split(",")]
    if is_append:
        return ",".join([*items, *(item for item in given if item not in items)])
    return ",".join(item for item in items if item not in given)


def check_alteration(settings: Mapping[str, str]) -> None:
    """Judge new values of settings that may change at any time, as the definitions home will.

    Raises:
        InvalidTopic: unknown, fixed, or a value that is not allowed; the text says which and what to write.
    """
    for name, value in settings.items():
        row = setting_named(name)
        if _is_fixed(row):
            raise InvalidTopic(f"setting {name} is fixed: it is chosen when a topic is created")
        row.judge(value)
