"""The controller's state machine: commands in log order to brokers, topics, groups and producer ids.

Rule 1: pure and deterministic. Every broker of the region applies the same commands and holds the same state.
Rule 2: nothing here fails because of what a command asks: a wish that cannot be met is Refused, and its proposer
reads why.
Rule 3: group ids and producer ids are never given out twice; the feature level never goes back.
Rule 4: at feature level 1 the outcome of every command is that of the first version, byte for byte.
Further rules: topic_rules (definitions), broker_rules (lives), replica_rules (groups), control_voters_core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from georelay.errors import DataDirectoryError, PolicyViolation, Unavailable
from georelay.ids import CONTROLLER_GROUP, PRODUCER_COUNTER_BITS, BrokerId, GroupId, RaftIndex, StreamKey
from mesh.home.home_row import HomeRow
from region.controller import (
    broker_rules,
    forget_rules,
    home_rules,
    mesh_rules,
    replica_rules,
    security_rules,
    state_snapshot,
    topic_rules,
)
from region.controller.assignment import Assignment
from region.controller.brokers import BrokerRecord, BrokerState
from region.controller.command_kinds import (
    SINCE_LEVEL_2,
    AddBroker,
    AllocateProducerIds,
    AlterTopic,
    CedeDefinitions,
    Command,
    DefineHome,
    DefineSecurity,
    DefineTopic,
    DrainBroker,
    DropTopic,
    ForgetDeleted,
    FormRegion,
    LearnMesh,
    MarkAbsent,
    MarkPresent,
    OpenControl,
    RaiseFeatureLevel,
    Reassign,
    RegisterBroker,
    RemoveBroker,
    ReplaceDisk,
    ReplicaLost,
    ReplicasChanged,
)
from region.controller.effects import (
    BrokersChanged,
    Done,
    Effect,
    GroupAssigned,
    GroupDropped,
    GroupReleased,
    HomeChanged,
    MetadataChanged,
    Outcome,
    Refused,
    ReplicasWanted,
    TopicAltered,
)
from region.controller.home_book import HomeBook, HomePosition
from region.controller.ledger import CONTROLLER_KEY, LIFE_CYCLE_LEVEL, RegionLedger, stream_keys
from region.controller.mesh_book import MeshBook
from region.controller.mesh_rows import ControlRow, RegionRow
from region.controller.placement_core import ReplicaLoad
from region.controller.registration import BrokerRegistration
from region.controller.security_book import SecurityBook
from region.controller.topic import Definition, Tombstone, TopicDefinition
from region.controller.topology import Topology

__all__ = [
    "Assignment",
    "BrokersChanged",
    "ControllerState",
    "Done",
    "Effect",
    "GroupAssigned",
    "GroupDropped",
    "GroupReleased",
    "HomeChanged",
    "MetadataChanged",
    "Outcome",
    "Refused",
    "ReplicasWanted",
    "TopicAltered",
    "stream_keys",
]

PRODUCERS_MAX: Final = 1 << (PRODUCER_COUNTER_BITS - 1)  # the other half is the brokers' own, see ids.brokers_own
OUTCOMES_REMEMBERED: Final = 4_096  # a proposer reads its outcome in the loop turn of its apply


class ControllerState:
    """Everything the brokers of one region agree on.

    Invariants: 1 names and ids of live topics are unique   2 every stream of a live topic has exactly one group
    3 the index of every definition is <= definitions_index   4 group ids ascend from 1   5 no target names a broker
    that its group has to get rid of first.
    """

    def __init__(self) -> None:
        self._ledger = RegionLedger()
        self._outcomes: dict[RaftIndex, Outcome] = {}

    # --- what it says -------------------------------------------------------------------------------------------------

    @property
    def applied_index(self) -> RaftIndex:
        """Return the index of the newest command applied."""
        return self._ledger.applied_index

    @property
    def feature_level(self) -> int:
        """Return what the region may write; 0 before it is formed."""
        return self._ledger.feature_level

    def older_regions(self, level: int) -> list[str]:
        """Return the regions that hold topics and are below a feature level, or did not say here what they are at."""
        topology, rows = self.topology, self._ledger.mesh.regions
        if topology is None:
            return []
        levels = {number: row.level for number, row in rows.items()} | {topology.region: self.feature_level}
        return [region.name for region in topology.data_regions if levels.get(region.number, 0) < level]

    @property
    def has_life_cycle(self) -> bool:
        """Return whether brokers come and go by command (feature level 2)."""
        return self._ledger.has_life_cycle

    @property
    def metadata_epoch(self) -> int:
        """Return a counter that moves whenever Metadata may answer differently."""
        return self._ledger.metadata_epoch

    @property
    def definitions_index(self) -> int:
        """Return the index of the newest definition."""
        return self._ledger.definitions.index

    @property
    def security(self) -> SecurityBook:
        """Return users, lists and quotas; its index tells its version. Never kept: a snapshot brings another one."""
        return self._ledger.security

    @property
    def forgotten_to(self) -> tuple[int, int]:
        """Return up to which index deletions of topics, and of security, may be forgotten."""
        return (self._ledger.definitions.forgotten_to, self._ledger.security.forgotten_to)

    @property
    def homes(self) -> HomeBook:
        """Return the homes of streams that mesh control ordered. Never kept: a snapshot brings another one."""
        return self._ledger.homes

    @property
    def mesh(self) -> MeshBook:
        """Return what is known of mesh control. Never kept: a snapshot brings another one."""
        return self._ledger.mesh

    @property
    def next_definition_index(self) -> int:
        """Return the index after the newest definition of any kind."""
        return self._ledger.next_definition_index

    def home_row(self, key: StreamKey) -> HomeRow | None:
        """Return what control said about the home of a stream; None: its first home, in the first epoch."""
        return self._ledger.homes.find(key.topic_id, key.partition, key.origin)

    @property
    def topology(self) -> Topology | None:
        """Return the shape of mesh and region, None before it is formed."""
        return self._ledger.topology

    @property
    def brokers(self) -> dict[BrokerId, BrokerRegistration]:
        """Return the registered brokers that were not removed."""
        return self._ledger.brokers

    @property
    def records(self) -> dict[BrokerId, BrokerRecord]:
        """Return every broker that was ever known."""
        return self._ledger.records

    @property
    def control(self) -> Assignment | None:
        """Return the controller's own group, None before the region is formed."""
        return self._ledger.control

    @property
    def strength(self) -> int:
        """Return how many brokers the region counts on."""
        return self._ledger.strength

    @property
    def load(self) -> ReplicaLoad:
        """Return wanted replicas and leaderships per broker."""
        return self._ledger.groups.load

    def outcome(self, index: RaftIndex) -> Outcome | None:
        """Return what became of the command at `index`, None when it is not among the last ones applied here."""
        return self._outcomes.get(index)

    def topic_by_name(self, name: str) -> TopicDefinition | None:
        """Return the live topic of that (unqualified) name."""
        topic_id = self._ledger.definitions.id_of(name)
        return None if topic_id is None else self.topic_by_id(topic_id)

    def topic_by_id(self, topic_id: bytes) -> TopicDefinition | None:
        """Return the live topic with that id."""
        return self._ledger.definitions.topic_by_id(topic_id)

    def is_deleted(self, topic_id: bytes) -> bool:
        """Return whether a topic is gone for ever; False for one that is not known here yet."""
        return isinstance(self._ledger.definitions.find(topic_id), Tombstone)

    def topics(self) -> Iterator[TopicDefinition]:
        """Return the live topics, in order of definition."""
        return self._ledger.definitions.topics()

    def assignment(self, key: StreamKey) -> Assignment | None:
        """Return the group of a stream."""
        return self._ledger.groups.of_key(key)

    def group(self, group_id: GroupId) -> Assignment | None:
        """Return a group by its id; the controller's own is 0."""
        return self.control if group_id == CONTROLLER_GROUP else self._ledger.groups.of_id(group_id)

    def was_given_out(self, group_id: GroupId) -> bool:
        """Return whether this region ever had a data group of that id."""
        return 0 < group_id < self._ledger.groups.next_id

    def assignments(self) -> Iterator[Assignment]:
        """Return all data groups, in order of their ids."""
        return iter(self._ledger.groups)

    def definitions_since(self, index: int, *, limit: int) -> list[Definition]:
        """Return at most `limit` definitions with a higher index, the lowest first.

        A topic appears once, with its last change; applying the result in order leads to the same topics.
        """
        return self._ledger.definitions.since(index, limit=limit)

    def homes_since(self, position: HomePosition, *, limit: int) -> list[HomeRow]:
        """Return at most `limit` homes of streams above a position, the lowest first."""
        return self._ledger.homes.since(position, limit=limit)

    def regions_since(self, index: int) -> list[RegionRow]:
        """Return what control said about regions above an index."""
        return [row for _, row in sorted(self._ledger.mesh.regions.items()) if row.index > index]

    def control_since(self, index: int) -> ControlRow | None:
        """Return what control said about itself, when that is above an index."""
        control = self._ledger.mesh.control
        return control if control is not None and control.index > index else None

    @property
    def own_brokers(self) -> int | None:
        """Return how many brokers a replication factor is limited by; None: as many as are configured."""
        return self.strength if self.has_life_cycle else None

    def disk_of(self, broker: BrokerId) -> str | None:
        """Return the uuid of the only disk that may speak for a broker: None unknown, "" for none (removed)."""
        record = self.records.get(broker)
        if record is None:
            return None
        return "" if record.state is BrokerState.REMOVED else record.disk or None

    def refusal_of(self, registration: BrokerRegistration) -> Refused | None:
        """Return why this registration would be refused now, None when it would not."""
        return broker_rules.refuse_registration(self._ledger, registration)

    def peer_addresses(self) -> dict[BrokerId, str]:
        """Return "host:port" of the peer listeners that are known, of brokers that were not removed."""
        return {
            broker: record.peer_address
            for broker, record in self.records.items()
            if record.peer_address and record.state is not BrokerState.REMOVED
        }

    def generation_of(self, broker: BrokerId) -> int:
        """Return which life of a broker this is, 0 for one that is unknown."""
        record = self.records.get(broker)
        return 0 if record is None else record.generation

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def to_snapshot(self) -> bytes:
        """Return the whole state as canonical bytes: equal states have equal ones. Outcomes are not part of it."""
        return state_snapshot.dump(self._ledger)

    def restore(self, raw: bytes) -> list[Effect]:
        """Take over the state in a snapshot; return everything that the host has to look at again.

        Raises:
            SnapshotError: not a whole snapshot that this version knows; the state is as before.
        """
        before = self._ledger
        now = state_snapshot.load(raw)
        self._ledger, self._outcomes = now, {}
        gone = [old for old in before.groups if now.groups.of_id(old.group_id) is None]
        effects: list[Effect] = [GroupDropped(group_id=old.group_id, key=old.key) for old in gone]
        everyone = [*now.groups, *([] if now.control is None else [now.control])]
        effects += [
            ReplicasWanted(assignment=group, topic=now.definitions.topic_by_id(group.key.topic_id))
            for group in everyone
        ]
        for old in before.groups:
            group = now.groups.of_id(old.group_id)
            left = () if group is None else tuple(sorted(old.concerned - group.concerned))
            if left:
                effects.append(GroupReleased(group_id=old.group_id, key=old.key, brokers=left))
        effects += _altered(before.definitions.topics(), now)
        effects += [HomeChanged(key=row.key) for row in now.homes.rows()]
        return [*effects, BrokersChanged(), MetadataChanged(metadata_epoch=now.metadata_epoch)]

    @classmethod
    def from_snapshot(cls, raw: bytes) -> ControllerState:
        """Return the state in a snapshot. Raises SnapshotError."""
        state = cls()
        state.restore(raw)
        return state

    # --- commands -----------------------------------------------------------------------------------------------------

    def apply(self, command: Command, index: RaftIndex) -> list[Effect]:
        """Apply one committed command; return what the host must do about it."""
        assert index > self.applied_index, (index, self.applied_index)
        self._ledger.applied_index = index
        effects: list[Effect] = []
        outcome = self._apply(command, effects)
        self._outcomes[index] = outcome
        if len(self._outcomes) > OUTCOMES_REMEMBERED:
            del self._outcomes[next(iter(self._outcomes))]
        return effects

    def _apply(self, command: Command, effects: list[Effect]) -> Outcome:
        ledger = self._ledger
        if isinstance(command, SINCE_LEVEL_2) and (ledger.topology is None or not ledger.has_life_cycle):
            text = "this region has brokers of the first version: upgrade them, then ask again"
            return Refused(error=PolicyViolation, text=text)
        match command:
            case FormRegion():
                return self._form(command, effects)
            case RegisterBroker():
                return broker_rules.register(ledger, command.registration, effects)
            case DefineTopic():
                return topic_rules.define(ledger, command.definition, effects)
            case AlterTopic():
                return topic_rules.alter(ledger, command.definition, effects)
            case DropTopic():
                return topic_rules.drop(ledger, command.tombstone, effects)
            case DefineSecurity():
                return security_rules.define(ledger, command.definition, replaces=command.replaces)
            case DefineHome():
                return home_rules.define(ledger, command.rows, effects)
            case CedeDefinitions():
                return mesh_rules.cede(ledger, command.charter)
            case OpenControl():
                return mesh_rules.open_control(ledger, command.control_id)
            case ForgetDeleted():
                return forget_rules.forget(ledger, command, effects)
            case LearnMesh():
                return mesh_rules.learn(ledger, command, effects)
            case AllocateProducerIds():
                return self._allocate(command)
            case RaiseFeatureLevel():
                return self._raise_level(command.level, effects)
            case AddBroker():
                return broker_rules.add(ledger, command.broker, command.peers, effects)
            case DrainBroker():
                return broker_rules.drain(ledger, command.broker, effects)
            case RemoveBroker():
                return broker_rules.remove(ledger, command.broker, effects)
            case ReplaceDisk():
                return broker_rules.replace_disk(ledger, command.registration, command.replaces, effects)
            case MarkAbsent():
                return broker_rules.went_away(ledger, command.broker, effects)
            case MarkPresent():
                return broker_rules.came_back(ledger, command.broker, effects)
            case ReplicasChanged():
                return replica_rules.replicas_changed(
                    ledger,
                    command.group_id,
                    voters=command.voters,
                    learners=command.learners,
                    generation=command.generation,
                    membership_index=command.index,
                    effects=effects,
                )
            case Reassign():
                return replica_rules.reassign(
                    ledger,
                    command.group_id,
                    target=command.target,
                    generation=command.generation,
                    pinned=command.pinned,
                    effects=effects,
                )
            case ReplicaLost():
                return replica_rules.replica_lost(
                    ledger,
                    command.group_id,
                    broker=command.broker,
                    generation=command.generation,
                    effects=effects,
                )

    def _form(self, command: FormRegion, effects: list[Effect]) -> Outcome:
        ledger, recorded, wanted = self._ledger, self._ledger.topology, command.topology
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
        ledger.topology = mesh_rules.with_regions(wanted, list(ledger.mesh.regions.values()))
        ledger.feature_level = max(self.feature_level, command.feature_level)
        self._know_brokers(command, effects)
        for topic in list(self.topics()):
            ledger.assign_missing(topic, effects)
        ledger.settle(effects)
        ledger.metadata_changed(effects)
        return Done()

    def _know_brokers(self, command: FormRegion, effects: list[Effect]) -> None:
        """Let in whom the configuration names; until there is a life cycle these are the controller's voters too."""
        ledger, own = self._ledger, command.topology.own.brokers
        disks = dict(command.disks) if ledger.control is None else {}
        for broker in own:
            record = ledger.records.get(broker)
            if record is None:
                ledger.put_record(BrokerRecord(broker=broker, founding_disk=disks.get(broker, "")), effects)
            elif record.registration is None and disks.get(broker):
                ledger.put_record(replace(record, founding_disk=disks[broker]), effects)
        if ledger.control is None or not ledger.has_life_cycle:
            ledger.control = Assignment.founded(CONTROLLER_GROUP, CONTROLLER_KEY, own, generation=ledger.applied_index)

    def _raise_level(self, level: int, effects: list[Effect]) -> Outcome:
        ledger = self._ledger
        if ledger.topology is None:
            return Refused(error=Unavailable, text="this region is not formed yet")
        if level <= ledger.feature_level:
            return Done()
        ledger.feature_level = level
        if level >= LIFE_CYCLE_LEVEL:
            ledger.settle(effects)
        ledger.metadata_changed(effects)
        return Done()

    def _allocate(self, command: AllocateProducerIds) -> Outcome:
        ledger = self._ledger
        if ledger.topology is None:
            return Refused(error=Unavailable, text="this region is not formed yet")
        first = ledger.producers_given
        if first + command.count > PRODUCERS_MAX:
            return Refused(error=PolicyViolation, text="this region has given out all of its producer ids")
        ledger.producers_given += command.count
        return Done(first_producer_id=ledger.topology.region << PRODUCER_COUNTER_BITS | first)


def _altered(before: Iterator[TopicDefinition], now: RegionLedger) -> Iterator[TopicAltered]:
    """Return the topics that are still there and were defined anew: what serves them follows other settings."""
    for topic in before:
        current = now.definitions.topic_by_id(topic.topic_id)
        if current is not None and current != topic:
            yield TopicAltered(topic=current)
