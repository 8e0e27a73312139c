"""What the clients' histories amount to: by partition, by region, by pair; and whether others counted the same. Pure.

Rule 1: offsets are the same in every region, so a stream is what anybody read or was told of.
Rule 2: counts agree when each is equal, record by record: no rounding, no tolerance; only deliveries of a killed broker
        may be untraced, as many as its last moments explain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtest.campaign.offset_ranges_core import OffsetRanges
from loadtest.history.evidence_core import silences_ms
from loadtest.history.operation import Kind, Operation, Outcome
from loadtest.load.engine_values import ABORT, method_of, origin_of


@dataclass(slots=True)
class Books:
    """Counts of the histories of a run.

    Args:
        sent, acked, failed: records by topic; failed are those without an acknowledgement.
        acked_at: offsets by "topic/partition"; those whose offset was not told are only counted.
        read_at: offsets by region and "topic/partition".
        aborted: records of transactions that were aborted on purpose.
        pairs: deliveries by (deliver or late, region of the publisher, region of the reader).
        longest_silence_ms: without an acknowledgement, of the worst partition, while it was written to.
    """

    sent: Counter[str] = field(default_factory=Counter)
    acked: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    acked_at: dict[str, OffsetRanges] = field(default_factory=lambda: defaultdict(OffsetRanges))
    read_at: dict[str, dict[str, OffsetRanges]] = field(default_factory=lambda: defaultdict(dict))
    aborted: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    longest_silence_ms: float = 0.0
    silent_key: str = ""

    @property
    def acked_total(self) -> int:
        """Return the acknowledged records."""
        return self.acked.total()


def books_of(operations: Iterable[Operation]) -> Books:
    """Count; complete reads at the end are nobody's deliveries."""
    books = Books()
    acked: list[tuple[str, Operation]] = []
    for operation in operations:
        topic = operation.key.rpartition("/")[0]
        if operation.kind is Kind.PRODUCE and operation.note == ABORT:
            books.aborted[topic] += 1
        elif operation.kind is Kind.PRODUCE:
            books.sent[topic] += 1
            if operation.outcome is not Outcome.OK:
                books.failed[topic] += 1
                continue
            books.acked[topic] += 1
            acked.append((operation.key, operation))
            if operation.offset is not None:
                books.acked_at[operation.key].add(operation.offset)
        elif operation.kind is Kind.FETCH and not operation.final:
            read = books.read_at[operation.site].setdefault(operation.key, OffsetRanges())
            for offset, value in operation.records:
                read.add(offset)
                origin = origin_of(value.rpartition(":")[0])
                books.pairs[method_of(operation.process), origin, operation.site] += 1
    for key, gap_ms in silences_ms(acked).items():
        if gap_ms > books.longest_silence_ms:
            books.longest_silence_ms, books.silent_key = gap_ms, key
    return books


def differences_to_locust(books: Books, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return where Locust counted something else than the histories.

    Args:
        entries: method, name, n (those that failed are in it), failed.
    """
    told = {(row["method"], row["name"]): (row["n"], row["failed"]) for row in entries if row["n"]}
    mine = {("publish", topic): (books.sent[topic], books.failed[topic]) for topic in books.sent}
    mine |= {(ABORT, topic): (n, 0) for topic, n in books.aborted.items()}
    mine |= {(method, f"{origin}->{dest}"): (n, 0) for (method, origin, dest), n in books.pairs.items()}
    return [
        f"{' '.join(row)}: Locust counted {told.get(row, (0, 0))}, the histories have {mine.get(row, (0, 0))}"
        for row in sorted({*told, *mine})
        if told.get(row, (0, 0)) != mine.get(row, (0, 0))
    ]


def differences_to_report(
    books: Books, accounts: Sequence[Mapping[str, Any]], *, untraced_max: int = 0
) -> tuple[int, list[str]]:
    """Return (records of the report that were compared, where the report says something else than the histories).

    Args:
        accounts: `integrity.accounts` of report.json.
        untraced_max: deliveries of a partition to one region that killed brokers may leave untraced.
    """
    by_place = {(row["topic"], row["partition"], row["dest"]): row for row in accounts}
    compared, found = 0, []
    for dest, of_region in sorted(books.read_at.items()):
        for key, read in sorted(of_region.items()):
            topic, _, partition = key.rpartition("/")
            row = by_place.get((topic, int(partition), dest))
            if row is None:
                found.append(f"{key} in {dest}: the report has no account of it")
                continue
            stored = _stored(books, key)
            delivered, untraced = row["delivered"] or 0, row["untraced"] or 0
            compared += delivered
            if row["published"] != stored.size:
                found.append(f"{key} in {dest}: the report has {row['published']} published, clients {stored.size}")
            if delivered + untraced != read.size:
                found.append(
                    f"{key} in {dest}: the report has {delivered} delivered and {untraced} untraced, "
                    f"the reader {read.size}"
                )
            if untraced > untraced_max:
                found.append(f"{key} in {dest}: {untraced} untraced, {untraced_max} are explained")
            if row["adds_up"] is not True:
                found.append(f"{key} in {dest}: the report's account does not add up")
    return compared, found


def _stored(books: Books, key: str) -> OffsetRanges:
    stored = OffsetRanges(books.acked_at[key].ranges)
    for of_region in books.read_at.values():
        if key in of_region:
            for first, end in of_region[key].ranges:
                stored.add(first, end)
    return stored
