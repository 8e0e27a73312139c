"""A region of two versions: what the first one reads keeps its bytes; nothing else is said before all can read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import PolicyViolation
from georelay.ids import BrokerId, GroupId, RaftIndex, RegionNumber
from region.controller.commands import (
    FEATURE_LEVEL_MAX,
    AddBroker,
    AlterTopic,
    Command,
    CommandError,
    DefineTopic,
    DrainBroker,
    FormRegion,
    LearnMesh,
    MarkAbsent,
    RaiseFeatureLevel,
    Reassign,
    RegisterBroker,
    ReplaceDisk,
    ReplicaLost,
    ReplicasChanged,
    decode,
    encode,
)
from region.controller.leader_duties import LeaderDuties
from region.controller.mesh_rows import RegionRow
from region.controller.state_core import ControllerState, Done, GroupAssigned, Refused

Make = Callable[..., Any]
B1 = BrokerId(1001)
# As the first version wrote them.
FIRST_VERSION = {
    "register": (
        b'{"kind":"register_broker","registration":{"admin":"127.0.0.1:3","broker":1001,"disk_uuid":"disk-1001",'
        b'"grpc":"127.0.0.1:1","kafka_host":"127.0.0.1","kafka_port":21000,"link":"127.0.0.1:2"},"v":1}'
    ),
    "form": (
        b'{"feature_level":1,"kind":"form_region","topology":{"definitions_home":1,"mesh_id":"mesh","region":1,'
        b'"regions":[{"brokers":[1001],"name":"us","number":1}]},"v":1}'
    ),
    "allocate": b'{"broker":1001,"count":1000,"kind":"allocate_producer_ids","v":1}',
    "drop": b'{"kind":"drop_topic","tombstone":{"index":3,"name":"orders","topic_id":"' + b"00" * 16 + b'"},"v":1}',
    "define": (
        b'{"definition":{"config":{},"home":1,"homes":"one","index":0,"name":"orders","partitions":2,'
        b'"replication_factor":3,"retention_bytes":-1,"retention_ms":-1,"topic_id":"00000000000000000000000000000001"},'
        b'"kind":"define_topic","v":1}'
    ),
}


@pytest.fixture
def formed(topology: Make) -> ControllerState:
    state = ControllerState()
    state.apply(FormRegion(topology=topology(1)), RaftIndex(1))
    return state


def apply(state: ControllerState, command: Command) -> Any:
    state.apply(command, RaftIndex(state.applied_index + 1))
    return state.outcome(state.applied_index)


@pytest.mark.parametrize("name", FIRST_VERSION)
def test_commands_of_the_first_version_keep_their_bytes(name: str) -> None:
    assert encode(decode(FIRST_VERSION[name])) == FIRST_VERSION[name]


def test_registration_at_level_1_has_the_first_versions_fields_only(registration: Make) -> None:
    told = replace(registration(1001), peers="127.0.0.1:9", feature_level_max=2)
    assert encode(RegisterBroker(registration=told.at_level(1))) == FIRST_VERSION["register"]
    assert decode(encode(RegisterBroker(registration=told))) == RegisterBroker(registration=told)


def test_region_forms_at_level_1(formed: ControllerState) -> None:
    assert formed.feature_level == 1 and not formed.has_life_cycle


@pytest.mark.parametrize(
    "command",
    [
        AddBroker(broker=B1),
        DrainBroker(broker=B1),
        MarkAbsent(broker=B1),
        ReplicasChanged(group_id=GroupId(1), voters=(B1,), learners=(), generation=0),
        Reassign(group_id=GroupId(1), target=(B1,), generation=0),
        ReplicaLost(group_id=GroupId(1), broker=B1, generation=0),
    ],
    ids=lambda command: type(command).__name__,
)
def test_life_cycle_does_not_exist_at_level_1(formed: ControllerState, command: Command) -> None:
    before = (formed.records.copy(), list(formed.assignments()))
    outcome = apply(formed, command)
    assert isinstance(outcome, Refused) and outcome.error is PolicyViolation and "upgrade" in outcome.text
    assert (formed.records, list(formed.assignments())) == before


def test_disks_and_topics_are_not_changed_by_new_commands_at_level_1(
    formed: ControllerState, registration: Make, definition: Make
) -> None:
    apply(formed, RegisterBroker(registration=registration(1001)))
    apply(formed, DefineTopic(definition=definition()))
    for command in (
        ReplaceDisk(registration=registration(1001, disk="other"), replaces="disk-1001"),
        AlterTopic(definition=replace(definition(index=1), retention_ms=5)),
    ):
        assert isinstance(apply(formed, command), Refused)


def test_configured_brokers_get_replicas_at_level_1_before_they_register(
    formed: ControllerState, definition: Make
) -> None:
    effects = formed.apply(DefineTopic(definition=definition(partitions=1)), RaftIndex(2))
    assigned = [effect for effect in effects if isinstance(effect, GroupAssigned)]
    assert [effect.voters for effect in assigned] == [(1001, 1002, 1003)]
    assert assigned[0].assignment.base_for(B1) == (1001, 1002, 1003)


def test_level_never_goes_back(formed: ControllerState, topology: Make) -> None:
    apply(formed, RaiseFeatureLevel(level=2))
    apply(formed, RaiseFeatureLevel(level=1))
    apply(formed, FormRegion(topology=topology(1, regions=3)))
    assert formed.feature_level == 2


def test_level_of_the_future_stops_this_broker(topology: Make) -> None:
    for command in (
        RaiseFeatureLevel(level=FEATURE_LEVEL_MAX + 1),
        FormRegion(topology=topology(1), feature_level=FEATURE_LEVEL_MAX + 1),
    ):
        with pytest.raises(CommandError):
            decode(encode(command))


def test_broker_of_an_older_version_is_not_let_back_in(formed: ControllerState, registration: Make) -> None:
    apply(formed, RaiseFeatureLevel(level=2))
    outcome = apply(formed, RegisterBroker(registration=registration(1001)))
    assert isinstance(outcome, Refused) and "newer version" in outcome.text


def test_configuration_adds_brokers_and_never_takes_one_away(
    formed: ControllerState, topology: Make, registration: Make
) -> None:
    apply(formed, RaiseFeatureLevel(level=2))
    for broker in (1001, 1002, 1003):
        apply(formed, RegisterBroker(registration=replace(registration(broker), feature_level_max=2)))
    apply(formed, FormRegion(topology=topology(1, brokers=5)))
    assert sorted(formed.records) == [1001, 1002, 1003, 1004, 1005]
    apply(formed, FormRegion(topology=topology(1, brokers=1)))
    assert sorted(formed.records) == [1001, 1002, 1003, 1004, 1005]
    assert formed.control is not None and set(formed.control.target) == {1001, 1002, 1003}


def test_a_region_is_older_until_it_said_that_it_is_at_the_level(formed: ControllerState) -> None:
    def says(level: int, index: int) -> None:
        row = RegionRow(number=RegionNumber(2), name="eu", level=level, index=index)
        assert isinstance(apply(formed, LearnMesh(control=None, regions=(row,), is_all=False)), Done)

    apply(formed, RaiseFeatureLevel(level=FEATURE_LEVEL_MAX))
    assert formed.older_regions(FEATURE_LEVEL_MAX) == ["eu"]  # nothing is known of it
    says(FEATURE_LEVEL_MAX - 1, 1)
    assert formed.older_regions(FEATURE_LEVEL_MAX) == ["eu"]
    says(FEATURE_LEVEL_MAX, 2)
    assert formed.older_regions(FEATURE_LEVEL_MAX) == []
    assert formed.older_regions(FEATURE_LEVEL_MAX + 1) == ["us", "eu"]


async def test_a_leader_that_was_told_of_fewer_regions_leaves_the_others_in_the_mesh(topology: Make) -> None:
    state, sent = ControllerState(), []
    for command in (FormRegion(topology=topology(1, regions=3)), RaiseFeatureLevel(level=2)):
        assert isinstance(apply(state, command), Done)

    async def commit(command: Command) -> Done:
        sent.append(command)
        return Done()

    duties = LeaderDuties(
        me=B1,
        state=state,
        topology=replace(topology(1, regions=1), definitions_home=RegionNumber(0)),
        disks=tuple,
        commit=commit,
        is_alive=lambda _: True,
        levels={},
        absent_after_s=1.0,
        moves_in_flight_max=1,
    )
    await duties.form()
    assert sent == []
