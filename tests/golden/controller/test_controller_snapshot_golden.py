"""The bytes of a controller snapshot, for ever; and what is not one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from georelay.ids import BrokerId, GroupId, RaftIndex, RegionNumber
from region.controller.commands import (
    FEATURE_LEVEL_MAX,
    AddBroker,
    AllocateProducerIds,
    AlterTopic,
    Command,
    DefineTopic,
    DrainBroker,
    DropTopic,
    FormRegion,
    MarkAbsent,
    MarkPresent,
    RaiseFeatureLevel,
    Reassign,
    RegisterBroker,
    RemoveBroker,
    ReplaceDisk,
    ReplicaLost,
    ReplicasChanged,
    decode,
    encode,
)
from region.controller.registration import BrokerRegistration
from region.controller.state_core import ControllerState, Done
from region.controller.state_snapshot import SnapshotError
from region.controller.topic import Homes, Tombstone, TopicDefinition
from region.controller.topology import RegionInfo, Topology

SNAPSHOT = Path(__file__).with_name("snapshot.json")
COMMANDS = Path(__file__).with_name("commands.jsonl")
B1, B2, B3, B4 = (BrokerId(1000 + number) for number in range(1, 5))


def registration(broker: BrokerId, disk: str) -> BrokerRegistration:
    return BrokerRegistration(
        broker=broker,
        disk_uuid=disk,
        kafka_host="127.0.0.1",
        kafka_port=9092,
        grpc="127.0.0.1:1",
        link="127.0.0.1:2",
        admin="127.0.0.1:3",
        peers=f"127.0.0.1:{broker}",
        feature_level_max=2,
    )


def topic(number: int, *, index: int = 0, retention_ms: int = -1, homes: Homes = Homes.ONE) -> TopicDefinition:
    return TopicDefinition(
        name=f"topic-{number}",
        topic_id=number.to_bytes(16, "big"),
        partitions=1,
        replication_factor=3,
        homes=homes,
        home=RegionNumber(1 if homes is Homes.ONE else 0),
        retention_ms=retention_ms,
        retention_bytes=-1,
        config=(("segment.bytes", "65536"),),
        index=index,
    )


def every_command() -> list[Command]:
    regions = (
        RegionInfo(number=RegionNumber(1), name="us", brokers=(B1, B2, B3)),
        RegionInfo(number=RegionNumber(2), name="eu", brokers=(BrokerId(2001),)),
    )
    shape = Topology(mesh_id="mesh", region=RegionNumber(1), definitions_home=RegionNumber(1), regions=regions)
    return [
        FormRegion(topology=shape, disks=((B1, "one"), (B2, "two"), (B3, "three"))),
        RaiseFeatureLevel(level=2),
        RegisterBroker(registration=registration(B1, "one")),
        RegisterBroker(registration=registration(B2, "two")),
        AddBroker(broker=B4, peers="127.0.0.1:1004"),
        RegisterBroker(registration=registration(B4, "four")),
        DefineTopic(definition=topic(1)),
        DefineTopic(definition=topic(2, homes=Homes.EVERY)),
        DefineTopic(definition=topic(3)),
        AlterTopic(definition=topic(1, index=1, retention_ms=3_600_000)),
        DropTopic(tombstone=Tombstone(name="topic-3", topic_id=(3).to_bytes(16, "big"), index=0)),
        AllocateProducerIds(broker=B1, count=1000),
        ReplaceDisk(registration=registration(B3, "new"), replaces="three"),
        MarkAbsent(broker=B2),
        MarkPresent(broker=B2),
        ReplicasChanged(group_id=GroupId(0), voters=(B1, B2), learners=(B4,), generation=13),
        Reassign(group_id=GroupId(1), target=(B2, B1, B4), generation=7, pinned=3),
        ReplicaLost(group_id=GroupId(2), broker=B2, generation=8),
        DrainBroker(broker=B3),
        MarkAbsent(broker=B2),
        RemoveBroker(broker=B2),
    ]


def state_of(commands: list[Command]) -> ControllerState:
    state = ControllerState()
    for place, command in enumerate(commands):
        state.apply(command, RaftIndex(place + 1))
        assert isinstance(state.outcome(RaftIndex(place + 1)), Done), (command, state.outcome(RaftIndex(place + 1)))
    return state


def test_every_command_has_the_bytes_it_always_had() -> None:
    lines = COMMANDS.read_bytes().splitlines()
    assert [encode(command) for command in every_command()] == lines
    assert [decode(line) for line in lines] == every_command()


def test_snapshot_has_the_bytes_it_always_had() -> None:
    assert state_of(every_command()).to_snapshot() == SNAPSHOT.read_bytes()


def test_snapshot_of_the_file_is_read_and_written_back_the_same() -> None:
    assert ControllerState.from_snapshot(SNAPSHOT.read_bytes()).to_snapshot() == SNAPSHOT.read_bytes()


def test_empty_state_has_a_snapshot() -> None:
    assert (
        ControllerState.from_snapshot(ControllerState().to_snapshot()).to_snapshot() == ControllerState().to_snapshot()
    )


def without(name: str) -> bytes:
    whole = json.loads(SNAPSHOT.read_bytes())
    return json.dumps({key: value for key, value in whole.items() if key != name}).encode()


def changed(**values: Any) -> bytes:
    return json.dumps(json.loads(SNAPSHOT.read_bytes()) | values).encode()


def twice(name: str) -> bytes:
    rows = json.loads(SNAPSHOT.read_bytes())[name]
    return changed(**{name: [*rows, rows[0]]})


@pytest.mark.parametrize("name", sorted(json.loads(SNAPSHOT.read_bytes())))
def test_snapshot_with_a_missing_field_is_refused(name: str) -> None:
    with pytest.raises(SnapshotError):
        ControllerState.from_snapshot(without(name))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        changed(v=2),
        changed(extra=1),
        changed(feature_level=FEATURE_LEVEL_MAX + 1),
        changed(definitions_index=0),
        changed(next_group=1),
        changed(definitions=[]),
        twice("brokers"),
        twice("groups"),
        twice("definitions"),
        changed(control=json.loads(SNAPSHOT.read_bytes())["groups"][0]),
    ],
    ids=lambda raw: repr(raw[:30]),
)
def test_what_is_not_a_whole_snapshot_is_refused_and_changes_nothing(raw: bytes) -> None:
    state = state_of(every_command())
    before = state.to_snapshot()
    with pytest.raises(SnapshotError):
        state.restore(raw)
    assert state.to_snapshot() == before


def test_snapshot_that_wants_an_unsafe_replica_is_refused() -> None:
    control = json.loads(SNAPSHOT.read_bytes())["control"]
    with pytest.raises(SnapshotError, match="not safe"):
        ControllerState.from_snapshot(changed(control=control | {"unsafe": control["target"]}))
