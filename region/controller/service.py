"""The controller as one broker runs it: applies committed commands, serves and forwards calls, keeps itself current.

It knows no Raft and no socket: `propose` commits a command, `request` carries a call to another broker, and the host
feeds every committed command to `apply` in order. Every broker of the region has one; the leader's does the deciding.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, TypeVar

import structlog

from georelay.errors import (
    BadRequest,
    DataDirectoryError,
    GeorelayError,
    HomeUnreachable,
    InvalidTopic,
    OutcomeUnknown,
    TopicExists,
    Unavailable,
    UnknownTopic,
)
from georelay.ids import BrokerId, RaftIndex, RegionNumber
from region.controller import answers, commands
from region.controller.catalog import TopicCatalog
from region.controller.commands import AllocateProducerIds, Command, FormRegion, RegisterBroker
from region.controller.definition_rules import region_prefix
from region.controller.definitions import CREATE, DELETE, HINT, SINCE, Definitions
from region.controller.fields import INT64_MAX, FieldError, Fields, JsonObject
from region.controller.producer_ids import ProducerIds
from region.controller.registration import BrokerRegistration
from region.controller.routing import HOPS_MAX, PASSING, ControllerSettings, Propose, Request, Route
from region.controller.state_core import ControllerState, Done, Effect, Refused
from region.controller.topic import Homes, TopicSpec, TopicView
from region.controller.topology import BROKER_ID_MAX, Topology

log = structlog.get_logger()

REGISTER: Final = "controller.register_broker"
ALLOCATE: Final = "controller.allocate_producer_ids"
BACKGROUND_TASKS_MAX: Final = 256  # hints; beyond it the next pull finds what a hint would have said

T = TypeVar("T")
Serve = Callable[[JsonObject], Awaitable[JsonObject]]


class ControllerService:
    """One broker's part of its region's controller.

    Args:
        topology: mesh and region, from this broker's configuration.
        registration: what this broker tells its region.
        propose, request: see their Protocols.
        is_leader, leader_id: of the controller group, as known now; a leader_id <= 0 means unknown.
        new_topic_id: returns 16 bytes that are unique in the world.
    """

    def __init__(
        self,
        *,
        topology: Topology,
        registration: BrokerRegistration,
        propose: Propose,
        request: Request,
        is_leader: Callable[[], bool],
        leader_id: Callable[[], int],
        settings: ControllerSettings | None = None,
        new_topic_id: Callable[[], bytes] = lambda: uuid.uuid4().bytes,
    ) -> None:
        self.state = ControllerState()
        self.catalog = TopicCatalog(self.state)
        self._topology = topology
        self._registration = registration
        self._propose = propose
        self._settings = settings if settings is not None else ControllerSettings()
        self._route = Route(
            topology=topology, request=request, is_leader=is_leader, leader_id=leader_id, settings=self._settings
        )
        self._definitions = Definitions(
            state=self.state,
            topology=topology,
            route=self._route,
            commit=self._commit,
            new_topic_id=new_topic_id,
            ordered=self._hint_other_regions,
        )
        self._producer_ids = ProducerIds(self._fetch_producer_block)
        self._served_by_leader: dict[str, Serve] = {
            CREATE: self._definitions.serve_create,
            DELETE: self._definitions.serve_delete,
            HINT: self._serve_hint,
            REGISTER: self._serve_register,
            ALLOCATE: self._serve_allocate,
        }
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # (definitions index, resolved once applied)
        self._creating: dict[str, asyncio.Task[TopicView]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._wakeup = asyncio.Event()

    @property
    def is_settled(self) -> bool:
        """Return whether the region is formed and knows this broker; until then it is not ready."""
        return (
            self.state.topology is not None and self.state.brokers.get(self._registration.broker) == self._registration
        )

    # --- the host's side ------------------------------------------------------------------------------------------

    def apply(self, command: bytes | memoryview, index: RaftIndex) -> list[Effect]:
        """Apply a committed command; called for each, in order, on every broker, and again from the log at start.

        Raises:
            CommandError: a command this version does not know; the host stops the group.
        """
        effects = self.state.apply(commands.decode(command), index)
        reached = self.state.definitions_index
        if self._waiting and any(wanted <= reached for wanted, _ in self._waiting):
            for wanted, applied in self._waiting:
                if wanted <= reached and not applied.done():
                    applied.set_result(None)
            self._waiting = [(wanted, applied) for wanted, applied in self._waiting if not applied.done()]
        return effects

    def wake(self) -> None:
        """Make `run` look again now: the leader changed or a link came up."""
        self._wakeup.set()

    async def run(self) -> None:
        """Keep this broker registered, and as leader the region formed and its definitions current; until cancelled.

        Raises:
            DataDirectoryError: the region knows this broker or this region with other data; the process must end.
        """
        while True:
            self._wakeup.clear()
            settled = await self._settle()
            pause_s = self._settings.pull_interval_s if settled else self._settings.retry_delay_s
            try:
                async with asyncio.timeout(pause_s):
                    await self._wakeup.wait()
            except TimeoutError:
                continue

    async def close(self) -> None:
        """Cancel what runs in the background and fail those who wait."""
        for _, applied in self._waiting:
            if not applied.done():
                applied.set_exception(Unavailable("this broker is shutting down"))
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def handle(self, method: str, body: JsonObject) -> JsonObject:
        """Answer another broker's call; every GeorelayError travels inside the answer."""
        try:
            return answers.ok(await self._serve(method, dict(body)))
        except FieldError as error:
            return answers.failed(BadRequest(f"{method[:64]}: {error}"))
        except GeorelayError as error:
            return answers.failed(error)

    # --- what this broker's clients ask ---------------------------------------------------------------------------

    async def create_topic(self, spec: TopicSpec) -> TopicView:
        """Create a topic; return once this broker knows it.

        Raises:
            InvalidTopic, TopicExists, PolicyViolation, HomeUnreachable: nothing was created.
            Unavailable, OutcomeUnknown: it may exist; ask again.
        """
        return await self._create(spec, if_absent=False)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records for ever; return once this broker has dropped it. Raises as create_topic."""
        tombstone = await self._definitions.delete(name)
        await self._await_index(tombstone.index)

    async def ensure_topic(self, name: str) -> TopicView:
        """Return the topic, created with defaults when it is unknown and that is allowed.

        Raises:
            UnknownTopic: unknown, and auto-creation is off or the name is a mirror's. Others as create_topic.
        """
        view = self.catalog.topic(name)
        if view is not None:
            return view
        if not self._settings.auto_create or region_prefix(name, self._topology) is not None:
            raise UnknownTopic(f"there is no topic {name[:60]!r}")
        creating = self._creating.get(name)
        if creating is None:
            creating = self._start(self._create(TopicSpec(name=name), if_absent=True))
            self._creating[name] = creating
            creating.add_done_callback(lambda _: self._creating.pop(name, None))
        return await asyncio.shield(creating)

    async def allocate_producer_id(self) -> int:
        """Return a producer id that is unique in the mesh. Raises Unavailable, OutcomeUnknown: ask again."""
        return await self._producer_ids.allocate()

    # --- parts ----------------------------------------------------------------------------------------------------

    async def _create(self, spec: TopicSpec, *, if_absent: bool) -> TopicView:
        if spec.homes is Homes.ONE and not spec.home:
            spec = replace(spec, home=self._topology.own.name)
        try:
            TopicSpec.from_json(spec.to_json())
        except FieldError as error:
            raise InvalidTopic(str(error)) from error
        definition = await self._definitions.create(spec, if_absent=if_absent)
        await self._await_index(definition.index)
        view = self.catalog.topic(definition.name)
        if view is None:
            raise UnknownTopic(f"topic {definition.name} was deleted meanwhile")
        if view.topic_id != definition.topic_id:
            raise TopicExists(f"topic {definition.name} was deleted and made again meanwhile")
        return view

    async def _await_index(self, index: int) -> None:
        if self.state.definitions_index >= index:
            return
        if not self._topology.is_definitions_home:
            self._hint(self._topology.region, index)
        applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (index, applied)
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._settings.apply_timeout_s):
                await applied
        except TimeoutError as error:
            text = f"definition {index} is ordered, this broker has applied {self.state.definitions_index}; ask again"
            raise OutcomeUnknown(text) from error
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    async def _commit(self, command: Command) -> Done:
        index = await self._propose(commands.encode(command))
        outcome = self.state.outcome(index)
        if outcome is None:
            raise OutcomeUnknown(f"command {index} was applied too long ago to know what became of it")
        if isinstance(outcome, Refused):
            raise outcome.error(outcome.text)
        return outcome

    async def _serve(self, method: str, body: JsonObject) -> JsonObject:
        hops = Fields({"hops": body.pop("hops", 0)}, "call").integer("hops", low=0, high=HOPS_MAX)
        if method == SINCE:
            return await self._definitions.serve_since(body)
        serve = self._served_by_leader.get(method)
        if serve is None:
            raise BadRequest(f"method {method[:64]!r} is unknown")
        return await self._route.to_leader(method, body, serve, hops=hops)

    async def _serve_register(self, body: JsonObject) -> JsonObject:
        registration = BrokerRegistration.from_json(Fields(body, REGISTER).value("registration"))
        await self._commit(RegisterBroker(registration=registration))
        return {}

    async def _serve_allocate(self, body: JsonObject) -> JsonObject:
        fields = Fields(body, ALLOCATE)
        broker = BrokerId(fields.integer("broker", low=1001, high=BROKER_ID_MAX))
        count = fields.integer("count", low=1, high=commands.PRODUCER_BLOCK_MAX)
        done = await self._commit(AllocateProducerIds(broker=broker, count=count))
        return {"first": done.first_producer_id, "count": count}

    async def _serve_hint(self, body: JsonObject) -> JsonObject:
        if Fields(body, HINT).integer("index", low=0, high=INT64_MAX) > self.state.definitions_index:
            self.wake()
        return {}

    async def _fetch_producer_block(self) -> tuple[int, int]:
        body: JsonObject = {"broker": self._registration.broker, "count": self._settings.producer_block}
        result = await self._route.retrying(lambda: self._route.to_leader(ALLOCATE, body, self._serve_allocate))
        fields = Fields(result, "answer")
        try:
            first, count = (
                fields.integer("first", low=0, high=INT64_MAX),
                fields.integer("count", low=1, high=INT64_MAX),
            )
        except FieldError as error:
            raise Unavailable(f"the controller's answer is not readable: {error}") from error
        return first, count

    async def _settle(self) -> bool:
        """Do what is left to do; return whether all of it worked."""
        try:
            if self._route.is_leader() and self.state.topology != self._topology:
                await self._commit(FormRegion(topology=self._topology))
            if self.state.brokers.get(self._registration.broker) != self._registration:
                body: JsonObject = {"registration": self._registration.to_json()}
                await self._route.to_leader(REGISTER, body, self._serve_register)
            if self._route.is_leader() and not self._topology.is_definitions_home:
                while await self._definitions.pull():
                    continue
        except DataDirectoryError:
            raise
        except HomeUnreachable as error:
            log.debug("definitions.pull_failed", reason=str(error))
            return True  # the region works without; ask again after the usual interval
        except PASSING as error:
            log.debug("controller.settle_delayed", reason=str(error))
            return False
        except GeorelayError as error:
            log.warning("controller.settle_failed", code=error.code, reason=str(error))
            return True
        return self.is_settled

    def _hint_other_regions(self, index: int) -> None:
        for region in self._topology.regions:
            if region.number != self._topology.region:
                self._hint(region.number, index)

    def _hint(self, region: RegionNumber, index: int) -> None:
        """Tell a region's leader, once and without waiting, that there are definitions up to `index`."""
        if len(self._tasks) < BACKGROUND_TASKS_MAX:
            self._start(self._send_hint(region, index))

    async def _send_hint(self, region: RegionNumber, index: int) -> None:
        body: JsonObject = {"index": index}
        try:
            if region == self._topology.region:
                await self._route.to_leader(HINT, body, self._serve_hint)
            else:
                await self._route.to_region(region, HINT, body)
        except GeorelayError as error:
            log.debug("definitions.hint_lost", region=region, index=index, reason=str(error))

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it gets it; with nobody left to wait it is no news
