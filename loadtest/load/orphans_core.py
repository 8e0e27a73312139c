"""What the home alone acknowledged and then lost as home: in an orphan branch, where it was said to be, or lost. Pure.

Rule 1: a record that k regions acknowledged is in the stream, at its offset. No orphan branch excuses its loss.
Rule 2: a record that the home alone acknowledged is there too, or, when the home moved by force, at the same offset and
        epoch of the orphan branch of a region: orphaned, counted. Else it is lost. (semantics.md, "Homes move")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadtest.history.operation import Kind, Operation, Outcome
from loadtest.load.campaign import Users
from loadtest.load.engine_values import EPOCH, PROGRAM, row_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """Counts of records.

    Args:
        geo_lost, region_lost: acknowledged by several regions, by the home alone: not in the stream, and not orphaned.
        orphaned: acknowledged by the home alone, and in an orphan branch, where it was said to be.
        records, strangers, unacknowledged: in all branches; of them sent by nobody; of them not acknowledged there.
        unlisted: how far lists and exports of branches differ.
        stored_twice: an acknowledged orphan that is in the stream as well.
    """

    geo_lost: tuple[Operation, ...]
    region_lost: tuple[Operation, ...]
    orphaned: tuple[Operation, ...]
    records: int
    strangers: int
    unlisted: int
    stored_twice: int

    @property
    def unacknowledged(self) -> int:
        """Return how many records of branches nobody was told of there."""
        return self.records - self.strangers - len(self.orphaned)

    def broken(self) -> list[str]:
        """Return the promises that were not kept, one line each."""
        counted = (
            (len(self.geo_lost), "records that several regions acknowledged are lost"),
            (
                len(self.region_lost),
                "records that the home acknowledged are in no stream and no orphan branch",
            ),
            (self.strangers, "records of orphan branches were sent by nobody"),
            (self.unlisted, "records of orphan branches are listed and not there, or there and not listed"),
            (self.stored_twice, "acknowledged records of an orphan branch are in the stream as well"),
        )
        return [f"{count} {text}" for count, text in counted if count]


def epoch_of(operation: Operation) -> int:
    """Return the epoch of an acknowledgement, 0 where the client was not told."""
    return int(operation.note.removeprefix(EPOCH)) if operation.note.startswith(EPOCH) else 0


def is_geo(operation: Operation, users: Sequence[Users]) -> bool:
    """Return whether more than the home was asked for."""
    return users[row_of(operation.value or "")].durability != "region"


def orphans_of(
    operations: Sequence[Operation], branches: Sequence[Mapping[str, Any]], users: Sequence[Users]
) -> Orphans:
    """Hold what was acknowledged against the complete read and the orphan branches.

    Args:
        branches: {"key": topic and partition, "listed": records, "records": [offset, epoch, name]}.
    """
    sends = [each for each in operations if each.kind is Kind.PRODUCE and not each.process.startswith(PROGRAM)]
    at = {
        (read.key, offset): name
        for read in operations
        if read.kind is Kind.FETCH and read.final
        for offset, name in read.records
    }
    sent, present = {each.value for each in sends}, set(at.values())

    def is_there(send: Operation) -> bool:
        return send.value in present if send.offset is None else at.get((send.key, send.offset)) == send.value

    missing = [each for each in sends if each.is_ok and not is_there(each)]
    rows = [(branch["key"], *record) for branch in branches for record in branch["records"]]
    places = set(rows)
    orphaned = [
        each
        for each in missing
        if (each.key, each.offset, epoch_of(each), each.value) in places and not is_geo(each, users)
    ]
    taken = {each.value for each in orphaned}
    lost = [each for each in missing if each.value not in taken]
    return Orphans(
        geo_lost=tuple(each for each in lost if is_geo(each, users)),
        region_lost=tuple(each for each in lost if not is_geo(each, users)),
        orphaned=tuple(orphaned),
        records=len(rows),
        strangers=sum(name not in sent for *_, name in rows),
        unlisted=sum(abs(branch["listed"] - len(branch["records"])) for branch in branches),
        stored_twice=len(taken & present),
    )


def excused(operations: Sequence[Operation], orphans: Orphans) -> list[Operation]:
    """Return a history in which the acknowledgement of what was orphaned promises nothing."""
    taken = {(each.process, each.number) for each in orphans.orphaned}
    return [
        replace(each, outcome=Outcome.UNKNOWN, offset=None) if (each.process, each.number) in taken else each
        for each in operations
    ]
