"""Histories whose verdict is known."""

from __future__ import annotations

import random
import sys
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.history.operation import Kind, Operation, Outcome
from tests.unit.history.linearizability import Call, linearize
from tests.unit.history.models import AppendLog, Register, log_calls


def write(value: object, begin: int, end: int | None) -> Call:
    return Call(name="write", argument=value, invoked_ns=begin, completed_ns=end)


def read(value: object, begin: int, end: int | None) -> Call:
    return Call(name="read", result=value, invoked_ns=begin, completed_ns=end)


def swap(expected: object, value: object, done: bool, begin: int, end: int) -> Call:
    return Call(name="swap", argument=(expected, value), result=done, invoked_ns=begin, completed_ns=end)


def append(value: str, offset: int | None, begin: int, end: int | None) -> Call:
    return Call(name="append", argument=value, result=offset, invoked_ns=begin, completed_ns=end)


REGISTERS = [
    ("nothing", [], True),
    ("a read before any write", [read(None, 0, 1)], True),
    ("a read of what nobody wrote", [read(1, 0, 1)], False),
    ("a read after a write", [write(1, 0, 1), read(1, 2, 3)], True),
    ("an old read after a write", [write(1, 0, 1), read(None, 2, 3)], False),
    ("an old read during a write", [write(1, 0, 9), read(None, 2, 3)], True),
    ("new, then old", [write(1, 0, 9), read(1, 1, 2), read(None, 3, 4)], False),
    ("old, then new", [write(1, 0, 9), read(None, 1, 2), read(1, 3, 4)], True),
    ("a write without an answer is seen", [write(1, 0, None), read(1, 5, 6)], True),
    ("a write without an answer is not seen", [write(1, 0, None), read(None, 5, 6)], True),
    ("and not taken back", [write(1, 0, None), read(1, 5, 6), read(None, 7, 8)], False),
    ("it may be late", [write(1, 0, None), write(2, 1, 2), read(2, 3, 4), read(1, 5, 6)], True),
    ("two swaps from one value", [write(0, 0, 1), swap(0, 1, True, 2, 9), swap(0, 2, True, 3, 8)], False),
    ("one of two swaps", [write(0, 0, 1), swap(0, 1, True, 2, 9), swap(0, 2, False, 3, 8)], True),
    ("answers that touch are concurrent", [write(1, 0, 5), read(None, 5, 6)], True),
]


@pytest.mark.parametrize(("calls", "expected"), [row[1:] for row in REGISTERS], ids=[row[0] for row in REGISTERS])
def test_a_register(calls: list[Call], expected: bool) -> None:
    assert linearize(calls, Register()).exists is expected


LOGS = [
    ("in order", [append("a", 0, 0, 1), append("b", 1, 2, 3)], True),
    ("overtaken", [append("a", 1, 0, 1), append("b", 0, 2, 3)], False),
    ("at the same time", [append("a", 1, 0, 9), append("b", 0, 2, 3)], True),
    ("one offset twice", [append("a", 0, 0, 9), append("b", 0, 2, 3)], False),
    ("a hole that nobody can have filled", [append("a", 0, 0, 1), append("b", 2, 2, 3)], False),
    ("a hole filled without an answer", [append("a", 0, 0, 1), append("x", None, 0, None), append("b", 2, 2, 3)], True),
]


@pytest.mark.parametrize(("calls", "expected"), [row[1:] for row in LOGS], ids=[row[0] for row in LOGS])
def test_a_log(calls: list[Call], expected: bool) -> None:
    assert linearize(calls, AppendLog()).exists is expected


def test_the_counter_example_names_what_cannot_follow() -> None:
    found = linearize([write(1, 0, 1), read(None, 2, 3)], Register())
    assert [call.name for call in found.order] == ["write"]
    assert [call.name for call in found.stuck] == ["read"]
    assert found.describe().splitlines() == [
        "NOT linearizable; the longest order found, and what cannot follow:",
        "  1. write(1) [0 .. 1 ns -> None]",
        "  ?  read() [2 .. 3 ns -> None]",
    ]


def test_a_call_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="a register has no pop"):
        linearize([Call(name="pop", invoked_ns=0, completed_ns=1)], Register())
    with pytest.raises(ValueError, match="a log has no pop"):
        linearize([Call(name="pop", invoked_ns=0, completed_ns=1)], AppendLog())


def test_a_long_sequential_history_needs_no_recursion() -> None:
    calls = [append(str(row), row, 2 * row, 2 * row + 1) for row in range(sys.getrecursionlimit() + 500)]
    assert linearize(calls, AppendLog()).exists


def by_brute_force(calls: list[Call]) -> bool:
    """Try every order of every choice of the calls without an answer."""
    open_calls = [call for call in calls if call.completed_ns is None]
    for mask in range(1 << len(open_calls)):
        chosen = [c for c in calls if c.completed_ns is not None]
        chosen += [call for row, call in enumerate(open_calls) if mask >> row & 1]
        if any(explains(order) for order in permutations(chosen)):
            return True
    return False


def explains(order: tuple[Call, ...]) -> bool:
    model, state = Register(), Register().initial()
    for row, call in enumerate(order):
        if any(later.completed_ns is not None and later.completed_ns < call.invoked_ns for later in order[row:]):
            return False
        result, state = model.step(state, call)
        if call.completed_ns is not None and result != call.result:
            return False
    return True


@given(seed=st.integers(min_value=0, max_value=2**32 - 1))
def test_it_agrees_with_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    calls = []
    for _ in range(rng.randint(0, 5)):
        begin = rng.randrange(10)
        end = begin + rng.randrange(6) if rng.random() < 0.8 else None
        kind = rng.randrange(3)
        if kind == 0:
            calls.append(write(rng.randrange(2), begin, end))
        elif kind == 1:
            calls.append(read(rng.choice([None, 0, 1]), begin, end))
        else:
            calls.append(swap(rng.choice([None, 0, 1]), rng.randrange(2), rng.random() < 0.5, begin, begin + 3))
    assert linearize(calls, Register()).exists is by_brute_force(calls)


def test_the_calls_of_a_key_are_its_sends_and_linear_ends() -> None:
    def operation(number: int, kind: Kind, outcome: Outcome, **fields: object) -> Operation:
        return Operation(
            process="p", number=number, kind=kind, key="k", invoked_ns=number, completed_ns=number, outcome=outcome,
            **fields,  # type: ignore[arg-type]
        )  # fmt: skip

    operations = [
        operation(0, Kind.PRODUCE, Outcome.OK, value="a", offset=0),
        operation(1, Kind.PRODUCE, Outcome.FAIL, value="b"),
        operation(2, Kind.PRODUCE, Outcome.UNKNOWN, value="c"),
        operation(3, Kind.END, Outcome.OK, offset=1, linear=True),
        operation(4, Kind.END, Outcome.OK, offset=0),
        operation(5, Kind.FETCH, Outcome.OK),
        operation(6, Kind.PRODUCE, Outcome.OK, value="d"),
    ]
    calls = log_calls(operations, "k")
    assert [(call.name, call.argument, call.completed_ns) for call in calls] == [
        ("append", "a", 0),
        ("append", "c", None),
        ("end", None, 3),
        ("append", "d", None),
    ]
    assert log_calls(operations, "other") == []


def test_a_call_that_a_log_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a log has no truncate\(3\)"):
        AppendLog().step((), Call(name="truncate", argument=3, invoked_ns=0, completed_ns=1))


def test_a_log_says_what_it_holds() -> None:
    log = AppendLog()
    assert log.step(("a", "b"), Call(name="read", invoked_ns=0, completed_ns=1)) == (("a", "b"), ("a", "b"))
    assert log.step(("a", "b"), Call(name="end", invoked_ns=0, completed_ns=1)) == (2, ("a", "b"))
