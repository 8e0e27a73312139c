"""Every event in every state of a record: what is not in the table has no effect."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from region.queues.definition import QueueDefinition
from region.queues.queue_core import TRANSITIONS, Claim, Event, Passed, Place, QueueState, RecordState
from tests.tiers import in_one_test

PLACE = Place(0, 3)
WANTED = {
    RecordState.UNTOUCHED: {Event.DELIVER, Event.CONDEMN, Event.DROP, Event.PASS_OVER},
    RecordState.WAITING: {Event.DELIVER, Event.CONDEMN, Event.DROP, Event.PASS_OVER},
    RecordState.LEASED: {Event.EXTEND, Event.ACKNOWLEDGE, Event.RETURN, Event.CONDEMN, Event.PASS_OVER},
    RecordState.CONDEMNED: {Event.BURY, Event.PASS_OVER},
    RecordState.DONE: set[Event](),
}


def _queue(state: RecordState) -> QueueState:
    queue = QueueState(QueueDefinition(name="q", topic="t", dead_letter_topic="d"), made_us=1)
    if state is not RecordState.UNTOUCHED:
        queue.deliver("c", 100, [PLACE])
    claim = Claim(*PLACE, 1)
    match state:
        case RecordState.WAITING:
            queue.give_back(5, [claim])
        case RecordState.CONDEMNED:
            queue.condemn("rejected", [claim])
        case RecordState.DONE:
            queue.acknowledge([claim])
    assert queue.state_of(PLACE) is state
    return queue


def _do(queue: QueueState, event: Event, deliveries: int) -> bool:
    claims = [Claim(*PLACE, deliveries)]
    actions: dict[Event, Callable[[], object]] = {
        Event.DELIVER: lambda: queue.deliver("d", 200, [PLACE])[0],
        Event.EXTEND: lambda: queue.extend(300, claims)[0],
        Event.ACKNOWLEDGE: lambda: queue.acknowledge(claims)[0],
        Event.RETURN: lambda: queue.give_back(7, claims)[0],
        Event.CONDEMN: lambda: queue.condemn("expired", claims)[0],
        Event.DROP: lambda: queue.drop(claims)[0],
        Event.BURY: lambda: queue.bury([PLACE])[0],
        Event.PASS_OVER: lambda: queue.pass_over(0, [(PLACE.offset, PLACE.offset + 1)], Passed.PURGE),
    }
    return bool(actions[event]())


def test_the_table_is_the_one_that_was_meant() -> None:
    assert {(state, event) for state, events in WANTED.items() for event in events} == set(TRANSITIONS)


@in_one_test(("state", "event"), list(itertools.product(RecordState, Event)))
def test_an_event_leads_where_the_table_says_or_nowhere(state: RecordState, event: Event) -> None:
    queue = _queue(state)
    row = queue.row(PLACE)
    happened = _do(queue, event, 0 if row is None else row.deliveries)
    assert happened is ((state, event) in TRANSITIONS)
    assert queue.state_of(PLACE) is TRANSITIONS.get((state, event), state)
    kept = queue.state_of(PLACE) not in (RecordState.UNTOUCHED, RecordState.DONE)
    assert queue.row_count == sum(1 for _ in queue.rows()) == int(kept)
    assert (PLACE in queue.letters.values()) is (queue.state_of(PLACE) is RecordState.CONDEMNED)


@pytest.mark.parametrize("event", [Event.EXTEND, Event.ACKNOWLEDGE, Event.RETURN, Event.CONDEMN])
def test_an_event_of_another_delivery_has_no_effect(event: Event) -> None:
    queue = _queue(RecordState.LEASED)
    assert not _do(queue, event, 2)
    assert queue.state_of(PLACE) is RecordState.LEASED


def test_the_cursor_follows_what_is_done_without_a_gap() -> None:
    queue = QueueState(QueueDefinition(name="q", topic="t"), made_us=1, positions=(10,))
    for offset in (12, 10, 14, 11):
        queue.deliver("c", 1, [Place(0, offset)])
        queue.acknowledge([Claim(0, offset, 1)])
    assert queue.cursor(0) == 13
    assert list(queue.partitions[0].done) == [(14, 15)]
