"""Coverage marks: names of faults and rare branches, counted when a run really meets them.

Rule: a mark is set where the effect is seen, never where it is planned. A fault that was drawn but hit nothing
leaves no mark, so a world that stopped exercising a branch is noticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

HOST_MARKS: Final = (
    "crash.killed",
    "crash.power_cut",
    "crash.inside_a_write_cycle",
    "crash.whole_region",
    "disk.bytes_lost",
    "disk.sector_torn",
    "disk.name_lost",
    "disk.size_lost",
    "disk.sync_failed",
    "disk.write_failed",
    "disk.full",
    "disk.slow_sync",
    "process.paused",
    "clock.wall_jumped",
    "clock.drifts",
    "net.partition",
    "net.one_way_partition",
    "net.reset",
    "net.slow_link",
    "net.stalled_frames",
    "net.refused",
    "net.frame_dropped",
    "net.frame_doubled",
    "net.frame_reordered",
    "raft.leader_changed",
    "raft.pre_vote_refused",
    "raft.vote_refused",
    "raft.append_rejected",
    "raft.log_truncated",
    "raft.quorum_lost",
    "raft.forced_vote",
    "raft.deposed",
    "raft.transfer_begun",
    "members.changed",
    "members.Busy",
    "bulk.offered",
    "disk.bit_flipped",
    "disk.unreadable_sector",
    "log.start_moved",
    "log.tail_cut",
    "log.recovered_several_segments",
    "stream.duplicate_answered",
    "stream.outcome_unknown",
    "stream.not_leader",
    "stream.read_from_disk",
    "client.timed_out",
    "host.stalled",
    "host.stopped_cleanly",
    "storage.failed",
)
"""Every one must be hit in a run of 300 seeds or more of the region of hosts."""


def missing(hits: Counter[str], wanted: Iterable[str]) -> list[str]:
    """Return the wanted marks that were never hit."""
    return [name for name in wanted if not hits[name]]
