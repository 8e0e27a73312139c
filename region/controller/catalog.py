"""The topic names of one region: plain names, and `<region>.<topic>` for topics that every region is home of.

A view over the controller's state, rebuilt when its metadata epoch has moved; it holds nothing of its own.

Rule: whatever a publish or a fetch asks of a name's partition is found once in a metadata epoch (`place`). What may
change without moving that epoch is not kept: the replicas on their way, who leads, the replica on this broker.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from georelay.ids import GroupId, RegionNumber, StreamKey
from region.controller.state_core import Assignment, ControllerState
from region.controller.topic import INTERNAL_PREFIX, TOPIC_ID_BYTES, Homes, TopicDefinition, TopicView
from region.controller.topology import RegionInfo, Topology


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A name's partition, as of one metadata epoch.

    Attributes:
        home: the region that sequences it.
        group_id: of its replicas in this region; None while, or where, there are none.
    """

    view: TopicView
    key: StreamKey
    home: RegionNumber
    group_id: GroupId | None


class TopicCatalog:
    """Names to streams, for clients of this region."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state
        self._built_at = -1
        self._views: dict[str, TopicView] = {}
        self._by_wire_id: dict[bytes, TopicView] = {}
        self._places: dict[tuple[str, int], StreamPlace] = {}  # those that were asked for in this epoch

    @property
    def metadata_epoch(self) -> int:
        """Return a counter that moves whenever an answer of this class may have changed."""
        return self._state.metadata_epoch

    def topics(self) -> list[TopicView]:
        """Return every name, sorted."""
        return list(self._current().values())

    def topic(self, name: str) -> TopicView | None:
        """Return the topic of a plain or qualified name."""
        return self._current().get(name)

    def topic_of_wire_id(self, wire_id: bytes) -> TopicView | None:
        """Return the topic whose Metadata id is `wire_id`."""
        self._current()
        return self._by_wire_id.get(wire_id)

    def topic_by_id(self, topic_id: bytes) -> TopicDefinition | None:
        """Return the definition with the mesh-wide id `topic_id`."""
        return self._state.topic_by_id(topic_id)

    def stream_key(self, name: str, partition: int) -> StreamKey | None:
        """Return the stream behind a name's partition."""
        place = self.place(name, partition)
        return None if place is None else place.key

    def place(self, name: str, partition: int) -> StreamPlace | None:
        """Return where a name's partition is; None for a topic or partition that does not exist."""
        view = self._current().get(name)
        place = self._places.get((name, partition))
        if place is None and view is not None and 0 <= partition < view.partitions:
            key = StreamKey(view.topic_id, view.origin, partition)
            home, assignment = self.home_of(key), self._state.assignment(key)
            assert home is not None, "a topic with a name has a home"
            group_id = None if assignment is None else assignment.group_id
            place = self._places[name, partition] = StreamPlace(view, key, home, group_id)
        return place

    def assignment(self, name: str, partition: int) -> Assignment | None:
        """Return group and voters of a name's partition in this region, as they are now."""
        place = self.place(name, partition)
        return None if place is None else self._state.assignment(place.key)

    def home_of(self, key: StreamKey) -> RegionNumber | None:
        """Return the region that sequences a stream, None when its topic is unknown here."""
        topic = self._state.topic_by_id(key.topic_id)
        if topic is None:
            return None
        row = self._state.home_row(key)
        if row is not None:
            return row.home
        return topic.home if topic.homes is Homes.ONE else key.origin

    def _current(self) -> dict[str, TopicView]:
        if self._built_at != self._state.metadata_epoch:
            topology = self._state.topology
            views = (
                []
                if topology is None
                else [v for topic in self._state.topics() for v in _views(topic, topology, self._state.strength)]
            )
            self._views = {view.name: view for view in sorted(views, key=lambda view: view.name)}
            self._by_wire_id = {view.wire_id: view for view in views}
            self._places = {}
            self._built_at = self._state.metadata_epoch
        return self._views


def wire_id(topic_id: bytes, origin: RegionNumber) -> bytes:
    """Return the Metadata id of a qualified name: the same in every region, different for each origin."""
    return hashlib.blake2b(topic_id + origin.to_bytes(2, "big"), digest_size=TOPIC_ID_BYTES).digest()


def _views(topic: TopicDefinition, topology: Topology, strength: int) -> list[TopicView]:
    if topic.homes is Homes.ONE:
        only = _view(topic, topic.name, topic.topic_id, RegionNumber(0), home=topic.home, is_mirror_name=False)
        views = [only]
    else:
        plain = _view(topic, topic.name, topic.topic_id, topology.region, home=topology.region, is_mirror_name=False)
        views = [plain, *(_qualified(topic, region, topology) for region in topology.regions if not region.witness)]
    replicas = min(topic.replication_factor, max(strength, 1))
    return [replace(view, replication_factor=replicas) for view in views]


def _qualified(topic: TopicDefinition, region: RegionInfo, topology: Topology) -> TopicView:
    return _view(
        topic,
        f"{region.name}.{topic.name}",
        wire_id(topic.topic_id, region.number),
        region.number,
        home=region.number,
        is_mirror_name=region.number != topology.region,
    )


def _view(
    topic: TopicDefinition, name: str, wire: bytes, origin: RegionNumber, *, home: RegionNumber, is_mirror_name: bool
) -> TopicView:
    return TopicView(
        name=name,
        topic_id=topic.topic_id,
        wire_id=wire,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        homes=topic.homes,
        home=home,
        is_mirror_name=is_mirror_name,
        origin=origin,
        internal=topic.name.startswith(INTERNAL_PREFIX),
        definition=topic,
    )
