"""Any order of steps, repeats and crashes of any founders leaves at most one who orders, and loses no definition."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from georelay.errors import GeorelayError
from georelay.ids import BrokerId, RaftIndex, RegionNumber
from region.control.definitions_part import DefinitionsPart, command_to_json
from region.control.founding import founding_snapshot
from region.control.regions_part import RegionsPart
from region.control.state_core import BEGIN, ControlState, encode, pieces_of
from region.controller.commands import (
    CedeDefinitions,
    Command,
    DefineTopic,
    FormRegion,
    OpenControl,
    RaiseFeatureLevel,
)
from region.controller.effects import Done
from region.controller.mesh_rows import Charter
from region.controller.state_core import ControllerState
from region.controller.topic import Homes, TopicDefinition
from region.controller.topology import RegionInfo, Topology

FOUNDERS = (1, 2)
STEPS = st.tuples(st.sampled_from(["cede", "begin", "confirm", "crash"]), st.sampled_from(FOUNDERS))


def topic(number: int) -> TopicDefinition:
    return TopicDefinition(
        name=f"t{number}",
        topic_id=number.to_bytes(16, "big"),
        partitions=1,
        replication_factor=1,
        homes=Homes.ONE,
        home=RegionNumber(1),
        retention_ms=-1,
        retention_bytes=-1,
        config=(),
        index=0,
    )


class Founder:
    """One broker that may be named; what survives a crash is its log."""

    def __init__(self, number: int) -> None:
        self.id = f"{number:032x}"
        self.charter = Charter(control_id=self.id, founder=BrokerId(1000 + number), disk=f"disk-{number}")
        self.log: list[bytes] = []
        self.crash()

    def crash(self) -> None:
        regions = RegionsPart()
        self.definitions = DefinitionsPart(regions.topology)
        self.state = ControlState([self.definitions, regions])
        for index, raw in enumerate(self.log, start=1):
            self.state.apply(raw, RaftIndex(index))

    def append(self, part: str, command: dict[str, object]) -> object:
        raw = encode(part, command, at_us=1)
        self.log.append(raw)
        self.state.apply(raw, RaftIndex(len(self.log)))
        return self.state.outcome(RaftIndex(len(self.log)))


class World:
    def __init__(self) -> None:
        self.home = ControllerState()
        self.index = 0
        self.made = 0
        self.acknowledged: dict[bytes, int] = {}
        self.founders = {number: Founder(number) for number in FOUNDERS}
        regions = (RegionInfo(number=RegionNumber(1), name="us", brokers=(BrokerId(1001),)),)
        topology = Topology(mesh_id="m", region=RegionNumber(1), definitions_home=RegionNumber(1), regions=regions)
        self.apply(FormRegion(topology=topology))
        self.apply(RaiseFeatureLevel(level=4))

    def apply(self, command: Command) -> object:
        self.index += 1
        self.home.apply(command, RaftIndex(self.index))
        return self.home.outcome(RaftIndex(self.index))

    def step(self, verb: str, founder: Founder) -> None:
        charter = self.home.mesh.charter
        named = charter is not None and charter.control_id == founder.id
        match verb:
            case "cede":
                self.apply(CedeDefinitions(charter=founder.charter))
            case "begin" if named and charter is not None and not founder.state.has_begun:
                for piece in pieces_of(founding_snapshot(self.home, charter=charter, links={}, at_us=1)):
                    founder.append(BEGIN, piece)
            case "confirm" if founder.state.has_begun:
                self.confirm(founder)
            case "crash":
                founder.crash()
            case _:
                pass

    def confirm(self, founder: Founder) -> None:
        """Ask the definitions home; only its yes leads to the last step."""
        if isinstance(self.apply(OpenControl(control_id=founder.id)), Done):
            founder.append(BEGIN, {"open": founder.id})

    def define(self) -> None:
        """Have everybody who might order the same wish; note who did."""
        self.made += 1
        wish = DefineTopic(definition=topic(self.made))
        done = []
        outcome = self.apply(wish)
        if isinstance(outcome, Done) and outcome.definition is not None:
            done.append(outcome.definition.index)
        for founder in self.founders.values():
            said = founder.append("definitions", command_to_json(wish))
            if not isinstance(said, GeorelayError):
                found = founder.definitions.topic_by_id(wish.definition.topic_id)
                assert found is not None
                done.append(found.index)
        assert len(done) <= 1, "two ordered"
        if done:
            assert done[0] > max(self.acknowledged.values(), default=0), "an index was given twice"
            self.acknowledged[wish.definition.topic_id] = done[0]


@given(st.lists(STEPS, min_size=5, max_size=30))
@example([("cede", 1), ("begin", 1), ("cede", 2), ("begin", 2), ("confirm", 1), ("confirm", 2)])  # given up, and back
def test_at_most_one_orders_and_nothing_that_was_answered_is_lost(steps: list[tuple[str, int]]) -> None:
    world = World()
    for verb, number in steps:
        world.step(verb, world.founders[number])
        world.define()
        orderers = [founder for founder in world.founders.values() if founder.state.is_open]
        assert len(orderers) <= 1
    for founder in world.founders.values():
        if founder.state.is_open:
            known = {row.topic_id: row.index for row in founder.definitions.topics()}
            assert known == world.acknowledged
