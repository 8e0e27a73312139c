"""The flusher without its thread: one cycle is one event, and its tokens arrive after the time a sync takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from region.log.flusher import MARKS_SYNC_MS, Flusher, GroupWrite
from region.log.group_log import GroupLog
from tests.sim.clockwork import PowerCut, SimLoop
from tests.sim.disk import SimDisk


class SimFlusher(Flusher):
    """`submit` schedules the cycle; while its sync lasts, the writes that arrive form the next one."""

    def __init__(self, journal: Any, *, loop: SimLoop, disk: SimDisk, power_cut: Any, rng: Any, **options: Any) -> None:
        super().__init__(journal, **options)
        self._sim_loop = loop
        self._sim_disk = disk
        self._lose_power = power_cut
        self._sim_random = rng
        self._sim_waiting: list[GroupWrite] = []
        self._sim_busy = False
        self._sim_marks_asked = False

    @property
    def queue_length(self) -> int:
        """Return the writes that wait for the next cycle."""
        return len(self._sim_waiting)

    @property
    def is_quick(self) -> bool:
        """Return no: how long a sync takes in real time is no matter of a seed's."""
        return False

    def start(self) -> None:
        """There is no thread."""

    def submit(self, write: GroupWrite) -> None:
        """Queue a write."""
        assert not self._stopped, "submit after stop"
        self._sim_waiting.append(write)
        if not self._sim_busy:
            self._sim_busy = True
            self._sim_begin()

    def _sim_begin(self) -> None:
        # Writing takes the first part of a cycle, the sync the rest: a crash may come between them.
        delay_ns = int(self._sim_disk.sync_us * 1000 * (0.2 + 0.6 * self._sim_random.random()))
        clockwork = self._sim_loop.clockwork
        clockwork.at(clockwork.now_ns + delay_ns, self._sim_loop, self._sim_cycle)

    def _sim_cycle(self) -> None:
        writes, self._sim_waiting = self._sim_waiting, []
        if not writes or self.failed:
            self._sim_busy = False
            return
        try:
            tokens = self.run_cycle(writes)
        except PowerCut:
            self._lose_power()
            return
        except Exception:
            assert self._failure is not None
            self._on_failure(self._failure)
            return
        delay_ns = int(self._sim_disk.sync_us * 1000 * (0.2 + 0.4 * self._sim_random.random()))
        clockwork = self._sim_loop.clockwork
        clockwork.at(clockwork.now_ns + delay_ns, self._sim_loop, self._sim_done, tokens)

    def _sim_done(self, tokens: list[object]) -> None:
        self._post(tokens)
        self._sim_marks()
        if self._sim_waiting:
            self._sim_begin()
        else:
            self._sim_busy = False

    def _sim_marks(self) -> None:
        """Have the marks synced when it is time, as the thread does; a cycle may come in between."""
        if not self._sim_marks_asked and self.marks_due_ms(0) is not None:
            self._sim_marks_asked = True
            clockwork = self._sim_loop.clockwork
            clockwork.at(clockwork.now_ns + MARKS_SYNC_MS * 1_000_000, self._sim_loop, self._sim_sync_marks)

    def _sim_sync_marks(self) -> None:
        self._sim_marks_asked = False
        if self._stopped or self.failed:
            return
        try:
            self.sync_marks()
        except PowerCut:
            self._lose_power()

    def stop(self) -> None:
        """Finish what was submitted, in the caller's turn."""
        if self._stopped:
            return
        self._stopped = True
        writes, self._sim_waiting = self._sim_waiting, []
        if writes and not self.failed:
            try:
                tokens = self.run_cycle(writes)
            except PowerCut:
                self._lose_power()
                return
            except Exception:
                assert self._failure is not None
                self._on_failure(self._failure)
                return
            self._post(tokens)
        try:
            self.finish_entries()
        except PowerCut:
            self._lose_power()

    def _sync(self, logs: Sequence[GroupLog]) -> None:
        if self._sync_all is not None:
            super()._sync(logs)
        else:  # no pool: its threads would take turns that no seed knows
            self.stats.syncs += sum(group_log.sync() for group_log in logs)
