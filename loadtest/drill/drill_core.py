"""How long a mesh took in one run of a drill, and how much it had promised by then. Pure.

What is lost, twice or out of order is judged as in every campaign (loadtest.history, loadtest.load.orphans_core).

Rule 1: RTO: from the fault until every publisher outside of it has an acknowledgement again: the first one of the new
        epoch where the home moves, else of a record that was sent after the fault.
Rule 2: RPO: records acknowledged and not in the stream, and how long before the fault the oldest of those was
        acknowledged.

What `findings_of` counts and measures:

    region_orphaned: acknowledged by the home alone and now in an orphan branch, where it was said to be.
    orphaned_by: those, by publisher. orphaned_after_fault: those acknowledged after the fault (a region that is cut off
        goes on until its lease ends).
    orphan_records: all records of orphan branches. orphan_unacknowledged: of them, never acknowledged.
    orphan_strangers: of them, sent by nobody.
    rto_by_publisher_s: None: never. rto_s: the worst of them.
    old_home_s: last acknowledgement of what only the old home had, after the fault (0: none was after it).
    overlap_s: by how much that was later than the first acknowledgement of the new epoch; negative: before it.
        (Records of the prefix that was kept may be acknowledged later under their old epoch: senders ask again.)
    silence_s: longest time without an acknowledgement, by publisher outside of the fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from loadtest.drill.shot import ROLES
from loadtest.history.evidence_core import silences_ms
from loadtest.history.operation import Kind, Operation
from loadtest.history.verdict import Category, Verdict
from loadtest.load.campaign import Users
from loadtest.load.engine_values import PROGRAM, row_of
from loadtest.load.orphans_core import Orphans, epoch_of, is_geo

SECOND_NS: Final = 1_000_000_000
OVERLAP_S_MAX: Final = 0.25  # answers of two regions do not reach a client in the order in which they were given
PENDING: Final = "more regions were asked for"  # in the words of DurabilityPending


def findings_of(
    operations: Sequence[Operation],
    orphans: Orphans,
    history: Verdict,
    users: Sequence[Users],
    *,
    fault_ns: int,
    away: Collection[str],
    moves_home: bool,
) -> dict[str, Any]:
    """Count and measure; see the top of this file.

    Args:
        users: rows of the campaign: the publishers of shot.ROLES.
        fault_ns: just before the first thing was broken. moves_home: whether the home goes elsewhere by itself.
        away: publishers outside of what was broken; they say when the mesh worked again.
    """
    sends = [row for row in operations if row.kind is Kind.PRODUCE and not row.process.startswith(PROGRAM)]
    stored = [row for row in sends if row.is_ok]
    pending = sum(PENDING in row.note for row in sends)
    old_epoch = max((epoch_of(row) for row in stored if at_ns(row) < fault_ns), default=0)
    missing = [*orphans.geo_lost, *orphans.region_lost, *orphans.orphaned]
    silences = silences_ms((role_of(row), row) for row in stored)
    served: dict[str, int] = {}
    for row in stored:
        if epoch_of(row) > old_epoch if moves_home else row.invoked_ns >= fault_ns:
            served[role_of(row)] = min(at_ns(row), served.get(role_of(row), at_ns(row)))
    rtos = {name: (served[name] - fault_ns) / SECOND_NS if name in served else None for name in sorted(away)}
    old = [at_ns(row) for row in orphans.orphaned]
    new = [at_ns(row) for row in stored if epoch_of(row) > old_epoch]
    return {
        "sent": len(sends),
        "region_acknowledged": sum(not is_geo(row, users) for row in stored),
        "geo_acknowledged": sum(is_geo(row, users) for row in stored),
        "pending": pending,
        "unanswered": len(sends) - len(stored) - pending,
        "geo_lost": len(orphans.geo_lost),
        "region_lost": len(orphans.region_lost),
        "region_orphaned": len(orphans.orphaned),
        "orphaned_by": dict(Counter(role_of(row) for row in orphans.orphaned)),
        "orphaned_after_fault": sum(each >= fault_ns for each in old),
        "rpo_s": max(((fault_ns - at_ns(row)) / SECOND_NS for row in missing if at_ns(row) < fault_ns), default=0.0),
        "orphan_records": orphans.records,
        "orphan_unacknowledged": orphans.unacknowledged,
        "orphan_strangers": orphans.strangers,
        "duplicated": history.count(Category.DUPLICATE),
        "reordered": history.count(Category.NON_MONOTONIC_SEND, Category.OVERTAKEN_SEND),
        "rto_by_publisher_s": rtos,
        "rto_s": worst_rto_s(rtos.values()),
        "silence_s": {name: silences.get(name, 0.0) / 1e3 for name in sorted(away)},
        "old_home_s": max((max(0.0, (each - fault_ns) / SECOND_NS) for each in old), default=0.0),
        "overlap_s": (max(old) - min(new)) / SECOND_NS if old and new else None,
    }


def worst_rto_s(rtos: Collection[float | None]) -> float | None:
    """Return the seconds until the last publisher outside of the fault was answered again, None: one never was."""
    known = [each for each in rtos if each is not None]
    return max(known) if known and len(known) == len(rtos) else None


def broken_promises(findings: Mapping[str, Any]) -> list[str]:
    """Return what no campaign judges and was not kept, one line each."""
    rtos, overlap_s = findings["rto_by_publisher_s"], findings["overlap_s"]
    lines = [f"{name} was never answered again" for name, seconds in rtos.items() if seconds is None]
    if overlap_s is not None and overlap_s > OVERLAP_S_MAX:
        lines.append(f"the old home acknowledged {overlap_s:.2f} s after the new one had begun to")
    return lines


def role_of(send: Operation) -> str:
    """Return the publisher of a record."""
    return ROLES[row_of(send.value or "")]


def at_ns(send: Operation) -> int:
    """Return when a record was acknowledged."""
    return send.completed_ns or 0
