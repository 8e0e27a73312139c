"""What applying a command asks of the host, and what became of the command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from georelay.errors import GeorelayError
from georelay.ids import BrokerId, GroupId, StreamKey
from region.controller.assignment import Assignment
from region.controller.topic import Definition, TopicDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAssigned:
    """A group exists from now on; whoever `assignment.hosts` names opens it."""

    assignment: Assignment
    topic: TopicDefinition

    @property
    def group_id(self) -> GroupId:
        """Return the group."""
        return self.assignment.group_id

    @property
    def key(self) -> StreamKey:
        """Return its stream."""
        return self.assignment.key

    @property
    def voters(self) -> tuple[BrokerId, ...]:
        """Return its voters, the preferred leader first."""
        return self.assignment.voters

    @property
    def founders(self) -> tuple[BrokerId, ...]:
        """Return its first voters."""
        return self.assignment.founders

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """Return the voters that are wanted."""
        return self.assignment.target


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasWanted:
    """Target, unsafe brokers or known membership of a group changed; `topic` is None for the controller's own."""

    assignment: Assignment
    topic: TopicDefinition | None

    @property
    def group_id(self) -> GroupId:
        """Return the group."""
        return self.assignment.group_id


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReleased:
    """These brokers are neither members of the group nor wanted: each closes and deletes its replica."""

    group_id: GroupId
    key: StreamKey
    brokers: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDropped:
    """A group is gone with its topic; whoever hosts it closes and deletes it."""

    group_id: GroupId
    key: StreamKey


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAltered:
    """Settings of a topic changed."""

    topic: TopicDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeChanged:
    """Mesh control said something new about the home of a stream; the state has the row."""

    key: StreamKey


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersChanged:
    """A broker's address, disk or state changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataChanged:
    """What Metadata answers has changed."""

    metadata_epoch: int


Effect: TypeAlias = (
    GroupAssigned
    | ReplicasWanted
    | GroupReleased
    | GroupDropped
    | TopicAltered
    | HomeChanged
    | BrokersChanged
    | MetadataChanged
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Outcome: applied. `definition` for topics, `definition_index` for security, `first_producer_id` for ids."""

    definition: Definition | None = None
    definition_index: int = 0
    first_producer_id: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Outcome: not applied; `error` says why and what to do."""

    error: type[GeorelayError]
    text: str


Outcome: TypeAlias = Done | Refused
