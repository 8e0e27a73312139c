"""What the clients' histories amount to: by partition, by region, by pair; and whether others counted the same. Pure.

Rule 1: offsets are the same in every region, so a stream is what anybody read or was told of.
Rule 2: counts agree when each is equal, record by record: no rounding, no tolerance; only deliveries of a killed broker
        may be untraced, as many as its last moments explain.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from loadtest.campaign.offset_ranges_core import OffsetRanges
from loadtest.history.evidence_core import silences_ms
from loadtest.history.operation import Kind, Operation, Outcome
from loadtest.load.engine_values import ABORT, PROGRAM, REFUSED, SHOWN, method_of, origin_of

ALWAYS_ZERO: Final = ("pending", "lost", "aborted", "expired", "not_asked", "unnamed")  # of a stream read completely


@dataclass(slots=True)
class Books:
    """Counts of the histories of a run.

    Args:
        sent, acked, failed: records by topic; failed are those without an acknowledgement.
        acked_at: offsets by "topic/partition"; those whose offset was not told are only counted.
        read_at: offsets by region and "topic/partition".
        aborted: records of transactions that were aborted on purpose.
        refused, unknown: records by "topic/partition"; refused: by a broker, of those who do not send again.
        pairs: deliveries by (deliver or late, region of the publisher, region of the reader).
        longest_silence_ms: without an acknowledgement, of the worst partition, from the first record sent to the last.
    """

    sent: Counter[str] = field(default_factory=Counter)
    acked: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    acked_at: dict[str, OffsetRanges] = field(default_factory=lambda: defaultdict(OffsetRanges))
    read_at: dict[str, dict[str, OffsetRanges]] = field(default_factory=lambda: defaultdict(dict))
    aborted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
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
    sent_ns: dict[str, list[int]] = defaultdict(list)
    for operation in operations:
        topic = operation.key.rpartition("/")[0]
        if operation.process.startswith(PROGRAM):
            continue
        if operation.kind is Kind.PRODUCE and operation.note == ABORT:
            books.aborted[topic] += 1
        elif operation.kind is Kind.PRODUCE:
            books.sent[topic] += 1
            sent_ns[operation.key].append(operation.invoked_ns)
            if operation.outcome is not Outcome.OK:
                books.failed[topic] += 1
                books.unknown[operation.key] += operation.outcome is Outcome.UNKNOWN
                books.refused[operation.key] += operation.note.startswith(REFUSED)
                continue
            books.acked[topic] += 1
            acked.append((operation.key, operation))
            if operation.offset is not None:
                books.acked_at[operation.key].add(operation.offset)
        elif operation.kind is Kind.FETCH and not operation.final and method_of(operation.process) != SHOWN:
            read = books.read_at[operation.site].setdefault(operation.key, OffsetRanges())
            for offset, value in operation.records:
                read.add(offset)
                origin = origin_of(value.rpartition(":")[0])
                books.pairs[method_of(operation.process), origin, operation.site] += 1
    edges = {key: (min(moments), max(moments)) for key, moments in sent_ns.items()}
    for key, gap_ms in silences_ms(acked, edges).items():
        if gap_ms >= books.longest_silence_ms:
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
    books: Books, accounts: Sequence[Mapping[str, Any]], *, untraced_max: Mapping[str, int], sent_once: Collection[str]
) -> tuple[int, list[str]]:
    """Return (records of the report that were compared, where the report says something else than the histories).

    Args:
        accounts: `integrity.accounts` of report.json.
        untraced_max: deliveries of a partition to a region that killed brokers may leave untraced; 0 for others.
        sent_once: streams whose publishers do not send again what was refused.
    """
    by_place = {(stream_name(row), row["partition"], row["dest"]): row for row in accounts}
    compared, found = 0, []
    for dest, of_region in sorted(books.read_at.items()):
        for key, read in sorted(of_region.items()):
            stream, _, partition = key.rpartition("/")
            row = by_place.get((stream, int(partition), dest))
            if row is None:
                found.append(f"{key} in {dest}: the report has no account of it")
                continue
            stored = _stored(books, key)
            delivered, untraced = row["delivered"] or 0, row["untraced"] or 0
            compared += delivered
            said = []
            if row["published"] != stored.size:
                said.append(f"the report has {row['published']} published, clients {stored.size}")
            if delivered + untraced != read.size:
                said.append(f"the report has {delivered} delivered and {untraced} untraced, the reader {read.size}")
            if untraced > untraced_max.get(dest, 0):
                said.append(f"{untraced} untraced, {untraced_max.get(dest, 0)} are explained")
            said += [f"the report has {row[name]} {name}" for name in ALWAYS_ZERO if row.get(name)]
            if row["adds_up"] is not True:
                said.append("the report's account does not add up")
            if stream in sent_once and (refused := _wrong_refusals(books, key, stored, row["refused"])):
                said.append(refused)
            found += [f"{key} in {dest}: {words}" for words in said]
    return compared, found


def faults_of_integrity(readers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the report saw repeated or reordered within a session.

    Args:
        readers: `integrity.readers` of report.json.
    """
    faults = []
    for row in readers:
        for column, words in (("dup_unflagged", "repeated without saying so"), ("order_violations", "out of order")):
            if row[column]:
                faults.append(f"{stream_name(row)} in {row['dest']}: {row[column]} {words}")
    return faults


def shares_in_time(operations: Iterable[Operation], *, limit_ms: float) -> dict[str, float]:
    """Return the share of deliveries within a limit from their sending, by `us -> eu`, by the clients' one clock."""
    sent_ns: dict[str, int] = {}
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for operation in operations:
        if operation.kind is Kind.PRODUCE and operation.value is not None:
            sent_ns[operation.value] = operation.invoked_ns
    for operation in operations:
        if operation.kind is not Kind.FETCH or operation.final or operation.completed_ns is None:
            continue
        for _, value in operation.records:
            if value not in sent_ns:
                continue  # nobody sent it: the checker says so
            of_pair = counts[f"{origin_of(value.rpartition(':')[0])} -> {operation.site}"]
            of_pair[0] += operation.completed_ns - sent_ns[value] <= limit_ms * 1e6
            of_pair[1] += 1
    return {pair: in_time / count for pair, (in_time, count) in counts.items()}


def stream_name(row: Mapping[str, Any]) -> str:
    """Return how readers call the stream of a row of the report."""
    return f"{row['origin']}.{row['topic']}" if row.get("origin") else str(row["topic"])


def _wrong_refusals(books: Books, key: str, stored: OffsetRanges, refused: int) -> str:
    """Return what is wrong with the refusals that the report has of a stream whose publishers send once.

    They may not have waited for the answer: what they do not know may have been refused, and is not stored then.
    """
    told, unknown = books.refused[key], books.unknown[key] - (stored.size - books.acked_at[key].size)
    if told <= refused <= told + unknown:
        return ""
    return f"the report has {refused} refused, clients were told of {told} and do not know of {unknown}"


def _stored(books: Books, key: str) -> OffsetRanges:
    stored = OffsetRanges(books.acked_at[key].ranges)
    for of_region in books.read_at.values():
        if key in of_region:
            for first, end in of_region[key].ranges:
                stored.add(first, end)
    return stored
