"""How publishing felt while something was done: latencies and pauses, phase by phase, as a table of lines. Pure.

Rule 1: a record belongs to the phase in which it was sent; a pause to the phase in which it ended.
Rule 2: a pause is between two acknowledgements of one partition that follow each other: what the others do meanwhile
        does not hide it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

from loadtest.history.operation import Kind, Operation
from loadtest.quantile_core import quantile
from loadtest.table_core import table_lines

COLUMNS: Final = ("phase", "seconds", "records", "p50 ms", "p99 ms", "worst ms", "longest pause ms")
SHORTEST_NS: Final = 50_000_000
HEALED: Final = "healed"


class Span(NamedTuple):
    """A fault from when it was done until it was healed, in seconds of the wall clock."""

    what: str
    of: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A named stretch of a run, [from_ns, to_ns) on the monotonic clock."""

    name: str
    from_ns: int
    to_ns: int

    @property
    def seconds(self) -> float:
        """Return how long it took."""
        return (self.to_ns - self.from_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReport:
    """What was measured in one phase; times in ms, 0 when nothing was sent."""

    name: str
    seconds: float
    sent: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    longest_pause_ms: float


@dataclass(slots=True)
class _Measured:
    sent: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    longest_pause_ms: float = 0.0


def phases_of(events: Sequence[Mapping[str, Any]], operations: Sequence[Operation]) -> list[Phase]:
    """Return what was between the events of a campaign, from the first record to the last; no events: no phases.

    Args:
        events: {"what", "of", "ns": when it was done, monotonic, "took_s": how long it took to do it}.
    """
    sent_ns = [operation.invoked_ns for operation in operations if operation.kind is Kind.PRODUCE]
    if not sent_ns or not events:
        return []
    edges = [(min(sent_ns), "before")]
    for event in (event for event in events if "took_s" in event):
        is_heal = event["what"] == HEALED
        words = f"{event['of']} healed" if is_heal else f"{event['what']} {event['of']}"
        edges += [(event["ns"] - int(event["took_s"] * 1e9), f"{words}: at it"), (event["ns"], words)]
    edges = [*sorted(edges), (max(sent_ns) + 1, "")]
    return [
        Phase(name=name, from_ns=from_ns, to_ns=min(to_ns, edges[-1][0]))
        for (from_ns, name), (to_ns, _) in pairwise(edges)
        if min(to_ns, edges[-1][0]) - from_ns >= SHORTEST_NS
    ]


def spans_of(events: Iterable[Mapping[str, Any]]) -> tuple[list[Span], list[Span]]:
    """Return the faults that were healed, in that order, and those that were not; these end when they began.

    Args:
        events: {"what", "of", "second": when}; of what is healed its "fault", too: a broker may have several at once.
    """
    begun, spans = dict[tuple[str, str], float](), []
    for event in events:
        if event["what"] != HEALED:
            begun[event["what"], event.get("of", "")] = event["second"]
        elif (key := (event["fault"], event["of"])) in begun:
            spans.append(Span(*key, begun.pop(key), event["second"]))
    return spans, [Span(*key, at, at) for key, at in begun.items()]


def report(phases: Sequence[Phase], operations: Sequence[Operation]) -> list[PhaseReport]:
    """Measure each phase; phases are ascending and do not overlap, what is between them is left out."""
    measured = [_Measured() for _ in phases]
    begins = [phase.from_ns for phase in phases]

    def at(time_ns: int) -> _Measured | None:
        row = bisect_right(begins, time_ns) - 1
        return measured[row] if row >= 0 and time_ns < phases[row].to_ns else None

    sends = [operation for operation in operations if operation.kind is Kind.PRODUCE]
    for send in sends:
        of_phase = at(send.invoked_ns)
        if of_phase is not None:
            of_phase.sent += 1
            if send.is_ok and send.completed_ns is not None:
                of_phase.latencies_ms.append((send.completed_ns - send.invoked_ns) / 1e6)
    last_ns: dict[str, int] = {}
    for send in sorted((send for send in sends if send.is_ok), key=lambda send: send.completed_ns or 0):
        ended_ns = send.completed_ns or 0
        of_phase = at(ended_ns)
        if of_phase is not None:
            pause_ms = (ended_ns - last_ns.get(send.key, ended_ns)) / 1e6
            of_phase.longest_pause_ms = max(of_phase.longest_pause_ms, pause_ms)
        last_ns[send.key] = ended_ns
    return [_row(phase, of_phase) for phase, of_phase in zip(phases, measured, strict=True)]


def _row(phase: Phase, measured: _Measured) -> PhaseReport:
    latencies = sorted(measured.latencies_ms)
    return PhaseReport(
        name=phase.name,
        seconds=phase.seconds,
        sent=measured.sent,
        p50_ms=quantile(latencies, 0.5, none=0),
        p99_ms=quantile(latencies, 0.99, none=0),
        worst_ms=latencies[-1] if latencies else 0.0,
        longest_pause_ms=measured.longest_pause_ms,
    )


def lines_of(rows: Sequence[PhaseReport]) -> list[str]:
    """Return a table for people, a line for each phase; [] for none."""
    cells = [
        (
            row.name,
            f"{row.seconds:.1f}",
            f"{row.sent:,}",
            *(f"{value:.1f}" for value in (row.p50_ms, row.p99_ms, row.worst_ms)),
            f"{row.longest_pause_ms:.0f}",
        )
        for row in rows
    ]
    return table_lines(COLUMNS, cells)
