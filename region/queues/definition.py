"""What a queue is, as its users define it and as its coordinator keeps it."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from typing import Final

from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject
from georelay.limits import TOPIC_NAME_CHARS_MAX
from region.controller.topic import TOPIC_ID_BYTES, TOPIC_NAME
from region.queues.limits import (
    DELAY_MS_MAX,
    MAX_DELIVERIES_MAX,
    QUEUE_NAME_CHARS_MAX,
    TTL_MS_MAX,
    VISIBILITY_TIMEOUT_MS_MAX,
    VISIBILITY_TIMEOUT_MS_MIN,
)

QUEUE_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{QUEUE_NAME_CHARS_MAX}}}")
VISIBILITY_TIMEOUT_MS_DEFAULT: Final = 30_000
MAX_DELIVERIES_DEFAULT: Final = 10
DEAD_LETTERS_SUFFIX: Final = "-dead-letters"
DELAY_HEADER: Final = "georelay-delay-ms"
TTL_HEADER: Final = "georelay-ttl-ms"


class Dispatch(enum.StrEnum):
    """Which of several waiting consumers gets a record."""

    ROUND_ROBIN = "round_robin"  # each in turn
    LEAST_OUTSTANDING = "least_outstanding"  # who holds the fewest leases


class Order(enum.StrEnum):
    """What order consumers see."""

    NONE = "none"  # about that of the partition; redelivered records come later
    KEY = "key"  # one record of a key at a time: the next one when it is done


class Start(enum.StrEnum):
    """Which records of the topic a new queue holds."""

    EARLIEST = "earliest"
    LATEST = "latest"  # those that are published after its creation


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDefinition:
    """A queue.

    Args:
        topic: local name; topic_id: of that topic, so that one made again under the same name is noticed.
        visibility_timeout_ms: how long a lease lasts.
        max_deliveries: after so many a record is poison, 0 for no limit.
        dead_letter_topic: where poison, rejected and expired records go, "" for nowhere (needs max_deliveries 0).
        delay_ms: from the append of a record to its first delivery; ttl_ms: until it expires, 0 for never. The headers
            DELAY_HEADER and TTL_HEADER of a record count instead of them.
    """

    name: str
    topic: str
    topic_id: bytes = bytes(TOPIC_ID_BYTES)
    visibility_timeout_ms: int = VISIBILITY_TIMEOUT_MS_DEFAULT
    max_deliveries: int = MAX_DELIVERIES_DEFAULT
    dead_letter_topic: str = ""
    delay_ms: int = 0
    ttl_ms: int = 0
    dispatch: Dispatch = Dispatch.ROUND_ROBIN
    order: Order = Order.NONE
    start: Start = Start.EARLIEST

    def to_json(self) -> JsonObject:
        """Return what clients are told."""
        return {
            "name": self.name,
            "topic": self.topic,
            "visibility_timeout_ms": self.visibility_timeout_ms,
            "max_deliveries": self.max_deliveries,
            "dead_letter_topic": self.dead_letter_topic,
            "delay_ms": self.delay_ms,
            "ttl_ms": self.ttl_ms,
            "dispatch": str(self.dispatch),
            "order": str(self.order),
            "start": str(self.start),
        }

    def stored(self) -> JsonObject:
        """Return what the coordinator keeps."""
        return {**self.to_json(), "topic_id": self.topic_id.hex()}

    @classmethod
    def from_stored(cls, value: object) -> QueueDefinition:
        """Read what `stored` returned. Raises FieldError."""
        fields = Fields(value, "queue")
        topic_id = fields.blob("topic_id", size_bytes=TOPIC_ID_BYTES)
        definition = replace(
            read_definition(fields.text("name", chars_max=QUEUE_NAME_CHARS_MAX), fields), topic_id=topic_id
        )
        fields.done()
        return definition


def read_name(fields: Fields, name: str = "queue") -> str:
    """Take the name of a queue. Raises FieldError."""
    return fields.text(name, chars_min=1, chars_max=QUEUE_NAME_CHARS_MAX, pattern=QUEUE_NAME)


def read_definition(name: str, fields: Fields) -> QueueDefinition:
    """Take the fields of a new definition; those that are not there have their defaults. Raises FieldError."""
    topic = fields.text("topic", chars_min=1, chars_max=TOPIC_NAME_CHARS_MAX, pattern=TOPIC_NAME)
    order = fields.member("order", Order) if fields.has("order") else Order.NONE
    start = fields.member("start", Start) if fields.has("start") else Start.EARLIEST
    plain = QueueDefinition(name=name, topic=topic, order=order, start=start)
    has_letters = fields.has("dead_letter_topic")
    definition = read_settings(plain, fields)
    if definition.max_deliveries and not definition.dead_letter_topic:
        if has_letters:
            raise FieldError("max_deliveries needs a dead_letter_topic; 0 delivers without end")
        definition = replace(definition, dead_letter_topic=f"{name}{DEAD_LETTERS_SUFFIX}")
    _check(definition)
    return definition


def altered(definition: QueueDefinition, fields: Fields) -> QueueDefinition:
    """Take settings that change a queue. Raises FieldError."""
    changed = read_settings(definition, fields)
    fields.done()
    if changed.max_deliveries and not changed.dead_letter_topic:
        raise FieldError("max_deliveries needs a dead_letter_topic; 0 delivers without end")
    if definition.dead_letter_topic and not changed.dead_letter_topic:
        raise FieldError("a dead_letter_topic can be replaced by another one, not be taken away")
    _check(changed)
    return changed


def read_settings(known: QueueDefinition, fields: Fields) -> QueueDefinition:
    """Take what may change during a queue's life; what is not there stays. Raises FieldError."""

    def number(name: str, value: int, *, low: int, high: int) -> int:
        return fields.integer(name, low=low, high=high) if fields.has(name) else value

    letters = known.dead_letter_topic
    if fields.has("dead_letter_topic"):
        letters = fields.text("dead_letter_topic", chars_max=TOPIC_NAME_CHARS_MAX)
    return replace(
        known,
        visibility_timeout_ms=number(
            "visibility_timeout_ms",
            known.visibility_timeout_ms,
            low=VISIBILITY_TIMEOUT_MS_MIN,
            high=VISIBILITY_TIMEOUT_MS_MAX,
        ),
        max_deliveries=number("max_deliveries", known.max_deliveries, low=0, high=MAX_DELIVERIES_MAX),
        dead_letter_topic=letters,
        delay_ms=number("delay_ms", known.delay_ms, low=0, high=DELAY_MS_MAX),
        ttl_ms=number("ttl_ms", known.ttl_ms, low=0, high=TTL_MS_MAX),
        dispatch=fields.member("dispatch", Dispatch) if fields.has("dispatch") else known.dispatch,
    )


def _check(definition: QueueDefinition) -> None:
    letters = definition.dead_letter_topic
    if letters and TOPIC_NAME.fullmatch(letters) is None:
        raise FieldError(f"dead_letter_topic {letters[:40]!r} is no name of a topic")
    if letters == definition.topic:
        raise FieldError("dead_letter_topic is the queue's own topic: its dead letters would come back to it")


def read_header_ms(value: bytes | None, default_ms: int, *, high_ms: int) -> int:
    """Return the milliseconds in a header of a record; what is no number there counts as absent."""
    if value is None or not value.isdigit() or len(value) > len(str(INT64_MAX)):
        return default_ms
    return min(int(value), high_ms)
