"""Bytes of mesh control that never change: frames between replicas, commands in logs, snapshots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from georelay.ids import BrokerId, Epoch, Offset, RaftIndex, RegionNumber
from mesh.home.home_row import HomeRow
from region.control.definitions_part import DefinitionsPart
from region.control.members_core import founded as founded_members
from region.control.raft_wire import NEWER, RaftFrame, decode, encode
from region.control.regions_part import RegionsPart
from region.control.regions_part import founded as founded_regions
from region.control.replica import ReplicaName
from region.control.state_core import ControlState
from region.control.state_core import encode as encode_command
from region.controller import commands
from region.controller.commands import CedeDefinitions, Command, DefineHome, LearnMesh, OpenControl
from region.controller.mesh_rows import Charter, ControlRow, RegionRow, RegionState, VoterRow

HERE = Path(__file__).parent
ID = "0123456789abcdef" * 2
FRAMES = [
    RaftFrame(ID, 1, 2, 3, 0x1111, 0x2222, 1, False, b"raft"),
    RaftFrame(ID, 1, 2, 3, 0x1111, 0, 0, False, b""),
    RaftFrame(ID, 7, 3, 2, 0x2222, 0x1111, 2, True, b"half a beat"),
    RaftFrame(ID, 8, 3, 2, 0, 0, NEWER, False, b""),
]
VOTER = VoterRow(replica=3, broker=BrokerId(2001), disk="disk", address="10.0.2.1:19095")
HOME = HomeRow(
    topic_id=bytes(range(16)),
    partition=0,
    home=RegionNumber(2),
    epoch=Epoch(2),
    start=Offset(10),
    digest=bytes(16),
    table=((Epoch(1), Offset(0)), (Epoch(2), Offset(10))),
    homes=((Epoch(1), RegionNumber(1)), (Epoch(2), RegionNumber(2))),
    regions=(RegionNumber(1), RegionNumber(2)),
    last_epoch=Epoch(2),
    moving=None,
    index=60,
)
REGION = RegionRow(
    number=RegionNumber(4),
    name="sa",
    state=RegionState.DRAINING,
    seeds=("4001@10.0.4.1:19095",),
    brokers=(BrokerId(4001),),
    level=4,
    index=13,
)
COMMANDS: list[Command] = [
    DefineHome(rows=(HOME,)),
    CedeDefinitions(charter=Charter(control_id=ID, founder=BrokerId(1001), disk="disk-1001", index=9)),
    OpenControl(control_id=ID),
    LearnMesh(
        control=ControlRow(generation=2, control_id=ID, members=(VOTER,), voters=(3,), learners=(), index=14),
        regions=(REGION,),
    ),
    LearnMesh(control=None, regions=()),
    LearnMesh(control=None, regions=(REGION,), is_all=False),
]


def state() -> ControlState:
    regions = RegionsPart()
    made = ControlState([DefinitionsPart(regions.topology), regions])
    first = {
        "v": 1,
        "generation": 2,
        "control_id": ID,
        "is_open": True,
        "index": 14,
        "clock_us": 1_700_000_000_000_000,
        "pieces": [],
        "pieces_of": "",
        "parts": {
            "regions": founded_regions("mesh", [REGION]),
            "members": founded_members(BrokerId(2001), replica=3, disk="disk", address="10.0.2.1:19095", index=14),
        },
    }
    made.restore(json.dumps(first).encode())
    made.apply(encode_command("regions", {"do": "keep", "number": 4}, at_us=1_700_000_000_000_001), RaftIndex(5))
    return made


def transcript() -> str:
    lines = [f"frame {encode(frame).hex()}" for frame in FRAMES]
    lines += [f"command {commands.encode(command).decode()}" for command in COMMANDS]
    lines.append(f"control {encode_command('regions', {'do': 'keep', 'number': 4}, at_us=17).decode()}")
    lines.append(f"snapshot {state().to_snapshot().decode()}")
    lines.append(f"folder {ReplicaName(generation=2, control_id=ID, replica=3, founder=True)}")
    return "\n".join(lines) + "\n"


def test_everything_has_the_bytes_it_always_had(request: pytest.FixtureRequest) -> None:
    golden = HERE / "control-1.txt"
    if request.config.getoption("--rewrite"):
        golden.write_text(transcript())
    assert transcript() == golden.read_text()


def test_what_is_written_is_read_back_the_same() -> None:
    for frame in FRAMES:
        read = decode(encode(frame))
        assert read._replace(payload=bytes(read.payload)) == frame
    for command in COMMANDS:
        assert commands.decode(commands.encode(command)) == command
    again = ControlState(list(state().parts.values())[1:])
    again.restore(state().to_snapshot())
    assert again.to_snapshot() == state().to_snapshot()


@pytest.mark.parametrize("founder", [True, False])
def test_a_folder_says_which_replica_is_in_it(founder: bool) -> None:
    name = ReplicaName(generation=2, control_id=ID, replica=3, founder=founder)
    assert ReplicaName.parse(str(name)) == name


@pytest.mark.parametrize(
    "name", ["retired", "groups", f"0-{ID}-1", f"1-{ID}", f"1-{ID}-0", f"1-{ID}-1-else", "1-xyz-1"]
)
def test_another_folder_is_no_replica(name: str) -> None:
    assert ReplicaName.parse(name) is None
