"""The data that the brokers of one region agree on, and the few steps that every rule is made of.

No rule is decided here: who may do what is said by broker_rules, replica_rules and topic_rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from georelay.errors import PolicyViolation, Unavailable
from georelay.ids import CONTROLLER_GROUP, BrokerId, RaftIndex, RegionNumber, StreamKey
from region.controller.assignment import Assignment
from region.controller.brokers import BrokerRecord, BrokerState
from region.controller.control_voters_core import control_target
from region.controller.definition_book import DefinitionBook
from region.controller.effects import (
    BrokersChanged,
    Effect,
    GroupAssigned,
    GroupDropped,
    MetadataChanged,
    Refused,
    ReplicasWanted,
)
from region.controller.group_table import GroupTable
from region.controller.home_book import HomeBook
from region.controller.mesh_book import MeshBook
from region.controller.registration import BrokerRegistration
from region.controller.security_book import SecurityBook
from region.controller.topic import TOPIC_ID_BYTES, Homes, TopicDefinition
from region.controller.topology import Topology

CONTROLLER_KEY = StreamKey(bytes(TOPIC_ID_BYTES), RegionNumber(0), 0)
LIFE_CYCLE_LEVEL = 2  # from this feature level on, membership is the controller's


class RegionLedger:
    """One region's data; see ControllerState for what it means."""

    def __init__(self) -> None:
        self.applied_index = RaftIndex(0)
        self.feature_level = 0
        self.metadata_epoch = 0
        self.producers_given = 0
        self.topology: Topology | None = None
        self.control: Assignment | None = None
        self.records: dict[BrokerId, BrokerRecord] = {}
        self.brokers: dict[BrokerId, BrokerRegistration] = {}  # registered and not removed
        self.definitions = DefinitionBook()
        self.security = SecurityBook()
        self.homes = HomeBook()
        self.mesh = MeshBook()
        self.groups = GroupTable()

    @property
    def next_definition_index(self) -> int:
        """Return the index that the definitions home gives next: topics and security share one sequence."""
        return max(self.definitions.index, self.security.index, self.homes.index, self.mesh.index) + 1

    def refuse_to_order(self) -> Refused | None:
        """Return why a definition without an index is not ordered here, None when it is."""
        if self.topology is None or not self.topology.is_definitions_home:
            return Refused(error=PolicyViolation, text="only the definitions home orders definitions")
        if self.mesh.has_ceded:
            text = "mesh control orders definitions, and the definitions home no longer does; ask again"
            return Refused(error=Unavailable, text=text)
        return None

    @property
    def has_life_cycle(self) -> bool:
        """Return whether brokers come and go by command."""
        return self.feature_level >= LIFE_CYCLE_LEVEL

    @property
    def strength(self) -> int:
        """Return how many brokers the region counts on: what a replication factor is limited by."""
        if not self.has_life_cycle:
            return 0 if self.topology is None else len(self.topology.own.brokers)
        return sum(record.counts for record in self.records.values())

    def placeable(self) -> list[BrokerId]:
        """Return the brokers that may get new replicas; never empty in a region that is formed."""
        assert self.topology is not None
        if not self.has_life_cycle:
            return list(self.topology.own.brokers)
        active = [broker for broker, record in self.records.items() if record.takes_replicas]
        return active or sorted(self.brokers) or list(self.topology.own.brokers)

    def put_record(self, record: BrokerRecord, effects: list[Effect]) -> None:
        """Enter a broker, or its next state; tell when it changed."""
        if self.records.get(record.broker) == record:
            return
        self.records[record.broker] = record
        if record.registration is None or record.state is BrokerState.REMOVED:
            self.brokers.pop(record.broker, None)
        else:
            self.brokers[record.broker] = record.registration
        if BrokersChanged() not in effects:
            effects.append(BrokersChanged())

    def put_group(self, assignment: Assignment, effects: list[Effect]) -> None:
        """Enter the next version of a group and tell."""
        if assignment.group_id == CONTROLLER_GROUP:
            self.control = assignment
            effects.append(ReplicasWanted(assignment=assignment, topic=None))
            return
        self.groups.put(assignment)
        effects.append(
            ReplicasWanted(assignment=assignment, topic=self.definitions.topic_by_id(assignment.key.topic_id))
        )

    def assign_missing(self, topic: TopicDefinition, effects: list[Effect]) -> None:
        """Give every stream of a topic its group."""
        assert self.topology is not None
        if self.topology.own.witness:
            return
        for key in stream_keys(topic, self.topology):
            if key in self.groups:
                continue
            voters = self.groups.load.choose(topic.replication_factor, self.placeable())
            assignment = Assignment.founded(self.groups.take_id(), key, voters, generation=self.applied_index)
            self.groups.put(assignment)
            effects.append(GroupAssigned(assignment=assignment, topic=topic))

    def streams_with(self, topic: TopicDefinition) -> int:
        """Return how many streams there would be with a topic as it is wanted."""
        assert self.topology is not None
        return len(self.groups) + sum(key not in self.groups for key in stream_keys(topic, self.topology))

    def drop_groups(self, topic: TopicDefinition, effects: list[Effect]) -> None:
        """Take the groups of a topic out."""
        if self.topology is None:
            return
        for key in stream_keys(topic, self.topology):
            gone = self.groups.pop(key)
            if gone is not None:
                effects.append(GroupDropped(group_id=gone.group_id, key=key))

    def change_groups(self, change: Callable[[Assignment], Assignment], effects: list[Effect]) -> None:
        """Put the next version of every group, the controller's included, that `change` changes."""
        everyone = [*self.groups, *([] if self.control is None else [self.control])]
        for assignment in everyone:
            changed = change(assignment)
            if changed is not assignment:
                self.put_group(changed, effects)

    def settle(self, effects: list[Effect]) -> None:
        """Draw the consequences of a change of brokers or replicas: the controller's voters, brokers that are empty."""
        if not self.has_life_cycle or self.control is None:
            return
        voters, learners = control_target(self.control, self.records)
        if set(voters) != set(self.control.target) or set(learners) != set(self.control.target_learners):
            moved = self.control.moved(voters, target_learners=learners, generation=self.applied_index)
            self.put_group(moved, effects)
        for record in list(self.records.values()):
            if record.state is BrokerState.DRAINING and not self._is_needed(record.broker):
                self.put_record(replace(record, state=BrokerState.DRAINED), effects)

    def _is_needed(self, broker: BrokerId) -> bool:
        assert self.control is not None
        votes = broker in self.control.voters or broker in self.control.target or broker in self.control.unsafe
        return votes or self.groups.is_concerned(broker)

    def metadata_changed(self, effects: list[Effect]) -> None:
        """Move the metadata epoch, once per command."""
        if not any(isinstance(effect, MetadataChanged) for effect in effects):
            self.metadata_epoch += 1
            effects.append(MetadataChanged(metadata_epoch=self.metadata_epoch))


def stream_keys(topic: TopicDefinition, topology: Topology) -> Iterator[StreamKey]:
    """Return the streams of a topic, the same in every region: one per partition, or one per region and partition.

    A witness is no origin; a region that was removed stays one.
    """
    regions = [region.number for region in topology.regions if not region.witness]
    origins = [RegionNumber(0)] if topic.homes is Homes.ONE else regions
    return (StreamKey(topic.topic_id, origin, partition) for origin in origins for partition in range(topic.partitions))
