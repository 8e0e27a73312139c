"""Replicas of this broker that cannot be used any more, until the controller has given them up.

Rule 1: a replica is reported under the generation that its group has here, after a barrier: the report is about the
        replica that was found unusable, or it is refused. It is repeated until it is answered, or pointless.
Rule 2: what was given up is told after another barrier, and only while the same find stands: a replica that was made
        anew meanwhile is never given up by an old report.
Rule 3: a replica that is lost again and again is reported more and more rarely: a bad disk, or a defect that every
        replica meets, must not keep the region copying.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog

from georelay.errors import GeorelayError
from georelay.ids import GroupId

log = structlog.get_logger()

REPORT_AGAIN_S: Final = 0.5  # doubled with each refusal
REPORT_AGAIN_S_MAX: Final = 60.0
LOST_AGAIN_S: Final = 30.0  # waited before the second loss of a group is reported; doubled with each further one
LOST_AGAIN_S_MAX: Final = 3_600.0
LOSSES_COUNTED_MAX: Final = 16


class LostReplicas:
    """Reports of one broker; one task for each group while it has something to say.

    Args:
        generation_of: of a group whose replica is to be open here, None for any other.
        barrier: returns once this broker knows what the controller had committed.
        report: tells the controller that this replica is lost; raises GeorelayError.
        given_up: called when the controller counts on the replica no longer and its files may go.
    """

    def __init__(
        self,
        *,
        generation_of: Callable[[GroupId], int | None],
        barrier: Callable[[], Awaitable[None]],
        report: Callable[[GroupId, int], Awaitable[object]],
        given_up: Callable[[GroupId], None],
    ) -> None:
        self._generation_of = generation_of
        self._barrier = barrier
        self._report = report
        self._given_up = given_up
        self._reports: dict[GroupId, asyncio.Task[None]] = {}
        self._losses: dict[GroupId, int] = {}  # of each group since this broker started

    def note(self, group_id: GroupId) -> None:
        """Report that the replica of a group cannot be used."""
        self.forget(group_id)
        losses = self._losses.get(group_id, 0)
        self._losses[group_id] = min(losses + 1, LOSSES_COUNTED_MAX)
        pause_s = min(LOST_AGAIN_S * 2 ** (losses - 1), LOST_AGAIN_S_MAX) if losses else 0.0
        task = asyncio.get_running_loop().create_task(self._tell(group_id, pause_s), name=f"lost-replica-{group_id}")
        self._reports[group_id] = task
        task.add_done_callback(partial(self._told, group_id))

    def forget(self, group_id: GroupId) -> None:
        """Report nothing: what was found unusable is gone, or is used."""
        task = self._reports.pop(group_id, None)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        """Report nothing any more; what is unusable is found again at the next start."""
        tasks = list(self._reports.values())
        for group_id in list(self._reports):
            self.forget(group_id)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell(self, group_id: GroupId, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        pause_s = REPORT_AGAIN_S
        while True:
            await self._barrier()
            generation = self._generation_of(group_id)
            try:
                if generation is not None:  # else it is being removed, or this broker is not registered: forgotten soon
                    await self._report(group_id, generation)
                    break
            except GeorelayError as error:
                log.warning("replica.loss_not_reported", group=group_id, reason=str(error), again_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, REPORT_AGAIN_S_MAX)
        log.warning("replica.loss_reported", group=group_id, generation=generation)
        await self._barrier()
        del self._reports[group_id]  # or giving up would end this task
        self._given_up(group_id)

    def _told(self, group_id: GroupId, task: asyncio.Task[None]) -> None:
        if self._reports.get(group_id) is task:
            del self._reports[group_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task.broken", reason=repr(error))
