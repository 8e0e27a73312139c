"""The controller's state machine: commands in log order to brokers, topics, groups and producer ids.

Rule 1: pure and deterministic. Every broker of the region applies the same commands and holds the same state.
Rule 2: nothing here fails because of what a command asks: a wish that cannot be met is Refused, and its proposer
reads why.
Rule 3: only a higher definition index applies. The definitions home gives the indexes at apply, so two creations that
race are ordered by its log and the second one sees the first.
Rule 4: a topic id that was dropped never comes back; group ids and producer ids are never given out twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, TypeAlias

from georelay.errors import (
    DataDirectoryError,
    GeorelayError,
    InvalidTopic,
    PolicyViolation,
    TopicExists,
    Unavailable,
    UnknownTopic,
)
from georelay.ids import BrokerId, GroupId, RaftIndex, RegionNumber, StreamKey
from georelay.limits import GROUPS_PER_BROKER_MAX, TOPICS_MAX
from region.controller.commands import AllocateProducerIds, Command, DefineTopic, DropTopic, FormRegion, RegisterBroker
from region.controller.placement_core import ReplicaLoad
from region.controller.registration import BrokerRegistration
from region.controller.topic import Definition, Homes, Tombstone, TopicDefinition
from region.controller.topology import Topology

PRODUCER_COUNTER_BITS: Final = 48  # producer id = region number << 48 | counter
TOMBSTONES_MAX: Final = 100_000
OUTCOMES_REMEMBERED: Final = 4_096  # a proposer reads its outcome in the loop turn of its apply


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One stream's Raft group in this region; voters[0] is the preferred leader."""

    group_id: GroupId
    key: StreamKey
    voters: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAssigned:
    """Effect: a group exists from now on; its voters open it."""

    group_id: GroupId
    key: StreamKey
    voters: tuple[BrokerId, ...]
    topic: TopicDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDropped:
    """Effect: a group is gone; whoever hosts it closes it."""

    group_id: GroupId
    key: StreamKey


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataChanged:
    """Effect: what Metadata answers has changed."""

    metadata_epoch: int


Effect: TypeAlias = GroupAssigned | GroupDropped | MetadataChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Outcome: applied. `definition` for definitions, `first_producer_id` for a block of ids."""

    definition: Definition | None = None
    first_producer_id: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Outcome: not applied; `error` says why and what to do."""

    error: type[GeorelayError]
    text: str


Outcome: TypeAlias = Done | Refused


class ControllerState:
    """Everything the brokers of one region agree on.

    Invariants: 1 names and ids of live topics are unique   2 every stream of a live topic has exactly one group
    3 the index of every definition is <= definitions_index   4 group ids ascend from 1.
    """

    def __init__(self) -> None:
        self.applied_index = RaftIndex(0)
        self.feature_level = 0
        self.metadata_epoch = 0
        self.definitions_index = 0
        self.topology: Topology | None = None
        self.brokers: dict[BrokerId, BrokerRegistration] = {}
        self._history: dict[bytes, Definition] = {}  # by topic id, in order of index: a change moves to the end
        self._names: dict[str, bytes] = {}  # live topics only
        self._assignments: dict[StreamKey, Assignment] = {}
        self._load = ReplicaLoad()
        self._next_group = 1
        self._producers_given = 0
        self._outcomes: dict[RaftIndex, Outcome] = {}

    def apply(self, command: Command, index: RaftIndex) -> list[Effect]:
        """Apply one committed command; return what the host must do about it."""
        assert index > self.applied_index, (index, self.applied_index)
        self.applied_index = index
        effects: list[Effect] = []
        outcome = self._apply(command, effects)
        self._outcomes[index] = outcome
        if len(self._outcomes) > OUTCOMES_REMEMBERED:
            del self._outcomes[next(iter(self._outcomes))]
        return effects

    def outcome(self, index: RaftIndex) -> Outcome | None:
        """Return what became of the command at `index`, None when it is not among the last ones."""
        return self._outcomes.get(index)

    def topic_by_name(self, name: str) -> TopicDefinition | None:
        """Return the live topic of that (unqualified) name."""
        topic_id = self._names.get(name)
        return None if topic_id is None else self.topic_by_id(topic_id)

    def topic_by_id(self, topic_id: bytes) -> TopicDefinition | None:
        """Return the live topic with that id."""
        found = self._history.get(topic_id)
        return found if isinstance(found, TopicDefinition) else None

    def topics(self) -> Iterator[TopicDefinition]:
        """Return the live topics, in order of definition."""
        return (found for found in self._history.values() if isinstance(found, TopicDefinition))

    def assignment(self, key: StreamKey) -> Assignment | None:
        """Return the group of a stream."""
        return self._assignments.get(key)

    def assignments(self) -> Iterator[Assignment]:
        """Return all groups, in order of their ids."""
        return iter(self._assignments.values())

    def definitions_since(self, index: int, *, limit: int) -> list[Definition]:
        """Return at most `limit` definitions with a higher index, the lowest first.

        A topic appears once, with its last change; applying the result in order leads to the same topics.
        """
        newer = 0
        for definition in reversed(self._history.values()):
            if definition.index <= index:
                break
            newer += 1
        if newer == 0:
            return []
        return list(islice(self._history.values(), len(self._history) - newer, len(self._history) - newer + limit))

    # --- one function per command -----------------------------------------------------------------------------------

    def _apply(self, command: Command, effects: list[Effect]) -> Outcome:
        match command:
            case FormRegion():
                return self._form(command, effects)
            case RegisterBroker():
                return self._register(command.registration, effects)
            case DefineTopic():
                return self._define(command.definition, effects)
            case DropTopic():
                return self._drop(command.tombstone, effects)
            case AllocateProducerIds():
                return self._allocate(command)

    def _form(self, command: FormRegion, effects: list[Effect]) -> Outcome:
        recorded, wanted = self.topology, command.topology
        if recorded is not None and (recorded.mesh_id, recorded.region) != (wanted.mesh_id, wanted.region):
            text = (
                f"this is region {recorded.region} of mesh {recorded.mesh_id}, not {wanted.region} of {wanted.mesh_id}"
            )
            return Refused(error=DataDirectoryError, text=text)
        if recorded == wanted and self.feature_level >= command.feature_level:
            return Done()
        lost = (
            {}
            if recorded is None
            else {r.number: r.name for r in recorded.regions if wanted.by_number(r.number) is None}
        )
        if lost:
            return Refused(
                error=PolicyViolation, text=f"regions {sorted(lost.values())} are in use; a region cannot be left out"
            )
        self.topology = wanted
        self.feature_level = max(self.feature_level, command.feature_level)
        self._load.admit(wanted.own.brokers)
        for topic in list(self.topics()):
            self._assign_missing(topic, effects)
        self._metadata_changed(effects)
        return Done()

    def _register(self, registration: BrokerRegistration, effects: list[Effect]) -> Outcome:
        recorded = self.brokers.get(registration.broker)
        if recorded is not None and recorded.disk_uuid != registration.disk_uuid:
            text = (
                f"broker {registration.broker} is known with disk {recorded.disk_uuid}, not {registration.disk_uuid}: "
                "start it on its own data directory"
            )
            return Refused(error=DataDirectoryError, text=text)
        if self.topology is not None and registration.broker not in self.topology.own.brokers:
            return Refused(error=PolicyViolation, text=f"broker {registration.broker} is not one of this region")
        if recorded != registration:
            self.brokers[registration.broker] = registration
            self._metadata_changed(effects)
        return Done()

    def _define(self, wanted: TopicDefinition, effects: list[Effect]) -> Outcome:
        topology = self.topology
        if topology is None:
            return Refused(error=Unavailable, text="this region is not formed yet")
        if wanted.index == 0:
            refused = self._refuse_definition(wanted, topology)
            if refused is not None:
                return refused
            existing = self.topic_by_id(wanted.topic_id)
            if existing is not None:  # the same wish again, after an answer that got lost
                return Done(definition=existing)
            wanted = replace(wanted, index=self.definitions_index + 1)
        elif wanted.index <= self.definitions_index:
            return Done(definition=self.topic_by_id(wanted.topic_id))
        replaced = self._names.get(wanted.name)
        if replaced is not None and replaced != wanted.topic_id:
            self._bury(Tombstone(name=wanted.name, topic_id=replaced, index=wanted.index), effects)
        self._remember(wanted)
        self._names[wanted.name] = wanted.topic_id
        self._assign_missing(wanted, effects)
        self._metadata_changed(effects)
        return Done(definition=wanted)

    def _refuse_definition(self, wanted: TopicDefinition, topology: Topology) -> Refused | None:
        if not topology.is_definitions_home:
            return Refused(error=PolicyViolation, text="only the definitions home orders definitions")
        known = self._history.get(wanted.topic_id)
        if isinstance(known, Tombstone):
            return Refused(
                error=InvalidTopic, text=f"topic id {wanted.topic_id.hex()} was deleted; an id never comes back"
            )
        if known is None and wanted.name in self._names:
            return Refused(error=TopicExists, text=f"topic {wanted.name} is there already")
        if known is None and len(self._names) >= TOPICS_MAX:
            return Refused(
                error=PolicyViolation, text=f"the mesh has {TOPICS_MAX} topics, its maximum; delete some first"
            )
        if len(self._history) - len(self._names) >= TOMBSTONES_MAX:
            return Refused(error=PolicyViolation, text=f"the mesh has {TOMBSTONES_MAX} deleted topics, its maximum")
        groups = len(self._assignments) + sum(key not in self._assignments for key in stream_keys(wanted, topology))
        if groups > GROUPS_PER_BROKER_MAX:
            text = f"{groups} streams are over {GROUPS_PER_BROKER_MAX}; use fewer partitions or delete topics"
            return Refused(error=PolicyViolation, text=text)
        return None

    def _drop(self, wanted: Tombstone, effects: list[Effect]) -> Outcome:
        if wanted.index == 0:
            topology = self.topology
            if topology is None or not topology.is_definitions_home:
                return Refused(error=PolicyViolation, text="only the definitions home orders definitions")
            known = self._history.get(wanted.topic_id)
            if isinstance(known, Tombstone):
                return Done(definition=known)
            if known is None:
                return Refused(error=UnknownTopic, text=f"there is no topic {wanted.name}")
            wanted = replace(wanted, name=known.name, index=self.definitions_index + 1)
        elif wanted.index <= self.definitions_index:
            return Done(definition=self._history.get(wanted.topic_id))
        self._bury(wanted, effects)
        self._metadata_changed(effects)
        return Done(definition=wanted)

    def _allocate(self, command: AllocateProducerIds) -> Outcome:
        if self.topology is None:
            return Refused(error=Unavailable, text="this region is not formed yet")
        first = self._producers_given
        if first + command.count > 1 << PRODUCER_COUNTER_BITS:
            return Refused(error=PolicyViolation, text="this region has given out all of its producer ids")
        self._producers_given += command.count
        return Done(first_producer_id=self.topology.region << PRODUCER_COUNTER_BITS | first)

    # --- parts ------------------------------------------------------------------------------------------------------

    def _remember(self, definition: Definition) -> None:
        assert definition.index >= self.definitions_index, (definition.index, self.definitions_index)
        self._history.pop(definition.topic_id, None)
        self._history[definition.topic_id] = definition
        self.definitions_index = definition.index

    def _bury(self, tombstone: Tombstone, effects: list[Effect]) -> None:
        known = self.topic_by_id(tombstone.topic_id)
        self._remember(tombstone)
        if known is None or self.topology is None:
            return
        del self._names[known.name]
        for key in stream_keys(known, self.topology):
            gone = self._assignments.pop(key, None)
            if gone is not None:
                self._load.release(gone.voters)
                effects.append(GroupDropped(group_id=gone.group_id, key=key))

    def _assign_missing(self, topic: TopicDefinition, effects: list[Effect]) -> None:
        assert self.topology is not None
        for key in stream_keys(topic, self.topology):
            if key in self._assignments:
                continue
            voters = self._load.choose(topic.replication_factor)
            assignment = Assignment(group_id=GroupId(self._next_group), key=key, voters=voters)
            self._next_group += 1
            self._assignments[key] = assignment
            effects.append(GroupAssigned(group_id=assignment.group_id, key=key, voters=voters, topic=topic))

    def _metadata_changed(self, effects: list[Effect]) -> None:
        self.metadata_epoch += 1
        effects.append(MetadataChanged(metadata_epoch=self.metadata_epoch))


def stream_keys(topic: TopicDefinition, topology: Topology) -> Iterator[StreamKey]:
    """Return the streams of a topic, the same in every region: one per partition, or one per region and partition."""
    origins = [RegionNumber(0)] if topic.homes is Homes.ONE else [region.number for region in topology.regions]
    return (StreamKey(topic.topic_id, origin, partition) for origin in origins for partition in range(topic.partitions))
