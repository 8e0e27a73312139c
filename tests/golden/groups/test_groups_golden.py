"""The bytes of a coordinator's commands about groups and of their snapshot, for ever."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from georelay.fields import FieldError
from georelay.ids import RegionNumber, StreamKey
from region.groups.commands_core import (
    Command,
    CommitOffsets,
    DeleteOffsets,
    DropGroup,
    EndTransaction,
    HoldOffsets,
    StoreGroup,
    decode_command,
    encode_command,
)
from region.groups.offsets_core import CommittedOffset
from region.groups.state_core import GroupsState
from region.groups.values import GroupRecord, StoredMember

COMMANDS = Path(__file__).with_name("commands.jsonl")
SNAPSHOT = Path(__file__).with_name("snapshot.json")
APPEND_US = 1_700_000_000_000_000

ORDERS = StreamKey(bytes(range(16)), RegionNumber(0), 3)
CLICKS = StreamKey(bytes(range(16, 32)), RegionNumber(2), 0)
MEMBER = StoredMember(
    member_id="app-6f1b",
    instance_id="pod-1",
    client_id="app",
    client_host="/127.0.0.1",
    session_timeout_ms=45_000,
    rebalance_timeout_ms=300_000,
    metadata=b"\x00\x01orders",
    assignment=b"\x00\x01\xff",
)
RECORD = GroupRecord(
    group_id="billing", generation=7, protocol_type="consumer", protocol="range", leader="app-6f1b", members=(MEMBER,)
)
EMPTY = GroupRecord(group_id="idle", generation=8, protocol_type="consumer", protocol=None, leader=None, members=())
ROWS = {
    CLICKS: CommittedOffset(offset=5, leader_epoch=1),
    ORDERS: CommittedOffset(offset=41, metadata="bis hierher – ü"),
}
ALL: list[Command] = [
    StoreGroup(record=RECORD),
    CommitOffsets(group_id="billing", rows=ROWS),
    HoldOffsets(group_id="billing", producer_id=1 << 48, epoch=2, number=9, rows={ORDERS: CommittedOffset(offset=50)}),
    EndTransaction(group_id="simple", producer_id=(1 << 48) + 1, epoch=0, number=3, is_commit=True),
    StoreGroup(record=EMPTY),
    CommitOffsets(group_id="idle", rows={ORDERS: CommittedOffset(offset=1)}),
    DeleteOffsets(group_id="idle", keys=(ORDERS, CLICKS)),
    CommitOffsets(group_id="gone", rows={ORDERS: CommittedOffset(offset=1)}),
    DropGroup(group_id="gone"),
    CommitOffsets(group_id="alice's", rows={ORDERS: CommittedOffset(offset=2)}, principal="User:alice"),
    StoreGroup(record=replace(EMPTY, group_id="bob's"), principal="User:bob"),
    HoldOffsets(group_id="carol's", producer_id=8, epoch=0, number=1, rows={}, principal="User:carol"),
]


def golden(path: Path, raw: bytes, request: Any) -> bytes:
    if request.config.getoption("--rewrite"):
        path.write_bytes(raw)
    return path.read_bytes()


def test_commands_have_the_bytes_that_they_always_had(request: Any) -> None:
    raw = b"".join(encode_command(command) + b"\n" for command in ALL)
    assert raw == golden(COMMANDS, raw, request)


def test_stored_commands_are_read_as_what_they_were() -> None:
    assert [decode_command(line) for line in COMMANDS.read_bytes().splitlines()] == ALL


def test_the_snapshot_after_them_has_the_bytes_that_it_always_had(request: Any) -> None:
    state = GroupsState()
    for number, line in enumerate(COMMANDS.read_bytes().splitlines()):
        state.apply(line, append_us=APPEND_US + number)
    raw = state.snapshot()
    assert raw + b"\n" == golden(SNAPSHOT, raw + b"\n", request)


def test_a_stored_snapshot_is_restored_whole() -> None:
    raw = SNAPSHOT.read_bytes().removesuffix(b"\n")
    state = GroupsState()
    state.restore(raw)
    assert state.snapshot() == raw
    billing = state.find("billing")
    assert billing is not None
    assert billing.record == RECORD
    assert billing.offsets.committed[ORDERS].commit_us == APPEND_US + 1
    idle = state.find("idle")
    assert idle is not None
    assert idle.empty_since_us == APPEND_US + 4
    owners = {group_id: group.principal for group_id, group in state if group.principal}
    assert owners == {"alice's": "User:alice", "bob's": "User:bob", "carol's": "User:carol"}


def test_the_size_of_a_restored_state_is_that_of_the_one_it_came_from() -> None:
    state = GroupsState()
    for command in ALL:
        state.apply(encode_command(command), append_us=APPEND_US)
    restored = GroupsState()
    restored.restore(state.snapshot())
    assert restored.size_bytes == state.size_bytes > 0


@pytest.mark.parametrize("position", range(len(ALL)))
def test_no_part_of_a_command_and_no_changed_type_is_taken_for_one(position: int) -> None:
    raw = COMMANDS.read_bytes().splitlines()[position]
    for end in range(len(raw)):
        with pytest.raises(FieldError):
            decode_command(raw[:end])
    command = json.loads(raw)
    for name in command:
        wrongs: tuple[object, ...] = (None, {}, [5], "x", -5)
        for wrong in wrongs:
            if command[name] != wrong and not (name in ("group", "principal") and isinstance(wrong, str)):
                with pytest.raises(FieldError):
                    decode_command(json.dumps({**command, name: wrong}).encode())


@pytest.mark.parametrize("raw", [b"{", b"[]", b"{}", b'{"groups":[],"v":2}', b'{"groups":[{}],"v":1}'])
def test_what_is_no_snapshot_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        GroupsState().restore(raw)
