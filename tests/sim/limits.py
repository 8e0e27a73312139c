"""Small limits for a world, drawn from its seed: seconds of work roll segments, evict, read back and take snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import region.multiraft.group as group_module
from region.log.entry_journal import EntryJournal
from region.log.group_log import GroupLog
from region.raft.core import RaftConfig
from tests.sim.patching import replaced
from tests.sim.world import World


@contextmanager
def small_limits(world: World) -> Iterator[None]:
    """Make segments and memory small, so that seconds of work roll, evict and read back."""
    segment_bytes = world.rng.choice((4_096, 16_384, 65_536))
    tail_bytes = world.rng.choice((2_048, 16_384, 1 << 20))
    messages = world.rng.choice((600, 4_096, 1 << 20))
    window = world.rng.choice((2, 8, 256))
    options = GroupLog.open.__func__.__kwdefaults__  # type: ignore[attr-defined]
    raft = RaftConfig.__init__.__kwdefaults__
    assert raft is not None
    old_segment, old_interval = options["segment_bytes_max"], options["index_interval_bytes"]
    old_tail = vars(group_module)["TAIL_BYTES_MAX"]
    with ExitStack() as stack:
        stack.callback(options.update, segment_bytes_max=old_segment, index_interval_bytes=old_interval)
        stack.callback(vars(group_module).update, TAIL_BYTES_MAX=old_tail)
        stack.callback(
            raft.update,
            append_message_bytes_max=raft["append_message_bytes_max"],
            inflight_messages_max=raft["inflight_messages_max"],
        )
        options.update(segment_bytes_max=segment_bytes, index_interval_bytes=1_024)
        raft.update(append_message_bytes_max=messages, inflight_messages_max=window)
        vars(group_module)["TAIL_BYTES_MAX"] = tail_bytes
        journal = EntryJournal.__init__.__kwdefaults__
        assert journal is not None
        stack.callback(journal.update, size_bytes=journal["size_bytes"])
        journal.update(size_bytes=2 * segment_bytes)
        # A topic's own limit is far more than a world writes.
        stack.enter_context(replaced(GroupLog, "limit_segments", _at_most(segment_bytes)))
        yield


def _at_most(bytes_max: int) -> Callable[[GroupLog, int], None]:
    limit_segments = GroupLog.limit_segments

    def limit(log: GroupLog, size_bytes: int) -> None:
        limit_segments(log, min(size_bytes, bytes_max))

    return limit
