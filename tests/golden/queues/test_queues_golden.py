"""Commands and snapshots of queues, byte for byte: what stands in a coordinator's log can be read for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from georelay.fields import FieldError
from region.coordination.part import CommandError
from region.queues.commands_core import decode_command, encode_command
from region.queues.leases import Lease, lease_text, read_lease
from region.queues.queue_core import Claim, Place, RecordState
from region.queues.state_core import QueuesState
from region.routing.copies_core import decode_copy_command, encode_copy_command
from tests.tiers import in_one_test

APPEND_US = 1_700_000_000_000_000
Lines = list[tuple[str, bytes]]


def lines_of(file: str) -> tuple[Lines, bytes]:
    """Return the commands of a file, and the snapshot that they lead to."""
    lines = [line.split(" ", 1) for line in Path(__file__).with_name(file).read_text().splitlines()]
    (snapshot,) = [raw.encode() for name, raw in lines if name == "snapshot"]
    return [(name, raw.encode()) for name, raw in lines if name != "snapshot"], snapshot


COMMANDS, SNAPSHOT = lines_of("queues-1.txt")
MOVED_COMMANDS, MOVED_SNAPSHOT = lines_of("queues-2.txt")  # of queues whose home, or whose topic's home, has moved
EPOCH_COMMANDS, EPOCH_SNAPSHOT = lines_of("queues-3.txt")  # commands that name the epoch they mean, rows handed over
OWNED_COMMANDS, OWNED_SNAPSHOT = lines_of("queues-4.txt")  # creations that say whose the queue is
ALL = [*COMMANDS, *MOVED_COMMANDS, *EPOCH_COMMANDS, *OWNED_COMMANDS]


def state_after(commands: Lines) -> QueuesState:
    state = QueuesState()
    for name, raw in commands:
        if name.startswith("copies-"):
            state.copies.apply(decode_copy_command(raw)[0])
        else:
            state.apply(decode_command(raw)[0], append_us=APPEND_US)
    return state


@in_one_test(("name", "raw"), ALL)
def test_commands_are_read_and_written_as_ever(name: str, raw: bytes) -> None:
    if name.startswith("copies-"):
        assert encode_copy_command(*decode_copy_command(raw)) == raw
    else:
        assert encode_command(*decode_command(raw)) == raw


@in_one_test(("name", "raw"), ALL)
def test_a_command_that_is_cut_off_is_an_error_and_nothing_else(name: str, raw: bytes) -> None:
    decode = decode_copy_command if name.startswith("copies-") else decode_command
    for end in range(1 if name.startswith("copies-") else 0, len(raw)):
        with pytest.raises(CommandError):
            decode(raw[:end])


def test_the_commands_lead_to_the_snapshot() -> None:
    assert state_after(COMMANDS).snapshot() == SNAPSHOT


def test_commands_and_the_fence_of_a_move_lead_to_the_snapshot() -> None:
    state = state_after(MOVED_COMMANDS)
    state.fence(3)
    assert state.snapshot() == MOVED_SNAPSHOT
    again = QueuesState()
    again.restore(MOVED_SNAPSHOT)
    assert again.snapshot() == MOVED_SNAPSHOT
    queue = again.find("bills")
    assert queue is not None
    assert [again.generation(queue, partition) for partition in (0, 1)] == [(3, 6), (3, 2)]


def test_creations_that_say_whose_the_queue_is_lead_to_the_snapshot() -> None:
    assert state_after(OWNED_COMMANDS).snapshot() == OWNED_SNAPSHOT
    again = QueuesState()
    again.restore(OWNED_SNAPSHOT)
    assert again.snapshot() == OWNED_SNAPSHOT
    assert {queue.definition.name: queue.principal for queue in again} == {"bills": "User:alice", "mails": "User:bob"}


def test_commands_that_name_an_epoch_lead_to_the_snapshot() -> None:
    state = state_after(EPOCH_COMMANDS)
    assert state.snapshot() == EPOCH_SNAPSHOT
    queue = state.find("bills")
    assert queue is not None
    kinds = [queue.state_of(Place(0, offset)) for offset in (10, 20, 14, 16)]
    assert kinds == [RecordState.DONE, RecordState.UNTOUCHED, RecordState.DONE, RecordState.UNTOUCHED]
    kinds = [queue.state_of(Place(1, offset)) for offset in (7, 8)]
    assert kinds == [RecordState.UNTOUCHED, RecordState.CONDEMNED]


def test_the_snapshot_is_read_and_written_as_ever() -> None:
    state = QueuesState()
    state.restore(SNAPSHOT)
    assert state.snapshot() == SNAPSHOT
    queue = state.find("bills")
    assert queue is not None
    assert (queue.row_count, len(queue.letters), queue.producer_id) == (3, 1, 281474976710657)


def test_a_snapshot_that_is_cut_off_or_of_another_version_is_refused() -> None:
    for raw in (SNAPSHOT[:-1], SNAPSHOT.replace(b'"version":1', b'"version":2')):
        with pytest.raises(FieldError):
            QueuesState().restore(raw)


def test_leases_are_as_ever_where_nothing_has_moved_and_name_their_generation_elsewhere() -> None:
    plain = Lease(APPEND_US, Claim(1, 20, 3), (1, 1))
    moved = Lease(APPEND_US, Claim(1, 20, 3), (3, 6))
    assert (lease_text(plain), lease_text(moved)) == ("60a24181e4000.1.14.3", "60a24181e4000.1.14.3.3.6")
    assert [read_lease(lease_text(lease)) for lease in (plain, moved)] == [plain, moved]
