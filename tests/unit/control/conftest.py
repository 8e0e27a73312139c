"""Mesh control in memory: its state beside the controller state of the definitions home."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from georelay.errors import GeorelayError
from georelay.fields import JsonObject
from georelay.ids import BrokerId, RaftIndex, RegionNumber, broker_id
from region.control.definitions_part import DefinitionsPart, command_to_json
from region.control.founding import founding_snapshot
from region.control.regions_part import RegionsPart
from region.control.state_core import BEGIN, ControlState, encode, pieces_of
from region.controller.commands import Command, DefineTopic, FormRegion, RaiseFeatureLevel, RegisterBroker
from region.controller.effects import Outcome
from region.controller.mesh_rows import Charter
from region.controller.registration import BrokerRegistration
from region.controller.state_core import ControllerState
from region.controller.topic import Homes, TopicDefinition
from region.controller.topology import RegionInfo, Topology

FOUNDER = BrokerId(1001)
DISK = "disk-1001"
ID = "a" * 32
NAMES = ("us", "eu", "ap", "sa", "af", "oc")


def topology_of(region: int = 1, *, regions: int = 3) -> Topology:
    return Topology(
        mesh_id="mesh",
        region=RegionNumber(region),
        definitions_home=RegionNumber(1),
        regions=tuple(
            RegionInfo(number=RegionNumber(n), name=NAMES[n - 1], brokers=(broker_id(RegionNumber(n), 1),))
            for n in range(1, regions + 1)
        ),
    )


def registration_of(broker: int, disk: str = "") -> BrokerRegistration:
    return BrokerRegistration(
        broker=BrokerId(broker),
        disk_uuid=disk or f"disk-{broker}",
        kafka_host="127.0.0.1",
        kafka_port=9092,
        grpc="127.0.0.1:1",
        link=f"127.0.0.1:{broker}",
        admin="127.0.0.1:3",
        feature_level_max=4,
    )


def topic_of(name: str, number: int = 1, *, homes: Homes = Homes.ONE, index: int = 0, home: int = 1) -> TopicDefinition:
    return TopicDefinition(
        name=name,
        topic_id=number.to_bytes(16, "big"),
        partitions=2,
        replication_factor=1,
        homes=homes,
        home=RegionNumber(home if homes is Homes.ONE else 0),
        retention_ms=-1,
        retention_bytes=-1,
        config=(),
        index=index,
    )


@dataclass
class Region:
    """The controller state of one region, with an index that rises."""

    state: ControllerState = field(default_factory=ControllerState)
    index: int = 0

    def apply(self, command: Command) -> Outcome:
        self.index += 1
        self.state.apply(command, RaftIndex(self.index))
        outcome = self.state.outcome(RaftIndex(self.index))
        assert outcome is not None
        return outcome


def region_at_level_4(region: int = 1, *, regions: int = 3) -> Region:
    made = Region()
    made.apply(FormRegion(topology=topology_of(region, regions=regions)))
    made.apply(RegisterBroker(registration=registration_of(region * 1000 + 1)))
    made.apply(RaiseFeatureLevel(level=4))
    return made


class Control:
    """A replica of control's state without Raft."""

    def __init__(self) -> None:
        self.regions = RegionsPart()
        self.definitions = DefinitionsPart(self.regions.topology)
        self.state = ControlState([self.definitions, self.regions])
        self.index = 0
        self.log: list[bytes] = []

    def append(self, part: str, command: JsonObject, *, at_us: int = 1) -> JsonObject | GeorelayError:
        return self.take(encode(part, command, at_us=at_us))

    def take(self, raw: bytes) -> JsonObject | GeorelayError:
        self.index += 1
        self.log.append(raw)
        self.state.apply(raw, RaftIndex(self.index))
        outcome = self.state.outcome(RaftIndex(self.index))
        assert outcome is not None
        return outcome

    def define(self, command: Command) -> JsonObject | GeorelayError:
        return self.append("definitions", command_to_json(command))

    def begin(self, home: ControllerState, *, control_id: str = ID, founder: BrokerId = FOUNDER) -> None:
        charter = home.mesh.charter or Charter(control_id=control_id, founder=founder, disk=DISK)
        links = {RegionNumber(1): [(BrokerId(1001), "127.0.0.1:1001")]}
        for piece in pieces_of(founding_snapshot(home, charter=charter, links=links, at_us=1)):
            assert self.append(BEGIN, piece) == {} or self.state.has_begun

    def open(self) -> None:
        assert self.append(BEGIN, {"open": self.state.control_id}) == {}


@pytest.fixture
def home() -> Region:
    return region_at_level_4()


@pytest.fixture
def make_region() -> Callable[..., Region]:
    return region_at_level_4


@pytest.fixture
def make_topic() -> Callable[..., TopicDefinition]:
    return topic_of


@pytest.fixture
def make_registration() -> Callable[..., BrokerRegistration]:
    return registration_of


@pytest.fixture
def make_control() -> Callable[[], Control]:
    return Control


@pytest.fixture
def control(home: Region) -> Control:
    """A control that was founded from one region with one topic, and is open."""
    home.apply(DefineTopic(definition=topic_of("before")))
    made = Control()
    made.begin(home.state)
    made.open()
    return made


@pytest.fixture
def founding_charter() -> Callable[..., Charter]:
    def make(**changes: Any) -> Charter:
        given: dict[str, Any] = {"control_id": ID, "founder": FOUNDER, "disk": DISK} | changes
        return Charter(**given)

    return make
