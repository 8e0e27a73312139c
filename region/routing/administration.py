"""Adding, listing and removing bindings, as the listeners of a broker offer it.

Rule 1: `add` returns once this broker knows the binding, and says whether the copies of every stream that this region
        leads have begun: from then on no record is acknowledged without its copies.
Rule 2: what is checked here (the target exists) helps the operator; what must never be (a loop) is checked where
        definitions are ordered, see region.controller.security_rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import structlog

from georelay.errors import BadRequest, GeorelayError, PolicyViolation, UnknownTopic
from georelay.ids import RegionNumber
from region.controller import security_wishes
from region.controller.topic import Homes
from region.coordination.coordinators import Coordinators
from region.coordination.part import JsonObject, Part
from region.kafka.ports import TopicView
from region.routing.binding import Binding
from region.routing.copies_core import stream_text

log = structlog.get_logger()

BEGIN_S: Final = 10.0
LOOK_AGAIN_S: Final = 0.1


class TopicList(Protocol):
    """What is asked of region.kafka.ports.Cluster."""

    @property
    def region_number(self) -> RegionNumber:
        """Number of this broker's region."""

    def topics(self) -> Sequence[TopicView]:
        """Return every local name."""

    def topic(self, name: str) -> TopicView | None:
        """Return the topic of a local name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """A binding that is defined. `waiting`: streams of this region whose copies have not begun yet."""

    binding: Binding
    waiting: Sequence[str]


class BindingAdmin:
    """Args:
    change: carries a wish of security_wishes to the definitions home. bindings: those that this broker knows.
    """

    def __init__(
        self,
        *,
        cluster: TopicList,
        coordinators: Coordinators,
        change: Callable[[JsonObject], Awaitable[None]],
        bindings: Callable[[], Iterable[Binding]],
    ) -> None:
        self._cluster = cluster
        self._coordinators = coordinators
        self._change = change
        self._bindings = bindings

    def all(self) -> list[Binding]:
        """Return the bindings of the mesh, by name."""
        return sorted(self._bindings(), key=lambda binding: binding.name)

    async def resolve(self, binding: Binding) -> Binding:
        """Return a binding with the topic of its target queue, and check the target.

        Raises:
            UnknownQueue, UnknownTopic, PolicyViolation: it cannot be one. Others as Coordinators.call.
        """
        if binding.queue:
            described = await self._coordinators.call(Part.QUEUES, binding.queue, "describe", {"queue": binding.queue})
            binding = replace(binding, target=str(described["topic"]))
        view = self._cluster.topic(binding.target)
        if view is None:
            raise UnknownTopic(f"the target topic {binding.target!r} does not exist")
        if view.is_mirror_name or view.internal:
            raise PolicyViolation(f"{binding.target!r} cannot be a target: it is written by its home only")
        return binding

    async def add(self, binding: Binding) -> Added:
        """Define a binding that was resolved; wait until its copies begin.

        Raises:
            PolicyViolation: a loop, another one of that name, or too many. Others as ControllerService.change_security.
        """
        await self._change(security_wishes.put_binding(binding))
        known = next((row for row in self._bindings() if row.name == binding.name), None)
        if known is None:
            raise BadRequest(f"binding {binding.name!r} was removed again")
        deadline_s = asyncio.get_running_loop().time() + BEGIN_S
        while True:
            waiting = await self._waiting(known)
            if not waiting or asyncio.get_running_loop().time() > deadline_s:
                return Added(binding=known, waiting=waiting)
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _waiting(self, binding: Binding) -> list[str]:
        try:
            answer = await self._coordinators.call(
                Part.QUEUES, binding.name, "copy_list", {"binding": binding.name}, origin=self._cluster.region_number
            )
        except GeorelayError as error:
            return [f"the coordinator of the binding does not answer: {error}"]
        begun = {row["stream"] for row in answer["rows"] if row["index"] == binding.index}
        return [
            f"{view.name}/{partition}"
            for view in self._cluster.topics()
            if self._is_ours(view) and binding.takes(view.name)
            for partition in range(view.partitions)
            if stream_text(view.topic_id, int(view.origin), partition) not in begun
        ]

    def _is_ours(self, view: TopicView) -> bool:
        """Return whether this region sequences the streams of a plain name."""
        if view.internal or view.name != view.definition.name:
            return False
        return view.homes is Homes.EVERY or view.home == self._cluster.region_number

    async def remove(self, name: str) -> None:
        """Remove a binding: nothing that is published from now on waits for its copies (UnknownBinding).

        Raises as ControllerService.change_security.
        """
        known = next((row for row in self._bindings() if row.name == name), None)
        await self._change(security_wishes.delete_binding(name))
        if known is not None:
            await self._forget(known)

    async def _forget(self, binding: Binding) -> None:
        """Forget how far its copies are, in every region that keeps it; what one keeps that is silent does no harm."""
        own = self._cluster.region_number
        views = [view for view in self._cluster.topics() if not view.internal and binding.takes(view.definition.name)]
        body = {"binding": binding.name, "index": binding.index}
        for origin in sorted({own, *(view.definition.home or view.origin for view in views)}):
            try:
                await self._coordinators.call(Part.QUEUES, binding.name, "copy_forget", body, origin=origin)
            except GeorelayError as error:
                if origin == own:
                    raise
                log.warning("binding.copies_remembered", binding=binding.name, region=origin, reason=str(error))
