"""Writes of every group on their way to the disk, and what happens once they are there.

Rule: whatever waits for a write is named by its token; tokens come back in the order of submission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from georelay.clock import Clock
from region.log.entry import Entry
from region.log.flusher import GroupWrite
from region.log.hard_state import HardState
from region.multiraft.disk_watch import DiskPace, DiskWatch
from region.multiraft.group import Group
from region.raft.core import StorageWrite

log = structlog.get_logger()


class FlushQueue(Protocol):
    """What is needed of the flusher."""

    def submit(self, write: GroupWrite) -> None:
        """Queue a write; its token comes back once it is durable."""


@dataclass(frozen=True, slots=True)
class _LastWrite:
    """Token behind everything that was submitted for a group that is let go."""

    group: Group
    closed: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class _AwaitedWrite:
    """Token of a write that somebody waits for."""

    done: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class _UpkeepWrite:
    """Token of a manifest, a seal or a later start."""

    group: Group


class WriteQueue:
    """Between the groups and the flusher.

    Args:
        written: told of each durable write of a core, unless its group has stopped.
        guard: runs a step of a group; the group stops when it breaks.
        paused: told when too much is not durable (True) and when it is half as much again (False).
    """

    def __init__(
        self,
        *,
        flusher: FlushQueue,
        clock: Clock,
        watch: DiskWatch,
        written: Callable[[Group, StorageWrite[Entry]], None],
        guard: Callable[..., None],
        paused: Callable[[bool], None],
    ) -> None:
        self._flusher = flusher
        self._clock = clock
        self._watch = watch
        self._written = written
        self._guard = guard
        self._tell_paused = paused
        self._paused = False

    @property
    def unflushed_bytes(self) -> int:
        """Return what was received or proposed and is not durable yet."""
        return self._watch.unflushed_bytes

    @property
    def pace(self) -> DiskPace:
        """Return how the disk does now."""
        return self._watch.pace(self._clock.monotonic_ns())

    def submit(self, write: GroupWrite) -> None:
        """Queue a write."""
        self._watch.submitted(sum([len(entry.frame) for entry in write.entries]), self._clock.monotonic_ns())
        self._flusher.submit(write)
        self._follow_pressure()

    def submit_upkeep(self, group: Group) -> None:
        """Queue everything that the group's log wants besides the writes of its core."""
        upkeep = group.upkeep
        while upkeep.wanted:
            write = upkeep.take(group.group_id, group.disk, _UpkeepWrite(group))
            if write is not None:
                self.submit(write)

    def submit_last(self, group: Group, closed: asyncio.Future[None], hard_state: HardState | None) -> None:
        """Close the group's log behind every write of it, and behind its last term and vote; then resolve `closed`."""
        self.submit(
            GroupWrite(group_id=group.group_id, log=None, token=_LastWrite(group, closed), hard_state=hard_state)
        )

    async def write(self, write: GroupWrite) -> None:
        """Queue a write and wait until it is durable."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        write.token = _AwaitedWrite(done)
        self.submit(write)
        await done

    def durable(self, tokens: list[object]) -> None:
        """Take the tokens of writes that are durable now."""
        self._watch.durable(len(tokens))
        self._follow_pressure()
        for token in tokens:
            if isinstance(token, tuple):
                group, write = token
                if not group.stopped:
                    self._guard(group, self._written, group, write)
            elif isinstance(token, _UpkeepWrite):
                if not token.group.stopped:
                    self._guard(token.group, token.group.kept_up)
            elif isinstance(token, _AwaitedWrite):
                if not token.done.done():
                    token.done.set_result(None)
            else:
                assert isinstance(token, _LastWrite), token
                token.group.disk.close()
                if not token.closed.done():
                    token.closed.set_result(None)

    def _follow_pressure(self) -> None:
        if self._watch.overfull != self._paused:
            self._paused = self._watch.overfull
            log.info("disk.pressure_changed", paused=self._paused, unflushed_bytes=self.unflushed_bytes)
            self._tell_paused(self._paused)
