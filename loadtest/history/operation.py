"""What a client did and what it was told: the values that every check works on. Pure.

Rule 1: times are nanoseconds of ONE monotonic clock; operations recorded on two machines do not mix.
Rule 2: OK and FAIL are promises: an OK happened, a FAIL never will. Whoever is not sure records UNKNOWN.
Rule 3: the values of one key are unique: what was read names the one operation that sent it.
Rule 4: a record may be stored for sure at an offset that its client was never told (librdkafka: its request was lost,
        and the answer to a later one, or to its retry, shows that it was stored). It is acknowledged all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

Placement: TypeAlias = tuple[int, str]  # (offset, value)


class HistoryError(ValueError):
    """A history that cannot be judged: a bad file, or operations that contradict each other by themselves."""


class Kind(Enum):
    """What was asked."""

    PRODUCE = "produce"  # one record
    FETCH = "fetch"  # records in offset order
    END = "end"  # first offset that is not committed
    START = "start"  # first offset that is kept


class Outcome(Enum):
    """What came of it."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of one process.

    Args:
        process: who; its operations may overlap.
        number: counts the operations of the process in the order of their invocation.
        key: the ordered log that is meant, such as "orders/0".
        invoked_ns, completed_ns: monotonic; completed_ns is None when no answer came.
        site: whose copy answered, such as a region's name; "" when there is one only.
        value: PRODUCE: what was sent.
        offset: PRODUCE: where it is, None where the client was not told. END, START: the answer. Known with OK only.
        position: FETCH: the offset asked for; None goes on where the fetch of this process and key before it ended.
        records: FETCH: what was answered.
        linear: END: the answer promises to count everything that was acknowledged before it was asked for.
        loose: PRODUCE: of an unknown outcome it may be stored behind later ones of its process: its client gives up,
            and what a broker has not read yet of its old connection is read when it can.
        final: FETCH: part of a complete read of the site, made after everything was healed.
        note: for people.
    """

    process: str
    number: int
    kind: Kind
    key: str
    invoked_ns: int
    completed_ns: int | None = None
    outcome: Outcome = Outcome.UNKNOWN
    site: str = ""
    value: str | None = None
    offset: int | None = None
    position: int | None = None
    records: tuple[Placement, ...] = ()
    linear: bool = False
    loose: bool = False
    final: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        """Raise HistoryError unless the fields fit each other."""
        if self.completed_ns is not None and self.completed_ns < self.invoked_ns:
            raise HistoryError(f"{self.process}#{self.number} ends before it begins")
        if self.outcome is not Outcome.UNKNOWN and self.completed_ns is None:
            raise HistoryError(f"{self.process}#{self.number} is {self.outcome.value} and has no time of completion")
        if self.kind is Kind.PRODUCE and self.value is None:
            raise HistoryError(f"{self.process}#{self.number} produces no value")
        if self.is_ok and self.kind in (Kind.END, Kind.START) and self.offset is None:
            raise HistoryError(f"{self.process}#{self.number} is ok and has no offset")

    @property
    def is_ok(self) -> bool:
        """Return whether it happened for sure."""
        return self.outcome is Outcome.OK

    def describe(self) -> str:
        """Return one line for people; times in seconds."""
        begin = f"{self.invoked_ns / 1e9:.6f}"
        end = f"{self.completed_ns / 1e9:.6f}" if self.completed_ns is not None else "never"
        where = f"{self.key}@{self.site}" if self.site else self.key
        return f"[{begin} .. {end}] {self.process}#{self.number} {self._what(where)}"

    def _what(self, where: str) -> str:
        note = f" ({self.note})" if self.note else ""
        stored = "stored, offset unknown" if self.offset is None else f"offset {self.offset}"
        said = stored if self.is_ok else self.outcome.value
        if self.kind is Kind.PRODUCE:
            return f"produce {self.value!r} to {where} -> {said}{note}"
        if self.kind is not Kind.FETCH:
            return f"{self.kind.value} of {where}{' (linear)' if self.linear else ''} -> {said}{note}"
        start = "on" if self.position is None else f"from {self.position}"
        shown = ", ".join(f"{offset}={value!r}" for offset, value in self.records[:4])
        more = f", ... {len(self.records)} records" if len(self.records) > 4 else ""
        answer = f"[{shown}{more}]" if self.is_ok else self.outcome.value
        return f"{'final ' if self.final else ''}fetch {where} {start} -> {answer}{note}"
