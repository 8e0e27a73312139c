"""What the log of one stream says below an offset, and what an orphan branch of it holds: read from disk, in a thread.

Rule: the states below a cut are made by following the log from the newest manifest at or below it, entry by entry, as
a replica does that starts. Nothing is derived backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from georelay.ids import GroupId, Offset, RaftIndex, RegionNumber, StreamKey
from georelay.limits import MIB
from region.log.entry import Entry
from region.log.errors import StartMoved
from region.log.group_log import GroupLog
from region.topics.committed_tail import TailBudget
from region.topics.epoch_entry_core import EpochCut, StatesBelow
from region.topics.followed_log import FollowedLog
from region.topics.orphan_core import OrphanBranch

READ_BYTES: Final = 1 * MIB
_NOBODY: Final = RegionNumber(0)


def cut_from(
    disk: GroupLog,
    start: Offset,
    *,
    key: StreamKey,
    topic: str,
    boundary: Offset,
    first_index: RaftIndex,
    commit_index: RaftIndex,
) -> EpochCut:
    """Return what is left of a log that is cut at `start`.

    Args:
        boundary, first_index: of the log start.
        commit_index: entries above it are not looked at.

    Raises:
        ReadInterrupted, LogCorrupt, StorageFailed: as GroupLog.read_entries.
    """
    found = disk.read_from_offset(Offset(start - 1), 1, up_to_index=commit_index) if start > boundary else []
    if not found or found[0].next_offset != start:
        return EpochCut(first_index=first_index, states=None)
    last = found[0].index
    states = _states_at(disk, last, key=key, topic=topic)
    return EpochCut(first_index=RaftIndex(last + 1), states=states)


def _states_at(disk: GroupLog, last: RaftIndex, *, key: StreamKey, topic: str) -> StatesBelow | None:
    """Return producers and transactions after entry `last`, None when nothing holds what was before."""
    follower = scratch_log(key, topic)
    manifest = disk.manifest_up_to(last)
    at = RaftIndex(1)
    if manifest is not None:
        follower.restore(manifest)
        at = RaftIndex(manifest.index + 1)
    if at < disk.first_index:
        return None
    newest: Entry | None = None
    while at <= last:
        try:
            entries = disk.read_entries(at, RaftIndex(last + 1), READ_BYTES)
        except StartMoved:
            return None
        for newest in entries:
            follower.recovered(newest)
            at = RaftIndex(newest.index + 1)
        if newest is None or not entries:
            return None
    if newest is not None:
        follower.applied_until(newest)
    return states_of(follower)


def scratch_log(key: StreamKey, topic: str) -> FollowedLog:
    """Return a follower of a stream that nobody reads from."""
    return FollowedLog(key=key, topic=topic, group_id=GroupId(0), home=_NOBODY, region=_NOBODY, budget=TailBudget(0))


def states_of(follower: FollowedLog) -> StatesBelow:
    """Return producers and transactions after everything that is committed in a followed log."""
    rows = follower.transactions.rows(log_start=follower.log_start, append_us=follower.applied_end.append_us)
    return StatesBelow(producers=tuple(follower.committed_producers()), transactions=rows._replace(aborted=()))


def branch_entries(disk: GroupLog, branch: OrphanBranch, offset: Offset, max_bytes: int) -> Sequence[Entry]:
    """Return entries of an orphan branch that own offsets, from the one that holds `offset` on; [] at its end.

    Before the entry that cut it off the branch was the log's own: it is read as of then.

    Raises:
        ReadInterrupted, LogCorrupt, StorageFailed: as GroupLog.read_entries.
    """
    if not branch.first <= offset < branch.following:
        return []
    return disk.read_from_offset(offset, max_bytes, up_to_index=RaftIndex(branch.cut_index - 1))
