"""Whatever a correct log does is never flagged; whatever is then broken always is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.history.checker_core import check
from loadtest.history.operation import Kind, Operation, Outcome
from loadtest.history.verdict import Category
from tests.unit.history.linearizability import linearize
from tests.unit.history.models import AppendLog, log_calls

KEY = "orders/0"
seeds = st.integers(min_value=0, max_value=2**32 - 1)


class CorrectLog:
    """A log without faults, its clients, and a clock that moves at every step: what they see is a valid history.

    A send takes effect at a moment between its invocation and its answer, or after it when the answer is lost.
    """

    def __init__(self, rng: random.Random, *, sends: int, sites: tuple[str, ...] = ("us", "eu")) -> None:
        self.rng = rng
        self.sites = sites
        self.now_ns = 0
        self.log: list[str] = []
        self.operations: list[Operation] = []
        self.numbers: dict[str, int] = {}
        self.positions = dict.fromkeys(sites, 0)
        self.mirrored = dict.fromkeys(sites, 0)
        for number in range(sends):
            self.send(f"p{rng.randrange(3)}", f"v{number}")
            self.maybe_read()
            self.maybe_ask()
        for site in sites:
            self.read_all(site)

    def tick(self) -> int:
        self.now_ns += self.rng.randrange(1, 10)
        return self.now_ns

    def add(self, process: str, kind: Kind, invoked_ns: int, completed_ns: int | None, **fields: object) -> None:
        number = self.numbers.get(process, 0)
        self.numbers[process] = number + 1
        self.operations.append(
            Operation(
                process=process,
                number=number,
                kind=kind,
                key=KEY,
                invoked_ns=invoked_ns,
                completed_ns=completed_ns,
                **fields,  # type: ignore[arg-type]
            )
        )

    def send(self, process: str, value: str) -> None:
        began = self.tick()
        outcome = self.rng.choices(list(Outcome), weights=[8, 1, 1])[0]
        happened = outcome is Outcome.OK or (outcome is Outcome.UNKNOWN and self.rng.random() < 0.5)
        offset = len(self.log)
        if happened:
            self.tick()
            self.log.append(value)
        told = offset if outcome is Outcome.OK else None
        ended = None if outcome is Outcome.UNKNOWN else self.tick()
        self.add(process, Kind.PRODUCE, began, ended, value=value, offset=told, outcome=outcome)

    def maybe_read(self) -> None:
        site = self.rng.choice(self.sites)
        self.mirrored[site] = self.rng.randint(self.mirrored[site], len(self.log))
        began, first = self.tick(), self.positions[site]
        if self.rng.random() < 0.2:
            first = self.rng.randint(0, first)
        last = self.rng.randint(first, max(first, self.mirrored[site]))
        seeks = first != self.positions[site] or self.rng.random() < 0.5
        self.positions[site] = last
        records = tuple((offset, self.log[offset]) for offset in range(first, last))
        position = first if seeks or not self.numbers.get(f"reader-{site}") else None
        self.add(
            f"reader-{site}",
            *(Kind.FETCH, began, self.tick()),
            site=site,
            position=position,
            records=records,
            outcome=Outcome.OK,
        )

    def maybe_ask(self) -> None:
        began = self.tick()
        linear = self.rng.random() < 0.5
        answer = len(self.log) if linear else self.rng.randint(0, len(self.log))
        self.add("asker", Kind.END, began, self.tick(), offset=answer, linear=linear, outcome=Outcome.OK)

    def read_all(self, site: str) -> None:
        began = self.tick()
        records = tuple(enumerate(self.log))
        self.add(
            f"final-{site}",
            *(Kind.FETCH, began, self.tick()),
            site=site,
            position=0,
            records=records,
            final=True,
            outcome=Outcome.OK,
        )


def made(seed: int, *, sends: int = 30) -> tuple[list[Operation], random.Random]:
    rng = random.Random(seed)
    return CorrectLog(rng, sends=sends).operations, rng


@given(seed=seeds)
def test_a_correct_log_is_never_flagged(seed: int) -> None:
    operations, rng = made(seed)
    rng.shuffle(operations)
    verdict = check(operations)
    assert verdict.is_valid, verdict.describe()


@given(seed=seeds)
def test_a_correct_log_is_linearizable(seed: int) -> None:
    operations, _ = made(seed, sends=10)
    found = linearize(log_calls(operations, KEY), AppendLog())
    assert found.exists, found.describe()


# --- anomalies: each takes a valid history and breaks one promise --------------------------------

Anomaly = Callable[[list[Operation], random.Random], list[Operation] | None]


def final_reads(operations: list[Operation]) -> list[Operation]:
    return [operation for operation in operations if operation.final]


def acknowledged(operations: list[Operation]) -> list[Operation]:
    return [operation for operation in operations if operation.kind is Kind.PRODUCE and operation.is_ok]


def changed(operations: list[Operation], old: Operation, new: Operation) -> list[Operation]:
    return [new if operation is old else operation for operation in operations]


def forget_a_record(operations: list[Operation], rng: random.Random) -> list[Operation] | None:
    sent = acknowledged(operations)
    if not sent:
        return None
    gone = rng.choice(sent).value
    return [
        replace(operation, records=tuple(row for row in operation.records if row[1] != gone))
        for operation in operations
    ]


def repeat_a_record(operations: list[Operation], rng: random.Random) -> list[Operation] | None:
    read = rng.choice(final_reads(operations))
    if not read.records:
        return None
    end = read.records[-1][0] + 1
    return changed(operations, read, replace(read, records=(*read.records, (end, rng.choice(read.records)[1]))))


def swap_two_records(operations: list[Operation], rng: random.Random) -> list[Operation] | None:
    read = rng.choice(final_reads(operations))
    if len(read.records) < 2:
        return None
    row = rng.randrange(len(read.records) - 1)
    records = list(read.records)
    (first, one), (second, other) = records[row : row + 2]
    records[row : row + 2] = [(first, other), (second, one)]
    return changed(operations, read, replace(read, records=tuple(records)))


def go_back(operations: list[Operation], rng: random.Random) -> list[Operation] | None:
    read = rng.choice(final_reads(operations))
    if not read.records:
        return None
    return changed(operations, read, replace(read, records=(*read.records, rng.choice(read.records))))


def jump_over(operations: list[Operation], rng: random.Random) -> list[Operation] | None:
    reads = [o for o in operations if o.kind is Kind.FETCH and not o.final and len(o.records) > 2]
    if not reads:
        return None
    read = rng.choice(reads)
    row = rng.randrange(1, len(read.records) - 1)
    return changed(operations, read, replace(read, records=(*read.records[:row], *read.records[row + 1 :])))


def refuse_what_is_there(operations: list[Operation], rng: random.Random) -> list[Operation] | None:
    sent = acknowledged(operations)
    if not sent:
        return None
    old = rng.choice(sent)
    return changed(operations, old, replace(old, outcome=Outcome.FAIL, offset=None))


def answer_an_old_end(operations: list[Operation], rng: random.Random) -> list[Operation] | None:
    ends = [o for o in operations if o.kind is Kind.END and o.linear and o.offset]
    sent = [o.completed_ns or 0 for o in acknowledged(operations)]
    ends = [end for end in ends if sent and end.invoked_ns > min(sent)]
    if not ends:
        return None
    old = rng.choice(ends)
    return changed(operations, old, replace(old, offset=0))


def garble_a_record(operations: list[Operation], rng: random.Random) -> list[Operation] | None:
    read = rng.choice(final_reads(operations))
    if not read.records:
        return None
    row = rng.randrange(len(read.records))
    records = list(read.records)
    records[row] = (records[row][0], "bytes:ff")
    return changed(operations, read, replace(read, records=tuple(records)))


ANOMALIES: list[tuple[Anomaly, set[Category]]] = [
    (forget_a_record, {Category.LOST_WRITE, Category.UNSEEN}),
    (repeat_a_record, {Category.DUPLICATE}),
    (swap_two_records, {Category.INCONSISTENT_OFFSET, Category.DUPLICATE}),
    (go_back, {Category.NON_MONOTONIC_POLL}),
    (jump_over, {Category.POLL_SKIP}),
    (refuse_what_is_there, {Category.ABORTED_READ}),
    (answer_an_old_end, {Category.STALE_END}),
    (garble_a_record, {Category.WRONG_BYTES}),
]


@pytest.mark.parametrize(("anomaly", "categories"), ANOMALIES, ids=[row[0].__name__ for row in ANOMALIES])
@given(seed=seeds)
def test_an_anomaly_is_always_flagged(anomaly: Anomaly, categories: set[Category], seed: int) -> None:
    operations, rng = made(seed)
    broken = anomaly(operations, rng)
    if broken is None:
        return  # this history has nothing that could be broken so
    assert categories & set(check(broken).counts), categories


@pytest.mark.parametrize("anomaly", [row[0] for row in ANOMALIES], ids=[row[0].__name__ for row in ANOMALIES])
def test_most_histories_can_be_broken_so(anomaly: Anomaly) -> None:
    broken = [anomaly(*made(seed)) for seed in range(50)]
    assert sum(row is not None for row in broken) > 40
