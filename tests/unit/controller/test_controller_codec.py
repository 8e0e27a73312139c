"""Commands as JSON: nothing but a whole known command gets in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from georelay.ids import BrokerId, GroupId
from region.controller.commands import (
    AddBroker,
    AllocateProducerIds,
    AlterTopic,
    Command,
    CommandError,
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
from region.controller.topic import Homes, Tombstone
from tests.tiers import in_one_test

Make = Callable[..., Any]


@pytest.fixture
def every_command(topology: Make, definition: Make, registration: Make) -> list[Command]:
    return [
        FormRegion(topology=topology(2, regions=3)),
        RegisterBroker(registration=registration(1001)),
        DefineTopic(definition=definition()),
        DefineTopic(definition=definition(homes=Homes.EVERY, index=9)),
        DropTopic(tombstone=Tombstone(name="orders", topic_id=bytes(16), index=3)),
        AllocateProducerIds(broker=BrokerId(1001), count=1000),
        AlterTopic(definition=definition(index=4)),
        RaiseFeatureLevel(level=2),
        AddBroker(broker=BrokerId(1004), peers="h:1"),
        DrainBroker(broker=BrokerId(1004)),
        RemoveBroker(broker=BrokerId(1004)),
        MarkAbsent(broker=BrokerId(1004)),
        MarkPresent(broker=BrokerId(1004)),
        ReplaceDisk(registration=registration(1001, disk="new"), replaces="disk-1001"),
        ReplicasChanged(
            group_id=GroupId(0), voters=(BrokerId(1001),), learners=(BrokerId(1002), BrokerId(1003)), generation=7
        ),
        Reassign(group_id=GroupId(9), target=(BrokerId(1003), BrokerId(1001)), generation=7, pinned=2),
        ReplicaLost(group_id=GroupId(9), broker=BrokerId(1003), generation=7),
    ]


def test_every_command_survives_a_round_trip(every_command: list[Command]) -> None:
    for command in every_command:
        assert decode(encode(command)) == command


def test_every_missing_or_additional_field_is_refused(every_command: list[Command]) -> None:
    for command in every_command:
        whole = json.loads(encode(command))
        for name in whole:
            with pytest.raises(CommandError):
                decode(json.dumps({key: value for key, value in whole.items() if key != name}).encode())
        with pytest.raises(CommandError, match="unknown fields"):
            decode(json.dumps({**whole, "extra": 1}).encode())


@in_one_test(
    "raw",
    [
        b"",
        b"[]",
        b"nul",
        b"\xff",
        b'{"v":1}',
        b'{"v":2,"kind":"form_region"}',
        b'{"v":1,"kind":"melt"}',
        b'{"v":1,"v":1,"kind":"melt"}',
        b'{"v":1.0,"kind":"x"}',
        b'{"v":1,"kind":"reassign","group":1,"target":[1001,1001],"generation":0,"pinned":0}',
        b'{"v":1,"kind":"reassign","group":1,"target":["1001"],"generation":0,"pinned":0}',
        b'{"v":1,"kind":"replicas_changed","group":-1,"voters":[1001],"learners":[],"generation":0,"index":0}',
        b'{"v":1,"kind":"add_broker","broker":7,"peers":""}',
        b'{"v":NaN}',
        b'{"v":true,"kind":"allocate_producer_ids","broker":1001,"count":1}',
        b'{"v":1,"kind":"allocate_producer_ids","broker":1001,"count":1000000}',
        b"[" * 200_000,
        b" " * 600_000,
        b'{"v":' + b"9" * 10_000 + b"}",
    ],
)
def test_garbage_is_a_command_error(raw: bytes) -> None:
    with pytest.raises(CommandError):
        decode(raw)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_commands_give_a_command_or_a_command_error(every_command: list[Command], data: st.DataObject) -> None:
    raw = bytearray(encode(data.draw(st.sampled_from(every_command))))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(raw) - 1))
        raw[position] = data.draw(st.integers(0, 255))
    try:
        command = decode(raw)
    except CommandError:
        return
    assert decode(encode(command)) == command


@pytest.mark.parametrize("disks", ["{}", '{"+1001":"d"}', '{"1001":""}', '{"one":"d"}', '{"1001":5}', "[]"])
def test_founders_disks_are_read_strictly(topology: Make, disks: str) -> None:
    whole = json.loads(encode(FormRegion(topology=topology(1))))
    with pytest.raises(CommandError):
        decode(json.dumps({**whole, "disks": json.loads(disks)}).encode())


def test_founders_disks_survive_a_round_trip_in_order_of_the_brokers(topology: Make) -> None:
    disks = tuple((BrokerId(1000 + number), f"d{number}") for number in (2, 9, 10, 100))
    command = FormRegion(topology=topology(1), disks=disks)
    assert decode(encode(command)) == command
