"""What the homes part reads of the other parts of mesh control: which topics there are, and which regions hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from georelay.ids import RegionNumber
from region.controller.command_kinds import MESH_LEVEL
from region.controller.mesh_rows import RegionRow, RegionState
from region.controller.topic import TopicDefinition


class Definitions(Protocol):
    """The part "definitions"."""

    def topic_by_id(self, topic_id: bytes) -> TopicDefinition | None:
        """Return the live topic with that id."""

    def topics(self) -> Iterable[TopicDefinition]:
        """Return the live topics."""


class Regions(Protocol):
    """The part "regions"."""

    def rows(self) -> Iterable[RegionRow]:
        """Return every region, removed ones too."""

    def row(self, number: int) -> RegionRow | None:
        """Return a region by its number."""


class ControlTopics:
    """Implements region.homes.part.MeshTopics over the parts of control's state."""

    def __init__(self, definitions: Definitions, regions: Regions) -> None:
        self._definitions = definitions
        self._regions = regions

    def find(self, topic_id: bytes) -> TopicDefinition | None:
        """Return the live topic."""
        return self._definitions.topic_by_id(topic_id)

    def topics(self) -> Iterator[TopicDefinition]:
        """Return the live topics."""
        return iter(self._definitions.topics())

    def holders(self, topic: TopicDefinition) -> tuple[RegionNumber, ...]:
        """Return the regions that store the topic: all that hold topics, those on their way out included."""
        del topic  # every region holds every topic
        return self.data_regions()

    def data_regions(self) -> tuple[RegionNumber, ...]:
        """Return the regions that hold topics."""
        rows = self._regions.rows()
        return tuple(row.number for row in rows if row.state is not RegionState.REMOVED and not row.witness)

    def may_be_home(self, region: RegionNumber) -> bool:
        """Return whether homes may move to the region."""
        row = self._regions.row(region)
        return row is not None and row.state is RegionState.ACTIVE and not row.witness and row.level >= MESH_LEVEL

    def is_removed(self, region: RegionNumber) -> bool:
        """Return whether the region left the mesh."""
        row = self._regions.row(region)
        return row is not None and row.state is RegionState.REMOVED
