"""The bytes of security definitions in commands and snapshots, for ever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from georelay.ids import BrokerId, RaftIndex, RegionNumber
from region.controller.command_kinds import Command
from region.controller.commands import CommandError, DefineSecurity, FormRegion, RaiseFeatureLevel, decode, encode
from region.controller.state_core import ControllerState, Done
from region.controller.state_snapshot import SnapshotError
from region.controller.topology import RegionInfo, Topology
from region.security.acl import AclEntry, Operation, Pattern, Permission, Resource, ResourcePattern
from region.security.definition import AclList, Grave, Kind, Quota, Secret
from region.security.user import BearerToken, Mechanism, ScramKey, User

COMMANDS = Path(__file__).with_name("commands.jsonl")
SNAPSHOT = Path(__file__).with_name("snapshot.json")


def key(mechanism: Mechanism) -> ScramKey:
    size = mechanism.key_bytes
    return ScramKey(
        mechanism=mechanism,
        salt=bytes(range(16)),
        iterations=8192,
        stored_key=bytes([1]) * size,
        server_key=bytes([2]) * size,
    )


def every_command() -> list[DefineSecurity]:
    ann = User(
        name="ann",
        keys=(key(Mechanism.SCRAM_SHA_256), key(Mechanism.SCRAM_SHA_512)),
        expires_s=1_800_000_000,
        tokens=(BearerToken(name="ci", hash=bytes([3]) * 32, expires_s=1_700_000_000),),
    )
    entries = (
        AclEntry(principal="User:*", operation=Operation.DESCRIBE, host="10.0.0.1", permission=Permission.DENY),
        AclEntry(principal="User:ann", operation=Operation.ALL),
    )
    lists = [
        AclList(pattern=ResourcePattern(resource=resource, name=name, pattern=pattern), entries=entries)
        for resource, name, pattern in (
            (Resource.TOPIC, "orders.", Pattern.PREFIXED),
            (Resource.GROUP, "*", Pattern.LITERAL),
            (Resource.CLUSTER, "kafka-cluster", Pattern.LITERAL),
            (Resource.TRANSACTIONAL_ID, "t-1", Pattern.LITERAL),
            (Resource.QUEUE, "jobs", Pattern.LITERAL),
        )
    ]
    return [
        DefineSecurity(definition=Secret(value=bytes(range(32)))),
        DefineSecurity(definition=ann),
        DefineSecurity(definition=User(name="bob", is_enabled=False)),
        *(DefineSecurity(definition=acls) for acls in lists),
        DefineSecurity(
            definition=Quota(
                principal="User:*", produce_bytes_per_s=1_000_000, fetch_bytes_per_s=2, request_share_ppm=500_000
            )
        ),
        DefineSecurity(definition=Grave(kind=Kind.USER, key="bob"), replaces=3),
    ]


def state() -> ControllerState:
    regions = (RegionInfo(number=RegionNumber(1), name="us", brokers=(BrokerId(1001),)),)
    shape = Topology(mesh_id="mesh", region=RegionNumber(1), definitions_home=RegionNumber(1), regions=regions)
    made = ControllerState()
    commands: list[Command] = [
        FormRegion(topology=shape),
        RaiseFeatureLevel(level=2),
        RaiseFeatureLevel(level=3),
        *every_command(),
    ]
    for place, command in enumerate(commands):
        made.apply(command, RaftIndex(place + 1))
        assert isinstance(made.outcome(RaftIndex(place + 1)), Done), made.outcome(RaftIndex(place + 1))
    return made


def test_every_command_has_the_bytes_it_always_had() -> None:
    lines = COMMANDS.read_bytes().splitlines()
    assert [encode(command) for command in every_command()] == lines
    assert [decode(line) for line in lines] == every_command()


def test_snapshot_has_the_bytes_it_always_had() -> None:
    assert state().to_snapshot() == SNAPSHOT.read_bytes()
    assert ControllerState.from_snapshot(SNAPSHOT.read_bytes()).to_snapshot() == SNAPSHOT.read_bytes()


@pytest.mark.parametrize("place", range(len(every_command())))
def test_a_field_too_many_or_too_few_is_no_command(place: int) -> None:
    whole = json.loads(COMMANDS.read_bytes().splitlines()[place])
    (word,) = whole["definition"]
    for name in [*whole["definition"][word], None]:
        wrong = json.loads(json.dumps(whole))
        if name is None:
            wrong["definition"][word]["more"] = 1
        else:
            del wrong["definition"][word][name]
        with pytest.raises(CommandError):
            decode(json.dumps(wrong).encode())


def test_definitions_out_of_order_or_twice_are_no_snapshot() -> None:
    whole = json.loads(SNAPSHOT.read_bytes())
    for rows in (list(reversed(whole["security"])), [*whole["security"], whole["security"][-1]]):
        with pytest.raises(SnapshotError):
            ControllerState.from_snapshot(json.dumps(whole | {"security": rows}).encode())
