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
    "disk.failed_pages_kept",
    "disk.sealed_segment_damaged",
    "disk.damage_healed",
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
    "raft.snapshot_sent",
    "schedule.late_acknowledgement",
    "schedule.stale_write",
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
    "stream.end_confirmed",
    "client.timed_out",
    "host.stalled",
    "host.stopped_cleanly",
    "journal.replayed",
    "storage.failed",
)
"""Every one must be hit in a run of 300 seeds or more of the region of hosts."""

MESH_MARKS: Final = (
    "clock.races",
    "crash.killed",
    "crash.power_cut",
    "crash.whole_region",
    "disk.replaced",
    "disk.failed_pages_kept",
    "disk.sealed_segment_damaged",
    "upgrade.broker",
    "region.feature_level_raised",
    "order.drain",
    "order.add",
    "order.reassign",
    "order.delete_records",
    "order.alter_topic",
    "order.create_topic",
    "order.delete_topic",
    "net.partition",
    "raft.leader_changed",
    "raft.log_truncated",
    "raft.snapshot_sent",
    "log.recovered_several_segments",
    "link.stalled_frames",
    "log.start_moved",
    "stream.duplicate_answered",
    "stream.outcome_unknown",
    "stream.end_confirmed",
    "client.timed_out",
    "storage.failed",
)
"""Every one must be hit in a run of 150 seeds or more of the mesh."""

COORDINATOR_MARKS: Final = (
    "coordinator.acknowledged",
    "coordinator.deposed",
    "coordinator.elected_with_state",
    "coordinator.NotLeader",
    "coordinator.outcome_unknown",
    "coordinator.restored",
)
"""Every one must be hit in a run of 100 seeds or more of the coordinators."""

HOMES_MARKS: Final = (
    "home.moved",
    "home.promised",
    "home.region_lost",
    "home.sealed",
    "homes.acknowledged",
    "homes.geo_acknowledged",
    "homes.NotHome",
    "homes.region_cut",
    "homes.region_lost",
)
"""Every one must be hit in a run of 40 seeds or more of homes that move."""

GEO_MARKS: Final = (
    "geo.altered",
    "geo.home_leader_killed",
    "geo.mirror_cut_off",
    "geo.mirror_leader_killed",
    "geo.reached_2",
    "geo.reached_3",
    "homes.acknowledged",
    "homes.geo_acknowledged",
)
"""Every one must be hit in a run of 40 seeds or more of geo acknowledgements."""


def missing(hits: Counter[str], wanted: Iterable[str]) -> list[str]:
    """Return the wanted marks that were never hit."""
    return [name for name in wanted if not hits[name]]
