"""The Raft groups that the controller places on this broker: opened, handed to their streams, closed and removed.

Rule 1: what the controller's log says last about a group is done once per applied batch, however often it changed.
Rule 2: the files of a group that left are removed only when no write is on its way to them.
Rule 3: a group whose log is damaged is refused alone: the other replicas serve it, and this broker serves the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

import structlog

from georelay.clock import Clock
from georelay.errors import DataDirectoryError
from georelay.ids import BrokerId, GroupId, RegionNumber
from region.controller.state_core import Effect, GroupAssigned, GroupDropped
from region.controller.topic import Homes
from region.log.data_directory import DataDirectory
from region.multiraft.host import Host
from region.raft.core import InvariantViolated
from region.topics.committed_tail import TailBudget
from region.topics.hosted_stream import HostedStream

log = structlog.get_logger()


class HostedGroups:
    """Streams of this broker by group.

    Args:
        joined: called with each stream before its group runs: to follow its commits and its leadership.
        left: called with each stream that is not served here any more.
        failed: called with the reason when files could not be removed: the broker must end.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        region: RegionNumber,
        host: Host,
        directory: DataDirectory,
        clock: Clock,
        budget: TailBudget,
        executor: Executor,
        joined: Callable[[HostedStream], None],
        left: Callable[[HostedStream], None],
        failed: Callable[[str], None],
    ) -> None:
        self.streams: dict[GroupId, HostedStream] = {}
        self.removals: set[asyncio.Task[None]] = set()
        self._me = me
        self._region = region
        self._host = host
        self._directory = directory
        self._clock = clock
        self._budget = budget
        self._executor = executor
        self._joined = joined
        self._left = left
        self._failed = failed
        self._effects: dict[GroupId, GroupAssigned | GroupDropped] = {}

    def note(self, effect: Effect) -> None:
        """Remember what an applied command asks for; `settle` does it."""
        if isinstance(effect, GroupAssigned | GroupDropped):
            self._effects[effect.group_id] = effect

    def settle(self) -> None:
        """Open and close what the commands applied since the last call ask for."""
        effects, self._effects = self._effects, {}
        for effect in effects.values():
            if isinstance(effect, GroupDropped):
                self.drop(effect.group_id)
            elif self._me in effect.voters and effect.group_id not in self.streams:
                self._open(effect)

    def _open(self, assigned: GroupAssigned) -> None:
        topic = assigned.topic
        stream = HostedStream(
            key=assigned.key,
            topic=topic.name,
            group_id=assigned.group_id,
            home=topic.home if topic.homes is Homes.ONE else assigned.key.origin,
            region=self._region,
            clock=self._clock,
            budget=self._budget,
            executor=self._executor,
        )
        self._joined(stream)
        try:
            group = self._host.open_group(assigned.group_id, assigned.voters, stream)
        except (DataDirectoryError, InvariantViolated) as error:
            log.critical("group.refused", group=assigned.group_id, stream=str(assigned.key), reason=str(error))
            return
        stream.attach(group, group.disk)
        self.streams[assigned.group_id] = stream

    def drop(self, group_id: GroupId) -> None:
        """Let a group go and remove its files."""
        stream = self.streams.pop(group_id, None)
        closed = self._host.close_group(group_id)
        if stream is not None:
            self._left(stream)
            stream.close()
        removal = asyncio.get_running_loop().create_task(
            self._remove_files(group_id, closed), name=f"remove-group-{group_id}"
        )
        self.removals.add(removal)
        removal.add_done_callback(self.removals.discard)

    async def _remove_files(self, group_id: GroupId, closed: asyncio.Future[None]) -> None:
        await closed  # a write on its way into a folder that is gone would look like a failed disk
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._directory.remove_group, group_id)
        except DataDirectoryError as error:
            self._failed(str(error))

    def group_stopped(self, group_id: GroupId) -> None:
        """Serve a stream no longer whose group met a broken invariant."""
        stream = self.streams.get(group_id)
        if stream is not None:
            self._left(stream)
            stream.close()

    def close(self) -> None:
        """Stop serving every stream; the groups stay the host's."""
        for stream in self.streams.values():
            stream.close()

    async def cancel_removals(self) -> None:
        """Give up removing files; the next start finishes it."""
        for task in self.removals:
            task.cancel()
        await asyncio.gather(*self.removals, return_exceptions=True)
