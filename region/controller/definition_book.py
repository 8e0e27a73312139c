"""Definitions of topics in the order in which the definitions home made them; tombstones included."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from region.controller.topic import Definition, Tombstone, TopicDefinition


class DefinitionBook:
    """Topics by id and by name.

    Invariants: 1 names and ids of live topics are unique   2 the index of every definition is <= `index`
    3 the book is in order of index: a change moves a topic to the end
    4 every deletion above `forgotten_to` and up to `index` has its tombstone; older ones may be forgotten.
    """

    def __init__(self) -> None:
        self.index = 0
        self.forgotten_to = 0
        self._history: dict[bytes, Definition] = {}
        self._names: dict[str, bytes] = {}  # live topics only

    @property
    def live_count(self) -> int:
        """Return how many topics live."""
        return len(self._names)

    @property
    def tombstone_count(self) -> int:
        """Return how many topics were deleted."""
        return len(self._history) - len(self._names)

    def find(self, topic_id: bytes) -> Definition | None:
        """Return the topic or the tombstone with that id."""
        return self._history.get(topic_id)

    def topic_by_id(self, topic_id: bytes) -> TopicDefinition | None:
        """Return the live topic with that id."""
        found = self._history.get(topic_id)
        return found if isinstance(found, TopicDefinition) else None

    def id_of(self, name: str) -> bytes | None:
        """Return the id of the live topic of that name."""
        return self._names.get(name)

    def topics(self) -> Iterator[TopicDefinition]:
        """Return the live topics, in order of definition."""
        return (found for found in self._history.values() if isinstance(found, TopicDefinition))

    def everything(self) -> Iterator[Definition]:
        """Return topics and tombstones, in order of index."""
        return iter(self._history.values())

    def since(self, index: int, *, limit: int) -> list[Definition]:
        """Return at most `limit` definitions with a higher index, the lowest first."""
        newer = 0
        for definition in reversed(self._history.values()):
            if definition.index <= index:
                break
            newer += 1
        start = len(self._history) - newer
        return list(islice(self._history.values(), start, start + limit)) if newer else []

    def forget_deleted(self, to: int) -> None:
        """Drop the tombstones up to an index. The newest definition stays: by it readers know that they have all."""
        dead = [
            found.topic_id
            for found in self._history.values()
            if isinstance(found, Tombstone) and found.index <= to and found.index < self.index
        ]
        for topic_id in dead:
            del self._history[topic_id]
        self.forgotten_to = max(self.forgotten_to, to)

    def bury(self, topic_id: bytes) -> TopicDefinition | None:
        """Put a tombstone in the place of a topic that was deleted elsewhere, long ago; return the topic."""
        known = self.topic_by_id(topic_id)
        if known is not None:
            self._history[topic_id] = Tombstone(name=known.name, topic_id=topic_id, index=known.index)
            del self._names[known.name]
        return known

    def remember(self, definition: Definition) -> None:
        """Enter a definition at the end; a topic by its name, a tombstone without one."""
        assert definition.index >= self.index, (definition.index, self.index)
        known = self._history.pop(definition.topic_id, None)
        if isinstance(known, TopicDefinition) and self._names.get(known.name) == known.topic_id:
            del self._names[known.name]
        self._history[definition.topic_id] = definition
        self.index = definition.index
        if isinstance(definition, TopicDefinition):
            self._names[definition.name] = definition.topic_id
