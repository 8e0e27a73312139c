"""What is promised to those who read: in order, without a hole, only what was sent, and never old. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from loadtest.history.evidence_core import Evidence
from loadtest.history.operation import Operation, Outcome
from loadtest.history.verdict import Category, Finding


def disordered_polls(evidence: Evidence) -> Iterator[Finding]:
    """Yield each step back and each jump over a known record of a reader that did not ask for it."""
    process, at, previous = "", None, None  # `at`: the offset that the reader must see next; None: any
    for read in evidence.reads:
        if read.process != process:
            process, at, previous = read.process, None, None
        if read.position is not None:
            at = read.position
        for offset, value in read.records:
            involved = tuple(operation for operation in (previous, read) if operation is not None)
            if at is not None and offset < at:
                text = f"{value!r} at {offset} was read where {at} had to follow"
                yield evidence.finding(Category.NON_MONOTONIC_POLL, text, *involved)
            elif at is not None and (skipped := evidence.known_between(at, offset - 1)) is not None:
                value_there, witness = next(iter(evidence.values_at[skipped].items()))
                text = f"from {at} to {offset}: {value_there!r} at {skipped} was jumped over"
                yield evidence.finding(Category.POLL_SKIP, text, *involved, witness)
            at = offset + 1
        previous = read


def refused_and_foreign_values(evidence: Evidence) -> Iterator[Finding]:
    """Yield, once per value, values read that were refused for sure, and values that nobody sent to this key."""
    told: set[str] = set()
    for read in evidence.reads:
        for offset, value in read.records:
            sender = evidence.sender.get(value)
            if value in told or (sender is not None and sender.outcome is not Outcome.FAIL):
                continue
            told.add(value)
            if sender is None:
                text = f"{value!r} was read at offset {offset} and nobody sent it"
                yield evidence.finding(Category.WRONG_BYTES, text, read)
            else:
                text = f"{value!r} was refused and read at offset {offset}"
                yield evidence.finding(Category.ABORTED_READ, text, sender, read)


def stale_ends(evidence: Evidence) -> Iterator[Finding]:
    """Yield each linear end query that began after somebody knew of a higher end and answered a lower one."""
    known = sorted(_known_ends(evidence), key=lambda row: row[0])
    row, highest, witness = 0, 0, None
    for query in sorted((end for end in evidence.ends if end.linear), key=lambda end: end.invoked_ns):
        while row < len(known) and known[row][0] < query.invoked_ns:
            if known[row][1] > highest:
                _, highest, witness = known[row]
            row += 1
        if witness is not None and query.offset is not None and query.offset < highest:
            text = f"end {query.offset} was answered after {highest} was known"
            yield evidence.finding(Category.STALE_END, text, witness, query)


def _known_ends(evidence: Evidence) -> Iterator[tuple[int, int, Operation]]:
    """Yield (known since, end of the log at least, who was told)."""
    for send in evidence.sends:
        offset = evidence.offset_of(send)
        if send.is_ok and offset is not None and send.completed_ns is not None:
            yield send.completed_ns, offset + 1, send
    for read in evidence.reads:
        if read.records and read.completed_ns is not None:
            yield read.completed_ns, max(offset for offset, _ in read.records) + 1, read
    for end in evidence.ends:
        if end.offset is not None and end.completed_ns is not None:
            yield end.completed_ns, end.offset, end
