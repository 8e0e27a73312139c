"""The transactional ids of one coordinator: replicated state, commands and snapshots. Pure.

A command is a JSON object: {"put": TRANSACTION} writes the newest state of one id, {"remove": id, "version": n} forgets
it. TRANSACTION has the fields of `region.transactions.transaction_core.Transaction` but its two times, which are the
append times of the commands. From PRINCIPALS_LEVEL on it may say whose the id is ("principal"); where it does not, the
bytes are those of before.

A snapshot is "1" and one line of JSON for each transactional id, ascending, times included.

Rule: a command that does not follow what is there (another version, an illegal step) changes nothing. The proposer
sees that by looking.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from georelay.fields import FieldError, Fields, JsonObject, dump_object, parse_object
from georelay.ids import REGION_NUMBER_MAX, RegionNumber, StreamKey
from georelay.limits import MIB
from region.coordination.limits import COMMAND_BYTES_MAX, PART_SNAPSHOT_BYTES_MAX
from region.coordination.shares_core import NOBODY, PRINCIPAL_CHARS_MAX, Shares, text_bytes
from region.transactions.transaction_core import (
    EPOCH_LAST,
    GROUPS_PER_TRANSACTION_MAX,
    NO_EPOCH,
    NUMBER_LAST,
    PARTITIONS_PER_TRANSACTION_MAX,
    State,
    Transaction,
    may_follow,
)

TRANSACTIONAL_IDS_MAX: Final = 20_000  # per coordinator
STATE_BYTES_MAX: Final = 12 * MIB  # of one coordinator, as its snapshot
TRANSACTIONAL_ID_CHARS_MAX: Final = 1_000
GROUP_ID_CHARS_MAX: Final = 1_000
TIMEOUT_MS_MAX: Final = 2**31 - 1
_SNAPSHOT_VERSION: Final = b"1"
_INT63_MAX: Final = 2**63 - 1
ROW_BYTES: Final = 400  # of an id in a snapshot at most, its texts and participants not counted
PARTITION_BYTES: Final = 64
_ROW_BYTES_MAX: Final = 1024 * 1024
_EPOCH_MAX: Final = EPOCH_LAST + 1
_TOPIC_ID: Final = re.compile(r"[0-9a-f]{32}")  # bytes.fromhex alone takes spaces too

assert STATE_BYTES_MAX + 2 * COMMAND_BYTES_MAX < PART_SNAPSHOT_BYTES_MAX


class TransactionBook:
    """Every transactional id of one coordinator, at the newest applied command.

    Attributes:
        ids, bytes: whose are how many of the ids, and how many bytes of the snapshot.
    """

    def __init__(self) -> None:
        self._rows: dict[str, Transaction] = {}
        self._ids: list[str] = []  # ascending
        self._lines: dict[str, bytes] = {}  # of the next snapshot, which is taken while clients wait
        self._empty()

    def _empty(self) -> None:
        self._rows.clear()
        self._ids.clear()
        self._lines.clear()
        self.ids = Shares(TRANSACTIONAL_IDS_MAX)
        self.bytes = Shares(STATE_BYTES_MAX)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(list(self._rows.values()))

    def get(self, transactional_id: str) -> Transaction | None:
        """Return one id, None for an unknown one."""
        return self._rows.get(transactional_id)

    def apply(self, command: bytes, *, append_us: int) -> Transaction | None:
        """Follow one committed command; return the transaction it wrote, None when it wrote none.

        Raises:
            ValueError: not a command.
        """
        fields = Fields(parse_object(command, bytes_max=_ROW_BYTES_MAX), "transaction command")
        if fields.has("remove"):
            transactional_id = fields.text("remove", chars_max=TRANSACTIONAL_ID_CHARS_MAX)
            version = fields.integer("version", low=1, high=_INT63_MAX)
            fields.done()
            self._remove(transactional_id, version)
            return None
        following = _transaction(fields.child("put"))
        fields.done()
        current = self._rows.get(following.transactional_id)
        if not may_follow(current, following):
            return None
        is_begun = following.state is State.ONGOING and (current is None or current.state is not State.ONGOING)
        started_us = append_us if is_begun else 0 if current is None else current.started_us
        written = replace(following, started_us=started_us, updated_us=append_us)
        self._put(written)
        return written

    def _count(self, row: Transaction, sign: int) -> None:
        self.ids.add(row.principal, sign)
        self.bytes.add(row.principal, sign * row_bytes(row))

    def _put(self, row: Transaction) -> None:
        known = self._rows.get(row.transactional_id)
        if known is None:
            bisect.insort(self._ids, row.transactional_id)
        else:
            self._count(known, -1)
        self._count(row, 1)
        self._rows[row.transactional_id] = row
        self._lines.pop(row.transactional_id, None)

    def _remove(self, transactional_id: str, version: int) -> None:
        current = self._rows.get(transactional_id)
        if current is not None and may_follow(current, replace(current, state=State.DEAD, version=version)):
            del self._rows[transactional_id]
            self._count(current, -1)
            self._lines.pop(transactional_id, None)
            del self._ids[bisect.bisect_left(self._ids, transactional_id)]

    def snapshot(self) -> bytes:
        """Return the whole state: equal bytes for equal states."""
        for transactional_id in self._rows.keys() - self._lines.keys():
            self._lines[transactional_id] = dump_object(_timed_fields(self._rows[transactional_id]))
        return b"\n".join((_SNAPSHOT_VERSION, *(self._lines[transactional_id] for transactional_id in self._ids)))

    def restore(self, raw: bytes) -> None:
        """Replace everything; b"" is the state before the first command.

        Raises:
            ValueError: not a snapshot, or of an unknown version.
        """
        self._empty()
        if not raw:
            return
        version, *lines = raw.split(b"\n")
        if version != _SNAPSHOT_VERSION:
            raise ValueError(f"transactions of version {version[:8]!r} are unknown, this broker reads version 1")
        for line in lines:
            row = _timed(Fields(parse_object(line, bytes_max=_ROW_BYTES_MAX), "transaction"))
            if self._ids and row.transactional_id <= self._ids[-1]:
                raise ValueError(f"transactional id {row.transactional_id!r} is out of order")
            self._put(row)


def row_bytes(row: Transaction) -> int:
    """Return what an id takes in a snapshot, at most."""
    groups = sum(3 + text_bytes(group) for group in row.groups)
    texts = text_bytes(row.transactional_id) + text_bytes(row.principal)
    return ROW_BYTES + texts + groups + PARTITION_BYTES * len(row.partitions)


def put_command(transaction: Transaction) -> bytes:
    """Return the command that writes `transaction` over the version before it."""
    return dump_object({"put": _fields_of(transaction)})


def remove_command(transaction: Transaction) -> bytes:
    """Return the command that forgets this version of an id."""
    return dump_object({"remove": transaction.transactional_id, "version": transaction.version + 1})


def _fields_of(row: Transaction) -> JsonObject:
    return {
        "id": row.transactional_id,
        "producer": row.producer_id,
        "epoch": row.producer_epoch,
        "last_epoch": row.last_producer_epoch,
        "timeout_ms": row.timeout_ms,
        "state": row.state.value,
        "partitions": sorted([key.topic_id.hex(), key.origin, key.partition] for key in row.partitions),
        "groups": sorted(row.groups),
        "number": row.number,
        "version": row.version,
        **({} if row.principal == NOBODY else {"principal": row.principal}),
    }


def _timed_fields(row: Transaction) -> JsonObject:
    return {**_fields_of(row), "started_us": row.started_us, "updated_us": row.updated_us}


def _timed(fields: Fields) -> Transaction:
    started_us = fields.integer("started_us", low=0, high=_INT63_MAX)
    updated_us = fields.integer("updated_us", low=0, high=_INT63_MAX)
    return replace(_transaction(fields), started_us=started_us, updated_us=updated_us)


def _transaction(fields: Fields) -> Transaction:
    """Read all fields but the times. Raises FieldError."""
    row = Transaction(
        transactional_id=fields.text("id", chars_max=TRANSACTIONAL_ID_CHARS_MAX),
        producer_id=fields.integer("producer", low=0, high=_INT63_MAX),
        producer_epoch=fields.integer("epoch", low=0, high=_EPOCH_MAX),
        last_producer_epoch=fields.integer("last_epoch", low=NO_EPOCH, high=_EPOCH_MAX),
        timeout_ms=fields.integer("timeout_ms", low=1, high=TIMEOUT_MS_MAX),
        state=fields.member("state", State),
        partitions=frozenset(_key(row) for row in fields.items("partitions", count_max=PARTITIONS_PER_TRANSACTION_MAX)),
        groups=frozenset(_group(row) for row in fields.items("groups", count_max=GROUPS_PER_TRANSACTION_MAX)),
        number=fields.integer("number", low=0, high=NUMBER_LAST),
        version=fields.integer("version", low=1, high=_INT63_MAX),
        principal=(
            fields.text("principal", chars_min=1, chars_max=PRINCIPAL_CHARS_MAX) if fields.has("principal") else NOBODY
        ),
    )
    fields.done()
    return row


def _key(row: object) -> StreamKey:
    if not isinstance(row, list) or len(row) != 3:
        raise FieldError(f"{row!r} is no partition")
    return key_of(*row)


def key_of(topic_id: object, origin: object, partition: object) -> StreamKey:
    """Return the stream that three JSON values name. Raises FieldError."""
    is_id = isinstance(topic_id, str) and _TOPIC_ID.fullmatch(topic_id) is not None
    if not is_id or type(origin) is not int or type(partition) is not int:
        raise FieldError("a partition is [topic id of 32 hexadecimal digits, origin, partition]")
    if not 0 <= origin <= REGION_NUMBER_MAX or not 0 <= partition < 2**31:
        raise FieldError(f"origin {origin} or partition {partition} is out of range")
    return StreamKey(bytes.fromhex(str(topic_id)), RegionNumber(origin), partition)


def _group(row: object) -> str:
    if not isinstance(row, str) or not 0 < len(row) <= GROUP_ID_CHARS_MAX:
        raise FieldError("a group id is a text of 1 to 1000 characters")
    return row
