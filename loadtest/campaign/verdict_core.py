"""What was acknowledged against what was found. Pure.

Rule 1: missing counts acknowledged records that are not at the offset that was acknowledged; those whose producer was
        not told an offset (see loadtest.history.operation) may be anywhere, but must be there.
Rule 2: extra counts every occurrence after the first, acknowledged or not.
Rule 3: a record that was sent and never acknowledged may be found or not; neither is an error.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

RecordName: TypeAlias = tuple[str, int]  # (producer, number)

UNTOLD: Final = -1  # the offset of a record that is stored, its producer does not know where


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """One line of a producer's log; `offset` may be UNTOLD, `at_ns` is on the monotonic clock of this machine."""

    record: RecordName
    offset: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of one run.

    Args:
        disordered: records of one producer found after a later one of the same producer.
        mirrors_differ: regions whose records are not the home's, offset by offset.
        longest_gap_ms: longest time between two acknowledgements of one producer that follow each other.
    """

    sent: int
    acked: int
    found: int
    missing: int
    extra: int
    disordered: int
    failed: int
    mirrors_differ: tuple[str, ...]
    longest_gap_ms: float

    @property
    def is_exact(self) -> bool:
        """Return whether nothing was lost, doubled, moved or given up."""
        return not (self.missing or self.extra or self.disordered or self.failed or self.mirrors_differ)


def judge(
    *,
    sent: int,
    failed: int,
    acknowledgements: Sequence[Acknowledgement],
    found: Sequence[RecordName],
    mirrors: Mapping[str, Sequence[RecordName]],
) -> Verdict:
    """Compare; `found` and `mirrors` are the records by offset, from offset 0 on."""
    names = set(found)
    missing = sum(not _is_there(ack, found, names) for ack in acknowledgements)
    return Verdict(
        sent=sent,
        acked=len(acknowledgements),
        found=len(found),
        missing=missing,
        extra=len(found) - len(names),
        disordered=_disordered(found),
        failed=failed,
        mirrors_differ=tuple(sorted(region for region, records in mirrors.items() if list(records) != list(found))),
        longest_gap_ms=longest_gap_ms(acknowledgements),
    )


def _is_there(ack: Acknowledgement, found: Sequence[RecordName], names: set[RecordName]) -> bool:
    if ack.offset == UNTOLD:
        return ack.record in names
    return ack.offset < len(found) and found[ack.offset] == ack.record


def longest_gap_ms(acknowledgements: Sequence[Acknowledgement]) -> float:
    """Return the longest pause between two acknowledgements of one producer, 0 with fewer than two."""
    longest_ns = 0
    last_ns: dict[str, int] = {}
    for ack in sorted(acknowledgements, key=lambda ack: ack.at_ns):
        producer = ack.record[0]
        longest_ns = max(longest_ns, ack.at_ns - last_ns.get(producer, ack.at_ns))
        last_ns[producer] = ack.at_ns
    return longest_ns / 1e6


def median_and_worst(gaps_ms: Sequence[float]) -> tuple[float, float]:
    """Return (median, worst) of at least one gap."""
    return statistics.median(gaps_ms), max(gaps_ms)


def _disordered(found: Sequence[RecordName]) -> int:
    newest: dict[str, int] = {}
    count = 0
    for producer, number in found:
        if number < newest.get(producer, -1):
            count += 1
        newest[producer] = max(number, newest.get(producer, -1))
    return count
