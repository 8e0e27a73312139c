"""Commands and snapshots of queues, byte for byte: what stands in a coordinator's log can be read for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from georelay.fields import FieldError
from region.coordination.part import CommandError
from region.queues.commands_core import decode_command, encode_command
from region.queues.state_core import QueuesState
from region.routing.copies_core import decode_copy_command, encode_copy_command

APPEND_US = 1_700_000_000_000_000
LINES = [line.split(" ", 1) for line in Path(__file__).with_name("queues-1.txt").read_text().splitlines()]
COMMANDS = [(name, raw.encode()) for name, raw in LINES if name != "snapshot"]
(SNAPSHOT,) = [raw.encode() for name, raw in LINES if name == "snapshot"]


@pytest.mark.parametrize(("name", "raw"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_commands_are_read_and_written_as_ever(name: str, raw: bytes) -> None:
    if name.startswith("copies-"):
        assert encode_copy_command(*decode_copy_command(raw)) == raw
    else:
        assert encode_command(*decode_command(raw)) == raw


@pytest.mark.parametrize(("name", "raw"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_a_command_that_is_cut_off_is_an_error_and_nothing_else(name: str, raw: bytes) -> None:
    decode = decode_copy_command if name.startswith("copies-") else decode_command
    for end in range(1 if name.startswith("copies-") else 0, len(raw)):
        with pytest.raises(CommandError):
            decode(raw[:end])


def test_the_commands_lead_to_the_snapshot() -> None:
    state = QueuesState()
    for name, raw in COMMANDS:
        if name.startswith("copies-"):
            state.copies.apply(decode_copy_command(raw)[0])
        else:
            state.apply(decode_command(raw)[0], append_us=APPEND_US)
    assert state.snapshot() == SNAPSHOT


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
