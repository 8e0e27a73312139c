"""What a broker's metrics say of its event loop, its disk and its replicas, read from the parts when asked."""

from __future__ import annotations

from region.api.metrics import HealthSnapshot
from region.broker.core import BrokerCore


def read_health(core: BrokerCore) -> HealthSnapshot:
    """Return the state of this moment."""
    host, scrubber = core.host, core.housekeeping.scrubber.stats
    bulk = host.bulk
    return HealthSnapshot(
        loop_stalls=host.watchdog.stalls,
        disk_free_bytes=core.disk_space.free_bytes,
        disk_reserve_bytes=core.disk_space.reserve_bytes,
        disk_is_writable=core.disk_space.writable,
        scrubbed_bytes=scrubber.read_bytes,
        corrupt_segments=scrubber.damaged,
        repaired_segments=bulk.repair.repaired,
        groups_repairing=sum(group.node.repairing for group in host.groups.values()),
        groups_refused=len(core.groups.refused),
        skipped_records=sum(stream.skipped_records for stream in core.streams.values()),
        unflushed_bytes=host.unflushed_bytes,
        appends_are_paused=host.appends_paused,
        bulk_bytes={"sent": bulk.server.sent_bytes, "received": bulk.client.received_bytes},
        catch_up_entries=_catch_up(core),
    )


def _catch_up(core: BrokerCore) -> dict[tuple[int, int], int]:
    rows: dict[tuple[int, int], int] = {}
    for group in core.host.groups.values():
        if not group.node.is_leader:
            continue
        for learner in group.membership.learners:
            catch_up = group.catch_up_of(learner)
            if catch_up is not None:
                rows[group.group_id, learner] = max(0, catch_up.last - catch_up.match)
    return rows
