"""Commands as JSON: nothing but a whole known command gets in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from georelay.ids import BrokerId
from region.controller.commands import (
    AllocateProducerIds,
    Command,
    CommandError,
    DefineTopic,
    DropTopic,
    FormRegion,
    RegisterBroker,
    decode,
    encode,
)
from region.controller.topic import Homes, Tombstone

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


@pytest.mark.parametrize(
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
        b'{"v":NaN}',
        b'{"v":true,"kind":"allocate_producer_ids","broker":1001,"count":1}',
        b'{"v":1,"kind":"allocate_producer_ids","broker":1001,"count":1000000}',
        b"[" * 200_000,
        b" " * 600_000,
        b'{"v":' + b"9" * 10_000 + b"}",
    ],
    ids=lambda raw: repr(raw[:40]),
)
def test_garbage_is_a_command_error(raw: bytes) -> None:
    with pytest.raises(CommandError):
        decode(raw)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
