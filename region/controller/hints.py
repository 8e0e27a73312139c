"""Hints between controllers: "there are definitions up to this index", sent once and never waited for.

A hint that is lost costs nothing: the next pull finds what it would have said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import structlog

from georelay.errors import GeorelayError
from georelay.fields import INT64_MAX, Fields, JsonObject
from georelay.ids import RegionNumber
from region.controller.command_kinds import MESH_LEVEL
from region.controller.definitions import HINT
from region.controller.routing import Route
from region.controller.security_rules import SECURITY_LEVEL
from region.controller.state_core import ControllerState
from region.controller.topology import Topology

log = structlog.get_logger()

BACKGROUND_TASKS_MAX: Final = 256
T = TypeVar("T")


class BackgroundTasks:
    """Tasks that somebody may wait for, and that end with their owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work`; its result and its error are for whoever awaits the task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    async def close(self) -> None:
        """Cancel what is running."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it gets it; with nobody left to wait it is no news


class Hints:
    """Sends and takes hints. `wake`: called when a hint says something new."""

    def __init__(
        self,
        *,
        state: ControllerState,
        topology: Callable[[], Topology],
        route: Route,
        tasks: BackgroundTasks,
        wake: Callable[[], None],
    ) -> None:
        self._state = state
        self._topology = topology
        self._route = route
        self._tasks = tasks
        self._wake = wake

    def tell_other_regions(self, index: int) -> None:
        """Tell every other region that there are definitions up to `index`."""
        for region in self._topology().regions:
            if region.number != self._topology().region:
                self.tell(region.number, index)

    def tell(self, region: RegionNumber, index: int) -> None:
        """Tell a region's leader, once and without waiting."""
        if len(self._tasks) < BACKGROUND_TASKS_MAX:
            self._tasks.start(self._send(region, index))

    async def serve(self, body: JsonObject) -> JsonObject:
        """Take a hint, as leader."""
        known = self._state.definitions_index
        if self._state.feature_level >= SECURITY_LEVEL:
            known = min(known, self._state.security.index)  # a hint does not say which list it is about
        if self._state.feature_level >= MESH_LEVEL:
            known = min(known, self._state.homes.index, self._state.mesh.index)
        if Fields(body, HINT).integer("index", low=0, high=INT64_MAX) > known:
            self._wake()
        return {}

    async def _send(self, region: RegionNumber, index: int) -> None:
        body: JsonObject = {"index": index}
        try:
            if region == self._topology().region:
                await self._route.to_leader(HINT, body, self.serve)
            else:
                await self._route.to_region(region, HINT, body)
        except GeorelayError as error:
            log.debug("definitions.hint_lost", region=region, index=index, reason=str(error))
