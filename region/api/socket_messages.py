"""Messages of a socket (docs/protocol/websocket.md): what clients send, and what they are sent. Pure.

A message of text is one JSON object with a `type`. A binary message is a head and one Kafka v2 record batch:

    from a client: kind 1 (u8), id (u32), regions (i8), deadline_ms (u32), partition (u32), topic (u8, UTF-8), batch
    to a client:   kind 2 (u8), id (u32), partition (u32), next_offset (i64), batch

Numbers are big-endian. `regions`: 1 the home alone, 2 and more that many, -1 more than half, -2 all.

Rule 1: whatever came is a command or a mistake; a mistake names the field, and the id where it could be read.
Rule 2: unknown types and fields are mistakes: a client of a later version learns that it is not understood.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from georelay.durability import Durability
from georelay.errors import BadRequest, GeorelayError
from georelay.limits import PARTITIONS_PER_TOPIC_MAX, TOPIC_NAME_CHARS_MAX
from mesh.replication.level import DEADLINE_MS, DEADLINE_MS_MAX, REGION_LEVEL, AskedLevel
from region.api.coalescer import NewRecord
from region.api.consumer_requests import EPOCH_MAX, INT64_MAX, PARTITIONS_MAX, STARTS
from region.api.problem import problem_of
from region.api.reading import EARLIEST
from region.api.record_json import integer_field, parse_json, records_of
from region.api.streams.credit import CREDIT_BYTES_MAX

ID_MAX: Final = 2**32 - 1
PUBLISH_BATCH: Final = 1
DELIVER_BATCH: Final = 2
_PUBLISH_HEAD: Final = struct.Struct(">BIbIIB")
_DELIVER_HEAD: Final = struct.Struct(">BIIq")
_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "subscribe": frozenset({"type", "id", "topic", "partitions", "from", "epochs", "credit_bytes", "batches"}),
    "credit": frozenset({"type", "id", "bytes"}),
    "unsubscribe": frozenset({"type", "id"}),
    "publish": frozenset({"type", "id", "topic", "records", "durability", "deadline_ms"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """Deliver a topic. `partitions`: () for all; `positions`: next offsets, or EARLIEST or LATEST for all of them.

    `epochs`: with a next offset the home epoch of what was read before it, where the client knows it.
    """

    id: int
    topic: str
    partitions: tuple[int, ...]
    positions: Mapping[int, int] | int
    credit_bytes: int
    epochs: Mapping[int, int] = field(default_factory=dict)
    batches: bool = False


@dataclass(frozen=True, slots=True)
class GiveCredit:
    """The client takes so many more bytes of a subscription."""

    id: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """End a subscription."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRecords:
    """Publish records, each into the partition that it names, if it does."""

    id: int
    topic: str
    records: Sequence[tuple[NewRecord, int | None]]
    level: AskedLevel = REGION_LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishBatch:
    """Publish one record batch as it is."""

    id: int
    topic: str
    partition: int
    batch: bytes
    level: AskedLevel = REGION_LEVEL


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is none of the above; `id` None: it could not be read."""

    id: int | None
    error: GeorelayError


Command = Subscribe | GiveCredit | Unsubscribe | PublishRecords | PublishBatch


def parse_message(raw: bytes, *, is_text: bool) -> Command | Mistake:
    """Return what a message says."""
    found_id: int | None = None
    try:
        if not is_text:
            return _parse_batch(raw)
        item = parse_json(raw)
        if not isinstance(item, dict):
            raise BadRequest("a message is a JSON object with a type")
        found_id = integer_field(item, "message", "id", low=0, high=ID_MAX)
        return _parse_object(item, found_id)
    except GeorelayError as error:
        return Mistake(found_id, error)


def _parse_object(item: dict[str, Any], found_id: int | None) -> Command:
    kind = item.get("type")
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise BadRequest(f"message.type: give one of {', '.join(sorted(_FIELDS))}")
    if unknown := item.keys() - fields:
        raise BadRequest(f"message.{min(unknown)[:64]}: unknown field of {kind}; known are {', '.join(sorted(fields))}")
    if found_id is None:
        raise BadRequest(f"message.id: give a number in 0..{ID_MAX}, by which the answer is known")
    match kind:
        case "subscribe":
            return _subscribe(item, found_id)
        case "credit":
            size_bytes = integer_field(item, "message", "bytes", low=1, high=CREDIT_BYTES_MAX)
            if size_bytes is None:
                raise BadRequest("message.bytes: how many more bytes are taken")
            return GiveCredit(found_id, size_bytes)
        case "unsubscribe":
            return Unsubscribe(found_id)
        case _:
            if "records" not in item:
                raise BadRequest("message.records: one record or an array of them")
            records = records_of(item["records"], "message.records")
            return PublishRecords(id=found_id, topic=_topic(item), records=records, level=_level(item))


def _subscribe(item: dict[str, Any], found_id: int) -> Subscribe:
    start = item.get("from", "latest")
    positions: Mapping[int, int] | int
    if isinstance(start, dict):
        positions = _numbers(start, "from", low=0, high=INT64_MAX)
    elif isinstance(start, str) and start in STARTS:
        positions = STARTS[start]
    else:
        raise BadRequest('message.from: give "earliest", "latest" or next offsets such as {"0": 17}')
    partitions = item.get("partitions", [])
    if not isinstance(partitions, list) or len(partitions) > PARTITIONS_MAX or not all(map(_is_partition, partitions)):
        raise BadRequest(f"message.partitions: must be an array of up to {PARTITIONS_MAX} numbers of partitions")
    if partitions and isinstance(positions, dict) and not positions.keys() <= set(partitions):
        raise BadRequest("message.from: names a partition that message.partitions does not")
    epochs = item.get("epochs", {})
    if not isinstance(epochs, dict) or not (epochs.keys() <= start.keys() if isinstance(start, dict) else not epochs):
        raise BadRequest('message.epochs: give those of next offsets in "from", such as {"0": 3}, or leave it out')
    batches = item.get("batches", False)
    if not isinstance(batches, bool):
        raise BadRequest("message.batches: must be true or false")
    credit_bytes = integer_field(item, "message", "credit_bytes", low=0, high=CREDIT_BYTES_MAX)
    if credit_bytes is None:
        raise BadRequest("message.credit_bytes: how many bytes are taken before more credit is given")
    return Subscribe(
        id=found_id,
        topic=_topic(item),
        partitions=tuple(sorted(set(partitions))),
        positions=positions,
        epochs=_numbers(epochs, "epochs", low=1, high=EPOCH_MAX) if epochs else {},
        credit_bytes=credit_bytes,
        batches=batches,
    )


def _is_partition(value: object) -> bool:
    return type(value) is int and 0 <= value < PARTITIONS_PER_TOPIC_MAX


def _numbers(rows: dict[str, Any], field_name: str, *, low: int, high: int) -> dict[int, int]:
    """Return a number for each partition that is named."""
    found = {}
    for name, number in rows.items():
        if not (name.isascii() and name.isdigit() and len(name) <= 4 and _is_partition(int(name))):
            raise BadRequest(f"message.{field_name}: {name[:40]!r} is no partition")
        if type(number) is not int or not low <= number <= high:
            raise BadRequest(f"message.{field_name}.{name}: must be a number in {low}..{high}")
        found[int(name)] = number
    if not 0 < len(found) <= PARTITIONS_MAX:
        raise BadRequest(f"message.{field_name}: name 1 to {PARTITIONS_MAX} partitions")
    return found


def _topic(item: dict[str, Any]) -> str:
    topic = item.get("topic")
    if not isinstance(topic, str) or not 0 < len(topic) <= TOPIC_NAME_CHARS_MAX:
        raise BadRequest(f"message.topic: must be a name of 1 to {TOPIC_NAME_CHARS_MAX} characters")
    return topic


def _level(item: dict[str, Any]) -> AskedLevel:
    text = item.get("durability", "region")
    if not isinstance(text, str):
        raise BadRequest("message.durability: must be a string")
    durability = Durability.parse(text)
    deadline_ms = integer_field(item, "message", "deadline_ms", low=1, high=DEADLINE_MS_MAX)
    return _asked(durability, deadline_ms or DEADLINE_MS)


def _asked(durability: Durability, deadline_ms: int) -> AskedLevel:
    return AskedLevel(durability=durability, deadline_ms=deadline_ms) if durability.is_geo else REGION_LEVEL


def _parse_batch(raw: bytes) -> PublishBatch:
    if len(raw) < _PUBLISH_HEAD.size or raw[0] != PUBLISH_BATCH:
        raise BadRequest(f"a binary message begins with kind {PUBLISH_BATCH} and a head of {_PUBLISH_HEAD.size} bytes")
    _, found_id, regions, deadline_ms, partition, topic_bytes = _PUBLISH_HEAD.unpack_from(raw)
    if partition >= PARTITIONS_PER_TOPIC_MAX or deadline_ms > DEADLINE_MS_MAX:
        raise BadRequest(f"partition {partition} or deadline_ms {deadline_ms} is out of range")
    start = _PUBLISH_HEAD.size + topic_bytes
    try:
        topic = raw[_PUBLISH_HEAD.size : start].decode()
    except UnicodeDecodeError as error:
        raise BadRequest("the topic of a binary message is not UTF-8") from error
    if not topic or len(raw) <= start:
        raise BadRequest("a binary message has a topic and a record batch behind its head")
    level = _asked(Durability.of_wire(regions), deadline_ms or DEADLINE_MS)
    return PublishBatch(id=found_id, topic=topic, partition=partition, batch=raw[start:], level=level)


def encode_publish_batch(command: PublishBatch) -> bytes:
    """Return the message that `parse_message` reads as this command: what a client does."""
    level, topic = command.level, command.topic.encode()
    regions, deadline_ms = level.durability.regions, level.deadline_ms
    head = _PUBLISH_HEAD.pack(PUBLISH_BATCH, command.id, regions, deadline_ms, command.partition, len(topic))
    return head + topic + command.batch


def deliver_batch(found_id: int, partition: int, next_offset: int, batch: bytes | memoryview) -> bytes:
    """Return a message with one stored batch, behind which reading goes on at `next_offset`."""
    return b"".join((_DELIVER_HEAD.pack(DELIVER_BATCH, found_id, partition, next_offset), batch))


def decode_deliver_batch(raw: bytes) -> tuple[int, int, int, bytes]:
    """Return (id, partition, next offset, batch) of `deliver_batch`: what a client does (BadRequest)."""
    if len(raw) < _DELIVER_HEAD.size or raw[0] != DELIVER_BATCH:
        raise BadRequest(f"a delivered batch begins with kind {DELIVER_BATCH} and a head of {_DELIVER_HEAD.size} bytes")
    _, found_id, partition, next_offset = _DELIVER_HEAD.unpack_from(raw)
    return found_id, partition, next_offset, raw[_DELIVER_HEAD.size :]


def text_message(kind: str, found_id: int | None = None, **fields: Any) -> str:
    """Return a message of text; `id` is left out where there is none."""
    head: dict[str, Any] = {"type": kind} if found_id is None else {"type": kind, "id": found_id}
    return json.dumps(head | fields, ensure_ascii=False, separators=(",", ":"))


def records_message(
    found_id: int,
    records: Sequence[bytes],
    *,
    size_bytes: int,
    positions: Mapping[str, int],
    epochs: Mapping[str, int],
    **more: Sequence[bytes],
) -> bytes:
    """Return a text with records that are JSON already; `more` is `skipped` and `passed_over`, where there are any.

    `size_bytes`: what it costs of the credit. `epochs`: of what lies before `positions`.
    """
    lists = {"records": records} | {name: rows for name, rows in more.items() if rows}
    about = {"size_bytes": size_bytes, "positions": positions, "epochs": epochs}
    parts = [text_message("records", found_id, **about).encode()[:-1]]
    for name, rows in lists.items():
        parts += (b',"', name.encode(), b'":[', b",".join(rows), b"]")
    return b"".join((*parts, b"}"))


def refusal(kind: str, found_id: int | None, error: GeorelayError) -> str:
    """Return a message that ends something (`refused`, `ended`) with a problem document."""
    return text_message(kind, found_id, problem=json.loads(problem_of(error)))


def starts(command: Subscribe, partitions: int) -> dict[int, int]:
    """Return where each partition of a topic with so many begins: an offset, EARLIEST or LATEST.

    Raises:
        BadRequest: more than PARTITIONS_MAX, or none of the topic's.
    """
    if isinstance(command.positions, int):
        chosen = command.partitions or tuple(range(partitions))
        found = dict.fromkeys(chosen, command.positions)
    else:
        found = {partition: command.positions.get(partition, EARLIEST) for partition in command.partitions}
        found |= command.positions
    if len(found) > PARTITIONS_MAX:
        raise BadRequest(f"topic {command.topic!r} has {partitions} partitions: name up to {PARTITIONS_MAX} of them")
    if max(found) >= partitions:
        raise BadRequest(f"topic {command.topic!r} has partitions 0..{partitions - 1}, not {max(found)}")
    return dict(sorted(found.items()))
