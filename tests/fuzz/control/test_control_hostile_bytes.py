"""Bytes and objects of a hostile or newer broker: refused with one error, never a crash, never taken in by half."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from georelay.errors import GeorelayError
from georelay.fields import FieldError
from georelay.ids import RaftIndex
from region.control.definitions_part import DefinitionsPart
from region.control.raft_wire import RaftFrameError, decode, encode
from region.control.regions_part import RegionsPart
from region.control.state_core import ControlState
from region.controller.commands import CommandError
from region.controller.mesh_rows import Charter, ControlRow, RegionRow, VoterRow
from region.controller.state_snapshot import SnapshotError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=40) | st.just("a" * 32),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=6),
    max_leaves=20,
)
NAMES = st.sampled_from(
    [
        "number",
        "name",
        "state",
        "seeds",
        "brokers",
        "witness",
        "level",
        "index",
        "replica",
        "broker",
        "disk",
        "address",
        "retired",
        "generation",
        "control_id",
        "members",
        "voters",
        "learners",
        "founder",
        "opened",
        "do",
        "v",
        "part",
    ]
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=12)


def state() -> ControlState:
    regions = RegionsPart()
    return ControlState([DefinitionsPart(regions.topology), regions])


@given(st.binary(max_size=200))
def test_bytes_are_a_frame_or_refused(raw: bytes) -> None:
    try:
        frame = decode(raw)
    except RaftFrameError:
        return
    assert encode(frame) == raw


@given(OBJECTS)
def test_rows_are_read_whole_or_refused(value: dict[str, Any]) -> None:
    for kind in (RegionRow, VoterRow, ControlRow, Charter):
        try:
            row = kind.from_json(value)
        except FieldError:
            continue
        assert kind.from_json(row.to_json()) == row


@given(st.sampled_from(["members", "regions", "definitions", "begin", "other"]), OBJECTS)
def test_a_command_is_applied_refused_or_stops_the_replica(part: str, command: dict[str, Any]) -> None:
    made = state()
    raw = json.dumps({"v": 1, "part": part, "at_us": 1, "command": command}).encode()
    try:
        made.apply(raw, RaftIndex(1))
    except CommandError:
        return
    assert isinstance(made.outcome(RaftIndex(1)), dict | GeorelayError)


@given(st.binary(max_size=100) | OBJECTS.map(lambda value: json.dumps(value).encode()))
def test_what_is_not_a_snapshot_is_refused(raw: bytes) -> None:
    try:
        state().restore(raw)
    except SnapshotError:
        return
    raise AssertionError("an arbitrary object was taken for a snapshot")
