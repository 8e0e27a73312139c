"""The Raft groups that the controller places on this broker: opened, handed to their streams, closed and removed.

Rule 1: what the controller's log says last about a group counts; the work of one group is done in one task, which
        looks again when it is done, so that a group that comes and goes quickly ends where it should.
Rule 2: the files of a group that left are removed only when no write is on its way to them. Its term and vote stay,
        unless its topic is gone for ever: a broker that comes back must not vote twice in one term.
Rule 3: a group whose log is damaged is refused alone: the other replicas serve it, and this broker serves the rest.
Rule 4: logs are read off the event loop, a few at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from georelay.clock import Clock
from georelay.errors import DataDirectoryError, StorageFailed
from georelay.ids import CONTROLLER_GROUP, BrokerId, GroupId, RegionNumber
from region.controller.assignment import Assignment
from region.controller.effects import (
    Effect,
    GroupAssigned,
    GroupDropped,
    GroupReleased,
    ReplicasWanted,
    TopicAltered,
)
from region.controller.topic import Homes, TopicDefinition
from region.log.data_directory import DataDirectory
from region.log.errors import LogCorrupt
from region.log.flusher import GroupWrite
from region.multiraft.host import Host
from region.raft.core import InvariantViolated
from region.topics.committed_tail import TailBudget
from region.topics.hosted_stream import HostedStream

log = structlog.get_logger()

OPENED_AT_ONCE_MAX: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hosted:
    """The group shall be open here."""

    assignment: Assignment
    topic: TopicDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gone:
    """The group shall not be here; `for_ever` when its topic was deleted."""

    for_ever: bool


class HostedGroups:
    """Streams of this broker by group.

    Args:
        joined: called with each stream before its group runs: to follow its commits and its leadership.
        left: called with each stream that is not served here any more.
        failed: called with the reason when files could not be removed: the broker must end.
        feature_level, disk_writable: see Stream.
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
        feature_level: Callable[[], int],
        disk_writable: Callable[[], bool],
    ) -> None:
        self.streams: dict[GroupId, HostedStream] = {}
        self.refused: dict[GroupId, str] = {}  # groups whose log cannot be used, and why
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
        self._feature_level = feature_level
        self._disk_writable = disk_writable
        self._effects: dict[GroupId, _Hosted | _Gone] = {}
        self._wanted: dict[GroupId, _Hosted | _Gone] = {}
        self._work: dict[GroupId, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(OPENED_AT_ONCE_MAX)

    @property
    def busy(self) -> bool:
        """Return whether groups are being opened, closed or removed."""
        return bool(self._work)

    def note(self, effect: Effect) -> None:
        """Remember what an applied command asks for; `settle` does it."""
        match effect:
            case GroupAssigned() | ReplicasWanted():
                if effect.topic is not None and effect.assignment.hosts(self._me):
                    self._effects[effect.group_id] = _Hosted(assignment=effect.assignment, topic=effect.topic)
            case GroupReleased():
                if self._me in effect.brokers:
                    self._effects[effect.group_id] = _Gone(for_ever=False)
            case GroupDropped():
                self._effects[effect.group_id] = _Gone(for_ever=True)
            case TopicAltered():
                self._limit_segments(effect.topic)
            case _:
                pass  # not about a group

    def remove_orphan(self, group_id: GroupId) -> None:
        """Remove what is left of a group that is not placed here; its term and vote stay."""
        if group_id not in self.streams and group_id not in self._effects:
            self._effects[group_id] = _Gone(for_ever=False)
            self.settle()

    def settle(self) -> None:
        """Open and close what the commands applied since the last call ask for."""
        effects, self._effects = self._effects, {}
        for group_id, wanted in effects.items():
            if group_id == CONTROLLER_GROUP:
                continue
            self._wanted[group_id] = wanted
            if isinstance(wanted, _Gone):
                self._close_stream(group_id)  # nothing more is served, whatever is under way
            if group_id not in self._work:
                task = asyncio.get_running_loop().create_task(self._follow(group_id), name=f"group-{group_id}")
                self._work[group_id] = task
                task.add_done_callback(partial(self._worked, group_id))

    def _worked(self, group_id: GroupId, task: asyncio.Task[None]) -> None:
        del self._work[group_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(f"group {group_id}: {error!r}")

    async def _follow(self, group_id: GroupId) -> None:
        """Do what is wanted of one group until nothing new is wanted."""
        while (wanted := self._wanted.pop(group_id, None)) is not None:
            if isinstance(wanted, _Gone):
                await self._remove(group_id, for_ever=wanted.for_ever)
            elif group_id not in self.streams:
                async with self._slots:
                    await self._open(group_id, wanted)

    async def _open(self, group_id: GroupId, wanted: _Hosted) -> None:
        assignment, topic = wanted.assignment, wanted.topic
        stream = HostedStream(
            key=assignment.key,
            topic=topic.name,
            group_id=group_id,
            home=topic.home if topic.homes is Homes.ONE else assignment.key.origin,
            region=self._region,
            clock=self._clock,
            budget=self._budget,
            executor=self._executor,
            feature_level=self._feature_level,
            disk_writable=self._disk_writable,
        )
        self._joined(stream)
        try:
            group = await self._host.open_group_async(group_id, assignment.base_for(self._me), stream)
        except (DataDirectoryError, InvariantViolated, LogCorrupt, StorageFailed) as error:
            self.refused[group_id] = str(error)
            log.critical("group.refused", group=group_id, stream=str(assignment.key), reason=str(error))
            return
        stream.attach(group, group.disk)
        group.disk.limit_segments(topic.segment_bytes)
        if isinstance(self._wanted.get(group_id), _Gone):
            return  # it left while it was read; `_follow` closes it
        self.streams[group_id] = stream

    def _limit_segments(self, topic: TopicDefinition) -> None:
        for stream in self.streams.values():
            if stream.key.topic_id == topic.topic_id:
                stream.disk.limit_segments(topic.segment_bytes)

    def _close_stream(self, group_id: GroupId) -> None:
        stream = self.streams.pop(group_id, None)
        if stream is not None:
            self._left(stream)
            stream.close()

    async def _remove(self, group_id: GroupId, *, for_ever: bool) -> None:
        self._close_stream(group_id)
        self.refused.pop(group_id, None)
        await self._host.close_group(group_id)  # a write on its way into a folder that is gone looks like a bad disk
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._directory.remove_group, group_id)
        except DataDirectoryError as error:
            self._failed(str(error))
            return
        if for_ever:
            await self._host.write(GroupWrite(group_id=group_id, log=None, token=None, forget=True))

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

    async def cancel(self) -> None:
        """Give up what is under way; the next start finishes it."""
        tasks = list(self._work.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
