"""Every setting of a topic: Kafka's (4.x) and our own, in one table that all doors and documents are made from.

Rule 1: a setting is enforced; or kept: judged, stored and told again, without effect here, because what it tunes is not
        there or is always so; or refused where leaving it without effect would break what it promises. Its text says
        which, and what to use instead.
Rule 2: what is not in the table is refused: no wish is dropped silently.
Rule 3: `compact` is never taken for `delete`: a topic that names it keeps everything, whatever its retention says.
Rule 4: a default is not stored, so that a definition of before stays what it was.
Pure.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from georelay.errors import InvalidTopic
from georelay.fields import INT64_MAX
from georelay.limits import KIB, RECORD_BATCH_BYTES_MAX, SEGMENT_BYTES_MAX
from region.controller.geo_settings import FAILOVER, GEO_DEFAULTS, NUMBERS, FailoverPolicy

OWN_PREFIX: Final = "georelay."
HOME: Final = "georelay.home"
HOMES: Final = "georelay.homes"
CLEANUP_POLICY: Final = "cleanup.policy"
COMPACT: Final = "compact"
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
MAX_MESSAGE_BYTES_MIN: Final = 128  # a header and one small record
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
RETENTION_BYTES: Final = "retention.bytes"
RETENTION_MS: Final = "retention.ms"
SEGMENT_BYTES: Final = "segment.bytes"
SEGMENT_BYTES_MIN: Final = 16 * KIB  # smaller ones would be files without content
TIMESTAMP_TYPE: Final = "message.timestamp.type"
LOG_APPEND_TIME: Final = "LogAppendTime"
KEEP_EVERYTHING: Final = "-1"
INT32_MAX: Final = 2**31 - 1
SETTINGS_MAX: Final = 32  # other than their default, in one definition
SETTING_NAME_CHARS_MAX: Final = 64
SETTING_VALUE_CHARS_MAX: Final = 256
# Those of which a region of before knows nothing: it would not enforce them.
ENFORCED_SINCE_LEVEL_5: Final = frozenset({CLEANUP_POLICY, MAX_MESSAGE_BYTES, TIMESTAMP_TYPE})
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_FRACTION: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,18})?|\.[0-9]{1,18}", re.ASCII)
_FLAGS: Final = ("false", "true")


class SettingType(enum.IntEnum):
    """Kafka's number for the type of a value."""

    BOOLEAN = 1
    TEXT = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Effect(enum.StrEnum):
    """What giving a setting does here."""

    ENFORCED = "enforced"
    KEPT = "kept, without effect"
    REFUSED = "refused, but for its default"


class Change(enum.Enum):
    """When a setting may be given."""

    ANY_TIME = "any_time"
    AT_CREATION = "at_creation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table.

    Args:
        default: as clients write it, like every value.
        low, high: bounds of a number, both included.
        words: the values of a text, or of the items of a list; () allows any.
        text: what it does, or why it has no effect and what to use instead.
    """

    name: str
    type: SettingType
    default: str
    text: str
    effect: Effect = Effect.ENFORCED
    change: Change = Change.ANY_TIME
    low: int = -1
    high: int = INT64_MAX
    words: tuple[str, ...] = ()

    @property
    def highest(self) -> int:
        """Return the largest number that the type and the bounds allow."""
        return min(self.high, INT32_MAX) if self.type is SettingType.INT else self.high

    def judge(self, value: str) -> str:
        """Return a value as it is kept (InvalidTopic: not allowed; the text says what is)."""
        if len(value) > SETTING_VALUE_CHARS_MAX:
            raise self._wrong(value, f"use at most {SETTING_VALUE_CHARS_MAX} characters")
        match self.type:
            case SettingType.BOOLEAN:
                kept = self._word(value.lower(), _FLAGS)
            case SettingType.INT | SettingType.LONG:
                kept = self._number(value)
            case SettingType.DOUBLE:
                kept = self._share(value)
            case SettingType.LIST:
                kept = ",".join(self._items(value))
            case _:
                kept = self._word(value, self.words)
        if self.effect is Effect.REFUSED and kept != self.default:
            raise self._wrong(value, f"only {self.default} is taken. {self.text}")
        return kept

    def _wrong(self, value: str, use: str) -> InvalidTopic:
        return InvalidTopic(f"setting {self.name}={value[:40]!r}: {use}")

    def _word(self, value: str, words: tuple[str, ...]) -> str:
        if words and value not in words:
            raise self._wrong(value, f"use {' or '.join(words)}")
        return value

    def _items(self, value: str) -> list[str]:
        items = [item.strip() for item in value.split(",")]
        if self.words and (len(set(items)) < len(items) or not set(items) <= set(self.words)):
            raise self._wrong(value, f"use a list of {', '.join(self.words)}, each once")
        return items

    def _number(self, value: str) -> str:
        if _WHOLE.fullmatch(value) is None or not self.low <= int(value) <= self.highest:
            raise self._wrong(value, f"use a whole number in {self.low}..{self.highest}")
        if self.name in _KEEPING and int(value) == 0:
            raise self._wrong(value, "use a positive number, or -1 to keep everything")
        return str(int(value))

    def _share(self, value: str) -> str:
        if _FRACTION.fullmatch(value) is None or float(value) > 1:
            raise self._wrong(value, "use a number in 0..1")
        return value


_KEEPING: Final = frozenset({RETENTION_BYTES, RETENTION_MS})  # -1 keeps everything


def _text(name: str, default: str, text: str, words: tuple[str, ...], change: Change = Change.ANY_TIME) -> Setting:
    return Setting(name=name, type=SettingType.TEXT, default=default, text=text, words=words, change=change)


def _geo(name: str, kind: SettingType, text: str) -> Setting:
    low, high = NUMBERS[name]
    return Setting(name=name, type=kind, default=GEO_DEFAULTS[name], text=text, low=low, high=high)


def _size(name: str, kind: SettingType, default: str, text: str, *, low: int = -1, high: int = INT64_MAX) -> Setting:
    return Setting(name=name, type=kind, default=default, text=text, low=low, high=high)


def _kept(
    name: str,
    kind: SettingType,
    default: str,
    text: str,
    *,
    low: int = -1,
    high: int = INT64_MAX,
    words: tuple[str, ...] = (),
) -> Setting:
    return Setting(
        name=name, type=kind, default=default, text=text, effect=Effect.KEPT, low=low, high=high, words=words
    )


_NOT_COMPACTED: Final = "Nothing is compacted yet."
_NOT_TIERED: Final = "There is no tiered storage; bound a topic by retention.ms or retention.bytes."
_NOT_RECODED: Final = "Batches are stored as producers compressed them."
_SYNCED: Final = "Every acknowledged record is synced on a majority of the region's replicas."
_NOT_THROTTLED: Final = "Moves of replicas are paced by brokers themselves."

_ENFORCED_ROWS: Final = (
    Setting(
        name=CLEANUP_POLICY,
        type=SettingType.LIST,
        default="delete",
        words=(COMPACT, "delete"),
        text="delete: retention.ms and retention.bytes hold. With compact everything is kept: nothing is compacted yet,"
        " and retention does not delete.",
    ),
    _text(
        FAILOVER,
        GEO_DEFAULTS[FAILOVER],
        "Who moves the home of a lost region.",
        (FailoverPolicy.MANUAL.value, FailoverPolicy.AUTO.value),
    ),
    _text(HOME, "", "Region that sequences the topic; empty with georelay.homes=every.", (), change=Change.AT_CREATION),
    _text(
        HOMES,
        "one",
        "One home region for all partitions, or every region with a stream of its own.",
        ("one", "every"),
        change=Change.AT_CREATION,
    ),
    _geo(
        "max.geo.lag.ms",
        SettingType.LONG,
        "Publishes are refused while fewer than min.insync.regions (at least 2) lag less; 0: never.",
    ),
    _geo("max.geo.lag.records", SettingType.LONG, "The same bound in records; 0: never."),
    _size(
        MAX_MESSAGE_BYTES,
        SettingType.INT,
        str(RECORD_BATCH_BYTES_MAX),
        "Bytes of a record batch at most, as it was compressed.",
        low=MAX_MESSAGE_BYTES_MIN,
        high=RECORD_BATCH_BYTES_MAX,
    ),
    _text(
        TIMESTAMP_TYPE,
        "CreateTime",
        "CreateTime: records keep the times of their producers. LogAppendTime: a batch gets the time of its append at"
        " the home.",
        ("CreateTime", LOG_APPEND_TIME),
    ),
    _geo(
        "min.insync.regions",
        SettingType.INT,
        "Regions that have a record before acks=all is answered and consumers see it.",
    ),
    _geo(
        "protect.k",
        SettingType.INT,
        "A forced move keeps what so many regions have; at most min.insync.regions; 0: not set.",
    ),
    _size(RETENTION_BYTES, SettingType.LONG, KEEP_EVERYTHING, "Bytes kept per partition; -1 keeps everything."),
    _size(RETENTION_MS, SettingType.LONG, KEEP_EVERYTHING, "Milliseconds that records are kept; -1 keeps everything."),
    _size(
        SEGMENT_BYTES,
        SettingType.INT,
        str(SEGMENT_BYTES_MAX),
        "Size at which a file of the log is closed; whole files are deleted.",
        low=SEGMENT_BYTES_MIN,
        high=SEGMENT_BYTES_MAX,
    ),
)
_KEPT_ROWS: Final = (
    _kept("compression.gzip.level", SettingType.INT, "-1", _NOT_RECODED, high=9),
    _kept("compression.lz4.level", SettingType.INT, "9", _NOT_RECODED, low=1, high=17),
    _kept(
        "compression.type",
        SettingType.TEXT,
        "producer",
        _NOT_RECODED,
        words=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    _kept("compression.zstd.level", SettingType.INT, "3", _NOT_RECODED, low=-131072, high=22),
    _kept("delete.retention.ms", SettingType.LONG, "86400000", _NOT_COMPACTED, low=0),
    _kept(
        "errors.deadletterqueue.group.enable",
        SettingType.BOOLEAN,
        "false",
        "There are no share groups; queues have dead-letter topics of their own.",
    ),
    _kept("file.delete.delay.ms", SettingType.LONG, "60000", "Files go once no reader has them open.", low=0),
    _kept("flush.messages", SettingType.LONG, str(INT64_MAX), _SYNCED, low=1),
    _kept("flush.ms", SettingType.LONG, str(INT64_MAX), _SYNCED, low=0),
    _kept("follower.replication.throttled.replicas", SettingType.LIST, "", _NOT_THROTTLED),
    _kept("index.interval.bytes", SettingType.INT, "4096", "Indexes have a density of their own.", low=0),
    _kept("leader.replication.throttled.replicas", SettingType.LIST, "", _NOT_THROTTLED),
    _kept("local.retention.bytes", SettingType.LONG, "-2", _NOT_TIERED, low=-2),
    _kept("local.retention.ms", SettingType.LONG, "-2", _NOT_TIERED, low=-2),
    _kept("max.compaction.lag.ms", SettingType.LONG, str(INT64_MAX), _NOT_COMPACTED, low=1),
    _kept(
        "max.decompressed.message.bytes",
        SettingType.INT,
        str(INT32_MAX),
        "What a whole batch unfolds to has a bound, where records are unfolded at all.",
        low=0,
    ),
    _kept("message.downconversion.enable", SettingType.BOOLEAN, "false", "Only format v2 is stored and served."),
    _kept(
        "message.timestamp.after.max.ms",
        SettingType.LONG,
        "3600000",
        "Times of producers decide nothing here: retention counts from the append at the home.",
        low=0,
    ),
    _kept(
        "message.timestamp.before.max.ms",
        SettingType.LONG,
        str(INT64_MAX),
        "As message.timestamp.after.max.ms.",
        low=0,
    ),
    _kept("min.cleanable.dirty.ratio", SettingType.DOUBLE, "0.5", _NOT_COMPACTED),
    _kept("min.compaction.lag.ms", SettingType.LONG, "0", _NOT_COMPACTED, low=0),
    _kept(
        MIN_INSYNC_REPLICAS,
        SettingType.INT,
        "1",
        "A majority of the topic's replicas has every acknowledged record; more than that is refused. For more regions"
        " use min.insync.regions.",
        low=1,
        high=INT32_MAX,
    ),
    _kept("preallocate", SettingType.BOOLEAN, "false", "Files grow by themselves."),
    _kept("remote.copy.lag.bytes", SettingType.LONG, "0", _NOT_TIERED),
    _kept("remote.copy.lag.ms", SettingType.LONG, "0", _NOT_TIERED),
    _kept("remote.log.copy.disable", SettingType.BOOLEAN, "false", _NOT_TIERED),
    _kept("remote.log.delete.on.disable", SettingType.BOOLEAN, "false", _NOT_TIERED),
    _kept("segment.index.bytes", SettingType.INT, "10485760", "Indexes are as large as their file needs.", low=4),
    _kept("segment.jitter.ms", SettingType.LONG, "0", "As segment.ms.", low=0),
    _kept("segment.ms", SettingType.LONG, "604800000", "Files are closed early where retention.ms needs that.", low=1),
    _kept(
        "unclean.leader.election.enable",
        SettingType.BOOLEAN,
        "false",
        "Only a replica that has everything leads. When a region is lost its homes move: `georelay home failover`.",
    ),
    Setting(
        name="remote.storage.enable",
        type=SettingType.BOOLEAN,
        default="false",
        effect=Effect.REFUSED,
        text=_NOT_TIERED,
    ),
)
TOPIC_SETTINGS: Final[Mapping[str, Setting]] = {
    row.name: row for row in sorted((*_ENFORCED_ROWS, *_KEPT_ROWS), key=lambda row: row.name)
}
ALTERABLE: Final = tuple(name for name, row in TOPIC_SETTINGS.items() if row.change is Change.ANY_TIME)


def setting_named(name: str) -> Setting:
    """Return the row of a setting (InvalidTopic: there is none; the text names those that have an effect)."""
    row = TOPIC_SETTINGS.get(name)
    if row is None:
        known = ", ".join(name for name, row in TOPIC_SETTINGS.items() if row.effect is Effect.ENFORCED)
        raise InvalidTopic(f"setting {name[:64]!r} is unknown; known are {known}, and Kafka's others without effect")
    return row


def with_value(config: tuple[tuple[str, str], ...], name: str, value: str) -> tuple[tuple[str, str], ...]:
    """Return a config with one setting, judged before; a default is not kept."""
    others = {known: kept for known, kept in config if known != name}
    return tuple(sorted((others if value == TOPIC_SETTINGS[name].default else {**others, name: value}).items()))
