"""What is promised to those who send: kept for ever, once, at one offset, in order. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from loadtest.history.evidence_core import Evidence
from loadtest.history.operation import Operation
from loadtest.history.verdict import Category, Finding


def lost_and_unseen(evidence: Evidence) -> Iterator[Finding]:
    """Yield, site by site, acknowledged records that were not read, and read ones that are not there any more.

    A site with a complete read is judged by that read alone; another one by everything read from it, and there a
    record above the highest offset seen is no error: nobody had come so far yet. Of a record that was acknowledged
    without an offset only a complete read of a log that still has its beginning can say that it is not there.
    """
    for site in sorted({read.site for read in evidence.reads}):
        reads = [read for read in evidence.reads if read.site == site]
        complete = [read for read in reads if read.final]
        found = {value for read in (complete or reads) for _, value in read.records}
        highest = max((offset for read in reads for offset, _ in read.records), default=-1)
        last_read = (complete or reads)[-1]
        at = f" in {site}" if site else ""
        for send in evidence.sends:
            if not send.is_ok or send.value in found:
                continue
            if send.offset is None:
                if complete and not evidence.log_start:
                    text = f"{send.value!r} was acknowledged, its offset not told, and is not there{at}"
                    yield evidence.finding(Category.LOST_WRITE, text, send, last_read)
            elif send.offset < evidence.log_start:
                continue
            elif send.offset <= highest:
                text = f"{send.value!r} was acknowledged at offset {send.offset} and is not there{at}"
                yield evidence.finding(Category.LOST_WRITE, text, send, last_read)
            elif complete:
                text = f"{send.value!r} was acknowledged at offset {send.offset}, all that is there ends at {highest}"
                yield evidence.finding(Category.UNSEEN, text + at, send, last_read)
        if complete:
            yield from _vanished(evidence, found, reads, last_read, at)


def _vanished(
    evidence: Evidence, found: set[str], reads: list[Operation], last_read: Operation, at: str
) -> Iterator[Finding]:
    told: set[str] = set()
    for read in reads:
        for offset, value in read.records:
            if value not in found and value not in told and offset >= evidence.log_start:
                told.add(value)
                text = f"{value!r} was read at offset {offset} and is not in the complete read{at}"
                yield evidence.finding(Category.VANISHED, text, read, last_read)


def doubled(evidence: Evidence) -> Iterator[Finding]:
    """Yield each value that was seen at more than one offset."""
    for value, offsets in evidence.offsets_of.items():
        if len(offsets) > 1:
            text = f"{value!r} is at offsets {', '.join(map(str, sorted(offsets)))}"
            yield evidence.finding(Category.DUPLICATE, text, *offsets.values())


def contradicting(evidence: Evidence) -> Iterator[Finding]:
    """Yield each offset at which more than one value was seen."""
    for offset, values in evidence.values_at.items():
        if len(values) > 1:
            text = f"offset {offset} holds {' and '.join(map(repr, sorted(values)))}"
            yield evidence.finding(Category.INCONSISTENT_OFFSET, text, *values.values())


def disordered_sends(evidence: Evidence) -> Iterator[Finding]:
    """Yield each record of a producer that is in front of one which the same producer sent earlier."""
    highest: dict[str, tuple[int, Operation]] = {}
    for send in evidence.sends:
        offset = evidence.offset_of(send)
        if offset is None or (send.loose and not send.is_ok):
            continue
        before = highest.get(send.process)
        if before is not None and offset < before[0]:
            text = f"{send.value!r} at {offset} was sent after {before[1].value!r} at {before[0]}"
            yield evidence.finding(Category.NON_MONOTONIC_SEND, text, before[1], send)
        else:
            highest[send.process] = (offset, send)


def overtaken_sends(evidence: Evidence) -> Iterator[Finding]:
    """Yield each record whose sending began after another one was acknowledged, and that is in front of it.

    Two records of one producer are `disordered_sends`.
    """
    answered = sorted(
        (send for send in evidence.sends if send.is_ok and send.completed_ns is not None),
        key=lambda send: send.completed_ns or 0,
    )
    row: int = 0
    highest: tuple[int, Operation] | None = None
    for send in sorted(evidence.sends, key=lambda send: send.invoked_ns):
        while row < len(answered) and (answered[row].completed_ns or 0) < send.invoked_ns:
            known = evidence.offset_of(answered[row])
            if known is not None and (highest is None or known > highest[0]):
                highest = known, answered[row]
            row += 1
        offset = evidence.offset_of(send)
        if highest is None or offset is None or highest[1].process == send.process:
            continue
        if offset < highest[0]:
            text = f"{send.value!r} at {offset} was sent after {highest[1].value!r}, at {highest[0]}, was acknowledged"
            yield evidence.finding(Category.OVERTAKEN_SEND, text, highest[1], send)
