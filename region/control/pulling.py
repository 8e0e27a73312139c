"""What mesh control gives away: the lists that regions pull, its status, and where brokers are reached.

Rule: any replica answers a pull from what it has applied; all of that is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast

from georelay.errors import Unavailable
from georelay.fields import Fields, JsonObject
from georelay.ids import BrokerId, RegionNumber, StreamKey, region_of
from mesh.home.home_row import HomeRow
from mesh.listening.addresses_core import Source
from mesh.replication.mesh_links import BrokerAddress, MeshLinks
from region.control.definitions_part import DefinitionsPart
from region.control.departure import AskRegion, Departure
from region.control.drain_heard import DrainHeard
from region.control.regions_part import RegionsPart
from region.control.replica import ControlReplica
from region.control.state_core import ControlState
from region.controller import mesh_pull
from region.controller.home_book import HomePosition
from region.controller.mesh_rows import ControlRow, RegionRow, VoterRow
from region.controller.security_book import SecurityBook
from region.controller.service import ControllerService
from region.controller.topic import Definition, Homes, TopicDefinition


class HomesSource(Protocol):
    """What the part "homes" gives beside being a part."""

    def since(self, position: HomePosition, *, limit: int) -> list[HomeRow]:
        """Return homes above a position, the lowest first."""

    def row(self, key: StreamKey) -> HomeRow | None:
        """Return the row of a stream, None when its home never moved."""

    def foreign(self) -> Iterator[HomeRow]:
        """Return the rows of streams that a region began for itself: coordinators."""

    def moved(self, key: StreamKey) -> HomeRow | None:
        """Return the row of a stream whose home was ever to move."""


class ControlView(Protocol):
    """What is read of MeshControl here."""

    me: BrokerId
    state: ControlState
    regions: RegionsPart
    definitions: DefinitionsPart
    controller: ControllerService
    replica: ControlReplica | None
    alarms: dict[str, str]

    def row(self) -> ControlRow | None:
        """Return who control is."""

    async def ask(self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float) -> JsonObject:
        """Carry a question to one broker of the mesh; see calls.AskBroker."""


class ControlBooks:
    """Implements region.controller.mesh_pull.PulledBooks over control's state."""

    def __init__(self, control: ControlView) -> None:
        self._control = control

    def give(self, question: JsonObject) -> JsonObject:
        """Answer a pull. Raises Unavailable, FieldError."""
        if self._control.replica is None or not self._control.state.is_open:
            raise Unavailable("this broker holds no replica of mesh control that could answer")
        return mesh_pull.give(self, Fields(question, "pull"))

    @property
    def security(self) -> SecurityBook:
        """Return users, lists, quotas and bindings."""
        return self._control.definitions.security

    @property
    def forgotten_to(self) -> tuple[int, int]:
        """Return up to which index deletions of topics, and of security, may be forgotten."""
        return self._control.definitions.forgotten_to

    def topic_by_id(self, topic_id: bytes) -> TopicDefinition | None:
        """Return the live topic with that id."""
        return self._control.definitions.topic_by_id(topic_id)

    def definitions_since(self, index: int, *, limit: int) -> list[Definition]:
        """Return topics and tombstones above an index."""
        return self._control.definitions.definitions_since(index, limit=limit)

    def homes_since(self, position: HomePosition, *, limit: int) -> list[HomeRow]:
        """Return homes above a position."""
        homes = self._homes()
        return [] if homes is None else homes.since(position, limit=limit)

    def regions_since(self, index: int) -> list[RegionRow]:
        """Return regions above an index."""
        return self._control.regions.regions_since(index)

    def control_since(self, index: int) -> ControlRow | None:
        """Return who control is, when that is above an index."""
        row = self._control.state.row()
        return row if row is not None and row.index > index else None

    def homes_in(self, region: RegionNumber) -> list[str]:
        """Name the streams whose home is a region, and those of other regions' coordinators that it took over."""
        homes = self._homes()
        named: list[str] = []
        for topic in self._control.definitions.topics():
            for partition in range(topic.partitions if topic.homes is Homes.ONE else 0):
                key = StreamKey(topic.topic_id, RegionNumber(0), partition)
                row = None if homes is None else homes.row(key)
                is_target = row is not None and row.moving is not None and row.moving.target == region
                if is_target or (topic.home if row is None else row.home) == region:
                    named.append(f"{topic.name} partition {partition}")
        for row in () if homes is None else homes.foreign():
            if region in (row.home, 0 if row.moving is None else row.moving.target) and row.origin != region:
                named.append(f"coordinator {row.partition} of region {row.origin}")
        return named

    def departure(self, ask: AskRegion) -> Departure:
        """Return who asks regions what would be lost with one that leaves."""
        control = self._control
        heard = DrainHeard(
            me=control.me, rows=lambda: control.controller.state.mesh.regions, ask=control.ask, envelope=self._envelope
        )
        return Departure(
            topics=control.definitions.topics, regions=control.regions, ask=ask, moved=self._moved, heard=heard
        )

    def _envelope(self, question: JsonObject) -> JsonObject:
        state = self._control.state
        return {"generation": state.generation, "control_id": state.control_id, "body": question}

    def _moved(self, key: StreamKey) -> HomeRow | None:
        """Return the row of a stream whose home was ever to move."""
        homes = self._homes()
        return None if homes is None else homes.moved(key)

    def _homes(self) -> HomesSource | None:
        return cast("HomesSource | None", self._control.state.parts.get("homes"))

    # --- where brokers are --------------------------------------------------------------------------------------------

    def know(self, broker: BrokerId, address: str, links: MeshLinks, source: Source = Source.CONTROL) -> None:
        """Tell the links where control, or the configuration, has a broker."""
        if address and broker != self._control.me:
            links.know_brokers(region_of(broker), [BrokerAddress(broker_id=broker, address=address)], source)

    def own_address(self) -> str:
        """Return the link address that this broker registered."""
        own = self._control.controller.state.brokers.get(self._control.me)
        return "" if own is None else own.link

    # --- status -------------------------------------------------------------------------------------------------------

    def status(self) -> JsonObject:
        """Return what is known here, ready for JSON."""
        control, replica, row = self._control, self._control.replica, self._control.row()
        leader = None if replica is None else replica.leader
        charter = control.controller.state.mesh.charter
        said: JsonObject = {
            "broker": control.me,
            "is_open": control.state.is_open if replica is not None else row is not None,
            "generation": 0 if row is None else row.generation,
            "control_id": "" if row is None else row.control_id,
            "leader": -1 if leader is None else leader.broker,
            "index": control.state.index,
            "replicas": [] if row is None else [self._replica(row, member) for member in row.members],
            "replica_here": None if replica is None else str(replica.name),
            "regions": [region.to_json() for region in self._regions()],
            "alarms": sorted(control.alarms.values()),
        }
        return said | ({} if charter is None else {"charter": charter.to_json()})

    def _regions(self) -> list[RegionRow]:
        if self._control.replica is not None and self._control.state.is_open:
            return self._control.regions.rows()
        return [row for _, row in sorted(self._control.controller.state.mesh.regions.items())]

    def _replica(self, row: ControlRow, member: VoterRow) -> JsonObject:
        replica = self._control.replica
        if member.retired:
            role = "leaving"
        elif member.replica in row.voters:
            role = "voter"
        else:
            role = "learner" if member.replica in row.learners else "joining"
        return {
            "replica": member.replica,
            "broker": member.broker,
            "region": member.region,
            "disk": member.disk,
            "address": member.address,
            "role": role,
            "alive": None if replica is None else replica.is_alive(member.replica),
        }
