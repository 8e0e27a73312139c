"""Every order of events in a small world of one transactional id, with the code that decides.

One partition with two transactions, and two partitions with one; owners come and go and may crash anywhere. Batches,
answers and markers may come late, twice or never; the coordinator may change while its predecessor still answers and
sends from what it knew. Checked in every reachable state:

1. A record that readers see belongs to a transaction that was decided to commit; none of it is told as aborted.
2. When a committed transaction is complete, every acknowledged record of it is seen in every partition.
3. Whatever has happened, if the coordinator goes on and everything on its way arrives, no transaction stays open.

A client does what clients do: it commits when every batch is acknowledged, and after an abort with a batch whose fate
it does not know it asks for a new epoch first (KIP-360).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import pytest

from georelay.errors import GeorelayError
from georelay.ids import Offset, RaftIndex, RegionNumber, StreamKey
from region.topics.transaction_table_core import Change, Kind, TransactionTable
from region.transactions.transaction_core import (
    PREPARED,
    State,
    Transaction,
    TransactionEnd,
    abort_by_fencing,
    add,
    complete,
    end,
    end_of,
    initialize,
    verified_number,
)

PRODUCER = 5
STATES_MAX = 400_000


class Rules(NamedTuple):
    """What keeps late events apart; without one of them the model finds what it is for."""

    numbers: bool = True  # a marker or a confirmation of an ended transaction is refused by its number
    verifies: bool = True  # the first batch is confirmed by the coordinator
    fences: bool = True  # a marker of a newer epoch fences older ones


class Size(NamedTuple):
    """How large the world is."""

    partitions: int
    transactions: int
    epoch_max: int


def key(partition: int) -> StreamKey:
    return StreamKey(bytes(16), RegionNumber(0), partition)


class Batch(NamedTuple):
    partition: int
    epoch: int
    transaction: int  # in which its client sent it
    confirmed: int = -1  # what the coordinator answered


class Entry(NamedTuple):
    is_marker: bool
    epoch: int
    number: int  # of the transaction: the client's, for a batch
    is_commit: bool = False


class Client(NamedTuple):
    """The owner of the id. `sent`: partitions that it sent a batch to in its open transaction."""

    epoch: int
    is_open: bool = False
    sent: frozenset[int] = frozenset()
    needs_epoch: bool = False


class World(NamedTuple):
    truth: Transaction
    stale: Transaction  # what the coordinator before believes
    client: Client | None
    logs: tuple[tuple[Entry, ...], ...]
    decided: tuple[bool | None, ...]
    flying: frozenset[Batch] = frozenset()
    markers: frozenset[tuple[int, TransactionEnd]] = frozenset()


@lru_cache(maxsize=100_000)
def table_of(log: tuple[Entry, ...]) -> TransactionTable:
    table = TransactionTable()
    for offset, entry in enumerate(log):
        kind = (Kind.COMMIT if entry.is_commit else Kind.ABORT) if entry.is_marker else Kind.OPEN
        index = RaftIndex(offset + 1)
        table.appended(Change(index, kind, Offset(offset), 0, PRODUCER, entry.epoch, entry.number))
    table.commit(RaftIndex(len(log)), 0)
    return table


def appended(world: World, partition: int, entry: Entry) -> World:
    logs = list(world.logs)
    logs[partition] = (*logs[partition], entry)
    return world._replace(logs=tuple(logs))


# --- what may happen ------------------------------------------------------------------------------


def steps(world: World, rules: Rules, size: Size) -> Iterator[World]:
    yield from owner_steps(world, size)
    yield from coordinator_steps(world, size)
    for batch in world.flying:
        yield world._replace(flying=world.flying - {batch})  # lost
        yield from batch_steps(world, batch, rules)
    for partition, told in world.markers:
        yield marked(world, partition, told, rules)


def owner_steps(world: World, size: Size) -> Iterator[World]:
    client = world.client
    if client is not None and client.epoch == world.truth.producer_epoch:
        yield from client_steps(world, client, size)
    if world.truth.producer_epoch < size.epoch_max:  # it crashes, or another one starts
        yield from initialized(world, expected=None)
        if client is not None and client.needs_epoch:
            yield from initialized(world, expected=(PRODUCER, client.epoch))


def initialized(world: World, expected: tuple[int, int] | None) -> Iterator[World]:
    try:
        following = initialize(world.truth, transactional_id="t", timeout_ms=1, expected=expected)
    except GeorelayError:
        return
    if following.state is State.PREPARE_ABORT:  # it has to ask again
        yield decided(world, following)._replace(client=world.client if expected is not None else None)
    else:
        yield world._replace(truth=following, client=Client(following.producer_epoch))


def client_steps(world: World, client: Client, size: Size) -> Iterator[World]:
    if not client.is_open:
        if not client.needs_epoch and world.truth.number < size.transactions:
            try:
                following = add(world.truth, partitions=frozenset(map(key, range(size.partitions))))
            except GeorelayError:
                return
            if following is not None:
                yield world._replace(truth=following, client=client._replace(is_open=True, sent=frozenset()))
        return
    if world.truth.state is not State.ONGOING:
        return
    number = world.truth.number
    for partition in range(size.partitions):
        if partition not in client.sent:
            yield world._replace(
                flying=world.flying | {Batch(partition, client.epoch, number)},
                client=client._replace(sent=client.sent | {partition}),
            )
    is_acknowledged = all(is_stored(world, partition, client.epoch, number) for partition in client.sent)
    for is_commit in (True, False) if is_acknowledged else (False,):
        following = end(world.truth, is_commit=is_commit)
        assert following is not None
        after = client._replace(is_open=False, needs_epoch=not is_acknowledged)
        yield decided(world, following)._replace(client=after)


def is_stored(world: World, partition: int, epoch: int, number: int) -> bool:
    return Entry(False, epoch, number) in world.logs[partition]


def decided(world: World, following: Transaction) -> World:
    known = list(world.decided)
    known[following.number] = following.is_commit
    return world._replace(truth=following, decided=tuple(known))


def coordinator_steps(world: World, size: Size) -> Iterator[World]:
    truth = world.truth
    if truth.state is State.ONGOING and truth.producer_epoch < size.epoch_max:
        yield decided(world, abort_by_fencing(truth))  # its timeout
    if world.stale != truth:
        yield world._replace(stale=truth)  # the leader changes now
    for known in {truth, world.stale}:
        if known.state in PREPARED:
            for partition in range(size.partitions):
                yield world._replace(markers=world.markers | {(partition, end_of(known))})
    if truth.state in PREPARED and all(has_heard(world, partition) for partition in range(size.partitions)):
        yield world._replace(truth=complete(truth))


def has_heard(world: World, partition: int) -> bool:
    told = end_of(world.truth)
    return any(entry.is_marker and entry.number >= told.number for entry in world.logs[partition])


def batch_steps(world: World, batch: Batch, rules: Rules) -> Iterator[World]:
    landed = world._replace(flying=world.flying - {batch})
    if is_stored(world, batch.partition, batch.epoch, batch.transaction):
        yield landed  # a duplicate
        return
    table = table_of(world.logs[batch.partition]).end
    if rules.fences and batch.epoch < table.fencing_epoch(PRODUCER):
        yield landed
        return
    entry = Entry(False, batch.epoch, batch.transaction)
    if PRODUCER in table.ongoing or not rules.verifies:
        yield appended(landed, batch.partition, entry)
        return
    if batch.confirmed >= 0:
        is_late = rules.numbers and table.is_late(PRODUCER, batch.confirmed)
        yield landed if is_late else appended(landed, batch.partition, entry)
        return
    for known in {world.truth, world.stale}:
        try:
            number = verified_number(
                known,
                transactional_id="t",
                producer_id=PRODUCER,
                epoch=batch.epoch,
                partition=key(batch.partition),
            )
        except GeorelayError:
            yield landed
        else:
            yield landed._replace(flying=landed.flying | {batch._replace(confirmed=number)})


def marked(world: World, partition: int, told: TransactionEnd, rules: Rules) -> World:
    table = table_of(world.logs[partition]).end
    if told.producer_epoch < table.fencing_epoch(PRODUCER):
        return world
    if rules.numbers:
        if table.is_late(PRODUCER, told.number):
            return world
    elif PRODUCER not in table.ongoing and has_heard(world, partition):
        return world  # "nothing is open" as the only sign of a duplicate
    return appended(world, partition, Entry(True, told.producer_epoch, told.number, told.is_commit))


# --- what must hold -------------------------------------------------------------------------------


def fault(world: World) -> str:
    for partition, log in enumerate(world.logs):
        table = table_of(log)
        unstable = table.committed.first_unstable
        stable = len(log) if unstable is None else unstable
        aborted = [(row.first_offset, row.last_offset) for row in table.committed.aborted]
        for offset, entry in enumerate(log[:stable]):
            if entry.is_marker:
                continue
            is_seen = not any(low <= offset <= high for low, high in aborted)
            if is_seen and world.decided[entry.number] is not True:
                return f"partition {partition} shows offset {offset}, of a transaction that is not committed"
            if not is_seen and world.decided[entry.number] is True:
                return f"partition {partition} hides offset {offset}, of a committed transaction"
    if world.truth.state is State.COMPLETE_COMMIT and any(table_of(log).committed.ongoing for log in world.logs):
        return "a committed transaction is complete and still open in a partition"
    return ""


def hangs(world: World, rules: Rules) -> bool:
    """Let the coordinator finish and everything arrive that is on its way, in two orders; is one still open?"""
    for batches_first in (True, False):
        later = world
        for _ in range(3):
            if batches_first:
                later = landed_all(later, rules)
            if later.truth.state is State.ONGOING:
                later = decided(later, abort_by_fencing(later.truth))
            if later.truth.state in PREPARED:
                for partition in range(len(later.logs)):
                    later = marked(later, partition, end_of(later.truth), rules)
                later = later._replace(truth=complete(later.truth))
            later = landed_all(later, rules)
        if any(table_of(log).end.ongoing for log in later.logs):
            return True
    return False


def landed_all(world: World, rules: Rules) -> World:
    for batch in sorted(world.flying):
        for following in batch_steps(world, batch, rules):
            world = following
            break
    return world


def first(size: Size) -> World:
    owned = initialize(None, transactional_id="t", timeout_ms=1, new_producer_id=PRODUCER)
    return World(
        truth=owned,
        stale=owned,
        client=Client(0),
        logs=((),) * size.partitions,
        decided=(None,) * (size.transactions + 1),
    )


def without_version(world: World) -> World:
    """Return the world without a counter that nothing here depends on."""
    if world.truth.version == 1 == world.stale.version:
        return world
    return world._replace(truth=replace(world.truth, version=1), stale=replace(world.stale, version=1))


def explore(rules: Rules, size: Size) -> tuple[int, str]:
    """Return how many states there are, and what is wrong in the first wrong one."""
    start = without_version(first(size))
    seen = {start}
    todo = deque([start])
    while todo:
        world = todo.popleft()
        for raw in steps(world, rules, size):
            following = without_version(raw)
            if following in seen:
                continue
            seen.add(following)
            wrong = fault(following)
            if not wrong and hangs(following, rules):
                wrong = "a transaction stays open for ever"
            if wrong:
                return len(seen), wrong
            assert len(seen) < STATES_MAX, "the model has grown: make it smaller again"
            todo.append(following)
    return len(seen), ""


TWO_TRANSACTIONS = Size(partitions=1, transactions=2, epoch_max=2)
TWO_PARTITIONS = Size(partitions=2, transactions=1, epoch_max=1)


@pytest.mark.parametrize("size", [TWO_TRANSACTIONS, TWO_PARTITIONS], ids=["two transactions", "two partitions"])
def test_no_order_of_events_shows_half_a_transaction_or_leaves_one_open(size: Size) -> None:
    states, wrong = explore(Rules(), size)
    assert wrong == ""
    assert states > 500


@pytest.mark.parametrize(
    "rules",
    [Rules(numbers=False), Rules(verifies=False), pytest.param(Rules(fences=False), marks=pytest.mark.slow)],
    ids=["no numbers in markers", "first batches not confirmed", "no fence"],
)
def test_without_one_of_the_rules_the_model_finds_what_it_is_for(rules: Rules) -> None:
    assert explore(rules, TWO_TRANSACTIONS)[1] != ""
