"""Fields of the bodies of operations on groups. Every reader raises FieldError."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Final, TypeAlias

from georelay.fields import INT64_MAX, FieldError, Fields
from georelay.ids import StreamKey
from georelay.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX
from region.groups.offsets_core import NO_LEADER_EPOCH, NO_NUMBER, CommittedOffset
from region.groups.settings import (
    GROUP_BYTES_MAX,
    INSTANCE_ID_CHARS_MAX,
    MEMBER_ID_CHARS_MAX,
    MEMBERS_MAX,
    OFFSETS_PER_COMMIT_MAX,
    PROTOCOL_CHARS_MAX,
)
from region.groups.values import NO_GENERATION, NO_MEMBER, Identity

INT32_MAX: Final = 2**31 - 1

Row: TypeAlias = tuple[str, int, StreamKey | None, CommittedOffset]  # topic, partition, stream, offset


def read_text(fields: Fields, name: str, default: str, *, chars_max: int) -> str:
    """Return a text, the default where there is none."""
    return fields.text(name, chars_max=chars_max) if fields.has(name) else default


def read_optional(fields: Fields, name: str, *, chars_max: int) -> str | None:
    """Return a text or None."""
    value = fields.value(name) if fields.has(name) else None
    if value is not None and (not isinstance(value, str) or len(value) > chars_max):
        raise FieldError(f"{name} is neither null nor a text of at most {chars_max} characters")
    return value


def read_integer(fields: Fields, name: str, default: int, *, low: int, high: int) -> int:
    """Return an integer, the default where there is none."""
    return fields.integer(name, low=low, high=high) if fields.has(name) else default


def read_flag(fields: Fields, name: str) -> bool:
    """Return a flag, False where there is none."""
    return fields.flag(name) if fields.has(name) else False


def read_member_id(fields: Fields) -> str:
    """Return a member id, "" for none."""
    return read_text(fields, "member_id", NO_MEMBER, chars_max=MEMBER_ID_CHARS_MAX)


def read_instance_id(fields: Fields) -> str | None:
    """Return an instance id, None for none."""
    return read_optional(fields, "instance_id", chars_max=INSTANCE_ID_CHARS_MAX)


def read_generation(fields: Fields) -> int:
    """Return a generation, -1 for none."""
    return read_integer(fields, "generation", NO_GENERATION, low=NO_GENERATION, high=INT32_MAX)


def read_identity(fields: Fields) -> Identity:
    """Return who asks."""
    return Identity(
        member_id=read_member_id(fields), generation=read_generation(fields), instance_id=read_instance_id(fields)
    )


def read_leaver(value: object) -> Identity:
    """Return who leaves."""
    fields = Fields(value, "member")
    who = Identity(member_id=read_member_id(fields), instance_id=read_instance_id(fields))
    fields.done()
    return who


def read_protocol(value: object) -> tuple[str, bytes]:
    """Return an assignor and its metadata."""
    fields = Fields(value, "protocol")
    row = fields.text("name", chars_max=PROTOCOL_CHARS_MAX), read_bytes(fields, "metadata")
    fields.done()
    return row


def read_assignments(fields: Fields) -> dict[str, bytes]:
    """Return assignments by member."""
    if not fields.has("assignments"):
        return {}
    rows = [Fields(row, "assignment") for row in fields.items("assignments", count_max=MEMBERS_MAX)]
    return {read_member_id(row): read_bytes(row, "assignment") for row in rows}


def read_transaction(fields: Fields) -> tuple[int, int, int]:
    """Return producer id, epoch and number of a transaction."""
    return (
        fields.integer("producer_id", low=0, high=INT64_MAX),
        fields.integer("producer_epoch", low=0, high=INT32_MAX),
        read_integer(fields, "number", NO_NUMBER, low=NO_NUMBER, high=INT64_MAX),
    )


def read_topic(fields: Fields) -> str:
    """Return a topic name."""
    return fields.text("topic", chars_max=TOPIC_NAME_CHARS_MAX)


def read_partition(fields: Fields) -> int:
    """Return a partition."""
    return fields.integer("partition", low=0, high=INT32_MAX)


def read_offset(fields: Fields, key_of: Callable[[str, int], StreamKey | None]) -> Row:
    """Return an offset with the stream that `key_of` finds for it."""
    topic, partition = read_topic(fields), read_partition(fields)
    row = CommittedOffset(
        offset=fields.integer("offset", low=0, high=INT64_MAX),
        leader_epoch=read_integer(fields, "leader_epoch", NO_LEADER_EPOCH, low=NO_LEADER_EPOCH, high=INT32_MAX),
        metadata=read_text(fields, "metadata", "", chars_max=INT32_MAX),
    )
    fields.done()
    return topic, partition, key_of(topic, partition), row


def read_places(topics: object) -> list[tuple[str, int]]:
    """Return topics and partitions, one row for each."""
    if not isinstance(topics, list) or len(topics) > OFFSETS_PER_COMMIT_MAX:
        raise FieldError(f"topics is neither null nor a list of at most {OFFSETS_PER_COMMIT_MAX}")
    places: list[tuple[str, int]] = []
    for value in topics:
        fields = Fields(value, "topic")
        name = read_topic(fields)
        partitions = fields.integers("partitions", count_max=PARTITIONS_PER_TOPIC_MAX, low=0, high=INT32_MAX)
        places += [(name, partition) for partition in partitions]
    return places


def read_bytes(fields: Fields, name: str) -> bytes:
    """Return what is base64 in the body."""
    try:
        return base64.b64decode(fields.text(name, chars_max=2 * GROUP_BYTES_MAX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise FieldError(f"{name} is not base64") from error


def to_base64(raw: bytes) -> str:
    """Return bytes as text."""
    return base64.b64encode(raw).decode()
