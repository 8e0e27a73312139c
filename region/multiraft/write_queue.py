"""Writes of every group on their way to the disk, and what happens once they are there.

Rule 1: the token of a write is what is to be called once it is durable; tokens come back in the order of submission.
Rule 2: while the disk is quick and nothing is on its way, writes wait for the frames of their turn to leave, and are
flushed then, on the loop. Whatever does not suit that is left to the flusher's thread, with all that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

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

    @property
    def is_quick(self) -> bool:
        """Return whether the event loop may wait for the disk."""

    def fits_on_loop(self, writes: Sequence[GroupWrite]) -> bool:
        """Return whether it may do so for these writes."""

    def flush_on_loop(self, writes: Sequence[GroupWrite]) -> list[object]:
        """Make them durable here and now; return their tokens, none when storage has failed."""


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
        self._gathered: list[GroupWrite] = []  # not empty: nothing else is on its way

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
        gathers = self._gathered or (self._flusher.is_quick and not self._watch.outstanding)
        self._watch.submitted(sum([len(entry.frame) for entry in write.entries]), self._clock.monotonic_ns())
        if gathers:
            self._gathered.append(write)
            if len(self._gathered) == 1:
                asyncio.get_running_loop().call_soon(self._after_frames)
        else:
            self._flusher.submit(write)
        self._follow_pressure()

    def hand_over(self) -> None:
        """Leave what was gathered to the flusher's thread."""
        writes, self._gathered = self._gathered, []
        for write in writes:
            self._flusher.submit(write)

    def _after_frames(self) -> None:
        """Frames of the turn that submitted are written with this one: begin behind them."""
        asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if not self._gathered:  # handed over
            return
        if not self._flusher.fits_on_loop(self._gathered):
            self.hand_over()
            return
        writes, self._gathered = self._gathered, []
        self.durable(self._flusher.flush_on_loop(writes))

    def submit_core(self, group: Group, write: StorageWrite[Entry]) -> None:
        """Queue a write of a group's core."""
        self.submit(group.group_write(write, partial(self._tell, group, self._written, group, write)))

    def submit_upkeep(self, group: Group) -> None:
        """Queue everything that the group's log wants besides the writes of its core."""
        upkeep = group.upkeep
        while upkeep.wanted:
            write = upkeep.take(group.group_id, group.disk, partial(self._tell, group, group.kept_up))
            if write is not None:
                self.submit(write)

    def submit_last(self, group: Group, closed: asyncio.Future[None], hard_state: HardState | None) -> None:
        """Close the group's log behind every write of it, and behind its last term and vote; then resolve `closed`."""

        def close() -> None:
            group.disk.close()
            _resolve(closed)

        self.submit(GroupWrite(group_id=group.group_id, log=None, token=close, hard_state=hard_state))

    async def write(self, write: GroupWrite) -> None:
        """Queue a write and wait until it is durable."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        write.token = partial(_resolve, done)
        self.submit(write)
        await done

    def durable(self, tokens: list[Any]) -> None:
        """Call the tokens of writes that are durable now."""
        self._watch.durable(len(tokens))
        self._follow_pressure()
        for token in tokens:
            token()

    def _tell(self, group: Group, action: Callable[..., None], *arguments: object) -> None:
        if not group.stopped:
            self._guard(group, action, *arguments)

    def _follow_pressure(self) -> None:
        if self._watch.overfull != self._paused:
            self._paused = self._watch.overfull
            log.info("disk.pressure_changed", paused=self._paused, unflushed_bytes=self.unflushed_bytes)
            self._tell_paused(self._paused)


def _resolve(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
