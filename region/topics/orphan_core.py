"""Orphan branches of one stream in this region: records that were committed here, beyond the start of a later epoch.

Nobody reads them by offset any more: the mesh continues with other records there. They stay in the log, are listed and
can be exported or published again, until an operator drops them or their time is over.

Rule 1: a branch is noted by the EPOCH entry that cuts it off, and counts once that entry is committed.
Rule 2: it is a function of the log: every replica lists the same branches at equal index.
Rule 3: a branch is listed while all of it is stored: when the log begins above its first entry it is gone.
Rule 4: at most ORPHAN_BRANCHES_MAX are listed; the oldest is forgotten first.

    u16 branches, each: u32 epoch | i64 first | i64 following | u64 first index | u64 cut index | i64 cut_us
        | u16 rows, each u32 epoch, i64 start
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from georelay.ids import Epoch, Offset, RaftIndex
from mesh.replication.ports import EpochRow

ORPHAN_BRANCHES_MAX: Final = 64
ORPHAN_EPOCHS_MAX: Final = 1_000
_COUNT: Final = struct.Struct(">H")
_BRANCH: Final = struct.Struct(">IqqQQqH")
_ROW: Final = struct.Struct(">Iq")
ORPHAN_ROWS_BYTES_MAX: Final = _COUNT.size + ORPHAN_BRANCHES_MAX * (_BRANCH.size + ORPHAN_EPOCHS_MAX * _ROW.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanBranch:
    """Records first..following - 1 that an EPOCH entry cut off.

    Args:
        epoch: that began there, and names the branch.
        first, following: offsets; both are also offsets of other records, which everybody reads.
        first_index, cut_index: no entry of the branch is below the first, none is at or above the second.
        cut_us: append time of the cut, microseconds since 1970.
        epochs: in which the records were sequenced, with the first offset of each in the branch.
    """

    epoch: Epoch
    first: Offset
    following: Offset
    first_index: RaftIndex
    cut_index: RaftIndex
    cut_us: int
    epochs: tuple[EpochRow, ...]

    @property
    def records(self) -> int:
        """Return how many offsets the branch has: records, and markers of transactions."""
        return self.following - self.first

    @property
    def last(self) -> Offset:
        """Return the last offset of the branch."""
        return Offset(self.following - 1)


def branch_epochs(rows: Sequence[EpochRow], *, first: Offset) -> tuple[EpochRow, ...]:
    """Return the epochs of the records from `first` on.

    Args:
        rows: (epoch, start) of the log before the cut, starts never fall.
    """
    inside = [row for row in rows if row[1] > first]
    before = [row for row in rows if row[1] <= first]
    newest = [(before[-1][0], first)] if before else []
    return tuple([*newest, *inside][-ORPHAN_EPOCHS_MAX:])


@dataclass(frozen=True, slots=True)
class _Change:
    """An appended entry: a branch that is cut off, or what goes."""

    index: RaftIndex
    branch: OrphanBranch | None = None
    stored_from: RaftIndex = RaftIndex(0)  # noqa: RUF009
    dropped_below: RaftIndex = RaftIndex(0)  # noqa: RUF009

    def after(self, branches: tuple[OrphanBranch, ...]) -> tuple[OrphanBranch, ...]:
        if self.branch is not None:
            return (*branches, self.branch)[-ORPHAN_BRANCHES_MAX:]
        return tuple(
            branch
            for branch in branches
            if branch.first_index >= self.stored_from and branch.cut_index >= self.dropped_below
        )


class OrphanBook:
    """The branches of one log, oldest first."""

    def __init__(self) -> None:
        self.committed: tuple[OrphanBranch, ...] = ()
        self._pending: deque[_Change] = deque()

    @property
    def end(self) -> tuple[OrphanBranch, ...]:
        """Return the branches at the log END, entries that are not committed included."""
        found = self.committed
        for change in self._pending:
            found = change.after(found)
        return found

    def cut(self, branch: OrphanBranch) -> None:
        """Follow an appended EPOCH entry that cuts `branch` off."""
        self._pending.append(_Change(branch.cut_index, branch=branch))

    def start_moved(self, index: RaftIndex, *, stored_from: RaftIndex, dropped_below: RaftIndex) -> None:
        """Follow an appended entry after which entries below `stored_from` may go.

        Args:
            dropped_below: branches cut off by an entry below this index are dropped by an operator; 0: none.
        """
        if self.committed or self._pending:
            self._pending.append(_Change(index, stored_from=stored_from, dropped_below=dropped_below))

    def truncated(self, from_index: RaftIndex) -> None:
        """Forget the entries at or above `from_index`."""
        while self._pending and self._pending[-1].index >= from_index:
            self._pending.pop()

    def commit(self, index: RaftIndex) -> None:
        """Let the entries up to `index` take effect."""
        pending = self._pending
        while pending and pending[0].index <= index:
            self.committed = pending.popleft().after(self.committed)

    def restore(self, branches: Iterable[OrphanBranch]) -> None:
        """Begin again at a committed state."""
        self.committed = tuple(branches)
        self._pending.clear()


def encode_orphans(branches: Sequence[OrphanBranch]) -> bytes:
    """Return the branches as a stream's state holds them."""
    parts = [_COUNT.pack(len(branches))]
    for branch in branches:
        parts.append(
            _BRANCH.pack(
                branch.epoch,
                branch.first,
                branch.following,
                branch.first_index,
                branch.cut_index,
                branch.cut_us,
                len(branch.epochs),
            )
        )
        parts += (_ROW.pack(*row) for row in branch.epochs)
    return b"".join(parts)


def decode_orphans(raw: bytes | memoryview, position: int) -> tuple[tuple[OrphanBranch, ...], int]:
    """Decode the branches at `position`; return them and where they end.

    Raises:
        ValueError: lengths, counts or values that cannot be.
    """
    branches = []
    try:
        (count,) = _COUNT.unpack_from(raw, position)
        position += _COUNT.size
        if count > ORPHAN_BRANCHES_MAX:
            raise ValueError(f"{count} orphan branches are over {ORPHAN_BRANCHES_MAX}")
        for _ in range(count):
            branch, position = _decode_branch(raw, position)
            branches.append(branch)
    except struct.error as error:
        raise ValueError(f"orphan branches end too early: {error}") from error
    return tuple(branches), position


def _decode_branch(raw: bytes | memoryview, position: int) -> tuple[OrphanBranch, int]:
    epoch, first, following, first_index, cut_index, cut_us, count = _BRANCH.unpack_from(raw, position)
    if count > ORPHAN_EPOCHS_MAX or not 0 <= first < following or not first_index <= cut_index:
        raise ValueError(f"an orphan branch of offsets {first}..{following - 1} with {count} epochs cannot be")
    position += _BRANCH.size
    rows = [_ROW.unpack_from(raw, position + at * _ROW.size) for at in range(count)]
    branch = OrphanBranch(
        epoch=Epoch(epoch),
        first=Offset(first),
        following=Offset(following),
        first_index=RaftIndex(first_index),
        cut_index=RaftIndex(cut_index),
        cut_us=cut_us,
        epochs=tuple((Epoch(number), Offset(start)) for number, start in rows),
    )
    return branch, position + count * _ROW.size
