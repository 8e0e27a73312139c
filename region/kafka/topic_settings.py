"""Settings of a topic and of a broker in Kafka's words: one table each, read by Create-, Describe- and AlterConfigs.

Rule 1: a setting is shown exactly when it can be set, or when clients ask for it to plan their work (read-only then).
Rule 2: homes and home are chosen when a topic is created and never change (a changed home is another operation).
Pure: nothing here knows a connection or the cluster.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from georelay.errors import InvalidTopic
from georelay.limits import RECORD_BATCH_BYTES_MAX, SEGMENT_BYTES_MAX
from region.controller.geo_settings import GEO_DEFAULTS
from region.controller.topic import TopicSpec, TopicView

OWN_PREFIX: Final = "georelay."
KEEP_EVERYTHING: Final = "-1"
INT64_MAX: Final = 2**63 - 1
_KEEPING: Final = frozenset({"retention.bytes", "retention.ms"})  # -1 keeps everything


class SettingType(enum.IntEnum):
    """Kafka's number for the type of a value."""

    BOOLEAN = 1
    TEXT = 2
    INT = 3
    LONG = 5
    LIST = 7


class Source(enum.IntEnum):
    """Kafka's number for where a value comes from."""

    TOPIC = 1
    BROKER_FILE = 4
    DEFAULT = 5


class Change(enum.Enum):
    """When a setting may be given."""

    ANY_TIME = "any_time"
    AT_CREATION = "at_creation"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table; `default` is written as clients write it."""

    name: str
    type: SettingType
    default: str
    change: Change
    text: str


TOPIC_SETTINGS: Final[Mapping[str, Setting]] = {
    row.name: row
    for row in (
        Setting(
            name="cleanup.policy",
            type=SettingType.LIST,
            default="delete",
            change=Change.ANY_TIME,
            text="What happens to old records; only 'delete' is there.",
        ),
        Setting(
            name="failover",
            type=SettingType.TEXT,
            default=GEO_DEFAULTS["failover"],
            change=Change.ANY_TIME,
            text="Who moves the home of a lost region: 'manual' or 'auto'.",
        ),
        Setting(
            name="georelay.home",
            type=SettingType.TEXT,
            default="",
            change=Change.AT_CREATION,
            text="Region that sequences the topic; empty with georelay.homes=every.",
        ),
        Setting(
            name="georelay.homes",
            type=SettingType.TEXT,
            default="one",
            change=Change.AT_CREATION,
            text="'one' home region for all partitions, or 'every' region with a stream of its own.",
        ),
        Setting(
            name="max.geo.lag.ms",
            type=SettingType.LONG,
            default=GEO_DEFAULTS["max.geo.lag.ms"],
            change=Change.ANY_TIME,
            text="Publishes are refused while fewer than min.insync.regions (at least 2) lag less; 0: never.",
        ),
        Setting(
            name="max.geo.lag.records",
            type=SettingType.LONG,
            default=GEO_DEFAULTS["max.geo.lag.records"],
            change=Change.ANY_TIME,
            text="The same bound in records; 0: never.",
        ),
        Setting(
            name="max.message.bytes",
            type=SettingType.INT,
            default=str(RECORD_BATCH_BYTES_MAX),
            change=Change.NEVER,
            text="Bytes of a record batch at most.",
        ),
        Setting(
            name="min.insync.regions",
            type=SettingType.INT,
            default=GEO_DEFAULTS["min.insync.regions"],
            change=Change.ANY_TIME,
            text="Regions that have a record before acks=all is answered and consumers see it.",
        ),
        Setting(
            name="protect.k",
            type=SettingType.INT,
            default=GEO_DEFAULTS["protect.k"],
            change=Change.ANY_TIME,
            text="A forced move keeps what so many regions have; at most min.insync.regions; 0: not set.",
        ),
        Setting(
            name="retention.bytes",
            type=SettingType.LONG,
            default=KEEP_EVERYTHING,
            change=Change.ANY_TIME,
            text="Bytes kept per partition; -1 keeps everything.",
        ),
        Setting(
            name="retention.ms",
            type=SettingType.LONG,
            default=KEEP_EVERYTHING,
            change=Change.ANY_TIME,
            text="Milliseconds that records are kept at least; -1 keeps everything.",
        ),
        Setting(
            name="segment.bytes",
            type=SettingType.INT,
            default=str(SEGMENT_BYTES_MAX),
            change=Change.ANY_TIME,
            text="Size at which a file of the log is closed; whole files are deleted.",
        ),
    )
}


def value_of(name: str, view: TopicView, region_name: Callable[[int], str]) -> str:
    """Return the value that a setting of the table has for a topic."""
    definition = view.definition
    match name:
        case _ if name in GEO_DEFAULTS:
            return dict(definition.config).get(name, GEO_DEFAULTS[name])
        case "georelay.home":
            return region_name(definition.home) if definition.home else ""
        case "georelay.homes":
            return str(definition.homes)
        case "retention.bytes":
            return str(definition.retention_bytes)
        case "retention.ms":
            return str(definition.retention_ms)
        case "segment.bytes":
            return str(definition.segment_bytes)
        case _:
            return TOPIC_SETTINGS[name].default


def check_alteration(settings: Mapping[str, str]) -> None:
    """Judge new values of settings that may change at any time, as the definitions home will.

    Raises:
        InvalidTopic: unknown, fixed, or a value that is not allowed; the text says which and what to write.
    """
    for name, value in settings.items():
        row = TOPIC_SETTINGS.get(name)
        if row is None:
            raise InvalidTopic(f"setting {name[:64]!r} is unknown; known are {', '.join(_alterable())}")
        if row.change is not Change.ANY_TIME:
            raise InvalidTopic(f"setting {name} is fixed; what may change is {', '.join(_alterable())}")
        TopicSpec(name="").with_settings({name: value})
        if name in _KEEPING and not (int(value) == -1 or 0 < int(value) <= INT64_MAX):
            raise InvalidTopic(f"setting {name}={value}: use a positive number, or -1 to keep everything")


def defaults_of_alterable() -> dict[str, str]:
    """Return the default of every setting that may change at any time."""
    return {name: TOPIC_SETTINGS[name].default for name in _alterable()}


def _alterable() -> list[str]:
    return [name for name, row in TOPIC_SETTINGS.items() if row.change is Change.ANY_TIME]
