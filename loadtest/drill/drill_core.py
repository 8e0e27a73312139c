"""What the mesh kept of its promises in one run of a drill. Pure.

Rule 1: a record that k regions acknowledged is in the stream, at its offset, in every region. Else it is geo-lost.
Rule 2: a record that the home alone acknowledged is there too, or, when the home moved by force, at the same offset of
        the orphan branch of the region that acknowledged it: orphaned, counted. Else it is lost. (semantics.md,
        "Homes move")
Rule 3: no record is twice in the stream, and those of one publisher are there in the order in which they were sent.
Rule 4: a reader gets every record of the stream once, in order. One that went on in another region by its position may
        get again what it had in hands and had not saved its position behind, and no more.
Rule 5: RTO: from the fault until every publisher outside of it has an acknowledgement again: the first one of the new
        epoch where the home moves, else of a record that was due after the fault. RPO: records acknowledged and not in
        the stream, and how long before the fault the oldest of those was acknowledged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from loadtest.drill.values import Fate, Observed, Reading, Sent, StoredRecord

SECOND_NS: Final = 1_000_000_000
OVERLAP_S_MAX: Final = 0.25  # answers of two regions do not reach a client in the order in which they were given


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderFindings:
    """How a reader fared; `duplicates_allowed` is what it had in flight when it moved."""

    region: str
    moved_to: str
    delivered: int
    missing: int
    duplicated: int
    duplicates_allowed: int
    reordered: int
    complaint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Counts of records and times in seconds; see the rules above.

    Args:
        region_orphaned: acknowledged by the home alone and now in an orphan branch, where it was said to be.
        orphaned_by: those, by publisher. orphaned_after_fault: those acknowledged after the fault (a region that is cut
            off goes on until its lease ends).
        orphan_records: all records of orphan branches. orphan_unacknowledged: of them, never acknowledged.
        orphan_strangers: of them, sent by nobody. orphans_unlisted: how far lists and exports of branches differ.
        stored_twice: an acknowledged orphan that is in the stream as well.
        differing: regions whose log is not that of most, and how.
        rto_s: by publisher; None: never.
        old_home_s: last acknowledgement of what only the old home had, after the fault (0: none was after it).
        overlap_s: by how much that was later than the first acknowledgement of the new epoch; negative: before it.
            (Records of the prefix that was kept may be acknowledged later under their old epoch: senders ask again.)
        silence_s: longest time without an acknowledgement, by publisher outside of the fault.
    """

    sent: int
    region_acknowledged: int
    geo_acknowledged: int
    pending: int
    unanswered: int
    geo_lost: int
    region_lost: int
    region_orphaned: int
    orphaned_by: Mapping[str, int]
    orphaned_after_fault: int
    rpo_s: float
    orphan_records: int
    orphan_unacknowledged: int
    orphan_strangers: int
    orphans_unlisted: int
    stored_twice: int
    duplicated: int
    reordered: int
    differing: tuple[str, ...]
    rto_s: Mapping[str, float | None]
    silence_s: Mapping[str, float]
    old_home_s: float
    overlap_s: float | None
    readers: tuple[ReaderFindings, ...]


def judge(observed: Observed) -> Findings:
    """Count what came of everything that was sent."""
    stream = max(observed.streams.values(), key=len, default=())
    at = {record.offset: record.name for record in stream}
    missing = [row for row in observed.sent if row.fate is Fate.STORED and at.get(row.offset) != row.name]
    orphans = [record for branch in observed.branches for record in branch.records]
    places = {(record.offset, record.epoch, record.name) for record in orphans}
    orphaned = [row for row in missing if row.is_region_acknowledged and (row.offset, row.epoch, row.name) in places]
    sent = {row.name for row in observed.sent}
    strangers = sum(record.name not in sent for record in orphans)
    present = set(at.values())
    duplicated, reordered = _order(stream)
    return Findings(
        sent=len(observed.sent),
        region_acknowledged=sum(row.is_region_acknowledged for row in observed.sent),
        geo_acknowledged=sum(row.is_geo_acknowledged for row in observed.sent),
        pending=sum(row.fate is Fate.PENDING for row in observed.sent),
        unanswered=sum(row.fate in (Fate.UNKNOWN, Fate.REFUSED) for row in observed.sent),
        geo_lost=sum(row.is_geo_acknowledged for row in missing),
        region_lost=sum(row.is_region_acknowledged for row in missing) - len(orphaned),
        region_orphaned=len(orphaned),
        orphaned_by=dict(Counter(row.name.publisher for row in orphaned)),
        orphaned_after_fault=sum(row.at_ns >= observed.fault_ns for row in orphaned),
        rpo_s=_rpo_s(missing, observed.fault_ns),
        orphan_records=len(orphans),
        orphan_unacknowledged=len(orphans) - len(orphaned) - strangers,
        orphan_strangers=strangers,
        orphans_unlisted=sum(abs(branch.listed_records - len(branch.records)) for branch in observed.branches),
        stored_twice=sum(row.name in present for row in orphaned),
        duplicated=duplicated,
        reordered=reordered,
        differing=_differing(observed.streams),
        rto_s={name: _rto_s(observed, name) for name in sorted(observed.away)},
        silence_s={name: _silence_s(observed, name) for name in sorted(observed.away)},
        old_home_s=max((max(0.0, (row.at_ns - observed.fault_ns) / SECOND_NS) for row in orphaned), default=0.0),
        overlap_s=_overlap_s(observed, orphaned),
        readers=tuple(_reader(reading, stream) for reading in observed.readings),
    )


def broken_promises(findings: Findings) -> list[str]:
    """Return what the mesh promised and did not keep, one line each; empty: everything was kept."""
    counted = (
        (findings.geo_lost, "records that several regions acknowledged are lost"),
        (findings.region_lost, "records that the home acknowledged are neither in the stream nor in an orphan branch"),
        (findings.orphan_strangers, "records of orphan branches were sent by nobody"),
        (findings.orphans_unlisted, "records of orphan branches are listed and not there, or there and not listed"),
        (findings.stored_twice, "acknowledged records of an orphan branch are in the stream as well"),
        (findings.duplicated, "records are in the stream twice"),
        (findings.reordered, "records are in the stream before an earlier one of their publisher"),
    )
    lines = [f"{count} {text}" for count, text in counted if count]
    lines += [f"the log in {text}" for text in findings.differing]
    lines += [f"{name} was never answered again" for name, seconds in findings.rto_s.items() if seconds is None]
    if findings.overlap_s is not None and findings.overlap_s > OVERLAP_S_MAX:
        lines.append(f"the old home acknowledged {findings.overlap_s:.2f} s after the new one had begun to")
    for reader in findings.readers:
        lines += _reader_complaints(reader)
    return lines


def _reader_complaints(reader: ReaderFindings) -> list[str]:
    who = f"the reader in {reader.region}" + (f", then {reader.moved_to}," if reader.moved_to else "")
    beyond = reader.duplicated - reader.duplicates_allowed
    rows = (
        (reader.missing, "did not get {} records"),
        (max(0, beyond), f"got {{}} records twice beyond the {reader.duplicates_allowed} in flight"),
        (reader.reordered, "got {} records after a later one"),
    )
    found = [f"{who} {text.format(count)}" for count, text in rows if count]
    return [*found, f"{who} could not go on: {reader.complaint}"] if reader.complaint else found


def _rpo_s(missing: Iterable[Sent], fault_ns: int) -> float:
    ages = [(fault_ns - row.at_ns) / SECOND_NS for row in missing if row.at_ns < fault_ns]
    return max(ages, default=0.0)


def _order(stream: Sequence[StoredRecord]) -> tuple[int, int]:
    """Return how many records are there twice, and how many after a later one of their publisher."""
    counts = Counter(record.name for record in stream if record.name is not None)
    highest: dict[str, int] = {}
    reordered = 0
    for record in stream:
        if record.name is None:
            continue
        publisher, number = record.name
        reordered += number < highest.get(publisher, -1)
        highest[publisher] = max(number, highest.get(publisher, -1))
    return sum(count - 1 for count in counts.values()), reordered


def _differing(streams: Mapping[str, Sequence[StoredRecord]]) -> tuple[str, ...]:
    """Return the regions whose log is not the most common one, each with where it parts from that."""
    logs = {region: tuple(stream) for region, stream in sorted(streams.items())}
    if not logs:
        return ()
    common, _ = Counter(logs.values()).most_common(1)[0]
    return tuple(f"{region} {_difference(log, common)}" for region, log in logs.items() if log != common)


def _difference(log: Sequence[StoredRecord], common: Sequence[StoredRecord]) -> str:
    for mine, theirs in zip(log, common, strict=False):
        if mine != theirs:
            return f"has {mine} where others have {theirs}"
    return f"was read up to {len(log)} records, in others up to {len(common)}"


def _rto_s(observed: Observed, publisher: str) -> float | None:
    moments = [
        row.at_ns
        for row in observed.sent
        if row.name.publisher == publisher and row.fate is Fate.STORED
        if (row.epoch > observed.old_epoch if observed.moves_home else row.due_ns >= observed.fault_ns)
    ]
    return (min(moments) - observed.fault_ns) / SECOND_NS if moments else None


def _silence_s(observed: Observed, publisher: str) -> float:
    moments = sorted(row.at_ns for row in observed.sent if row.name.publisher == publisher and row.fate is Fate.STORED)
    return max((later - earlier for earlier, later in pairwise(moments)), default=0) / SECOND_NS


def _overlap_s(observed: Observed, orphaned: Sequence[Sent]) -> float | None:
    old = [row.at_ns for row in orphaned]
    new = [row.at_ns for row in observed.sent if row.fate is Fate.STORED and row.epoch > observed.old_epoch]
    return (max(old) - min(new)) / SECOND_NS if old and new else None


def _reader(reading: Reading, stream: Sequence[StoredRecord]) -> ReaderFindings:
    offsets = [delivery.offset for delivery in reading.deliveries]
    counts = Counter(offsets)
    reordered, highest = 0, -1
    seen: set[int] = set()
    for offset in offsets:
        reordered += offset not in seen and offset < highest
        seen.add(offset)
        highest = max(highest, offset)
    return ReaderFindings(
        region=reading.region,
        moved_to=reading.moved_to,
        delivered=len(counts),
        missing=sum(record.offset not in counts for record in stream),
        duplicated=len(offsets) - len(counts),
        duplicates_allowed=reading.in_flight,
        reordered=reordered,
        complaint=reading.complaint,
    )
