"""Topic definitions: ordered in one place, and pulled by every other region.

Rule 1: until mesh control is founded only the controller leader of the definitions home orders; from the commit of its
charter on only control does. Everybody else asks, and is refused while nobody who orders can be reached.
Rule 2: a creation carries the topic id from the start, so that the same wish sent twice makes one topic.
Rule 3: another region proposes pulled definitions one after the other in order of their index, and stops at the first
that fails: a region never holds a later definition without the earlier ones. Topics and security have a position each,
see security_book.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from georelay.errors import OutcomeUnknown, PolicyViolation, Unavailable, UnknownTopic
from georelay.fields import FieldError, Fields, JsonObject
from region.controller import mesh_pull
from region.controller.commands import Command
from region.controller.definition_orders import ALTER, BY, CREATE, DELETE, DefinitionOrders, until_understood
from region.controller.definition_rules import region_prefix
from region.controller.forgotten_pull import ForgottenPull
from region.controller.routing import PASSING, Route
from region.controller.state_core import ControllerState, Done
from region.controller.topic import Definition, Tombstone, TopicDefinition, TopicSpec
from region.controller.topology import Topology

SINCE: Final = "definitions.since"
HINT: Final = "definitions.hint"


class ControlPort(Protocol):
    """Mesh control, seen from a region's controller."""

    async def call(self, method: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        """Ask control's leader. Raises ControlUnavailable, or what it answers."""

    async def pull(self, question: JsonObject) -> JsonObject:
        """Ask any replica of control what is above the positions of this region. Raises as `call`."""


class Definitions:
    """Creating, deleting and pulling definitions, seen from one broker.

    Args:
        commit: proposes a command on this broker and returns its outcome, or raises why it was refused.
        topology: the mesh as it is now.
        ordered: told the index of each definition that this broker, as leader of the definitions home, ordered.

    Attributes:
        control: mesh control, once this broker takes part in it.
    """

    def __init__(
        self,
        *,
        state: ControllerState,
        topology: Callable[[], Topology],
        route: Route,
        commit: Callable[[Command], Awaitable[Done]],
        new_topic_id: Callable[[], bytes],
        ordered: Callable[[int], None],
    ) -> None:
        self.control: ControlPort | None = None
        self._state = state
        self._topology = topology
        self._route = route
        self._commit = commit
        self._new_topic_id = new_topic_id
        self._forgotten = ForgottenPull()
        self._orders = DefinitionOrders(
            books=state, topology=topology, commit=commit, ordered=ordered, older_regions=self._older_regions
        )

    def _older_regions(self, level: int) -> list[str]:
        """Return the own region until all its brokers understand a level, and the others that are below it.

        What others are at is known as far as mesh control's words have come here.
        """
        own = self._topology().own
        older = [own.name] if self._state.feature_level < level else []
        rows = [row for row in self._state.mesh.regions.values() if row.holds_topics and row.number != own.number]
        return older + [row.name for row in rows if row.level < level]

    async def create(self, spec: TopicSpec, *, if_absent: bool, by: str = "") -> TopicDefinition:
        """Have a topic defined; return the definition with its index. `if_absent` takes the one that is there already.

        `by` is the principal whose share of topics it takes, "" for nobody's.

        Raises:
            InvalidTopic, TopicExists, PolicyViolation: nothing was defined.
            HomeUnreachable: the definitions home cannot be reached; nothing was defined.
            Unavailable: nothing was defined. OutcomeUnknown: it may be; ask again.
        """
        await until_understood(spec.config, (), self._older_regions)
        body: JsonObject = {"spec": spec.to_json(), "topic_id": self._new_topic_id().hex(), "if_absent": if_absent}
        body |= {BY: by} if by else {}
        result = await self._route.retrying(lambda: self._ask_home(CREATE, body, self.serve_create))
        return _definition_in(result)

    async def alter(
        self, name: str, settings: Mapping[str, str | None], *, partitions: int | None = None
    ) -> TopicDefinition:
        """Have settings of a topic changed (None: back to the default), or partitions added; return the definition.

        Raises:
            UnknownTopic, InvalidTopic, PolicyViolation: nothing was changed. Others as in `create`.
        """
        if region_prefix(name, self._topology()) is not None:
            raise PolicyViolation(f"{name} is one region's stream of a topic; alter the topic by its plain name")
        known = self._state.topic_by_name(name)
        given = TopicSpec(name=name).with_settings({key: value for key, value in settings.items() if value is not None})
        await until_understood(given.config, () if known is None else known.config, self._older_regions)
        body: JsonObject = {
            "name": name,
            "settings": {key: value for key, value in settings.items() if value is not None},
            "defaults": [key for key, value in settings.items() if value is None],
            "partitions": partitions or 0,
        }
        return _definition_in(await self._route.retrying(lambda: self._ask_home(ALTER, body, self.serve_alter)))

    async def delete(self, name: str) -> Tombstone:
        """Have a topic deleted for ever; return its tombstone.

        Raises:
            UnknownTopic, PolicyViolation: nothing was deleted. Others as in `create`.
        """
        if region_prefix(name, self._topology()) is not None:
            raise PolicyViolation(f"{name} is one region's stream of a topic; delete the topic by its plain name")
        known = self._state.topic_by_name(name)
        lost_an_answer = False

        async def attempt() -> Tombstone:
            nonlocal lost_an_answer
            try:
                return _tombstone_in(await self._ask_home(DELETE, {"name": name}, self.serve_delete))
            except PASSING:
                lost_an_answer = True
                raise
            except UnknownTopic:
                if not lost_an_answer or known is None:
                    raise
                return Tombstone(name=name, topic_id=known.topic_id, index=known.index + 1)

        return await self._route.retrying(attempt)

    async def pull(self) -> bool:
        """Fetch and apply what was ordered elsewhere, as leader; return whether there may be more.

        Raises:
            HomeUnreachable, OutcomeUnknown, Unavailable, BadRequest: try again later.
        """
        if self._topology().is_definitions_home and not self._state.mesh.has_ceded:
            return False  # it is ordered here
        result = await self._ask_for_newer(mesh_pull.question(self._state))
        await self._forgotten.follow(result, self._state, self._ask_for_newer, self._commit)
        return await mesh_pull.take(result, self._state, self._commit)

    async def _ask_for_newer(self, question: JsonObject) -> JsonObject:
        home = self._topology().definitions_home
        if self._state.mesh.has_ceded or home == 0:
            return await self._mesh_control().pull(question)
        return await self._route.to_region(home, SINCE, question)

    # --- what other brokers ask ---------------------------------------------------------------------------------------

    async def serve_create(self, body: JsonObject) -> JsonObject:
        """Define a topic, as leader of the definitions home."""
        return await self._order(CREATE, body, self._orders.create)

    async def serve_alter(self, body: JsonObject) -> JsonObject:
        """Alter a topic, as leader of the definitions home."""
        return await self._order(ALTER, body, self._orders.alter)

    async def serve_delete(self, body: JsonObject) -> JsonObject:
        """Delete a topic, as leader of the definitions home."""
        return await self._order(DELETE, body, self._orders.delete)

    async def serve_since(self, body: JsonObject) -> JsonObject:
        """Return what is above the asked positions; any broker may, since all it has applied is committed.

        A region of an earlier version asks here even when mesh control orders: this region hands on what it pulled.
        """
        self._require_home()
        return mesh_pull.give(self._state, Fields(body, SINCE))

    async def _order(
        self, method: str, body: JsonObject, order: Callable[[JsonObject], Awaitable[JsonObject]]
    ) -> JsonObject:
        self._require_home()
        return await (self._mesh_control().call(method, body) if self._state.mesh.has_ceded else order(body))

    def _require_home(self) -> None:
        topology = self._topology()
        if not topology.is_definitions_home:
            raise PolicyViolation(f"region {topology.own.name} is not the definitions home of this mesh")

    def _mesh_control(self) -> ControlPort:
        control = self.control
        if control is None:
            raise Unavailable("mesh control orders definitions, and this broker does not take part in it")
        return control

    async def _ask_home(
        self, method: str, body: JsonObject, serve: Callable[[JsonObject], Awaitable[JsonObject]]
    ) -> JsonObject:
        topology = self._topology()
        if self._state.mesh.has_ceded or topology.definitions_home == 0:
            return await self._mesh_control().call(method, body)
        if topology.is_definitions_home:
            return await self._route.to_leader(method, body, serve)
        return await self._route.to_region(topology.definitions_home, method, body)


def _definition_in(result: JsonObject) -> TopicDefinition:
    definition = _read_answer(result)
    if isinstance(definition, Tombstone):
        raise UnknownTopic(f"topic {definition.name} was deleted meanwhile")
    return definition


def _tombstone_in(result: JsonObject) -> Tombstone:
    definition = _read_answer(result)
    if isinstance(definition, Tombstone):
        return definition
    raise OutcomeUnknown(f"a deletion of {definition.name} was answered with a definition")


def _read_answer(result: JsonObject) -> Definition:
    try:
        return mesh_pull.read_definition(result)
    except FieldError as error:
        raise OutcomeUnknown(f"the answer of who orders definitions is not readable: {error}") from error
