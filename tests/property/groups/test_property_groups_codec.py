"""Commands and snapshots of groups as bytes: every command comes back, and no bytes raise anything but FieldError."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from georelay.fields import FieldError
from georelay.ids import REGION_NUMBER_MAX, RegionNumber, StreamKey
from georelay.limits import PARTITIONS_PER_TOPIC_MAX
from region.groups.commands_core import (
    INT32_MAX,
    INT64_MAX,
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
from tests.tiers import in_one_test

texts = st.text(max_size=20)
optionals = st.none() | texts
int32 = st.integers(0, INT32_MAX)
keys = st.builds(
    StreamKey,
    st.binary(min_size=16, max_size=16),
    st.integers(0, REGION_NUMBER_MAX).map(RegionNumber),
    st.integers(0, PARTITIONS_PER_TOPIC_MAX - 1),
)
offsets = st.builds(
    CommittedOffset,
    offset=st.integers(-INT64_MAX - 1, INT64_MAX),
    leader_epoch=st.integers(-INT32_MAX - 1, INT32_MAX),
    metadata=texts,
)
rows = st.dictionaries(keys, offsets, max_size=4)
members = st.builds(
    StoredMember,
    member_id=texts,
    instance_id=optionals,
    client_id=texts,
    client_host=texts,
    session_timeout_ms=int32,
    rebalance_timeout_ms=int32,
    metadata=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
)
records = st.builds(
    GroupRecord,
    group_id=texts,
    generation=int32,
    protocol_type=optionals,
    protocol=optionals,
    leader=optionals,
    members=st.lists(members, max_size=3).map(tuple),
)
numbers = st.integers(-1, INT64_MAX)
epochs = st.integers(-1, INT32_MAX)
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(StoreGroup, record=records),
    st.builds(CommitOffsets, group_id=texts, rows=rows),
    st.builds(HoldOffsets, group_id=texts, producer_id=numbers, epoch=epochs, number=numbers, rows=rows),
    st.builds(
        EndTransaction, group_id=texts, producer_id=numbers, epoch=epochs, number=numbers, is_commit=st.booleans()
    ),
    st.builds(
        DeleteOffsets,
        group_id=texts,
        keys=st.lists(keys, max_size=4, unique=True).map(
            lambda found: tuple(sorted(found, key=lambda key: (key.topic_id, key.origin, key.partition)))
        ),
    ),
    st.builds(DropGroup, group_id=texts),
)
others: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.text(max_size=4), st.just([]), st.just({}), st.just([1])
)

MEMBER: dict[str, object] = {
    "id": "m",
    "instance_id": None,
    "client_id": "",
    "client_host": "",
    "session_timeout_ms": 1,
    "rebalance_timeout_ms": 1,
    "metadata": "",
    "assignment": "",
}
RECORD: dict[str, object] = {
    "generation": 1,
    "protocol_type": None,
    "protocol": None,
    "leader": None,
    "members": [MEMBER],
}
OFFSET = ["0a" * 16, 1, 0, 5, -1, "text"]


@given(command=commands)
def test_a_command_is_read_back_as_it_was_and_has_one_form_of_bytes(command: Command) -> None:
    raw = encode_command(command)
    assert decode_command(raw) == command
    assert encode_command(decode_command(raw)) == raw


@given(several=st.lists(commands, max_size=8))
def test_a_state_that_followed_any_commands_is_read_back_as_it_was(several: list[Command]) -> None:
    state, again = GroupsState(), GroupsState()
    for append_us, command in enumerate(several):
        state.apply(encode_command(command), append_us=append_us)
    again.restore(state.snapshot())
    assert (again.snapshot(), again.size_bytes) == (state.snapshot(), state.size_bytes)


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, row in inner for place in places(row, (*path, key)))]


@given(command=commands, data=st.data())
def test_a_command_with_one_value_changed_is_another_command_or_a_field_error(
    command: Command, data: st.DataObject
) -> None:
    body = copy.deepcopy(json.loads(encode_command(command)))
    *outer, last = data.draw(st.sampled_from([path for path in places(body) if path]))
    holder = body
    for step in outer:
        holder = holder[step]
    holder[last] = data.draw(others)
    raw = json.dumps(body).encode()
    try:
        read = decode_command(raw)
    except FieldError:
        return
    assert decode_command(encode_command(read)) == read


@given(raw=st.binary(max_size=60))
@example(raw=b"\xff")
@example(raw=b'{"v":1,"group":"g"}')
def test_no_bytes_raise_anything_but_a_field_error(raw: bytes) -> None:
    with pytest.raises(FieldError):
        decode_command(raw)


@in_one_test(
    ("change", "said"),
    [
        ({"kind": "rename"}, "command.kind 'rename' is unknown"),
        ({"kind": "drop", "more": 1}, "unknown fields"),
        ({"kind": "commit", "offsets": [OFFSET[:5]]}, "not a row of six or seven"),
        ({"kind": "commit", "offsets": [[*OFFSET, 1]]}, "not a row of six or seven"),
        ({"kind": "commit", "offsets": [["0a", *OFFSET[1:]]]}, "not 32 hexadecimal digits"),
        ({"kind": "commit", "offsets": [["zz" * 16, *OFFSET[1:]]]}, "not 32 hexadecimal digits"),
        ({"kind": "commit", "offsets": [["0a " * 10 + "0a", *OFFSET[1:]]]}, "not 32 hexadecimal digits"),
        ({"kind": "commit", "offsets": [["0A" * 16, *OFFSET[1:]]]}, "not 32 hexadecimal digits"),
        ({"kind": "commit", "offsets": [[*OFFSET[:5], None]]}, "the metadata of"),
        ({"kind": "commit", "offsets": [[*OFFSET[:5], "x" * 4097]]}, "the metadata of"),
        ({"kind": "commit", "offsets": [[*OFFSET[:3], True, *OFFSET[4:]]]}, "True is not an integer"),
        ({"kind": "commit", "offsets": [[*OFFSET[:3], 2**63, *OFFSET[4:]]]}, "is not an integer of"),
        ({"kind": "forget", "keys": [OFFSET[:2]]}, "a stream is not a row of three"),
        ({"kind": "forget", "keys": ["text"]}, "a stream is not a row of three"),
        ({"kind": "store", "record": RECORD | {"leader": 1}}, "leader is neither a text nor null"),
        ({"kind": "store", "record": RECORD | {"members": [MEMBER | {"metadata": "%"}]}}, "metadata is not base64"),
        ({"kind": "store", "record": RECORD | {"members": [MEMBER | {"assignment": "é"}]}}, "assignment is not base64"),
        ({"kind": "store", "record": RECORD | {"more": 1}}, "unknown fields"),
        ({"kind": "store", "record": RECORD | {"members": [MEMBER | {"more": 1}]}}, "unknown fields"),
    ],
)
def test_a_malformed_command_is_refused_with_what_is_wrong_about_it(change: dict[str, object], said: str) -> None:
    with pytest.raises(FieldError, match=said):
        decode_command(json.dumps({"v": 1, "group": "g"} | change).encode())


@pytest.mark.parametrize("row", [[1, 2], "text", [1, 2, True], [1, 2, -2], None])
def test_a_snapshot_with_a_malformed_end_of_a_transaction_is_refused(row: object) -> None:
    group = {"id": "g", "record": None, "empty_since_us": -1, "offsets": [], "pending": [], "ended": [row]}
    with pytest.raises(FieldError):
        GroupsState().restore(json.dumps({"v": 1, "groups": [group]}).encode())
