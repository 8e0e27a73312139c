"""Operations on groups as JSON: how the native API, REST and other brokers ask the coordinator of a group.

Rule 1: a body names its group in `group`; bytes are base64; an answer has Kafka's `error_code` and `error`.
Rule 2: fields are checked, unknown ones refused; what is refused raises BadRequest and changes nothing.
Rule 3: whoever calls has checked what the principal may do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from georelay.errors import BadRequest
from georelay.fields import FieldError, Fields
from georelay.ids import StreamKey
from georelay.wire.api import ErrorCode
from region.coordination.part import JsonObject
from region.groups.offsets_core import NO_LEADER_EPOCH, NO_OFFSET, CommittedOffset
from region.groups.operation_fields import (
    read_assignments,
    read_flag,
    read_generation,
    read_identity,
    read_instance_id,
    read_integer,
    read_leaver,
    read_member_id,
    read_offset,
    read_optional,
    read_partition,
    read_places,
    read_protocol,
    read_text,
    read_topic,
    read_transaction,
    to_base64,
)
from region.groups.settings import (
    CLIENT_ID_CHARS_MAX,
    GROUP_ID_CHARS_MAX,
    MEMBERS_MAX,
    OFFSETS_PER_COMMIT_MAX,
    PROTOCOL_CHARS_MAX,
    PROTOCOLS_MAX,
    REBALANCE_TIMEOUT_MS_MIN,
)
from region.groups.values import Identity, JoinAnswer, JoinWish, SyncAnswer, SyncWish

if TYPE_CHECKING:
    from region.groups.part import GroupsPart, LiveGroup

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
STATES_MAX: Final = 16
CLASSIC: Final = "classic"  # KIP-848's name for the protocol of these groups

Row = tuple[str, int, StreamKey | None, CommittedOffset]


class Operations:
    """Answers what `Coordinators.call` brings to a part."""

    def __init__(self, part: GroupsPart) -> None:
        self._part = part
        self._table: Mapping[str, Callable[[str, Fields], Awaitable[JsonObject]]] = {
            "sync": self._sync,
            "heartbeat": self._heartbeat,
            "leave": self._leave,
            "fetch_offsets": self._fetch_offsets,
            "describe": self._describe,
            "delete": self._delete,
            "delete_offsets": self._delete_offsets,
            "txn_end": self._end_transaction,
        }
        # What a group may keep more of is its principal's.
        self._growing: Mapping[str, Callable[[str, Fields, str], Awaitable[JsonObject]]] = {
            "join": self._join,
            "commit": self._commit,
            "reset_offsets": self._reset_offsets,
            "txn_commit": self._hold_offsets,
        }

    async def answer(self, operation: str, body: JsonObject, *, principal: str) -> JsonObject:
        """Answer one operation (BadRequest: unknown, or a body that is not its)."""
        try:
            fields = Fields(body, operation[:32])
            if operation == "list":
                return self._list(fields)
            group_id = fields.text("group", chars_max=GROUP_ID_CHARS_MAX)
            grows = self._growing.get(operation)
            if grows is not None:
                return await grows(group_id, fields, principal)
            handle = self._table.get(operation)
            if handle is None:
                raise BadRequest(f"operation {operation[:32]!r} of groups is unknown")
            return await handle(group_id, fields)
        except FieldError as error:
            raise BadRequest(str(error)) from error

    # --- membership -------------------------------------------------------------------------------

    async def _join(self, group_id: str, fields: Fields, principal: str) -> JsonObject:
        client_id = read_text(fields, "client_id", "", chars_max=INT32_MAX)[:CLIENT_ID_CHARS_MAX]
        instance_id = read_instance_id(fields)
        wish = JoinWish(
            member_id=read_member_id(fields),
            new_member_id=f"{instance_id or client_id}-{self._part.new_id()}",
            instance_id=instance_id,
            client_id=client_id,
            client_host=read_text(fields, "client_host", "", chars_max=CLIENT_ID_CHARS_MAX),
            session_timeout_ms=read_integer(fields, "session_timeout_ms", 45_000, low=-INT32_MAX, high=INT32_MAX),
            rebalance_timeout_ms=read_integer(
                fields, "rebalance_timeout_ms", 60_000, low=REBALANCE_TIMEOUT_MS_MIN, high=INT32_MAX
            ),
            protocol_type=read_text(fields, "protocol_type", "consumer", chars_max=PROTOCOL_CHARS_MAX),
            protocols=tuple(read_protocol(row) for row in fields.items("protocols", count_max=PROTOCOLS_MAX)),
            needs_known_id=read_flag(fields, "needs_member_id"),
            can_skip_assignment=read_flag(fields, "can_skip_assignment"),
        )
        fields.done()
        answered: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        self._part.join(group_id, wish, _setter(answered), principal=principal)
        answer = await answered
        members = [
            {"member_id": row.member_id, "instance_id": row.instance_id, "metadata": to_base64(row.metadata)}
            for row in answer.members
        ]
        return _answer(
            answer.error,
            generation=answer.generation,
            protocol_type=answer.protocol_type,
            protocol=answer.protocol,
            leader=answer.leader,
            member_id=answer.member_id,
            skip_assignment=answer.skip_assignment,
            members=members,
        )

    async def _sync(self, group_id: str, fields: Fields) -> JsonObject:
        wish = SyncWish(
            member_id=read_member_id(fields),
            generation=read_generation(fields),
            instance_id=read_instance_id(fields),
            protocol_type=read_optional(fields, "protocol_type", chars_max=PROTOCOL_CHARS_MAX),
            protocol=read_optional(fields, "protocol", chars_max=PROTOCOL_CHARS_MAX),
            assignments=read_assignments(fields),
        )
        fields.done()
        answered: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        self._part.sync(group_id, wish, _setter(answered))
        answer = await answered
        return _answer(
            answer.error,
            assignment=to_base64(answer.assignment),
            protocol_type=answer.protocol_type,
            protocol=answer.protocol,
        )

    async def _heartbeat(self, group_id: str, fields: Fields) -> JsonObject:
        who = read_identity(fields)
        fields.done()
        return _answer(self._part.heartbeat(group_id, who))

    async def _leave(self, group_id: str, fields: Fields) -> JsonObject:
        leavers = [read_leaver(row) for row in fields.items("members", count_max=MEMBERS_MAX)]
        fields.done()
        codes = self._part.leave(group_id, leavers)
        members = [
            {"member_id": who.member_id, "instance_id": who.instance_id, "error_code": int(code)}
            for who, code in zip(leavers, codes, strict=True)
        ]
        return _answer(ErrorCode.NONE, members=members)

    # --- offsets ----------------------------------------------------------------------------------

    async def _commit(self, group_id: str, fields: Fields, principal: str) -> JsonObject:
        who, rows = read_identity(fields), self._rows(fields)
        fields.done()
        answered: asyncio.Future[Mapping[StreamKey, ErrorCode]] = asyncio.get_running_loop().create_future()
        self._part.commit(group_id, who, _by_stream(rows), _setter(answered), principal=principal)
        return _partitions(rows, await answered)

    async def _reset_offsets(self, group_id: str, fields: Fields, principal: str) -> JsonObject:
        rows = self._rows(fields)
        fields.done()
        answered: asyncio.Future[Mapping[StreamKey, ErrorCode]] = asyncio.get_running_loop().create_future()
        self._part.commit(
            group_id,
            Identity(),
            _by_stream(rows),
            _setter(answered),
            principal=principal,
            only_without_members=True,
        )
        codes = await answered
        refused = ErrorCode.NON_EMPTY_GROUP if ErrorCode.NON_EMPTY_GROUP in codes.values() else ErrorCode.NONE
        return {**_partitions(rows, codes), **_answer(refused)}

    async def _hold_offsets(self, group_id: str, fields: Fields, principal: str) -> JsonObject:
        who, rows = read_identity(fields), self._rows(fields)
        producer_id, epoch, number = read_transaction(fields)
        fields.done()
        answered: asyncio.Future[Mapping[StreamKey, ErrorCode]] = asyncio.get_running_loop().create_future()
        held = _by_stream(rows)
        self._part.hold_offsets(group_id, who, producer_id, epoch, number, held, _setter(answered), principal=principal)
        return _partitions(rows, await answered)

    async def _end_transaction(self, group_id: str, fields: Fields) -> JsonObject:
        producer_id, epoch, number = read_transaction(fields)
        is_commit = fields.flag("is_commit")
        fields.done()
        answered: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        done = _setter(answered)
        self._part.end_transaction(group_id, producer_id, epoch, number=number, is_commit=is_commit, done=done)
        return _answer(await answered)

    async def _fetch_offsets(self, group_id: str, fields: Fields) -> JsonObject:
        require_stable = read_flag(fields, "require_stable")
        topics = fields.value("topics") if fields.has("topics") else None
        fields.done()
        if topics is None:
            found = self._part.fetch(group_id, None, require_stable=require_stable)
            named = [(self._part.names.name_of(key), key.partition, key) for key in found]
            wanted = [(name, partition, key) for name, partition, key in named if name is not None]
        else:
            places = read_places(topics)
            wanted = [(name, partition, key) for name, partition in places if (key := self._key(name, partition))]
            found = self._part.fetch(group_id, [row[2] for row in wanted], require_stable=require_stable)
        return _answer(
            ErrorCode.NONE,
            partitions=[
                offset_json(name, partition, *found[key]) for name, partition, key in sorted(wanted, key=_place)
            ],
        )

    async def _delete_offsets(self, group_id: str, fields: Fields) -> JsonObject:
        rows = [Fields(row, "partition") for row in fields.items("partitions", count_max=OFFSETS_PER_COMMIT_MAX)]
        fields.done()
        places = [(read_topic(row), read_partition(row)) for row in rows]
        keys = {place: self._key(*place) for place in places}
        answered: asyncio.Future[tuple[ErrorCode, Mapping[StreamKey, ErrorCode]]]
        answered = asyncio.get_running_loop().create_future()
        self._part.delete_offsets(
            group_id,
            [key for key in keys.values() if key is not None],
            lambda error, codes: _setter(answered)((error, codes)),
        )
        error, codes = await answered
        deleted = [(topic, partition, key, CommittedOffset(offset=0)) for (topic, partition), key in keys.items()]
        return {**_partitions(deleted, codes), **_answer(error)}

    # --- groups -----------------------------------------------------------------------------------

    async def _describe(self, group_id: str, fields: Fields) -> JsonObject:
        fields.done()
        live = self._part.live(group_id)
        if live is None:
            return _answer(ErrorCode.GROUP_ID_NOT_FOUND, group=group_id)
        return _answer(ErrorCode.NONE, **describe_json(live))

    def _list(self, fields: Fields) -> JsonObject:
        states = (
            {str(state).lower() for state in fields.items("states", count_max=STATES_MAX)}
            if fields.has("states")
            else set()
        )
        types = (
            {str(kind).lower() for kind in fields.items("types", count_max=STATES_MAX)}
            if fields.has("types")
            else set()
        )
        fields.done()
        rows = [
            {
                "group": live.group.group_id,
                "state": live.group.state.value,
                "protocol_type": live.group.protocol_type or "",
                "type": CLASSIC,
                "members": len(live.group.members),
            }
            for live in self._part.groups()
            if (not states or live.group.state.value.lower() in states) and (not types or CLASSIC in types)
        ]
        return _answer(ErrorCode.NONE, groups=rows)

    async def _delete(self, group_id: str, fields: Fields) -> JsonObject:
        fields.done()
        answered: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self._part.delete(group_id, _setter(answered))
        return _answer(await answered)

    # --- inside -----------------------------------------------------------------------------------

    def _key(self, topic: str, partition: int) -> StreamKey | None:
        return self._part.names.key_of(topic, partition)

    def _rows(self, fields: Fields) -> list[Row]:
        rows = [Fields(row, "offset") for row in fields.items("offsets", count_max=OFFSETS_PER_COMMIT_MAX)]
        return [read_offset(row, self._key) for row in rows]


def describe_json(live: LiveGroup) -> JsonObject:
    """Return what a description says of a group and its members."""
    group = live.group
    return {
        "group": group.group_id,
        "state": group.state.value,
        "protocol_type": group.protocol_type or "",
        "protocol": group.protocol or "",
        "generation": group.generation,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "metadata": to_base64(member.metadata_for(group.protocol)),
                "assignment": to_base64(member.assignment),
                "is_leader": member.member_id == group.leader,
            }
            for member in group.members
        ],
    }


def offset_json(topic: str, partition: int, row: CommittedOffset | None, error: ErrorCode) -> JsonObject:
    """Return one committed offset; -1 for none."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": NO_OFFSET if row is None else row.offset,
        "leader_epoch": NO_LEADER_EPOCH if row is None else row.leader_epoch,
        "metadata": "" if row is None else row.metadata,
        "committed_us": -1 if row is None else row.commit_us,
        "error_code": int(error),
    }


def _answer(error: ErrorCode, /, **fields: object) -> JsonObject:
    return {"error_code": int(error), "error": error.name, **fields}


def _partitions(rows: Sequence[Row], codes: Mapping[StreamKey, ErrorCode]) -> JsonObject:
    partitions = [
        {
            "topic": topic,
            "partition": partition,
            "error_code": int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if key is None else codes.get(key, ErrorCode.NONE)),
        }
        for topic, partition, key, _ in rows
    ]
    return _answer(ErrorCode.NONE, partitions=partitions)


def _by_stream(rows: Sequence[Row]) -> dict[StreamKey, CommittedOffset]:
    return {key: row for _, _, key, row in rows if key is not None}


def _setter(future: asyncio.Future[Any]) -> Callable[[Any], None]:
    """Return what gives a future its result, unless nobody waits for it any more."""
    return lambda result: None if future.done() else future.set_result(result)


def _place(row: tuple[str, int, StreamKey]) -> tuple[str, int]:
    return row[0], row[1]
