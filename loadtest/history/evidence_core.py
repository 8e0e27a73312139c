"""One key's part of a history, indexed: what was sent, where each value was seen, who read what. Pure.

Both acknowledgements and reads say where a value is; both count as evidence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from loadtest.history.operation import HistoryError, Kind, Operation, Outcome
from loadtest.history.verdict import Category, Finding

Name = TypeVar("Name", bound=Hashable)


@dataclass(slots=True, kw_only=True)
class Evidence:
    """Everything that is known of one key.

    Args:
        sends: PRODUCE operations, by process and number.
        reads: FETCH operations that were answered, by process and number.
        ends: answered END queries.
        sender: value to the operation that sent it.
        offsets_of: value to where it was seen, each with the first operation that says so.
        values_at: offset to what was seen there, each with the first operation that says so.
        log_start: the highest start of the log that anybody was told: records below it may be gone.
    """

    key: str
    sends: list[Operation] = field(default_factory=list)
    reads: list[Operation] = field(default_factory=list)
    ends: list[Operation] = field(default_factory=list)
    sender: dict[str, Operation] = field(default_factory=dict)
    offsets_of: dict[str, dict[int, Operation]] = field(default_factory=lambda: defaultdict(dict))
    values_at: dict[int, dict[str, Operation]] = field(default_factory=lambda: defaultdict(dict))
    log_start: int = 0
    _known_offsets: list[int] = field(default_factory=list)

    def offset_of(self, send: Operation) -> int | None:
        """Return where a record is: as acknowledged, else as read; None when nobody knows."""
        if send.offset is not None and send.is_ok:
            return send.offset
        seen = self.offsets_of.get(send.value or "")
        return min(seen) if seen else None

    def known_between(self, first: int, last: int) -> int | None:
        """Return the lowest offset in first..last that holds a known value and is not below the log start."""
        row = bisect_left(self._known_offsets, max(first, self.log_start))
        if row < len(self._known_offsets) and self._known_offsets[row] <= last:
            return self._known_offsets[row]
        return None

    def add(self, operation: Operation) -> None:
        """Take in one operation. Raises HistoryError when its value was sent before."""
        if operation.kind is Kind.PRODUCE:
            self._add_send(operation)
        elif operation.outcome is not Outcome.OK:
            return
        elif operation.kind is Kind.FETCH:
            self.reads.append(operation)
            for offset, value in operation.records:
                self._seen(offset, value, operation)
        elif operation.kind is Kind.END:
            self.ends.append(operation)
        else:
            self.log_start = max(self.log_start, operation.offset or 0)

    def _add_send(self, send: Operation) -> None:
        value = send.value or ""
        if value in self.sender:
            raise HistoryError(f"{self.key}: {value!r} was sent twice; values must be unique")
        self.sender[value] = send
        self.sends.append(send)
        if send.is_ok and send.offset is not None:
            self._seen(send.offset, value, send)

    def _seen(self, offset: int, value: str, operation: Operation) -> None:
        self.offsets_of[value].setdefault(offset, operation)
        self.values_at[offset].setdefault(value, operation)

    def finding(self, category: Category, text: str, *operations: Operation) -> Finding:
        """Return a broken promise about this key, and what proves it: each operation once, in order."""
        unique = {(operation.process, operation.number): operation for operation in operations}
        proof = tuple(sorted(unique.values(), key=lambda operation: operation.invoked_ns))
        return Finding(category=category, key=self.key, text=text, operations=proof)

    def close(self) -> None:
        """Finish after the last `add`."""
        self._known_offsets = sorted(self.values_at)


def gather(operations: Iterable[Operation]) -> list[Evidence]:
    """Return the evidence of each key, in the order of the keys. Raises HistoryError."""
    by_key: dict[str, Evidence] = {}
    numbers: set[tuple[str, int]] = set()
    for operation in sorted(operations, key=lambda operation: (operation.process, operation.number)):
        if (operation.process, operation.number) in numbers:
            raise HistoryError(f"{operation.process}#{operation.number} is there twice")
        numbers.add((operation.process, operation.number))
        if operation.key not in by_key:
            by_key[operation.key] = Evidence(key=operation.key)
        by_key[operation.key].add(operation)
    for evidence in by_key.values():
        evidence.close()
    return [by_key[key] for key in sorted(by_key)]


def silences_ms(
    acknowledged: Iterable[tuple[Name, Operation]], edges: Mapping[Name, tuple[int, int]] | None = None
) -> dict[Name, float]:
    """Return the longest time between two acknowledgements of each name, 0 with one only.

    Args:
        edges: of names, when one began to send and when it sent for the last time: from the one to the first
            acknowledgement, and from the last one to the other, it was silent too.
    """
    moments: dict[Name, list[int]] = defaultdict(list)
    for name, send in acknowledged:
        moments[name].append(send.completed_ns or 0)
    for name, (first, last) in (edges or {}).items():
        moments[name] += [first, max([last, *moments[name]])]
    return {
        name: max((later - earlier for earlier, later in pairwise(sorted(found))), default=0) / 1e6
        for name, found in moments.items()
    }
