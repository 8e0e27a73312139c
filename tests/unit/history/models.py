"""Sequential objects for the linearizability check, and one key of a history as calls of one of them. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeAlias

from loadtest.history.operation import Kind, Operation, Outcome
from tests.unit.history.linearizability import Call

LogState: TypeAlias = tuple[Hashable, ...]


class Register:
    """One value, None at first: write(value), read(), swap((expected, value)) -> whether it was done."""

    def initial(self) -> Hashable:
        """Return nothing written yet."""
        return None

    def step(self, state: Hashable, call: Call) -> tuple[Hashable, Hashable]:
        """Do one call. Raises ValueError for a call it does not have."""
        if call.name == "write":
            return None, call.argument
        if call.name == "read":
            return state, state
        if call.name == "swap" and isinstance(call.argument, tuple):
            expected, value = call.argument
            return (True, value) if state == expected else (False, state)
        raise ValueError(f"a register has no {call.name}({call.argument!r})")


class AppendLog:
    """Values in order: append(value) -> its offset, end() -> how many, read() -> all of them as a tuple."""

    def initial(self) -> LogState:
        """Return the empty log."""
        return ()

    def step(self, state: LogState, call: Call) -> tuple[Hashable, LogState]:
        """Do one call. Raises ValueError for a call it does not have."""
        if call.name == "append":
            return len(state), (*state, call.argument)
        if call.name == "end":
            return len(state), state
        if call.name == "read":
            return state, state
        raise ValueError(f"a log has no {call.name}({call.argument!r})")


def log_calls(operations: Sequence[Operation], key: str) -> list[Call]:
    """Return the sends and linear end queries of one key as calls of an AppendLog.

    Fetches are left out: they may return less than what is committed, so they are not reads of the whole log. A send
    that was acknowledged without an offset has no result to compare: it counts as one without an answer.
    """
    calls = []
    for operation in operations:
        if operation.key != key or operation.outcome is Outcome.FAIL:
            continue
        if operation.kind is Kind.PRODUCE or (operation.kind is Kind.END and operation.linear and operation.is_ok):
            calls.append(
                Call(
                    name="append" if operation.kind is Kind.PRODUCE else "end",
                    argument=operation.value,
                    result=operation.offset,
                    invoked_ns=operation.invoked_ns,
                    completed_ns=operation.completed_ns if operation.is_ok and operation.offset is not None else None,
                )
            )
    return calls
