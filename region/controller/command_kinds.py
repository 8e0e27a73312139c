"""Commands of the controller's Raft group as values; their bytes are in commands.py.

Rule: what came with a feature level is proposed only once the region is at it; RaiseFeatureLevel alone comes one step
earlier, when every broker that is there can read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from georelay.ids import BrokerId, GroupId
from mesh.home.home_row import HomeRow
from region.controller.mesh_rows import Charter, ControlRow, RegionRow
from region.controller.registration import BrokerRegistration
from region.controller.topic import Tombstone, TopicDefinition
from region.controller.topology import Topology
from region.security.definition import Kind, SecurityDefinition

FEATURE_LEVEL: Final = 1  # at which a region forms
FEATURE_LEVEL_MAX: Final = 9  # the highest that this version reads and writes
MESH_LEVEL: Final = 4  # homes that move, PROMISE and SEAL entries, mesh control
SETTINGS_LEVEL: Final = 5  # cleanup.policy=compact, message.timestamp.type and max.message.bytes are enforced
FORGET_LEVEL: Final = 8  # deletions that every region has are forgotten
OWNERS_LEVEL: Final = 8  # mesh control keeps whose topics are
JOURNAL_LEVEL: Final = 9  # brokers sync small writes in their entry journals: no older one opens their directories
PRODUCER_BLOCK_MAX: Final = 100_000


class CommandError(ValueError):
    """Bytes that are not a command this version knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormRegion:
    """Record the shape of mesh and region; proposed by the leader when the recorded one differs from its own.

    `disks` are those of the founders, sent when the region is formed: (broker, disk uuid), ascending.
    """

    topology: Topology
    feature_level: int = FEATURE_LEVEL
    disks: tuple[tuple[BrokerId, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """Record where a broker listens and which disk it has."""

    registration: BrokerRegistration


@dataclass(frozen=True, slots=True, kw_only=True)
class DefineTopic:
    """Define a topic. Index 0: the definitions home gives it the next index at apply; else it was given there.

    `by` is the principal whose share of the mesh it takes, "" for nobody's; of mesh control only.
    """

    definition: TopicDefinition
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTopic:
    """Change a topic at the definitions home; the index is that of the definition this one was made from."""

    definition: TopicDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTopic:
    """Delete a topic for ever (by id). Index as in DefineTopic."""

    tombstone: Tombstone


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds:
    """Hand `count` producer ids, never given out before, to one broker."""

    broker: BrokerId
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseFeatureLevel:
    """Let the region write what came with `level`; it never goes back."""

    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddBroker:
    """Let a broker take replicas: a new one, or one that was being drained, drained or removed."""

    broker: BrokerId
    peers: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBroker:
    """Move every replica away from a broker."""

    broker: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBroker:
    """Forget a broker that is drained or absent."""

    broker: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceDisk:
    """Begin a new life of a broker: its disk `replaces` is gone."""

    registration: BrokerRegistration
    replaces: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkAbsent:
    """A broker was not heard for long: let others take over."""

    broker: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkPresent:
    """An absent broker is heard again."""

    broker: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasChanged:
    """The committed membership of a group, as its leader saw it under that generation.

    `index` is that of the group's log entry that put it in force, 0 for the founders' membership.
    """

    group_id: GroupId
    voters: tuple[BrokerId, ...]
    learners: tuple[BrokerId, ...]
    generation: int
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassign:
    """Want other voters of a group. `pinned` > 0: an operator chose that many; else the region places them."""

    group_id: GroupId
    target: tuple[BrokerId, ...]
    generation: int
    pinned: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLost:
    """A broker that lives cannot use its replica of a group any more: it is to be made anew.

    `generation` is that of the group when the broker said so.
    """

    group_id: GroupId
    broker: BrokerId
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DefineSecurity:
    """Define, change or delete a user, a list, a quota. Index as in DefineTopic.

    `replaces` is the index of the definition that this one was made from, 0 for none; see security_rules.
    """

    definition: SecurityDefinition
    replaces: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DefineHome:
    """Take over homes of streams as mesh control ordered them, in order of (index, topic id, partition)."""

    rows: tuple[HomeRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CedeDefinitions:
    """Name the founder of mesh control; from this command on the definitions home orders nothing."""

    charter: Charter


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenControl:
    """Let the control that the charter names begin to order."""

    control_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnMesh:
    """Take over what mesh control says about itself and about the regions.

    Args:
        is_all: False: rows that changed before one of these are still to come; all are asked for again.
    """

    control: ControlRow | None
    regions: tuple[RegionRow, ...]
    is_all: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetDeleted:
    """Drop what reminds of deletions up to these indexes, because every region has followed them.

    Args:
        topics_to, security_to: of topics, and of users, lists, quotas and bindings.
        topics, security: what this region still has and mesh control does not: it goes. Of a region only, which was
            away for so long that the deletion itself is forgotten.
    """

    topics_to: int
    security_to: int
    topics: tuple[bytes, ...] = ()
    security: tuple[tuple[Kind, str], ...] = ()


Command: TypeAlias = (
    FormRegion
    | RegisterBroker
    | DefineTopic
    | AlterTopic
    | DropTopic
    | AllocateProducerIds
    | RaiseFeatureLevel
    | AddBroker
    | DrainBroker
    | RemoveBroker
    | ReplaceDisk
    | MarkAbsent
    | MarkPresent
    | ReplicasChanged
    | Reassign
    | ReplicaLost
    | DefineSecurity
    | DefineHome
    | CedeDefinitions
    | OpenControl
    | LearnMesh
    | ForgetDeleted
)
SINCE_LEVEL_2: Final = (
    AlterTopic,
    AddBroker,
    DrainBroker,
    RemoveBroker,
    ReplaceDisk,
    MarkAbsent,
    MarkPresent,
    ReplicasChanged,
    Reassign,
    ReplicaLost,
)
