"""Topics, users, lists, quotas and bindings as mesh control orders them: part "definitions" of its state.

Rule 1: the rules are those of a region's controller (topic_rules, security_rules), applied to a ledger that knows no
        groups: which broker holds what is each region's own business.
Rule 2: every definition carries the mesh index of its command. The definitions home's last index came before them.
Rule 3: deletions that every region has followed are forgotten (forget_rules, forgetting_core).
Rule 4: of topics whose failover policy became `auto` it is kept since which index: not every region may have heard of
        it (region.homes.policies). Of what was taken over nobody knows when; it counts from its newest definition on.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from georelay.errors import BadRequest, PolicyViolation
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject, dump_object, parse_object
from georelay.limits import GROUPS_PER_BROKER_MAX, TOPICS_MAX
from region.controller import commands, forget_rules, security_rules, topic_rules
from region.controller.command_kinds import MESH_LEVEL
from region.controller.commands import (
    AlterTopic,
    Command,
    CommandError,
    DefineSecurity,
    DefineTopic,
    DropTopic,
    ForgetDeleted,
)
from region.controller.definition_orders import definition_to_json
from region.controller.effects import Done, Effect, Outcome, Refused
from region.controller.geo_settings import FailoverPolicy
from region.controller.ledger import RegionLedger
from region.controller.mesh_pull import read_definition
from region.controller.security_book import SecurityBook
from region.controller.state_core import ControllerState
from region.controller.state_snapshot import SECURITY_READ_MAX, forgotten_json, read_forgotten
from region.controller.topic import TOPIC_ID_BYTES, Definition, Homes, TopicDefinition
from region.controller.topic_rules import TOMBSTONES_MAX
from region.controller.topology import Topology
from region.security import definition as security

AUTO_SINCE: Final = "auto_since"
OWNERS: Final = "owners"


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

    def streams_of(self, topic: TopicDefinition) -> int:
        """Return how many streams one topic has."""
        assert self.topology is not None
        return topic.partitions * (len(self.topology.data_regions) if topic.homes is Homes.EVERY else 1)

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
        self._auto_since: dict[bytes, int] = {}  # topics that were made without that policy
        self._owners: dict[bytes, str] = {}  # topics that take a share

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

    @property
    def index(self) -> int:
        """Return the index of the newest definition of a topic."""
        return self._ledger.definitions.index

    def auto_since(self, topic_id: bytes) -> int:
        """Return at which index a topic's failover policy became `auto`, 0 when it was made so, or is not."""
        return self._auto_since.get(topic_id, 0)

    def newest_auto(self) -> int:
        """Return the highest index at which the failover policy of a topic became `auto`, 0 without one."""
        return max(self._auto_since.values(), default=0)

    @property
    def forgotten_to(self) -> tuple[int, int]:
        """Return up to which index deletions of topics, and of security, may be forgotten."""
        return (self._ledger.definitions.forgotten_to, self._ledger.security.forgotten_to)

    @property
    def deleted(self) -> tuple[int, int]:
        """Return how many deletions of topics, and of security, are remembered."""
        return self._ledger.definitions.tombstone_count, self._ledger.security.grave_count

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
                return self._define(command.definition, command.by)
            case AlterTopic():
                return self._alter(command.definition)
            case DropTopic():
                self._auto_since.pop(command.tombstone.topic_id, None)
                self._owners.pop(command.tombstone.topic_id, None)
                return topic_rules.drop(self._ledger, command.tombstone, [])
            case ForgetDeleted():
                return forget_rules.forget_in_control(self._ledger, command)
            case DefineSecurity():
                return security_rules.define(self._ledger, command.definition, replaces=command.replaces)
            case _:
                raise BadRequest(f"{type(command).__name__} is not a definition")

    def _define(self, wanted: TopicDefinition, by: str) -> Outcome:
        is_new = self.topic_by_id(wanted.topic_id) is None and self.topic_by_name(wanted.name) is None
        refused = self._refuse_share(wanted, by) if is_new else None
        outcome = refused or topic_rules.define(self._ledger, wanted, [])
        if by and is_new and isinstance(outcome, Done):
            self._owners[wanted.topic_id] = by
        return outcome

    def _refuse_share(self, wanted: TopicDefinition, by: str) -> Refused | None:
        """Judge that a principal takes more: it may have as much as stays free beside it (ADR 44)."""
        if not by:
            return None
        mine = [
            topic
            for topic_id, owner in self._owners.items()
            if owner == by and topic_id != wanted.topic_id and (topic := self.topic_by_id(topic_id)) is not None
        ]
        streams = sum(self._ledger.streams_of(topic) for topic in (*mine, wanted))
        is_new = self.topic_by_id(wanted.topic_id) is None
        topics_left = TOPICS_MAX - self._ledger.definitions.live_count - is_new
        streams_left = GROUPS_PER_BROKER_MAX - self._ledger.streams_with(wanted)
        if len(mine) + 1 <= topics_left and streams <= streams_left:
            return None
        text = (
            f"{by} would have {len(mine) + 1} topics with {streams} streams, and the mesh has room for "
            f"{max(topics_left, 0)} topics and {max(streams_left, 0)} streams beside: a principal may have as much as "
            "stays free. Delete topics, use fewer partitions, or let an administrator create it"
        )
        return Refused(error=PolicyViolation, text=text)

    def _alter(self, wanted: TopicDefinition) -> Outcome:
        before = self.topic_by_id(wanted.topic_id)
        if before is not None and wanted.partitions > before.partitions:
            refused = self._refuse_share(wanted, self._owners.get(wanted.topic_id, ""))
            if refused is not None:
                return refused
        outcome = topic_rules.alter(self._ledger, wanted, [])
        after = self.topic_by_id(wanted.topic_id)
        if after is None or after.failover is not FailoverPolicy.AUTO:
            self._auto_since.pop(wanted.topic_id, None)
        elif before is not None and before.failover is not FailoverPolicy.AUTO:
            self._auto_since[wanted.topic_id] = after.index
        return outcome

    def snapshot(self) -> JsonObject:
        """Return the state of the part."""
        books = self._ledger
        definitions = list(books.definitions.everything())
        said = _snapshot(books.definitions.index, definitions, books.security, self.forgotten_to)
        return said | _auto_since_json(self._auto_since) | _owners_json(self._owners)

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
        ledger.definitions.forgotten_to, ledger.security.forgotten_to = read_forgotten(fields)
        auto_since, owners = _read_auto_since(fields), _read_owners(fields)
        fields.done()
        self._ledger, self._auto_since, self._owners = ledger, auto_since, owners

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
    definitions = state.definitions_since(0, limit=TOPICS_MAX + TOMBSTONES_MAX)
    return doubted(_snapshot(state.definitions_index, definitions, state.security, state.forgotten_to))


def doubted(raw: JsonObject) -> JsonObject:
    """Return a snapshot of the part in which regions have yet to say that they follow what it has of failover."""
    topics = raw["topics"]
    assert isinstance(topics, list), raw  # a snapshot of ours
    found = [definition for item in topics if isinstance(definition := read_definition(item), TopicDefinition)]
    auto = {topic.topic_id: topic.index for topic in found if topic.failover is FailoverPolicy.AUTO}
    return {name: value for name, value in raw.items() if name != AUTO_SINCE} | _auto_since_json(auto)


def _owners_json(owners: dict[bytes, str]) -> JsonObject:
    rows: dict[str, list[str]] = {}
    for topic_id, owner in sorted(owners.items()):
        rows.setdefault(owner, []).append(topic_id.hex())
    return {OWNERS: rows} if rows else {}


def _read_owners(fields: Fields) -> dict[bytes, str]:
    rows = fields.value(OWNERS) if fields.has(OWNERS) else {}
    if not isinstance(rows, dict):
        raise FieldError(f"{OWNERS} is not an object")
    return {
        Fields({"topic_id": item}, OWNERS).blob("topic_id", size_bytes=TOPIC_ID_BYTES): owner
        for owner in rows
        for item in Fields(rows, OWNERS).items(owner, count_max=TOPICS_MAX)
    }


def _auto_since_json(auto_since: dict[bytes, int]) -> JsonObject:
    rows = [[topic_id.hex(), index] for topic_id, index in sorted(auto_since.items())]
    return {AUTO_SINCE: rows} if rows else {}


def _read_auto_since(fields: Fields) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for item in fields.items(AUTO_SINCE, count_max=TOPICS_MAX) if fields.has(AUTO_SINCE) else ():
        if not isinstance(item, list) or len(item) != 2:
            raise FieldError(f"{AUTO_SINCE} holds something else than pairs")
        row = Fields({"topic_id": item[0], "index": item[1]}, AUTO_SINCE)
        found[row.blob("topic_id", size_bytes=TOPIC_ID_BYTES)] = row.integer("index", low=0, high=INT64_MAX)
    return found


def _snapshot(
    index: int, definitions: list[Definition], book: SecurityBook, forgotten_to: tuple[int, int]
) -> JsonObject:
    return forgotten_json(*forgotten_to) | {
        "index": index,
        "topics": [definition_to_json(definition) for definition in definitions],
        "security": [security.to_json(row) for row in book.everything()],
    }
