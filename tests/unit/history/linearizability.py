"""Is there one order of these operations that respects time and a sequential model? Pure.

The search of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993) with Lowe's memory of configurations
("Testing for linearizability", 2017): depth first over the operations that may come next, never twice from the same
(operations done, state). Exponential at worst: for histories of some dozens of operations, one object at a time.

Rule: a call without an answer may take effect at any time after its invocation, or never.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of one object.

    Args:
        name: of the function, as its model knows it.
        completed_ns: None when no answer came; `result` means nothing then.
    """

    name: str
    argument: Hashable = None
    result: Hashable = None
    invoked_ns: int
    completed_ns: int | None = None

    def describe(self) -> str:
        """Return one line for people."""
        end = "never" if self.completed_ns is None else f"{self.completed_ns} ns -> {self.result!r}"
        return f"{self.name}({'' if self.argument is None else repr(self.argument)}) [{self.invoked_ns} .. {end}]"


class Model(Protocol[S]):
    """A sequential object: its first state, and what a call does to a state."""

    def initial(self) -> S:
        """Return the state before the first call."""

    def step(self, state: S, call: Call) -> tuple[Hashable, S]:
        """Return (result, state afterwards)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linearization:
    """What the search found.

    Args:
        order: the calls in an order that explains everything; when there is none, the longest one found.
        stuck: calls that could not come next after `order`; empty when the history is linearizable.
    """

    order: tuple[Call, ...]
    stuck: tuple[Call, ...] = ()

    @property
    def exists(self) -> bool:
        """Return whether the history is linearizable."""
        return not self.stuck

    def describe(self) -> str:
        """Return the order, and what does not fit behind it."""
        lines = [f"  {row}. {call.describe()}" for row, call in enumerate(self.order, start=1)]
        head = "linearizable" if self.exists else "NOT linearizable; the longest order found, and what cannot follow:"
        return "\n".join([head, *lines, *(f"  ?  {call.describe()}" for call in self.stuck)])


class _Search(Generic[S]):
    """Calls are bits of an integer: `done` holds those that took effect."""

    def __init__(self, calls: Sequence[Call], model: Model[S]) -> None:
        self.calls = sorted(calls, key=lambda call: call.invoked_ns)
        self.model = model
        self.must = sum(1 << row for row, call in enumerate(self.calls) if call.completed_ns is not None)
        self.seen: set[tuple[int, S]] = set()

    def candidates(self, done: int) -> list[int]:
        """Return the calls that may be next: invoked before the first answer of those that are still open."""
        waiting = [row for row in range(len(self.calls)) if not done >> row & 1]
        answers = [self.calls[row].completed_ns for row in waiting]
        first_answer = min((answer for answer in answers if answer is not None), default=None)
        return [row for row in waiting if first_answer is None or self.calls[row].invoked_ns <= first_answer]

    def run(self) -> Linearization:
        """Search with a stack of our own: Python's is too short for long histories."""
        longest: list[int] = []
        order: list[int] = []
        stack: list[tuple[int, S, list[int]]] = [(0, self.model.initial(), self.candidates(0))]
        while stack:
            done, state, choices = stack[-1]
            if done & self.must == self.must:
                return Linearization(order=tuple(self.calls[row] for row in order))
            if not choices:
                stack.pop()
                if order:
                    order.pop()
                continue
            row = choices.pop(0)
            result, after = self.model.step(state, self.calls[row])
            fits = self.calls[row].completed_ns is None or result == self.calls[row].result
            then = done | 1 << row
            if fits and (then, after) not in self.seen:
                self.seen.add((then, after))
                stack.append((then, after, self.candidates(then)))
                order.append(row)
                longest = max(longest, list(order), key=len)
        done = sum(1 << row for row in longest)
        return Linearization(
            order=tuple(self.calls[row] for row in longest),
            stuck=tuple(self.calls[row] for row in self.candidates(done) if self.must >> row & 1),
        )


def linearize(calls: Sequence[Call], model: Model[S]) -> Linearization:
    """Search an order of `calls` that `model` explains."""
    return _Search(calls, model).run()
