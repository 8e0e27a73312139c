"""Opens groups without holding the event loop: files in the executor, the machine in slices between other work."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Final

from georelay.clock import Clock
from georelay.errors import StorageFailed
from georelay.ids import GroupId
from region.log.data_directory import DataDirectory
from region.log.entry import Entry
from region.log.group_log import GroupLog
from region.multiraft.followed_log import FollowedLog
from region.multiraft.machine import StateMachine

SLICE_MS: Final = 2.0  # how long the machine may follow before everything else gets its turn


async def follow_group(
    *, group_id: GroupId, machine: StateMachine, directory: DataDirectory, executor: Executor, clock: Clock
) -> FollowedLog:
    """Open a group's log and bring `machine` to its end.

    Raises:
        LogCorrupt, DataDirectoryError, StorageFailed: the log cannot be used.
    """
    loop = asyncio.get_running_loop()

    def read_first() -> tuple[FollowedLog, list[Entry]]:
        disk = directory.open_group(group_id)
        try:
            followed = FollowedLog.open(disk, machine)
            return followed, followed.read_next()
        except BaseException:
            disk.close()
            raise

    followed, entries = await loop.run_in_executor(executor, read_first)
    followed.begin(machine)
    while entries:
        await _follow(followed, machine, entries, clock)
        entries = await loop.run_in_executor(executor, followed.read_next)
    if not followed.done:
        followed.disk.close()
        raise StorageFailed(f"the log of group {group_id} ends before its last index {followed.disk.last_index}")
    return followed


async def _follow(followed: FollowedLog, machine: StateMachine, entries: list[Entry], clock: Clock) -> None:
    while entries:
        until_ns = clock.monotonic_ns() + int(SLICE_MS * 1e6)
        count = followed.follow(machine, entries, may_go_on=lambda: clock.monotonic_ns() < until_ns)  # noqa: B023
        entries = entries[count:]
        await asyncio.sleep(0)


def follow_now(disk: GroupLog, machine: StateMachine) -> FollowedLog:
    """Bring `machine` to the end of `disk` here and now. Raises as `follow_group`."""
    followed = FollowedLog.open(disk, machine)
    followed.follow_all(machine)
    return followed
