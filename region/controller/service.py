"""The controller as one broker runs it: applies committed commands, serves and forwards calls, keeps itself current.

It knows no Raft and no socket: `propose` commits a command, `request` carries a call to another broker, and the host
feeds every committed command to `apply` in order. Every broker of the region has one; the leader's does the deciding.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from georelay.errors import (
    BadRequest,
    ControlUnavailable,
    DataDirectoryError,
    GeorelayError,
    HomeUnreachable,
    InvalidTopic,
    OutcomeUnknown,
    PolicyViolation,
    TopicExists,
    Unavailable,
    UnknownTopic,
)
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject
from georelay.ids import BrokerId, GroupId, RaftIndex
from region.controller import answers, commands
from region.controller.barrier import Barrier
from region.controller.broker_admin import BrokerAdmin
from region.controller.catalog import TopicCatalog
from region.controller.commands import AllocateProducerIds, Command, OpenControl, RegisterBroker
from region.controller.definition_orders import ALTER, CHANGE, CREATE, DELETE, Ordered
from region.controller.definition_rules import region_prefix
from region.controller.definitions import HINT, SINCE, ControlPort, Definitions
from region.controller.founding import FOUNDING
from region.controller.hints import BackgroundTasks, Hints
from region.controller.leader_duties import LeaderDuties
from region.controller.mesh_rows import CONTROL_ID
from region.controller.producer_ids import ProducerIds
from region.controller.registering import REGISTER, Registrar
from region.controller.registration import BrokerRegistration
from region.controller.routing import HOPS_MAX, PASSING, ControllerSettings, Propose, Request, Route
from region.controller.security_definitions import SecurityDefinitions
from region.controller.state_core import ControllerState, Done, Effect, Refused
from region.controller.topic import INTERNAL_PREFIX, Homes, TopicDefaults, TopicDefinition, TopicSpec, TopicView
from region.controller.topology import BROKER_ID_MAX, Topology

log = structlog.get_logger()

ALLOCATE: Final = "controller.allocate_producer_ids"
BARRIER: Final = "controller.barrier"
OPEN_CONTROL: Final = "controller.open_control"
Serve = Callable[[JsonObject], Awaitable[JsonObject]]


class ControllerService:
    """One broker's part of its region's controller.

    Args:
        topology: mesh and region, from this broker's configuration.
        registration: what this broker tells its region.
        propose, request: see their Protocols.
        is_leader, leader_id: of the controller group, as known now; a leader_id <= 0 means unknown.
        new_topic_id: returns 16 bytes that are unique in the world.
        is_alive: whether a broker of this region was heard lately.
        read_index: of the controller group, on its leader: returns once everything committed is applied here.
        founding_disks: (broker, disk uuid) of the founders, when this broker knows them; asked once the group is led.
        peers_learned: told the peer addresses of the region when a broker of it answers.

    Attributes:
        answer_founding: answers brokers that ask whether the region exists; set before links are open.
        security_ordered: told of each definition of security that this broker ordered; set by who keeps the audit log.
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
        is_alive: Callable[[BrokerId], bool] = lambda _: True,
        read_index: Callable[[], Awaitable[RaftIndex]] | None = None,
        founding_disks: Callable[[], tuple[tuple[BrokerId, str], ...]] = tuple,
        peers_learned: Callable[[dict[BrokerId, str]], None] = lambda _: None,
    ) -> None:
        self.state = ControllerState()
        self.catalog = TopicCatalog(self.state)
        self.answer_founding: Callable[[JsonObject], JsonObject] | None = None
        self.security_ordered: Callable[[Ordered], None] = lambda _: None
        self._topology = topology
        self._registration = registration
        self._propose = propose
        self._read_index = read_index
        self._is_alive = is_alive
        self._settings = settings if settings is not None else ControllerSettings()
        self._tasks = BackgroundTasks()
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []  # resolved once the state says so
        self._creating: dict[str, asyncio.Task[TopicView]] = {}
        self._wakeup = asyncio.Event()
        self._claiming_since: float | None = None  # since when another disk has our id
        self._route = Route(
            topology=topology, request=request, is_leader=is_leader, leader_id=leader_id, settings=self._settings
        )
        self._hints = Hints(
            state=self.state, topology=self.topology, route=self._route, tasks=self._tasks, wake=self._wakeup.set
        )
        self._definitions = Definitions(
            state=self.state,
            topology=self.topology,
            route=self._route,
            commit=self._commit,
            new_topic_id=new_topic_id,
            ordered=self._hints.tell_other_regions,
        )
        self._security = SecurityDefinitions(
            state=self.state,
            topology=self.topology,
            route=self._route,
            commit=self._commit,
            ordered=self._hints.tell_other_regions,
            noted=lambda ordered: self.security_ordered(ordered),
            applied=self._await_security,
        )
        self._registrar = Registrar(
            state=self.state,
            topology=topology,
            own=registration,
            route=self._route,
            commit=self._commit,
            is_alive=is_alive,
            auto_join=self._settings.auto_join,
            peers_learned=peers_learned,
            level_learned=self._wakeup.set,
        )
        self._duties = LeaderDuties(
            me=registration.broker,
            state=self.state,
            topology=topology,
            disks=founding_disks,
            commit=self._commit,
            is_alive=is_alive,
            levels=self._registrar.levels,
            absent_after_s=self._settings.replace_absent_after_s,
            moves_in_flight_max=self._settings.moves_in_flight_max,
        )
        self._admin = BrokerAdmin(
            state=self.state,
            catalog=self.catalog,
            topology=topology,
            route=self._route,
            commit=self._commit,
            is_alive=is_alive,
        )
        self._barrier = Barrier(self._ask_barrier, self._tasks)
        self._producer_ids = ProducerIds(self._fetch_producer_block)
        self._served_by_leader: dict[str, Serve] = {
            CREATE: self._definitions.serve_create,
            ALTER: self._definitions.serve_alter,
            DELETE: self._definitions.serve_delete,
            CHANGE: self._security.serve_change,
            HINT: self._hints.serve,
            REGISTER: self._registrar.serve,
            ALLOCATE: self._serve_allocate,
            BARRIER: self._serve_barrier,
            OPEN_CONTROL: self._serve_open_control,
            **self._admin.served,
        }

    def topology(self) -> Topology:
        """Return the mesh as it is now: what was recorded, or the configuration until there is something."""
        return self.state.topology or self._topology

    def join_control(self, control: ControlPort) -> None:
        """Let definitions go to mesh control once it orders them; called before `run`."""
        self._definitions.control = control
        self._security.control = control

    async def commit(self, command: Command) -> Done:
        """Commit a command on this broker, as leader, and return its outcome.

        Raises:
            NotLeader, Busy, Unavailable: nothing was done. OutcomeUnknown: look again. Others: it was refused.
        """
        return await self._commit(command)

    async def open_control(self, control_id: str) -> None:
        """Have this region's charter opened for the control that it names.

        Raises:
            PolicyViolation: another control was named meanwhile. Unavailable, OutcomeUnknown: ask again.
        """
        body: JsonObject = {"control_id": control_id}
        await self._route.retrying(lambda: self._route.to_leader(OPEN_CONTROL, body, self._serve_open_control))

    def hears(self, broker: BrokerId) -> bool:
        """Return whether a broker of this region was heard lately; this one always is."""
        return broker == self._registration.broker or self._is_alive(broker)

    @property
    def is_leader(self) -> bool:
        """Return whether this broker leads its region's controller."""
        return self._route.is_leader()

    @property
    def is_settled(self) -> bool:
        """Return whether the region is formed and knows this broker; until then it is not ready."""
        return self.state.topology is not None and self._registrar.is_registered

    @property
    def feature_level(self) -> int:
        """Return what the region may write; 0 before it is formed."""
        return self.state.feature_level

    # --- the host's side ------------------------------------------------------------------------------------------

    def apply(self, command: bytes | memoryview, index: RaftIndex) -> list[Effect]:
        """Apply a committed command; called for each, in order, on every broker, and again from the log at start.

        Raises:
            CommandError: a command this version does not know; the host stops the group.
        """
        effects = self.state.apply(commands.decode(command), index)
        self._resolve_waiting()
        return effects

    def snapshot(self) -> bytes:
        """Return the state after the newest command that was applied."""
        return self.state.to_snapshot()

    def restore(self, raw: bytes) -> list[Effect]:
        """Replace the state; return what the host has to look at again. Raises SnapshotError."""
        effects = self.state.restore(raw)
        self._resolve_waiting()
        return effects

    def wake(self) -> None:
        """Make `run` look again now: the leader changed or a link came up."""
        self._wakeup.set()

    async def run(self) -> None:
        """Keep this broker registered, and as leader the region as it shall be; until cancelled.

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
                applied.set_exception(OutcomeUnknown("this broker is shutting down; what was asked for may be done"))
        self._waiting.clear()
        await self._tasks.close()

    async def handle(self, method: str, body: JsonObject) -> JsonObject:
        """Answer another broker's call; every GeorelayError travels inside the answer."""
        try:
            return answers.ok(await self._serve(method, dict(body)))
        except FieldError as error:
            return answers.failed(BadRequest(f"{method[:64]}: {error}"))
        except GeorelayError as error:
            return answers.failed(error)

    # --- what this broker's clients ask ---------------------------------------------------------------------------

    @property
    def topic_defaults(self) -> TopicDefaults:
        """Return what is filled in where a topic's creator names nothing."""
        return self._settings.topic_defaults

    async def create_topic(self, spec: TopicSpec, *, by: str = "") -> TopicView:
        """Create a topic; return once this broker knows it. `by`: whose share of topics it takes, "": nobody's.

        Raises:
            InvalidTopic, TopicExists, PolicyViolation, HomeUnreachable: nothing was created.
            Unavailable: nothing was done. OutcomeUnknown: it may exist; ask again.
        """
        _refuse_internal(spec.name)
        return await self._create(self.topic_defaults.fill(spec), if_absent=False, by=by)

    async def ensure_internal_topic(self, spec: TopicSpec) -> TopicView:
        """Return a topic that brokers made for themselves, created when it is unknown. Raises as create_topic."""
        return await self._create(spec, if_absent=True)

    async def alter_topic(self, name: str, settings: Mapping[str, str | None]) -> TopicView:
        """Change settings of a topic (None: back to the default); return once this broker knows it.

        Raises:
            UnknownTopic, InvalidTopic, PolicyViolation, HomeUnreachable: nothing was changed.
            Unavailable: nothing was done. OutcomeUnknown: it may be changed; ask again.
        """
        _refuse_internal(name)
        return await self._known(await self._definitions.alter(name, settings))

    async def add_partitions(self, name: str, count: int) -> TopicView:
        """Let a topic have `count` partitions, not fewer than now; return once this broker knows. Raises as alter."""
        _refuse_internal(name)
        return await self._known(await self._definitions.alter(name, {}, partitions=count))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records for ever; return once this broker has dropped it. Raises as create_topic."""
        _refuse_internal(name)
        tombstone = await self._definitions.delete(name)
        await self._await_index(tombstone.index)

    async def ensure_topic(self, name: str, *, by: str = "") -> TopicView:
        """Return the topic, created with defaults when it is unknown and that is allowed.

        Raises:
            UnknownTopic: unknown, and auto-creation is off or the name is a mirror's. Others as create_topic.
        """
        view = self.catalog.topic(name)
        if view is not None:
            return view
        is_reserved = name.startswith(INTERNAL_PREFIX) or region_prefix(name, self.topology()) is not None
        if not self._settings.auto_create or is_reserved:
            raise UnknownTopic(f"there is no topic {name[:60]!r}")
        creating = self._creating.get(name)
        if creating is None:
            spec = self.topic_defaults.fill(TopicSpec(name=name))
            creating = self._tasks.start(self._create(spec, if_absent=True, by=by))
            self._creating[name] = creating
            creating.add_done_callback(lambda _: self._creating.pop(name, None))
        return await asyncio.shield(creating)

    async def change_security(self, wish: JsonObject, *, by: str = "") -> None:
        """Change users, lists or quotas, see security_wishes; return once this broker knows. `by`: who wishes it.

        Raises:
            BadRequest, PolicyViolation, HomeUnreachable, Unavailable: nothing was changed.
            OutcomeUnknown: it may be changed, or some of several lists; ask again.
        """
        await self._security.change(wish, by=by)

    async def allocate_producer_id(self) -> int:
        """Return a producer id that is unique in the mesh. Raises Unavailable, OutcomeUnknown: ask again."""
        return await self._producer_ids.allocate()

    # --- what operators and group leaders ask ---------------------------------------------------------------------

    async def add_broker(self, broker_id: int, peers: str = "") -> None:
        """Let a broker of this region take replicas; see BrokerAdmin.

        Raises:
            BadRequest, PolicyViolation: nothing changed. Unavailable, OutcomeUnknown: ask again (so for all below).
        """
        await self._admin.add(BrokerId(broker_id), peers)

    async def drain_broker(self, broker_id: int) -> None:
        """Begin to move every replica away from a broker."""
        await self._admin.drain(BrokerId(broker_id))

    async def remove_broker(self, broker_id: int) -> None:
        """Forget a broker that is drained or absent."""
        await self._admin.remove(BrokerId(broker_id))

    async def reassign(self, topic: str, partition: int, voters: Sequence[int]) -> None:
        """Begin to move a partition to these brokers; an empty list lets the region place it again."""
        await self._admin.reassign(topic, partition, voters)

    async def report_replicas(
        self,
        group_id: GroupId,
        voters: Sequence[BrokerId],
        learners: Sequence[BrokerId],
        generation: int,
        index: int,
    ) -> None:
        """Report the committed membership of a group, as its confirmed leader under that generation of its target.

        `index` is that of the log entry that put the membership in force.

        Raises:
            Busy: another generation is wanted by now. Other GeorelayErrors: not recorded, or not known.
        """
        await self._admin.report(group_id, voters, learners, generation, index)

    async def replica_lost(self, group_id: GroupId, generation: int) -> None:
        """Have this broker's replica of a group made anew, because it cannot be used; under that generation of it.

        Raises:
            Busy: another generation is wanted by now, or too few other replicas are there: look again.
            PolicyViolation: the group cannot do without this replica. UnknownTopic: it is gone.
            Unavailable, NotLeader, OutcomeUnknown: ask again.
        """
        await self._admin.replica_lost(group_id, self._registration.broker, generation)

    async def barrier(self) -> RaftIndex:
        """Return once this broker has applied all that was committed when this was called.

        Raises:
            Unavailable, NotLeader, OutcomeUnknown: the leader could not be asked, or this broker is behind.
        """
        return await self._barrier.wait()

    def brokers_status(self) -> list[dict[str, Any]]:
        """Return one row per broker that was ever known, ready for JSON."""
        return self._admin.brokers_status()

    def assignments_status(self, topic: str | None = None) -> list[dict[str, Any]]:
        """Return one row per group, of one topic or of all, ready for JSON. Raises UnknownTopic."""
        return self._admin.assignments_status(topic)

    # --- parts ----------------------------------------------------------------------------------------------------

    async def _create(self, spec: TopicSpec, *, if_absent: bool, by: str = "") -> TopicView:
        if spec.homes is Homes.ONE and not spec.home:
            spec = replace(spec, home=self._topology.own.name)
        try:
            TopicSpec.from_json(spec.to_json())
        except FieldError as error:
            raise InvalidTopic(str(error)) from error
        return await self._known(await self._definitions.create(spec, if_absent=if_absent, by=by))

    async def _known(self, definition: TopicDefinition) -> TopicView:
        await self._await_index(definition.index)
        view = self.catalog.topic(definition.name)
        if view is None:
            raise UnknownTopic(f"topic {definition.name} was deleted meanwhile")
        if view.topic_id != definition.topic_id:
            raise TopicExists(f"topic {definition.name} was deleted and made again meanwhile")
        return view

    @property
    def _pulls(self) -> bool:
        """Return whether definitions are ordered elsewhere, so that this region has to fetch them."""
        return self.state.mesh.has_ceded or not self.topology().is_definitions_home

    async def _await_index(self, index: int) -> None:
        if self.state.definitions_index < index and self._pulls:
            self._hints.tell(self._topology.region, index)
        try:
            await self._until(lambda: self.state.definitions_index >= index)
        except TimeoutError as error:
            text = f"definition {index} is ordered, this broker has applied {self.state.definitions_index}; ask again"
            raise OutcomeUnknown(text) from error

    async def _await_security(self, index: int) -> None:
        if self.state.security.index < index and self._pulls:
            self._hints.tell(self._topology.region, index)
        try:
            await self._until(lambda: self.state.security.index >= index)
        except TimeoutError as error:
            text = f"definition {index} is ordered, this broker has not applied it; ask again"
            raise OutcomeUnknown(text) from error

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Wait until the applied state says so. Raises TimeoutError after apply_timeout_s."""
        if is_so():
            return
        applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (is_so, applied)
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._settings.apply_timeout_s):
                await applied
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _resolve_waiting(self) -> None:
        if not self._waiting:
            return
        for is_so, applied in self._waiting:
            if is_so() and not applied.done():
                applied.set_result(None)
        self._waiting = [(is_so, applied) for is_so, applied in self._waiting if not applied.done()]

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
        if method == FOUNDING and self.answer_founding is not None:
            return self.answer_founding(body)
        serve = self._served_by_leader.get(method)
        if serve is None:
            raise BadRequest(f"method {method[:64]!r} is unknown")
        return await self._route.to_leader(method, body, serve, hops=hops)

    async def _serve_allocate(self, body: JsonObject) -> JsonObject:
        fields = Fields(body, ALLOCATE)
        broker = BrokerId(fields.integer("broker", low=1001, high=BROKER_ID_MAX))
        count = fields.integer("count", low=1, high=commands.PRODUCER_BLOCK_MAX)
        done = await self._commit(AllocateProducerIds(broker=broker, count=count))
        return {"first": done.first_producer_id, "count": count}

    async def _fetch_producer_block(self) -> tuple[int, int]:
        body: JsonObject = {"broker": self._registration.broker, "count": self._settings.producer_block}
        result = await self._route.retrying(lambda: self._route.to_leader(ALLOCATE, body, self._serve_allocate))
        return _integer_in(result, "first"), _integer_in(result, "count", low=1)

    async def _serve_open_control(self, body: JsonObject) -> JsonObject:
        control_id = Fields(body, OPEN_CONTROL).text("control_id", chars_max=32, pattern=CONTROL_ID)
        await self._commit(OpenControl(control_id=control_id))
        return {}

    async def _serve_barrier(self, _: JsonObject) -> JsonObject:
        """Return an index below which everything is committed, having made sure that this broker still leads."""
        if self._read_index is not None:
            await self._read_index()
        else:
            recorded = self.state.brokers.get(self._registration.broker)
            if recorded is None:
                raise Unavailable("this region is not formed yet")
            await self._commit(RegisterBroker(registration=recorded))  # changes nothing, but is committed by a leader
        return {"index": self.state.applied_index}

    async def _ask_barrier(self) -> RaftIndex:
        index = _integer_in(await self._route.to_leader(BARRIER, {}, self._serve_barrier), "index")
        try:
            await self._until(lambda: self.state.applied_index >= index)
        except TimeoutError as error:
            text = f"command {index} is committed, this broker has applied {self.state.applied_index}; ask again"
            raise Unavailable(text) from error
        return RaftIndex(index)

    async def _settle(self) -> bool:
        """Do what is left to do; return whether all of it worked."""
        try:
            await self._settle_region()
            if self._route.is_leader():
                while await self._definitions.pull():
                    continue
        except DataDirectoryError:
            if not self._may_claim():
                raise
            return False
        except (HomeUnreachable, ControlUnavailable) as error:
            log.debug("definitions.pull_failed", reason=str(error))
            return True  # the region works without; ask again after the usual interval
        except PASSING as error:
            log.debug("controller.settle_delayed", reason=str(error))
            return False
        except GeorelayError as error:
            log.warning("controller.settle_failed", code=error.code, reason=str(error))
            return True
        return self.is_settled

    async def _settle_region(self) -> None:
        if self._route.is_leader():
            await self._duties.form()
        else:
            self._duties.rest()
        if self._registrar.must_announce:
            await self._registrar.announce()
        self._claiming_since = None
        if self._route.is_leader():
            await self._duties.look(asyncio.get_running_loop().time())

    def _may_claim(self) -> bool:
        """Return whether to go on claiming an id whose old disk may still count as alive for a moment."""
        now = asyncio.get_running_loop().time()
        if self._claiming_since is None:
            self._claiming_since = now
        return now - self._claiming_since < self._settings.disk_claim_s


def _refuse_internal(name: str) -> None:
    if name.startswith(INTERNAL_PREFIX):
        raise PolicyViolation(f"topics whose names start with {INTERNAL_PREFIX} are made and changed by brokers only")


def _integer_in(answer: JsonObject, name: str, *, low: int = 0) -> int:
    try:
        return Fields(answer, "answer").integer(name, low=low, high=INT64_MAX)
    except FieldError as error:
        raise OutcomeUnknown(f"the controller's answer is not readable: {error}") from error
