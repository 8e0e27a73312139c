"""What a report says of every stream and pair against what the clients themselves wrote down. Pure.

Rule 1: stored is what any reader got: offsets are the same in every region. It lies between what was acknowledged and
        that with everything of unknown outcome.
Rule 2: the report may call records untraced that its reader got, as many as a kill explains, and nothing else may
        differ. A client that keeps its place gets no record twice, and so no session may have been handed one twice.
Rule 3: a producer that sends again is told of fewer refusals than brokers give. One that sends once may not have
        waited for the answer: what it does not know may have been refused, and is not stored then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadtest.campaign.offset_ranges_core import OffsetRanges

ALWAYS_ZERO: Final = ("pending", "lost", "aborted", "expired", "not_asked", "unnamed")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBook:
    """What a producer wrote down.

    Args:
        topic, origin: as in the report; origin is '' for one home.
        is_retrying: it sends again what was refused.
    """

    name: str
    topic: str
    origin: str
    region: str
    is_retrying: bool
    sent: int
    refused: int
    redirected: int
    unknown: int
    acked: OffsetRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLine:
    """One stream in one region: what its reader got, what the report says, and where they differ.

    Args:
        unsent: sent by the client once, neither stored nor refused: they were not at any broker when it gave up, or
            with one that was killed.
    """

    stream: str
    dest: str
    received: int
    again: int
    published: int
    delivered: int
    untraced: int
    refused: int
    undecided: int
    unsent: int
    faults: tuple[str, ...]


def compare(
    books: Sequence[StreamBook],
    received: Mapping[str, Mapping[str, OffsetRanges]],
    accounts: Sequence[Mapping[str, Any]],
    *,
    untraced_max: Mapping[str, int] | None = None,
) -> list[PairLine]:
    """Return a line per stream and region.

    Args:
        received: region -> name of the stream -> offsets.
        accounts: `integrity.accounts` of report.json.
        untraced_max: region -> untraced deliveries of each stream that the kill of a broker there explains; 0 for
            the others.
    """
    explained = untraced_max or {}
    by_place = {(row["topic"], row["origin"], row["partition"], row["dest"]): row for row in accounts}
    lines = []
    for book in books:
        stored = OffsetRanges()
        for of_region in received.values():
            for first, end in of_region[book.name].ranges:
                stored.add(first, end)
        of_clients = _faults_of_clients(book, stored)
        for dest in sorted(received):
            mine = received[dest][book.name]
            row = by_place.get((book.topic, book.origin, 0, dest))
            faults = [*of_clients]
            if stored.missing_from(mine):
                faults.append(f"the reader lacks {stored.missing_from(mine)} stored records")
            if mine.again:
                faults.append(f"the reader got {mine.again} records again")
            faults += ["the report has no account"] if row is None else _faults_of_report(book, stored, mine, row)
            row = row or {}
            untraced, most = row.get("untraced") or 0, explained.get(dest, 0)
            if untraced > most:
                faults.append(f"{untraced} deliveries are untraced, a kill explains {most}")
            lines.append(
                PairLine(
                    stream=book.name,
                    dest=dest,
                    received=mine.size,
                    again=mine.again,
                    published=row.get("published", 0),
                    delivered=row.get("delivered") or 0,
                    untraced=untraced,
                    refused=row.get("refused", 0),
                    undecided=row.get("undecided", 0),
                    unsent=0 if book.is_retrying else book.sent - row.get("published", 0) - row.get("refused", 0),
                    faults=tuple(faults),
                )
            )
    return lines


def faults_of_integrity(integrity: Mapping[str, Any]) -> list[str]:
    """Return what the report saw repeated or reordered within a session.

    Args:
        integrity: that part of report.json.
    """
    readers = integrity["readers"]
    if not readers:
        return ["the report judged the integrity of no reader"]
    faults = []
    for row in readers:
        name = f"{row['origin']}.{row['topic']}" if row["origin"] else row["topic"]
        for column, words in (("dup_unflagged", "repeated without saying so"), ("order_violations", "out of order")):
            if row[column]:
                faults.append(f"{name} in {row['dest']}: {row[column]} {words}")
    return faults


def _faults_of_clients(book: StreamBook, stored: OffsetRanges) -> list[str]:
    faults = []
    lost = book.acked.missing_from(stored)
    if lost:
        faults.append(f"{lost} acknowledged records were read by nobody")
    answered = book.acked.size + book.refused + book.redirected + book.unknown
    if answered != book.sent:
        faults.append(f"{book.sent} were sent and {answered} answered")
    if stored.size > book.acked.size + book.unknown:
        faults.append(f"{stored.size} are stored, {book.acked.size} acknowledged and {book.unknown} unknown")
    return faults


def _faults_of_report(book: StreamBook, stored: OffsetRanges, mine: OffsetRanges, row: Mapping[str, Any]) -> list[str]:
    faults = []
    if row["published"] != stored.size:
        faults.append(f"published {row['published']}, stored {stored.size}")
    if (row["delivered"] or 0) + (row["untraced"] or 0) != mine.size:
        faults.append(f"delivered {row['delivered']} and untraced {row['untraced']}, read {mine.size}")
    faults += [f"{name} {row[name]}" for name in ALWAYS_ZERO if row[name]]
    if row["adds_up"] is not True:
        faults.append(f"adds_up is {row['adds_up']}")
    refused = row["refused"]
    open_to_client = book.unknown - (stored.size - book.acked.size)  # of unknown outcome, and not stored
    if refused < book.refused or (refused > book.refused + open_to_client and not book.is_retrying):
        faults.append(f"refused {refused}, clients were refused {book.refused} and do not know of {open_to_client}")
    if book.sent + (refused if book.is_retrying else 0) < row["published"]:
        faults.append(f"published {row['published']} of {book.sent} sent")
    return faults
