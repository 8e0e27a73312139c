"""Topics, users, lists, quotas and bindings as mesh control orders them: part "definitions" of its state.

Rule 1: the rules are those of a region's controller (topic_rules, security_rules), applied to a ledger that knows no
        groups: which broker holds what is each region's own business.
Rule 2: every definition carries the mesh index of its command. The definitions home's last index came before them.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from georelay.errors import BadRequest
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject, dump_object, parse_object
from georelay.limits import TOPICS_MAX
from region.controller import commands, security_rules, topic_rules
from region.controller.command_kinds import MESH_LEVEL
from region.controller.commands import AlterTopic, Command, CommandError, DefineSecurity, DefineTopic, DropTopic
from region.controller.definition_orders import definition_to_json
from region.controller.effects import Done, Effect, Outcome, Refused
from region.controller.ledger import RegionLedger
from region.controller.mesh_pull import read_definition
from region.controller.security_book import SecurityBook
from region.controller.state_core import ControllerState
from region.controller.state_snapshot import SECURITY_READ_MAX
from region.controller.topic import Definition, Homes, TopicDefinition
from region.controller.topic_rules import TOMBSTONES_MAX
from region.controller.topology import Topology
from region.security import definition as security


class MeshLedger(RegionLedger):
    """A ledger of definitions alone: no brokers, no groups. It counts streams, because their number is bounded."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_level = MESH_LEVEL
        self.index_now = 0  # of the command that is being applied
        self._partitions: dict[Homes, int] = dict.fromkeys(Homes, 0)
        self._counted: dict[bytes, TopicDefinition] = {}

    @property
    def next_definition_index(self) -> int:
        """Return the index of the command that is being applied."""
        return self.index_now

    def refuse_to_order(self) -> Refused | None:
        """Never refuse: control orders."""
        return None

    def streams_with(self, topic: TopicDefinition) -> int:
        """Return how many streams the mesh would have with a topic as it is wanted."""
        assert self.topology is not None
        known = self._counted.get(topic.topic_id)
        partitions = dict(self._partitions)
        partitions[topic.homes] += topic.partitions - (0 if known is None else known.partitions)
        origins = sum(not region.witness for region in self.topology.regions)
        return partitions[Homes.ONE] + partitions[Homes.EVERY] * origins

    def assign_missing(self, topic: TopicDefinition, effects: list[Effect]) -> None:
        """Count a topic."""
        self.drop_groups(topic, effects)
        self._counted[topic.topic_id] = topic
        self._partitions[topic.homes] += topic.partitions

    def drop_groups(self, topic: TopicDefinition, effects: list[Effect]) -> None:
        """Count a topic no more."""
        del effects
        known = self._counted.pop(topic.topic_id, None)
        if known is not None:
            self._partitions[known.homes] -= known.partitions

    def settle(self, effects: list[Effect]) -> None:
        """Do nothing: there are no brokers here."""


class DefinitionsPart:
    """Implements ControlPart, and what DefinitionOrders reads.

    Args:
        topology: the mesh as the part "regions" has it.
    """

    name = "definitions"

    def __init__(self, topology: Callable[[], Topology]) -> None:
        self._topology = topology
        self._ledger = MeshLedger()

    # --- what it says -------------------------------------------------------------------------------------------------

    @property
    def feature_level(self) -> int:
        """Return what control may write."""
        return self._ledger.feature_level

    @property
    def own_brokers(self) -> int | None:
        """Return None: replication factors are judged by what regions reported."""
        return None

    @property
    def security(self) -> SecurityBook:
        """Return users, lists, quotas and bindings."""
        return self._ledger.security

    def topic_by_name(self, name: str) -> TopicDefinition | None:
        """Return the live topic of that name."""
        topic_id = self._ledger.definitions.id_of(name)
        return None if topic_id is None else self.topic_by_id(topic_id)

    def topic_by_id(self, topic_id: bytes) -> TopicDefinition | None:
        """Return the live topic with that id."""
        return self._ledger.definitions.topic_by_id(topic_id)

    def topics(self) -> Iterator[TopicDefinition]:
        """Return the live topics, in order of definition."""
        return self._ledger.definitions.topics()

    def definitions_since(self, index: int, *, limit: int) -> list[Definition]:
        """Return at most `limit` definitions with a higher index, the lowest first."""
        return self._ledger.definitions.since(index, limit=limit)

    # --- ControlPart --------------------------------------------------------------------------------------------------

    def apply(self, command: JsonObject, *, index: int, append_us: int) -> JsonObject:
        """Apply one definition; see ControlPart."""
        del append_us
        try:
            decoded = commands.decode(dump_object(command))
        except CommandError as error:
            raise FieldError(str(error)) from error
        self._ledger.index_now = index
        self._ledger.topology = self._topology()
        outcome = self._order(decoded)
        if isinstance(outcome, Refused):
            raise outcome.error(outcome.text)
        return outcome_to_json(outcome)

    def _order(self, command: Command) -> Outcome:
        match command:
            case DefineTopic():
                return topic_rules.define(self._ledger, command.definition, [])
            case AlterTopic():
                return topic_rules.alter(self._ledger, command.definition, [])
            case DropTopic():
                return topic_rules.drop(self._ledger, command.tombstone, [])
            case DefineSecurity():
                return security_rules.define(self._ledger, command.definition, replaces=command.replaces)
            case _:
                raise BadRequest(f"{type(command).__name__} is not a definition")

    def snapshot(self) -> JsonObject:
        """Return the state of the part."""
        books = self._ledger
        return _snapshot(books.definitions.index, list(books.definitions.everything()), books.security)

    def restore(self, raw: JsonObject) -> None:
        """Replace the state. Raises FieldError."""
        fields = Fields(raw, self.name)
        ledger = MeshLedger()
        for item in fields.items("topics", count_max=TOPICS_MAX + TOMBSTONES_MAX):
            definition = read_definition(item)
            if definition.index < ledger.definitions.index or ledger.definitions.find(definition.topic_id) is not None:
                raise FieldError(f"definition {definition.index} is out of order or there twice")
            ledger.definitions.remember(definition)
            if isinstance(definition, TopicDefinition):
                ledger.assign_missing(definition, [])
        for item in fields.items("security", count_max=SECURITY_READ_MAX):
            row = security.from_json(item)
            if row.index <= ledger.security.index:
                raise FieldError(f"security definition {row.index} is out of order")
            ledger.security.remember(row)
        ledger.definitions.index = fields.integer("index", low=ledger.definitions.index, high=INT64_MAX)
        fields.done()
        self._ledger = ledger

    def elected(self) -> None:
        """Nothing to do."""

    def deposed(self) -> None:
        """Nothing to do."""


def command_to_json(command: Command) -> JsonObject:
    """Return a definition as a command of the part."""
    return parse_object(commands.encode(command))


def outcome_to_json(done: Done) -> JsonObject:
    """Return what became of a definition."""
    said: JsonObject = {"index": done.definition_index}
    return said if done.definition is None else said | {"defined": definition_to_json(done.definition)}


def outcome_from_json(raw: JsonObject) -> Done:
    """Read what `outcome_to_json` made. Raises FieldError."""
    fields = Fields(raw, "outcome")
    defined = read_definition(fields.value("defined")) if fields.has("defined") else None
    return Done(definition=defined, definition_index=fields.integer("index", low=0, high=INT64_MAX))


def taken_over(state: ControllerState) -> JsonObject:
    """Return the part's snapshot with everything that the definitions home ordered."""
    return _snapshot(
        state.definitions_index, state.definitions_since(0, limit=TOPICS_MAX + TOMBSTONES_MAX), state.security
    )


def _snapshot(index: int, definitions: list[Definition], book: SecurityBook) -> JsonObject:
    return {
        "index": index,
        "topics": [definition_to_json(definition) for definition in definitions],
        "security": [security.to_json(row) for row in book.everything()],
    }
