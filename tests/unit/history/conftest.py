"""Small histories: operations with times in whole steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loadtest.history.operation import Kind, Operation, Outcome, Placement

KEY = "orders/0"
STEP_NS = 10
ANSWER_NS = 5


class HistoryBed:
    """Writes a history line by line: each operation begins a step after the one before and is answered within it."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._numbers: dict[str, int] = {}

    def send(
        self,
        value: str,
        offset: int | None = None,
        *,
        process: str = "p",
        outcome: Outcome | None = None,
        key: str = KEY,
        at: tuple[int, int] | None = None,
        loose: bool = False,
    ) -> Operation:
        told = outcome or (Outcome.UNKNOWN if offset is None else Outcome.OK)
        return self._add(process, Kind.PRODUCE, key, at, value=value, offset=offset, outcome=told, loose=loose)

    def read(
        self,
        *records: Placement,
        process: str = "reader",
        position: int | None = None,
        site: str = "",
        final: bool = False,
        key: str = KEY,
    ) -> Operation:
        return self._add(
            process,
            *(Kind.FETCH, key, None),
            records=records,
            position=position,
            site=site,
            final=final,
            outcome=Outcome.OK,
        )

    def end(self, offset: int, *, linear: bool = True, at: tuple[int, int] | None = None) -> Operation:
        return self._add("asker", Kind.END, KEY, at, offset=offset, linear=linear, outcome=Outcome.OK)

    def start(self, offset: int) -> Operation:
        return self._add("asker", Kind.START, KEY, None, offset=offset, outcome=Outcome.OK)

    def _add(self, process: str, kind: Kind, key: str, at: tuple[int, int] | None, **fields: object) -> Operation:
        number = self._numbers.get(process, 0)
        self._numbers[process] = number + 1
        begin = len(self.operations) * STEP_NS
        invoked_ns, completed_ns = at or (begin, begin + ANSWER_NS)
        operation = Operation(
            process=process,
            number=number,
            kind=kind,
            key=key,
            invoked_ns=invoked_ns,
            completed_ns=completed_ns,
            **fields,  # type: ignore[arg-type]
        )
        self.operations.append(operation)
        return operation


@pytest.fixture
def bed() -> HistoryBed:
    return HistoryBed()


@pytest.fixture
def new_bed() -> Callable[[], HistoryBed]:
    return HistoryBed
