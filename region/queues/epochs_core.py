"""What a queue may believe of the log that it reads, when the home of its topic has moved. Pure.

The table of a partition, [(epoch, start)], is control's word: it is there before the first record of an epoch is, but a
replica of the log may be behind it (a branch that will be cut off is still there) or ahead of what this broker knows.

Rule 1: a record (epoch x, offset o) is taken in only if the table gives epoch x for o.
Rule 2: offsets without a record are believed only below the first epoch that the log may lack: what looks like an
        aborted transaction in a branch is somebody else's record in the history that goes on.
Rule 3: progress made in epoch x holds below the start of the first epoch after x, and so do leases given in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from georelay.ids import Epoch
from mesh.replication.ports import EpochRow
from region.queues.queue_core import FIRST_EPOCH


def newest_epoch(table: Sequence[EpochRow]) -> Epoch:
    """Return the newest epoch of a table; one that is empty has the first."""
    return table[-1][0] if table else Epoch(FIRST_EPOCH)


def epoch_at(table: Sequence[EpochRow], offset: int) -> int:
    """Return the epoch that a table gives for an offset."""
    return next((int(epoch) for epoch, start in reversed(table) if start <= offset), FIRST_EPOCH)


def begun_after(table: Sequence[EpochRow], known: int) -> tuple[int, int] | None:
    """Return (newest epoch, offset from which progress made up to epoch `known` is void), None: nothing has begun."""
    starts = [int(start) for epoch, start in table if epoch > known]
    return (int(newest_epoch(table)), starts[0]) if starts else None


def is_cut_off(table: Sequence[EpochRow], offset: int, *, known: int) -> bool:
    """Return whether the record that had an offset in epoch `known` has lost it to another one."""
    begun = begun_after(table, known)
    return begun is not None and offset >= begun[1]


def agreeing(table: Sequence[EpochRow], rows: Sequence[tuple[int, int]]) -> int:
    """Return how many of the first rows (epoch, offset) the table agrees with."""
    return next((at for at, (epoch, offset) in enumerate(rows) if epoch != epoch_at(table, offset)), len(rows))


def are_gaps_sure(
    table: Sequence[EpochRow], rows: Sequence[tuple[int, int]], following: int, *, begun: int = FIRST_EPOCH
) -> bool:
    """Return whether offsets without a record below `following` are so in the agreed history.

    They are below the start of the first epoch that the log which was read may lack: from there on it may be a branch.

    Args:
        rows: (epoch, offset) of the records that were read with them, all of which the table agrees with.
        begun: an epoch that has begun in that log.
    """
    known = max([begun, *(epoch for epoch, _ in rows)])
    return following <= min((int(start) for epoch, start in table if epoch > known), default=following)
