"""The replicated state of groups: what a command changes, what a restored state knows, which offsets are held."""

from __future__ import annotations

import pytest

from georelay.fields import FieldError
from georelay.ids import RegionNumber, StreamKey
from georelay.wire.api import ErrorCode
from region.coordination.part import CommandError
from region.groups.commands_core import (
    Command,
    CommitOffsets,
    DeleteOffsets,
    DropGroup,
    EndTransaction,
    HoldOffsets,
    StoreGroup,
    encode_command,
)
from region.groups.offsets_core import CommittedOffset, GroupOffsets
from region.groups.settings import PRODUCERS_PER_GROUP_MAX
from region.groups.state_core import GENERATION_STEP, INT32_MAX, GroupsState
from region.groups.values import GroupRecord

HERE = StreamKey(bytes(16), RegionNumber(1), 0)
THERE = StreamKey(bytes(16), RegionNumber(2), 0)


def at(offset: int, commit_us: int = 0) -> CommittedOffset:
    return CommittedOffset(offset=offset, commit_us=commit_us)


def apply(state: GroupsState, *commands: Command, append_us: int = 1_000) -> None:
    for command in commands:
        state.apply(encode_command(command), append_us=append_us)


def test_a_state_counts_its_groups_and_forgets_one_that_is_dropped() -> None:
    state = GroupsState()
    apply(state, CommitOffsets(group_id="a", rows={HERE: at(1)}), CommitOffsets(group_id="b", rows={HERE: at(2)}))
    assert len(state) == 2
    apply(state, DropGroup(group_id="a"), DropGroup(group_id="never seen"))
    assert [group_id for group_id, _ in state] == ["b"]
    apply(state, DropGroup(group_id="b"))
    assert (len(state), state.size_bytes) == (0, 0)


def test_offsets_that_a_command_deletes_are_gone_from_the_state_and_its_size() -> None:
    state = GroupsState()
    apply(state, CommitOffsets(group_id="g", rows={HERE: at(1)}))
    alone_bytes = state.size_bytes
    apply(state, CommitOffsets(group_id="g", rows={THERE: at(2)}), DeleteOffsets(group_id="g", keys=(THERE,)))
    group = state.find("g")
    assert group is not None
    assert list(group.offsets.committed) == [HERE]
    assert state.size_bytes == alone_bytes


def test_a_state_that_is_restored_from_nothing_is_empty_whatever_it_held() -> None:
    state = GroupsState()
    apply(state, CommitOffsets(group_id="g", rows={HERE: at(1)}))
    state.restore(b"")
    assert (len(state), state.size_bytes, state.snapshot()) == (0, 0, GroupsState().snapshot())


def test_a_state_that_is_restored_holds_the_transactions_that_were_under_way() -> None:
    state, again = GroupsState(), GroupsState()
    apply(
        state,
        HoldOffsets(group_id="g", producer_id=7, epoch=1, number=3, rows={HERE: at(5)}),
        EndTransaction(group_id="g", producer_id=8, epoch=2, number=4, is_commit=False),
    )
    again.restore(state.snapshot())
    assert (again.snapshot(), again.size_bytes) == (state.snapshot(), state.size_bytes)
    apply(again, EndTransaction(group_id="g", producer_id=7, epoch=1, number=3, is_commit=True))
    group = again.find("g")
    assert group is not None
    assert group.offsets.committed[HERE].offset == 5
    assert group.offsets.check_open(8, 2, 4) == ErrorCode.INVALID_TXN_STATE


def test_a_new_home_epoch_leaves_a_group_that_only_has_offsets_as_it_is() -> None:
    state = GroupsState()
    apply(state, CommitOffsets(group_id="g", rows={HERE: at(1)}))
    before = state.snapshot()
    state.fence(append_us=5)
    assert state.snapshot() == before


@pytest.mark.parametrize(
    ("generation", "step"), [(7, GENERATION_STEP), (INT32_MAX - 2 * GENERATION_STEP + 1, 1), (INT32_MAX - 2, 1)]
)
def test_a_new_home_epoch_raises_the_generation_within_its_range(generation: int, step: int) -> None:
    state = GroupsState()
    record = GroupRecord(
        group_id="g", generation=generation, protocol_type="consumer", protocol=None, leader=None, members=()
    )
    apply(state, StoreGroup(record=record), append_us=2)
    state.fence(append_us=9)
    group = state.find("g")
    assert group is not None
    assert group.record is not None
    assert (group.record.generation, group.empty_since_us) == (generation + step, 2)


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b'{"v":1,"group":"g","kind":"rename"}', b'{"v":2,"group":"g","kind":"drop"}']
)
def test_a_command_that_this_version_does_not_know_stops_the_replica_and_changes_nothing(raw: bytes) -> None:
    state = GroupsState()
    with pytest.raises(CommandError, match="groups: "):
        state.apply(raw, append_us=1)
    assert len(state) == 0


def test_a_snapshot_of_another_version_is_refused_and_the_state_stays() -> None:
    state = GroupsState()
    apply(state, CommitOffsets(group_id="g", rows={HERE: at(1)}))
    with pytest.raises(FieldError):
        state.restore(b'{"groups":[],"v":2}')
    assert len(state) == 1


# --- offsets --------------------------------------------------------------------------------------


def test_a_group_holds_the_transactions_of_so_many_producers_and_refuses_one_more_but_not_those_it_holds() -> None:
    offsets = GroupOffsets()
    for producer_id in range(PRODUCERS_PER_GROUP_MAX):
        offsets.hold(producer_id, 0, 1, {HERE: at(1)})
    assert offsets.check_transaction(PRODUCERS_PER_GROUP_MAX, 0, 1) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert offsets.check_transaction(0, 0, 1) == ErrorCode.NONE


def test_a_transaction_that_adds_offsets_twice_commits_them_all_and_the_newer_of_one_stream() -> None:
    offsets = GroupOffsets()
    offsets.hold(1, 0, 1, {HERE: at(1), THERE: at(2)})
    offsets.hold(1, 0, 1, {HERE: at(3)})
    offsets.end(1, 0, 1, is_commit=True)
    assert {key: row.offset for key, row in offsets.committed.items()} == {HERE: 3, THERE: 2}


def test_the_ends_of_so_many_producers_are_remembered_and_the_one_longest_ago_is_forgotten_first() -> None:
    offsets = GroupOffsets()
    for producer_id in range(PRODUCERS_PER_GROUP_MAX):
        offsets.end(producer_id, 5, 5, is_commit=False)
    offsets.end(0, 5, 6, is_commit=False)
    offsets.end(PRODUCERS_PER_GROUP_MAX, 5, 5, is_commit=False)
    assert len(offsets.ended) == PRODUCERS_PER_GROUP_MAX
    assert offsets.check_open(0, 5, 6) == ErrorCode.INVALID_TXN_STATE
    assert offsets.check_open(1, 5, 5) == ErrorCode.NONE
