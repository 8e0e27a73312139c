"""The replicated state of queues: commands for a queue that is gone, of another epoch, and snapshots that cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from georelay.fields import FieldError
from region.coordination.part import CommandError
from region.queues.commands_core import (
    Acknowledge,
    AlterQueue,
    BeginEpoch,
    Bury,
    Condemn,
    CreateQueue,
    DeleteQueue,
    Deliver,
    Drop,
    Extend,
    GiveBack,
    NameProducer,
    PassOver,
    QueueCommand,
    decode_command,
)
from region.queues.definition import QueueDefinition
from region.queues.queue_core import Claim, Passed, Place, RecordState
from region.queues.state_core import QueuesState

PLACES = (Place(0, 0), Place(0, 1))
CLAIMS = (Claim(0, 0, 1), Claim(0, 1, 1))
DEFINITION = QueueDefinition(name="q", topic="t", dead_letter_topic="d")


def made(*commands: QueueCommand) -> QueuesState:
    state = QueuesState()
    state.apply(CreateQueue(definition=DEFINITION, positions=(0,)), append_us=1)
    for command in commands:
        state.apply(command, append_us=2)
    return state


@pytest.mark.parametrize(
    ("command", "result"),
    [
        (Deliver(queue="q", consumer="c", until_us=9, places=PLACES), [0, 0]),
        (Bury(queue="q", places=PLACES), [False, False]),
        (Acknowledge(queue="q", claims=CLAIMS), [False, False]),
        (GiveBack(queue="q", due_us=1, claims=CLAIMS), [False, False]),
        (Extend(queue="q", until_us=1, claims=CLAIMS), [False, False]),
        (Condemn(queue="q", reason="rejected", claims=CLAIMS), [False, False]),
        (Drop(queue="q", claims=CLAIMS), [False, False]),
        (PassOver(queue="q", partition=0, ranges=((0, 5),), why=Passed.PURGE), 0),
        (BeginEpoch(queue="q", partition=0, epoch=2, start=0), 0),
        (NameProducer(queue="q", producer_id=7), 0),
        (AlterQueue(definition=DEFINITION), 0),
        (DeleteQueue(queue="q"), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_command_for_a_queue_that_was_deleted_meanwhile_changes_nothing_and_says_so_of_each_row(
    command: QueueCommand, result: object
) -> None:
    state = QueuesState()
    applied = state.apply(command, append_us=5)
    assert (applied.queue, applied.result, applied.places, len(state)) == ("q", result, (), 0)


def test_a_queue_that_is_made_twice_stays_the_first_one() -> None:
    state = made()
    again = QueueDefinition(name="q", topic="another")
    assert state.apply(CreateQueue(definition=again, positions=()), append_us=9).result is False
    queue = state.find("q")
    assert queue is not None
    assert (queue.definition, queue.made_us) == (DEFINITION, 1)


def test_a_queue_that_is_deleted_is_forgotten_with_its_rows() -> None:
    state = made(Deliver(queue="q", consumer="c", until_us=9, places=PLACES))
    assert state.row_shares().used == 2
    assert state.apply(DeleteQueue(queue="q"), append_us=3).result is True
    assert (len(state), state.row_shares().used, list(state)) == (0, 0, [])


def test_the_claims_of_an_epoch_that_is_over_are_not_condemned_but_those_of_now_are() -> None:
    state = made(
        Deliver(queue="q", consumer="c", until_us=9, places=PLACES),
        BeginEpoch(queue="q", partition=0, epoch=2, start=5),
    )
    old = Condemn(queue="q", reason="expired", claims=CLAIMS[:1], epoch=1)
    now = Condemn(queue="q", reason="expired", claims=CLAIMS[1:], epoch=2)
    assert [state.apply(command, append_us=3).result for command in (old, now)] == [[False], [True]]
    queue = state.find("q")
    assert queue is not None
    assert [queue.state_of(place) for place in PLACES] == [RecordState.LEASED, RecordState.CONDEMNED]


def test_offsets_of_an_epoch_that_is_over_are_not_passed_over() -> None:
    state = made(BeginEpoch(queue="q", partition=0, epoch=2, start=0))
    old = PassOver(queue="q", partition=0, ranges=((0, 5),), why=Passed.RETENTION, epoch=1)
    now = PassOver(queue="q", partition=0, ranges=((0, 3),), why=Passed.RETENTION, epoch=2)
    assert [state.apply(command, append_us=3).result for command in (old, now)] == [0, 3]
    queue = state.find("q")
    assert queue is not None
    assert (queue.cursor(0), queue.counts.skipped) == (3, 3)


def test_a_range_below_the_cursor_is_passed_over_already() -> None:
    state = made(PassOver(queue="q", partition=0, ranges=((0, 5),), why=Passed.PURGE))
    again = PassOver(queue="q", partition=0, ranges=((0, 5), (4, 7)), why=Passed.PURGE)
    assert state.apply(again, append_us=3).result == 2
    queue = state.find("q")
    assert queue is not None
    assert (queue.cursor(0), queue.counts.purged) == (7, 7)


# --- snapshots ------------------------------------------------------------------------------------


def snapshot() -> dict[str, Any]:
    """Return a snapshot of a queue whose record 0 is leased, and 1 done."""
    state = made(
        Deliver(queue="q", consumer="c", until_us=9, places=PLACES),
        Acknowledge(queue="q", claims=CLAIMS[1:]),
    )
    raw: dict[str, Any] = json.loads(state.snapshot())
    return raw


def restored(raw: dict[str, Any]) -> QueuesState:
    state = QueuesState()
    state.restore(json.dumps(raw).encode())
    return state


def test_a_state_that_was_restored_goes_on_like_the_one_it_was_taken_from() -> None:
    state = restored(snapshot())
    assert state.row_shares().used == 1
    assert state.apply(Acknowledge(queue="q", claims=CLAIMS), append_us=3).result == [True, False]
    queue = state.find("q")
    assert queue is not None
    assert queue.cursor(0) == 2


def test_a_state_that_is_restored_from_nothing_is_empty_and_in_its_first_epoch() -> None:
    state = made()
    state.fence(4)
    state.restore(b"")
    assert (len(state), state.snapshot()) == (0, QueuesState().snapshot())


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ((), lambda raw: raw | {"queues": raw["queues"] * 2}, "a queue stands there twice"),
        ((), lambda raw: raw | {"version": 2}, "version"),
        (("queues", 0), lambda queue: queue | {"consumers": [1]}, "a list of texts holds something else"),
        (("queues", 0), lambda queue: queue | {"reasons": ["x" * 1000]}, "a list of texts holds something else"),
        (("queues", 0, "partitions", 0), lambda part: part | {"done": [1]}, "rows or ranges are cut off"),
        (("queues", 0, "partitions", 0), lambda part: part | {"rows": part["rows"][:-1]}, "rows or ranges are cut off"),
        (("queues", 0, "partitions", 0), lambda part: part | {"cursor": 1}, "row of offset 0 cannot be"),
        (("queues", 0, "partitions", 0, "rows", 1), lambda _: int(RecordState.DONE), "row of offset 0 cannot be"),
        (("queues", 0, "partitions", 0, "rows", 1), lambda _: 99, "row of offset 0 cannot be"),
        (("queues", 0, "partitions", 0, "rows", 4), lambda _: 1, "row of offset 0 cannot be"),
        (("queues", 0, "partitions", 0, "rows", 6), lambda _: 1, "row of offset 0 cannot be"),
    ],
)
def test_a_snapshot_that_cannot_be_is_refused_with_what_is_wrong_about_it(
    place: tuple[Any, ...], value: Any, said: str
) -> None:
    raw: Any = {"": snapshot()}
    *outer, last = ("", *place)
    holder = raw
    for step in outer:
        holder = holder[step]
    holder[last] = value(holder[last])
    with pytest.raises(FieldError, match=said):
        restored(raw[""])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ({"op": "rename", "queue": "q"}, "command 'rename' is unknown"),
        ({"op": "bury", "queue": "q", "rows": [1]}, "rows are not of 2 numbers"),
        ({"op": "acknowledge", "queue": "q", "rows": [1, 2, 3, 4]}, "rows are not of 3 numbers"),
        ({"op": "delete", "queue": "q", "more": 1}, "more"),
    ],
)
def test_a_command_that_this_version_does_not_know_stops_the_replica(command: dict[str, object], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        decode_command(json.dumps(command | {"n": 1}).encode())
