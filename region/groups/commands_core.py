"""Commands of a coordinator's groups, as values and as bytes: canonical JSON with a version. Pure.

store    a group after a rebalance, or without members
commit   offsets
hold     offsets of a transaction that is not ended
end      the end of a transaction
forget   offsets that were deleted or have expired
drop     a whole group

Equal commands have equal bytes (sorted keys, no spaces; bytes are base64, topic ids hex). Offsets are rows of
[topic id, origin, partition, offset, leader epoch, metadata], in order of their stream.

From PRINCIPALS_LEVEL on a command says whose the group is (`principal`), where that is not written down yet: who had
the first thing of it stored. The first one counts. Without one the bytes are those of before.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from georelay.fields import FieldError, Fields, JsonObject, dump_object, parse_object
from georelay.ids import REGION_NUMBER_MAX, RegionNumber, StreamKey
from georelay.limits import PARTITIONS_PER_TOPIC_MAX
from region.coordination.limits import COMMAND_BYTES_MAX
from region.coordination.shares_core import NOBODY, PRINCIPAL_CHARS_MAX
from region.groups.offsets_core import CommittedOffset, EndedTransaction
from region.groups.settings import MEMBERS_MAX, OFFSET_METADATA_BYTES_MAX, OFFSETS_PER_GROUP_MAX
from region.groups.values import GroupRecord, StoredMember

VERSION: Final = 1
INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1
TOPIC_ID: Final = re.compile(r"[0-9a-f]{32}")  # bytes.fromhex alone takes spaces too

Rows: TypeAlias = Mapping[StreamKey, CommittedOffset]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreGroup:
    """A group as its newest rebalance left it."""

    record: GroupRecord
    principal: str = NOBODY

    @property
    def group_id(self) -> str:
        """Return whose command this is."""
        return self.record.group_id


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """Offsets of a group; their times are those of the log."""

    group_id: str
    rows: Rows
    principal: str = NOBODY


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldOffsets:
    """Offsets of a transaction: its producer's id and epoch, and its number among that producer's (-1: unknown)."""

    group_id: str
    producer_id: int
    epoch: int
    number: int
    rows: Rows
    principal: str = NOBODY


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """The end of a transaction that may have held offsets."""

    group_id: str
    producer_id: int
    epoch: int
    number: int
    is_commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets:
    """Offsets that are forgotten."""

    group_id: str
    keys: tuple[StreamKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropGroup:
    """A group that is forgotten, with all its offsets."""

    group_id: str


Command: TypeAlias = StoreGroup | CommitOffsets | HoldOffsets | EndTransaction | DeleteOffsets | DropGroup


def encode_command(command: Command) -> bytes:
    """Return the bytes of a command."""
    body: JsonObject = {"v": VERSION, "group": command.group_id}
    if isinstance(command, StoreGroup | CommitOffsets | HoldOffsets) and command.principal != NOBODY:
        body["principal"] = command.principal
    match command:
        case StoreGroup(record=record):
            body |= {"kind": "store", "record": record_json(record)}
        case CommitOffsets(rows=rows):
            body |= {"kind": "commit", "offsets": offsets_json(rows)}
        case HoldOffsets(rows=rows):
            body |= {"kind": "hold", "offsets": offsets_json(rows), **_transaction_json(command)}
        case EndTransaction():
            body |= {"kind": "end", "is_commit": command.is_commit, **_transaction_json(command)}
        case DeleteOffsets(keys=keys):
            body |= {"kind": "forget", "keys": [_key_json(key) for key in sorted(keys, key=_order)]}
        case DropGroup():
            body |= {"kind": "drop"}
    return dump_object(body)


def decode_command(raw: bytes) -> Command:
    """Return the command in `raw` (FieldError: it is none that this version knows)."""
    fields = Fields(parse_object(raw, bytes_max=COMMAND_BYTES_MAX), "command")
    fields.integer("v", low=VERSION, high=VERSION)
    group_id = fields.text("group", chars_max=COMMAND_BYTES_MAX)
    command = _decode_kind(fields.text("kind", chars_max=16), group_id, fields)
    fields.done()
    return command


def _decode_kind(kind: str, group_id: str, fields: Fields) -> Command:
    match kind:
        case "store":
            record = read_record(group_id, fields.value("record"))
            return StoreGroup(record=record, principal=read_principal(fields))
        case "commit":
            return CommitOffsets(group_id=group_id, rows=_read_rows(fields), principal=read_principal(fields))
        case "hold":
            producer_id, epoch, number = _read_transaction(fields)
            return HoldOffsets(
                group_id=group_id,
                producer_id=producer_id,
                epoch=epoch,
                number=number,
                rows=_read_rows(fields),
                principal=read_principal(fields),
            )
        case "end":
            producer_id, epoch, number = _read_transaction(fields)
            return EndTransaction(
                group_id=group_id,
                producer_id=producer_id,
                epoch=epoch,
                number=number,
                is_commit=fields.flag("is_commit"),
            )
        case "forget":
            keys = fields.items("keys", count_max=4 * OFFSETS_PER_GROUP_MAX)
            return DeleteOffsets(group_id=group_id, keys=tuple(_read_key(row) for row in keys))
        case "drop":
            return DropGroup(group_id=group_id)
        case _:
            raise FieldError(f"command.kind {kind!r} is unknown")


def read_principal(fields: Fields) -> str:
    """Return whose something is, NOBODY where it is not said. Raises FieldError."""
    has_one = fields.has("principal")
    return fields.text("principal", chars_min=1, chars_max=PRINCIPAL_CHARS_MAX) if has_one else NOBODY


# --- offsets --------------------------------------------------------------------------------------


def offsets_json(rows: Rows, *, with_times: bool = False) -> list[object]:
    """Return offsets in order of their stream, with their commit times if asked for."""
    return [
        [
            *_key_json(key),
            rows[key].offset,
            rows[key].leader_epoch,
            rows[key].metadata,
            *((rows[key].commit_us,) if with_times else ()),
        ]
        for key in sorted(rows, key=_order)
    ]


def read_offsets(values: list[object], *, with_times: bool = False) -> dict[StreamKey, CommittedOffset]:
    """Return what `offsets_json` wrote. Raises FieldError."""
    rows: dict[StreamKey, CommittedOffset] = {}
    for value in values:
        if not isinstance(value, list) or len(value) != 6 + with_times:
            raise FieldError("an offset is not a row of six or seven")
        key = _read_key(value[:3])
        metadata = value[5]
        if not isinstance(metadata, str) or len(metadata) > OFFSET_METADATA_BYTES_MAX:
            raise FieldError(f"the metadata of {key} is not a text of at most {OFFSET_METADATA_BYTES_MAX}")
        rows[key] = CommittedOffset(
            offset=_whole(value[3], low=-INT64_MAX - 1),
            leader_epoch=_whole(value[4], low=-INT32_MAX - 1, high=INT32_MAX),
            metadata=metadata,
            commit_us=_whole(value[6]) if with_times else 0,
        )
    return rows


def _read_rows(fields: Fields) -> dict[StreamKey, CommittedOffset]:
    return read_offsets(fields.items("offsets", count_max=4 * OFFSETS_PER_GROUP_MAX))


def _order(key: StreamKey) -> tuple[bytes, int, int]:
    return key.topic_id, key.origin, key.partition


def _key_json(key: StreamKey) -> list[object]:
    return [key.topic_id.hex(), key.origin, key.partition]


def _read_key(value: object) -> StreamKey:
    if not isinstance(value, list) or len(value) != 3:
        raise FieldError("a stream is not a row of three")
    topic_id = value[0]
    if not isinstance(topic_id, str) or TOPIC_ID.fullmatch(topic_id) is None:
        raise FieldError("a topic id is not 32 hexadecimal digits")
    return StreamKey(
        bytes.fromhex(topic_id),
        RegionNumber(_whole(value[1], high=REGION_NUMBER_MAX)),
        _whole(value[2], high=PARTITIONS_PER_TOPIC_MAX - 1),
    )


def _whole(value: object, *, low: int = 0, high: int = INT64_MAX) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise FieldError(f"{value!r:.40} is not an integer of {low}..{high}")
    return value


# --- transactions ---------------------------------------------------------------------------------


def _transaction_json(command: HoldOffsets | EndTransaction) -> JsonObject:
    return {"producer_id": command.producer_id, "epoch": command.epoch, "number": command.number}


def _read_transaction(fields: Fields) -> tuple[int, int, int]:
    return (
        fields.integer("producer_id", low=-1, high=INT64_MAX),
        fields.integer("epoch", low=-1, high=INT32_MAX),
        fields.integer("number", low=-1, high=INT64_MAX),
    )


def ended_json(ended: Mapping[int, EndedTransaction]) -> list[object]:
    """Return the newest ended transactions, in the order in which they ended."""
    return [[producer_id, row.epoch, row.number] for producer_id, row in ended.items()]


def read_ended(values: list[object]) -> dict[int, EndedTransaction]:
    """Return what `ended_json` wrote. Raises FieldError."""
    ended: dict[int, EndedTransaction] = {}
    for value in values:
        if not isinstance(value, list) or len(value) != 3:
            raise FieldError("an ended transaction is not a row of three")
        producer_id, epoch, number = (_whole(item, low=-1) for item in value)
        ended[producer_id] = EndedTransaction(epoch=epoch, number=number)
    return ended


# --- groups ---------------------------------------------------------------------------------------


def record_json(record: GroupRecord) -> JsonObject:
    """Return a group's record; its id stands beside it."""
    return {
        "generation": record.generation,
        "protocol_type": record.protocol_type,
        "protocol": record.protocol,
        "leader": record.leader,
        "members": [
            {
                "id": row.member_id,
                "instance_id": row.instance_id,
                "client_id": row.client_id,
                "client_host": row.client_host,
                "session_timeout_ms": row.session_timeout_ms,
                "rebalance_timeout_ms": row.rebalance_timeout_ms,
                "metadata": _text(row.metadata),
                "assignment": _text(row.assignment),
            }
            for row in record.members
        ],
    }


def read_record(group_id: str, value: object) -> GroupRecord:
    """Return what `record_json` wrote. Raises FieldError."""
    fields = Fields(value, "record")
    record = GroupRecord(
        group_id=group_id,
        generation=fields.integer("generation", low=0, high=INT32_MAX),
        protocol_type=_optional(fields, "protocol_type"),
        protocol=_optional(fields, "protocol"),
        leader=_optional(fields, "leader"),
        members=tuple(_read_member(row) for row in fields.items("members", count_max=2 * MEMBERS_MAX)),
    )
    fields.done()
    return record


def _read_member(value: object) -> StoredMember:
    fields = Fields(value, "member")
    member = StoredMember(
        member_id=fields.text("id", chars_max=COMMAND_BYTES_MAX),
        instance_id=_optional(fields, "instance_id"),
        client_id=fields.text("client_id", chars_max=COMMAND_BYTES_MAX),
        client_host=fields.text("client_host", chars_max=COMMAND_BYTES_MAX),
        session_timeout_ms=fields.integer("session_timeout_ms", low=0, high=INT32_MAX),
        rebalance_timeout_ms=fields.integer("rebalance_timeout_ms", low=0, high=INT32_MAX),
        metadata=_bytes(fields, "metadata"),
        assignment=_bytes(fields, "assignment"),
    )
    fields.done()
    return member


def _optional(fields: Fields, name: str) -> str | None:
    value = fields.value(name)
    if value is not None and not isinstance(value, str):
        raise FieldError(f"{name} is neither a text nor null")
    return value


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _bytes(fields: Fields, name: str) -> bytes:
    try:
        return base64.b64decode(fields.text(name, chars_max=COMMAND_BYTES_MAX), validate=True)
    except ValueError as error:  # binascii.Error, or plain for a text that is not ASCII
        raise FieldError(f"{name} is not base64") from error
