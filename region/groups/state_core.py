"""The replicated state of one coordinator's groups, as a function of its commands. Pure.

Rule 1: a command says what was decided; nothing is decided here: no clock, no limits, no topics.
Rule 2: equal commands give equal snapshots, byte by byte.
Rule 3: `shares` follows from the state: it is counted in bytes of the snapshot, never too few.
Rule 4: commands and snapshots carry a version; a version or a kind that is unknown stops the replica.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from georelay.fields import FieldError, Fields, dump_object, parse_object
from region.coordination.limits import COMMAND_BYTES_MAX, PART_RESTORED_BYTES_MAX
from region.coordination.part import IN_USE, CommandError
from region.coordination.shares_core import NOBODY, Shares, text_bytes
from region.groups.commands_core import (
    VERSION,
    Command,
    CommitOffsets,
    DeleteOffsets,
    DropGroup,
    EndTransaction,
    HoldOffsets,
    StoreGroup,
    decode_command,
    ended_json,
    offsets_json,
    read_ended,
    read_offsets,
    read_principal,
    read_record,
    record_json,
)
from region.groups.offsets_core import CommittedOffset, GroupOffsets
from region.groups.settings import (
    GROUPS_PER_COORDINATOR_MAX,
    OFFSETS_PER_GROUP_MAX,
    PRODUCERS_PER_GROUP_MAX,
    STATE_BYTES_MAX,
)
from region.groups.values import GroupRecord

INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1
GENERATION_STEP: Final = 1 << 16  # of a new home epoch: more rebalances than an old home can add unheard
GROUP_BYTES: Final = 256  # of a group without members and offsets in a snapshot, its texts not counted
MEMBER_BYTES: Final = 256  # the same of a member
ENDED_BYTES: Final = 48  # of the newest ended transaction of a producer

GroupChange: TypeAlias = StoreGroup | CommitOffsets | HoldOffsets | EndTransaction | DeleteOffsets


@dataclass(slots=True)
class StoredGroup:
    """What is known of one group on every replica.

    Args:
        record: of its newest rebalance; None for a group that only ever had offsets.
        empty_since_us: when it lost its last member, us since 1970; None while it has members or never had any.
        principal: who had its first command stored.
    """

    group_id: str
    record: GroupRecord | None = None
    empty_since_us: int | None = None
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    principal: str = NOBODY
    _measured: tuple[GroupRecord | None, int] = (None, 0)  # a record and its size

    @property
    def used_us(self) -> int:
        """Return when the group was last used, us since 1970: now and for ever with members, at least 1."""
        if self.record is not None and self.record.members:
            return IN_USE
        return max(self.offsets.newest_us, self.empty_since_us or 0, 1)

    def fence(self, append_us: int) -> None:
        """Forget the members, in a generation beyond any that they may have heard of; offsets stay.

        What the old home did beyond its agreed end is not known here: a generation that only follows the stored one
        may be one that members were given there.
        """
        record = self.record
        if record is None:
            return
        step = GENERATION_STEP if record.generation <= INT32_MAX - 2 * GENERATION_STEP else 1
        self.record = replace(record, generation=record.generation + step, protocol=None, leader=None, members=())
        if record.members:
            self.empty_since_us = append_us

    @property
    def size_bytes(self) -> int:
        """Return its size in a snapshot, at most."""
        if self._measured[0] is not self.record:
            self._measured = (self.record, record_bytes(self.record))
        texts = text_bytes(self.group_id) + text_bytes(self.principal)
        ended = ENDED_BYTES * len(self.offsets.ended)
        return GROUP_BYTES + texts + self._measured[1] + ended + self.offsets.size_bytes

    def growth(self, command: StoreGroup | CommitOffsets | HoldOffsets) -> int:
        """Return by how many bytes a command would make it larger, its principal not counted."""
        match command:
            case StoreGroup(record=record):
                return record_bytes(record) - record_bytes(self.record)
            case CommitOffsets(rows=rows):
                return self.offsets.growth(rows)
            case HoldOffsets(rows=rows):
                return self.offsets.growth(rows, command.producer_id)


def record_bytes(record: GroupRecord | None) -> int:
    """Return what a group's record takes in a snapshot, at most."""
    if record is None:
        return 0
    size = sum(text_bytes(text or "") for text in (record.protocol_type, record.protocol, record.leader))
    for row in record.members:
        texts = (row.member_id, row.instance_id or "", row.client_id, row.client_host)
        size += MEMBER_BYTES + sum(map(text_bytes, texts)) + (len(row.metadata) + len(row.assignment) + 4) * 4 // 3
    return size


class GroupsState:
    """Groups by id. `shares`: whose are how many bytes of the snapshot."""

    def __init__(self) -> None:
        self._groups: dict[str, StoredGroup] = {}
        self._encoded: dict[str, bytes] = {}  # of groups that did not change since the last snapshot
        self.shares = Shares(STATE_BYTES_MAX)

    @property
    def size_bytes(self) -> int:
        """Return the size of the snapshot, at most."""
        return self.shares.used

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[tuple[str, StoredGroup]]:
        return iter(self._groups.items())

    def find(self, group_id: str) -> StoredGroup | None:
        """Return a group, None for one that is not known."""
        return self._groups.get(group_id)

    def apply(self, raw: bytes, *, append_us: int) -> Command:
        """Follow one command and return it.

        Raises:
            CommandError: unknown or malformed.
        """
        try:
            command = decode_command(raw)
        except FieldError as error:
            raise CommandError(f"groups: {error}") from error
        self._encoded.pop(command.group_id, None)
        group = self._groups.get(command.group_id)
        if group is not None:
            self.shares.add(group.principal, -group.size_bytes)
        if isinstance(command, DropGroup):
            self._groups.pop(command.group_id, None)
            return command
        if group is None:
            group = self._groups[command.group_id] = StoredGroup(command.group_id)
        _change(group, command, append_us)
        self.shares.add(group.principal, group.size_bytes)
        return command

    def fence(self, *, append_us: int) -> None:
        """Begin a new home epoch: see StoredGroup.fence."""
        for group in self._groups.values():
            group.fence(append_us)
        self._encoded.clear()
        self._measure()

    def _measure(self) -> None:
        self.shares = Shares(STATE_BYTES_MAX)
        for group in self._groups.values():
            self.shares.add(group.principal, group.size_bytes)

    def snapshot(self) -> bytes:
        """Return the canonical bytes of the state."""
        for group_id, group in self._groups.items():
            if group_id not in self._encoded:
                self._encoded[group_id] = dump_object(_group_json(group_id, group))
        rows = b",".join(self._encoded[group_id] for group_id in sorted(self._groups))
        return b'{"groups":[%s],"v":%d}' % (rows, VERSION)

    def restore(self, raw: bytes) -> None:
        """Replace the state by what `snapshot` returned, b"" being the empty one (ValueError: it is none)."""
        groups: dict[str, StoredGroup] = {}
        if raw:
            fields = Fields(parse_object(raw, bytes_max=PART_RESTORED_BYTES_MAX), "groups")
            fields.integer("v", low=VERSION, high=VERSION)
            for row in fields.items("groups", count_max=4 * GROUPS_PER_COORDINATOR_MAX):
                group_id, group = _read_group(row)
                groups[group_id] = group
            fields.done()
        self._groups = groups
        self._encoded = {}
        self._measure()


def _change(group: StoredGroup, command: GroupChange, append_us: int) -> None:
    offsets = group.offsets
    if isinstance(command, StoreGroup | CommitOffsets | HoldOffsets) and group.principal == NOBODY:
        group.principal = command.principal
    match command:
        case StoreGroup(record=record):
            group.record = record
            group.empty_since_us = None if record.members else append_us
        case CommitOffsets(rows=rows):
            offsets.commit({key: _at(row, append_us) for key, row in rows.items()})
        case HoldOffsets(rows=rows):
            held = {key: _at(row, append_us) for key, row in rows.items()}
            offsets.hold(command.producer_id, command.epoch, command.number, held)
        case EndTransaction():
            offsets.end(command.producer_id, command.epoch, command.number, is_commit=command.is_commit)
        case DeleteOffsets(keys=keys):
            offsets.delete(keys)


def _at(row: CommittedOffset, append_us: int) -> CommittedOffset:
    return CommittedOffset(offset=row.offset, leader_epoch=row.leader_epoch, metadata=row.metadata, commit_us=append_us)


def _group_json(group_id: str, group: StoredGroup) -> dict[str, object]:
    offsets = group.offsets
    return {
        "id": group_id,
        "record": None if group.record is None else record_json(group.record),
        "empty_since_us": -1 if group.empty_since_us is None else group.empty_since_us,
        "offsets": offsets_json(offsets.committed, with_times=True),
        "pending": [
            {
                "producer_id": producer_id,
                "epoch": held.epoch,
                "number": held.number,
                "offsets": offsets_json(held.rows, with_times=True),
            }
            for producer_id, held in sorted(offsets.pending.items())
        ],
        "ended": ended_json(offsets.ended),  # in their order: the first is the next to be forgotten
        **({} if group.principal == NOBODY else {"principal": group.principal}),
    }


def _read_group(value: object) -> tuple[str, StoredGroup]:
    fields = Fields(value, "group")
    group_id = fields.text("id", chars_max=COMMAND_BYTES_MAX)
    record = fields.value("record")
    since_us = fields.integer("empty_since_us", low=-1, high=INT64_MAX)
    group = StoredGroup(
        group_id,
        record=None if record is None else read_record(group_id, record),
        empty_since_us=None if since_us < 0 else since_us,
        principal=read_principal(fields),
    )
    group.offsets.commit(read_offsets(fields.items("offsets", count_max=4 * OFFSETS_PER_GROUP_MAX), with_times=True))
    for row in fields.items("pending", count_max=4 * PRODUCERS_PER_GROUP_MAX):
        held = Fields(row, "pending")
        producer_id = held.integer("producer_id", low=-1, high=INT64_MAX)
        group.offsets.hold(
            producer_id,
            held.integer("epoch", low=-1, high=INT64_MAX),
            held.integer("number", low=-1, high=INT64_MAX),
            read_offsets(held.items("offsets", count_max=4 * OFFSETS_PER_GROUP_MAX), with_times=True),
        )
        held.done()
    group.offsets.ended.update(read_ended(fields.items("ended", count_max=4 * PRODUCERS_PER_GROUP_MAX)))
    fields.done()
    return group_id, group
