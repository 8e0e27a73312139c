"""Topics as values: what a user asks for, what the definitions home defined, what clients see.

TopicSpec        a wish; -1 and "" mean "the default"
TopicDefinition  decided and ordered by the definitions home, the same in every region
Tombstone        a deleted topic: its id never comes back
TopicView        one name a client of this region may use
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from georelay.errors import TooLarge
from georelay.fields import INT64_MAX, Fields, JsonObject
from georelay.ids import BROKERS_PER_REGION_MAX, REGION_NUMBER_MAX, RegionNumber
from georelay.limits import PARTITIONS_PER_TOPIC_MAX, REGION_NAME_CHARS_MAX, TOPIC_NAME_CHARS_MAX
from region.controller.geo_settings import (
    INSYNC_RAISED,
    MAX_GEO_LAG_MS,
    MAX_GEO_LAG_RECORDS,
    MIN_INSYNC_REGIONS,
    PROTECT_K,
    FailoverPolicy,
    failover_of,
    number,
)
from region.controller.topic_settings import (
    CLEANUP_POLICY,
    COMPACT,
    HOME,
    HOMES,
    LOG_APPEND_TIME,
    MAX_MESSAGE_BYTES,
    RETENTION_BYTES,
    RETENTION_MS,
    SEGMENT_BYTES,
    SETTING_NAME_CHARS_MAX,
    SETTING_VALUE_CHARS_MAX,
    SETTINGS_MAX,
    TIMESTAMP_TYPE,
    TOPIC_SETTINGS,
    setting_named,
    with_value,
)

TOPIC_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_CHARS_MAX}}}")
TOPIC_ID_BYTES: Final = 16
REPLICATION_FACTOR_DEFAULT: Final = 3
UNLIMITED: Final = -1
DEFAULT: Final = -1
INTERNAL_PREFIX: Final = "__georelay"  # topics that brokers make for themselves; clients neither make nor change them


class Homes(enum.StrEnum):
    """Which regions sequence a topic's streams."""

    ONE = "one"  # one home region for all partitions; publishing anywhere is forwarded
    EVERY = "every"  # each region is home of its own stream per partition


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic as somebody wants it.

    Args:
        partitions: 1..1000, or -1 for the default (TopicDefaults).
        replication_factor: replicas in each region, or -1 for the default. A region with fewer brokers keeps as
            many as it has, and more when brokers come.
        homes: see Homes.
        home: name of the home region for homes=one; "" is the region that asks.
        retention_ms, retention_bytes: -1 keeps everything.
        config: further settings, as (name, value), sorted by name.
    """

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    homes: Homes = Homes.ONE
    home: str = ""
    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED
    config: tuple[tuple[str, str], ...] = ()

    def with_settings(self, settings: Mapping[str, str]) -> TopicSpec:
        """Return the spec with settings of the table applied (region.controller.topic_settings).

        Raises:
            InvalidTopic: a setting that is unknown or has a value that is not allowed.
        """
        spec = self
        for name, value in settings.items():
            spec = _with_setting(spec, name, value)
        return spec

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {
            "name": self.name,
            "partitions": self.partitions,
            "replication_factor": self.replication_factor,
            "homes": str(self.homes),
            "home": self.home,
            "retention_ms": self.retention_ms,
            "retention_bytes": self.retention_bytes,
            "config": dict(self.config),
        }

    @classmethod
    def from_json(cls, value: object) -> TopicSpec:
        """Read the JSON form; the values are judged later, by the definitions home. Raises FieldError."""
        fields = Fields(value, "topic")
        spec = cls(
            name=fields.text("name", chars_max=1000),
            partitions=fields.integer("partitions", low=-(2**31), high=2**31),
            replication_factor=fields.integer("replication_factor", low=-(2**31), high=2**31),
            homes=_read_homes(fields),
            home=fields.text("home", chars_max=REGION_NAME_CHARS_MAX),
            retention_ms=fields.integer("retention_ms", low=-INT64_MAX, high=INT64_MAX),
            retention_bytes=fields.integer("retention_bytes", low=-INT64_MAX, high=INT64_MAX),
            config=_read_config(fields),
        )
        fields.done()
        return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """What a broker fills in where somebody who asks for a topic names none, or creates it by using it.

    Args:
        replication_factor: the mesh's default is not cut to the brokers that a region has now; another one is judged
            as if it had been asked for.
    """

    partitions: int = 1
    replication_factor: int = REPLICATION_FACTOR_DEFAULT

    def fill(self, spec: TopicSpec) -> TopicSpec:
        """Return a wish with these defaults."""
        if spec.partitions == DEFAULT:
            spec = replace(spec, partitions=self.partitions)
        if spec.replication_factor == DEFAULT and self.replication_factor != REPLICATION_FACTOR_DEFAULT:
            spec = replace(spec, replication_factor=self.replication_factor)
        return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefinition:
    """A topic as the definitions home defined it.

    Invariants: 1 topic_id has 16 bytes   2 home is 0 iff homes=every   3 index >= 1 once it is ordered (0: not yet).
    """

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    homes: Homes
    home: RegionNumber
    retention_ms: int
    retention_bytes: int
    config: tuple[tuple[str, str], ...]
    index: int

    @property
    def segment_bytes(self) -> int:
        """Return the size at which a segment of this topic's logs is sealed, in bytes."""
        return int(self.setting(SEGMENT_BYTES))

    @property
    def max_message_bytes(self) -> int:
        """Return how large a record batch of a client may be, in bytes."""
        return int(self.setting(MAX_MESSAGE_BYTES))

    @property
    def uses_append_time(self) -> bool:
        """Return whether the home stamps the time of its append into each batch."""
        return self.setting(TIMESTAMP_TYPE) == LOG_APPEND_TIME

    @property
    def keeps_everything(self) -> bool:
        """Return whether retention deletes nothing, because newest values of keys are to stay."""
        return COMPACT in self.setting(CLEANUP_POLICY).split(",")

    @property
    def is_only_compacted(self) -> bool:
        """Return whether old records are not to be deleted at all."""
        return self.setting(CLEANUP_POLICY) == COMPACT

    def setting(self, name: str) -> str:
        """Return the value of a setting that stands in `config`, or its default."""
        return dict(self.config).get(name, TOPIC_SETTINGS[name].default)

    @property
    def shown_settings(self) -> dict[str, str]:
        """Return the settings that are not at their default and have no field of their own."""
        return {name: value for name, value in self.config if name in TOPIC_SETTINGS and name != SEGMENT_BYTES}

    @property
    def min_insync_regions(self) -> int:
        """Return how many regions have a record before consumers see it, the home included: 1..64."""
        return number(self.config, MIN_INSYNC_REGIONS)

    @property
    def insync_raised(self) -> bool:
        """Return whether `min_insync_regions` was ever raised: consumers may have seen more than it allows now."""
        return INSYNC_RAISED in dict(self.config)

    @property
    def max_geo_lag_ms(self) -> int:
        """Return how old records may be that fewer than enough regions have, in milliseconds; 0: not bounded."""
        return number(self.config, MAX_GEO_LAG_MS)

    @property
    def max_geo_lag_records(self) -> int:
        """Return how many records fewer than enough regions may lack; 0: not bounded."""
        return number(self.config, MAX_GEO_LAG_RECORDS)

    @property
    def failover(self) -> FailoverPolicy:
        """Return who moves the topic's homes when their region is lost."""
        return failover_of(self.config)

    @property
    def protect_k(self) -> int:
        """Return in how many regions a record must be for a forced move to keep it for certain; 0: not set."""
        return number(self.config, PROTECT_K)

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {
            "name": self.name,
            "topic_id": self.topic_id.hex(),
            "partitions": self.partitions,
            "replication_factor": self.replication_factor,
            "homes": str(self.homes),
            "home": self.home,
            "retention_ms": self.retention_ms,
            "retention_bytes": self.retention_bytes,
            "config": dict(self.config),
            "index": self.index,
        }

    @classmethod
    def from_json(cls, value: object) -> TopicDefinition:
        """Read the JSON form. Raises FieldError."""
        fields = Fields(value, "definition")
        homes = _read_homes(fields)
        definition = cls(
            name=fields.text("name", chars_max=TOPIC_NAME_CHARS_MAX, pattern=TOPIC_NAME),
            topic_id=fields.blob("topic_id", size_bytes=TOPIC_ID_BYTES),
            partitions=fields.integer("partitions", low=1, high=PARTITIONS_PER_TOPIC_MAX),
            replication_factor=fields.integer("replication_factor", low=1, high=BROKERS_PER_REGION_MAX),
            homes=homes,
            home=RegionNumber(
                fields.integer("home", low=1, high=REGION_NUMBER_MAX)
                if homes is Homes.ONE
                else fields.integer("home", low=0, high=0)
            ),
            retention_ms=fields.integer("retention_ms", low=-1, high=INT64_MAX),
            retention_bytes=fields.integer("retention_bytes", low=-1, high=INT64_MAX),
            config=_read_config(fields),
            index=fields.integer("index", low=0, high=INT64_MAX),
        )
        fields.done()
        return definition


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """A deleted topic; `index` is that of the deletion."""

    name: str
    topic_id: bytes
    index: int

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {"name": self.name, "topic_id": self.topic_id.hex(), "index": self.index}

    @classmethod
    def from_json(cls, value: object) -> Tombstone:
        """Read the JSON form. Raises FieldError."""
        fields = Fields(value, "tombstone")
        tombstone = cls(
            name=fields.text("name", chars_max=TOPIC_NAME_CHARS_MAX, pattern=TOPIC_NAME),
            topic_id=fields.blob("topic_id", size_bytes=TOPIC_ID_BYTES),
            index=fields.integer("index", low=0, high=INT64_MAX),
        )
        fields.done()
        return tombstone


Definition: TypeAlias = TopicDefinition | Tombstone


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic name as clients of this region see it.

    Args:
        topic_id: of the topic, the same in every region; part of every StreamKey.
        wire_id: what Metadata answers; differs between the names of one topic, because Kafka clients take
            two names with one id for a topic that was made again.
        home: number of the region that sequences the streams of this name.
        is_mirror_name: publishing under this name is refused here (its streams belong to another region).
        origin: of the StreamKeys of this name; 0 for homes=one.
        internal: kept by georelay itself.
    """

    name: str
    topic_id: bytes
    wire_id: bytes
    partitions: int
    replication_factor: int
    homes: Homes
    home: RegionNumber
    is_mirror_name: bool
    origin: RegionNumber
    internal: bool
    definition: TopicDefinition

    def check_batch(self, size_bytes: int) -> None:
        """Raise TooLarge for a client's record batch of so many bytes that is over max.message.bytes."""
        limit_bytes = self.definition.max_message_bytes
        if size_bytes > limit_bytes:
            raise TooLarge(
                f"a batch of {size_bytes} bytes is over {MAX_MESSAGE_BYTES}={limit_bytes} of topic {self.name}"
            )


def _read_homes(fields: Fields) -> Homes:
    return Homes(fields.text("homes", chars_max=5, pattern=_HOMES))


def _read_config(fields: Fields) -> tuple[tuple[str, str], ...]:
    settings = fields.child("config")
    return settings.texts(
        count_max=SETTINGS_MAX, name_chars_max=SETTING_NAME_CHARS_MAX, chars_max=SETTING_VALUE_CHARS_MAX
    )


_HOMES: Final = re.compile("one|every")


def _with_setting(spec: TopicSpec, name: str, value: str) -> TopicSpec:
    value = setting_named(name).judge(value)
    match name:
        case _ if name == RETENTION_MS:
            return replace(spec, retention_ms=int(value))
        case _ if name == RETENTION_BYTES:
            return replace(spec, retention_bytes=int(value))
        case _ if name == HOMES:
            return replace(spec, homes=Homes(value))
        case _ if name == HOME:
            return replace(spec, home=value)
        case _:
            return replace(spec, config=with_value(spec.config, name, value))
