"""No epoch of a stream ever has two homes, whatever a survivor lacks when mesh control is recovered from it.

Every history of a small mesh: up to two moves in the first generation, a recovery from a replica that holds any prefix
of it (or from what a region's controller had pulled), up to two moves in the second, another recovery, one move more.
The shipping parts, books and recovery; what was lost with the majority counts too: regions may have heard of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from georelay.errors import BadRequest, PolicyViolation
from georelay.fields import JsonObject, dump_object, parse_object
from georelay.ids import BrokerId, Offset, RaftIndex, RegionNumber, StreamKey
from mesh.home import epoch_core
from mesh.home.epoch_core import COUNT_BITS, GENERATIONS_MAX, ceiling_of, floor_of, next_epoch
from mesh.home.home_book_core import Ending
from mesh.home.home_row import EPOCH_MAX, HomeRow, MoveKind
from region.control import members_core, regions_part
from region.control.definitions_part import DefinitionsPart
from region.control.recovery import recovered_snapshot, remembered_snapshot
from region.control.regions_part import RegionsPart
from region.control.state_core import ControlState, encode
from region.controller.commands import (
    Command,
    DefineHome,
    DefineTopic,
    FormRegion,
    LearnMesh,
    RaiseFeatureLevel,
    RegisterBroker,
)
from region.controller.definition_orders import definition_to_json
from region.controller.mesh_rows import ControlRow, RegionRow, VoterRow
from region.controller.registration import BrokerRegistration
from region.controller.state_core import ControllerState
from region.controller.topic import Homes, TopicDefinition
from region.controller.topology import RegionInfo, Topology
from region.homes.mesh_topics import ControlTopics
from region.homes.part import HomesPart, begin_command, end_command

REGIONS = (RegionNumber(1), RegionNumber(2), RegionNumber(3))
NAMES = ("us", "eu", "ap")
TOPIC = TopicDefinition(
    name="orders", topic_id=b"t" * 16, partitions=1, replication_factor=1, homes=Homes.ONE, home=REGIONS[0],
    retention_ms=-1, retention_bytes=-1, config=(), index=1,
)  # fmt: skip
KEY = StreamKey(TOPIC.topic_id, RegionNumber(0), 0)
SURVIVOR = VoterRow(replica=1, broker=BrokerId(1001), disk="d", address="h:1")
IDS = {1: "1" * 32, 2: "2" * 32, 3: "3" * 32}
ROWS = [
    RegionRow(number=number, name=name, brokers=(BrokerId(number * 1000 + 1),), level=4, index=1)
    for number, name in zip(REGIONS, NAMES, strict=True)
]
FIRST: JsonObject = {
    "v": 1,
    "generation": 1,
    "control_id": IDS[1],
    "is_open": True,
    "index": 1,
    "clock_us": 1,
    "pieces": [],
    "pieces_of": "",
    "parts": {
        "definitions": {"index": 1, "topics": [definition_to_json(TOPIC)], "security": []},
        "regions": regions_part.founded("mesh", ROWS),
        "members": members_core.founded(BrokerId(1001), replica=1, disk="d", address="h:1", index=1),
    },
}


class Replica:
    """One replica of control's state, and every epoch that its commands gave out."""

    def __init__(self, snapshot: bytes) -> None:
        regions = RegionsPart()
        definitions = DefinitionsPart(regions.topology)
        self.homes = HomesPart(ControlTopics(definitions, regions))
        self.state = ControlState([definitions, regions, self.homes])
        self.state.restore(snapshot)
        self.index = 0

    @property
    def row(self) -> HomeRow:
        row = self.homes.row(KEY)
        assert row is not None
        return row

    def apply(self, command: JsonObject) -> None:
        self.index += 1
        self.state.apply(encode("homes", command, at_us=1), RaftIndex(self.index))
        assert self.state.outcome(RaftIndex(self.index)) == {"refused": []}

    def begin(self, target: RegionNumber) -> None:
        self.apply(begin_command([KEY], move_id=f"m-{self.index}-{target}", kind=MoveKind.FORCED, target=target))

    def end(self) -> None:
        moving = self.row.moving
        assert moving is not None
        ending = Ending(key=KEY, move_id=moving.move_id, home=moving.target, start=Offset(0), digest=bytes(16))
        self.apply(end_command([ending]))


Steps = tuple[RegionNumber, ...]  # targets of moves, one after the other
Given = tuple[tuple[int, int], ...]  # (epoch, home) as regions may have heard it; of an attempt the home to be


def lives(snapshot: bytes, *, moves_max: int) -> Iterator[tuple[list[bytes], list[Given], list[HomeRow]]]:
    """Yield for every sequence of moves what a replica holds after each command, and what was given out by then."""
    for targets in (steps for count in range(moves_max + 1) for steps in product(REGIONS, repeat=count)):
        replica = Replica(snapshot)
        held, given, rows = [replica.state.to_snapshot()], [given_of(replica.row)], [replica.row]
        for target in targets:
            for ends in (False, True):
                replica.end() if ends else replica.begin(target)
                held.append(replica.state.to_snapshot())
                given.append(given_of(replica.row))
                rows.append(replica.row)
        yield held, given, rows


def given_of(row: HomeRow) -> Given:
    begun = () if row.moving is None else ((int(row.moving.epoch), int(row.moving.target)),)
    return (*((int(epoch), int(home)) for epoch, home in row.homes), *begun)


def recovered(held: bytes, generation: int) -> bytes:
    replica = Replica(held)
    return recovered_snapshot(replica.state, SURVIVOR, control_id=IDS[generation])


def remembered(row: HomeRow, generation: int) -> bytes:
    """Return the next generation as a region's controller makes it that had pulled `row`."""
    state = ControllerState()
    topology = Topology(
        mesh_id="mesh", region=REGIONS[0], definitions_home=REGIONS[0],
        regions=tuple(
            RegionInfo(number=region.number, name=region.name, brokers=region.brokers) for region in ROWS
        ),
    )  # fmt: skip
    registration = BrokerRegistration(
        broker=BrokerId(1001), disk_uuid="d", kafka_host="h", kafka_port=1, grpc="h:1", link="h:1", admin="h:1",
        feature_level_max=4,
    )  # fmt: skip
    control = ControlRow(generation=generation - 1, control_id=IDS[generation - 1], members=(), voters=(), index=1)
    commands: list[Command] = [
        FormRegion(topology=topology), RegisterBroker(registration=registration), RaiseFeatureLevel(level=4),
        LearnMesh(control=control, regions=tuple(ROWS)), DefineTopic(definition=TOPIC),
        *([DefineHome(rows=(row,))] if row.index else []),
    ]  # fmt: skip
    for index, command in enumerate(commands, start=1):
        state.apply(command, RaftIndex(index))
    return remembered_snapshot(state, control, SURVIVOR, control_id=IDS[generation], at_us=1)


def agree(*heard: Given) -> bool:
    """Return whether no epoch has two homes in what was ever said."""
    homes: dict[int, int] = {}
    return all(homes.setdefault(epoch, home) == home for said in heard for epoch, home in said)


def test_no_epoch_has_two_homes_after_any_recovery_from_any_survivor() -> None:
    histories = 0
    for held, given, rows in lives(dump_object(FIRST), moves_max=2):
        for cut in range(len(held)):
            for again in (recovered(held[cut], 2), remembered(rows[cut], 2)):
                for _, given2, _ in lives(again, moves_max=1):
                    histories += 1
                    assert agree(*given[cut:], *given2)
                    assert not (_numbers(given[-1]) - _numbers(given[cut])) & _numbers(given2[-1])
    assert histories > 300


def test_no_epoch_has_two_homes_after_a_second_recovery_either() -> None:
    first = Replica(dump_object(FIRST))
    first.begin(REGIONS[1])
    first.end()
    lost = given_of(first.row)
    for held, given, rows in lives(recovered(dump_object(FIRST), 2), moves_max=2):
        for cut in range(len(held)):
            for again in (recovered(held[cut], 3), remembered(rows[cut], 3)):
                third = Replica(again)
                third.begin(REGIONS[2])
                third.end()
                assert agree(lost, *given[cut:], given_of(third.row))
                assert third.row.epoch not in _numbers(lost) | _numbers(given[-1])


@pytest.mark.parametrize("target", REGIONS)
def test_an_attempt_that_the_lost_majority_may_have_ended_goes_on_in_another_epoch(target: RegionNumber) -> None:
    first = Replica(dump_object(FIRST))
    first.begin(REGIONS[1])
    survivor = first.state.to_snapshot()
    first.end()  # only the lost majority knew of it
    second = Replica(recovered(survivor, 2))
    moving = second.row.moving
    assert moving is not None and moving.epoch > first.row.epoch
    assert second.row.index == second.state.index  # regions pull it
    ending = Ending(key=KEY, move_id=moving.move_id, home=target, start=Offset(0), digest=bytes(16))
    second.apply(end_command([ending]))
    assert agree(given_of(first.row), given_of(second.row))


def _numbers(given: Given) -> set[int]:
    return {epoch for epoch, _ in given}


# --- the numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [2, 3, GENERATIONS_MAX - 1, GENERATIONS_MAX])
def test_generations_have_numbers_of_their_own_that_fit_into_31_bits(generation: int) -> None:
    for control_id in ("0" * 32, "f" * 32, IDS[2]):
        floor = floor_of(generation, control_id)
        before = ceiling_of(floor_of(generation - 1, control_id) if generation > 2 else epoch_core.FIRST_FLOOR)
        assert before < next_epoch(1, floor=floor) <= ceiling_of(floor) <= EPOCH_MAX
        assert ceiling_of(floor) - floor >= (1 << COUNT_BITS) // 2


def test_two_recoveries_of_one_generation_begin_apart() -> None:
    assert floor_of(2, "a" * 32) != floor_of(2, "b" * 32)


def test_a_generation_never_gives_out_a_number_of_the_next_one() -> None:
    floor = floor_of(2, IDS[2])
    assert next_epoch(ceiling_of(floor) - 1, floor=floor) == ceiling_of(floor)
    with pytest.raises(BadRequest, match="too often"):
        next_epoch(ceiling_of(floor), floor=floor)
    with pytest.raises(BadRequest, match="too often"):
        next_epoch(ceiling_of(0), floor=0)


def test_the_last_generation_cannot_be_recovered() -> None:
    last = parse_object(dump_object(FIRST)) | {"generation": GENERATIONS_MAX}
    with pytest.raises(PolicyViolation, match="as often as it can be"):
        recovered_snapshot(Replica(dump_object(last)).state, SURVIVOR, control_id=IDS[2])


def test_the_floor_is_in_the_snapshot_and_a_mesh_that_was_never_recovered_has_none() -> None:
    first = Replica(dump_object(FIRST))
    assert "epochs_above" not in first.homes.snapshot()
    second = Replica(recovered(first.state.to_snapshot(), 2))
    assert second.homes.snapshot()["epochs_above"] == floor_of(2, IDS[2])
    again = Replica(second.state.to_snapshot())
    again.begin(REGIONS[1])
    assert again.row.last_epoch == floor_of(2, IDS[2]) + 1
