"""One principal may have as many topics and streams as stay free beside it: nobody uses up the mesh for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import PolicyViolation, Throttled
from georelay.fields import JsonObject
from georelay.ids import BrokerId
from region.control import definitions_part
from region.control.pace_core import CreationPace
from region.control.recovery import recovered_snapshot
from region.controller.command_kinds import OWNERS_LEVEL
from region.controller.commands import AlterTopic, DefineTopic, DropTopic, decode, encode
from region.controller.definition_orders import DefinitionOrders
from region.controller.effects import Done
from region.controller.mesh_rows import VoterRow
from region.controller.topic import Homes, Tombstone, TopicSpec
from region.security.access import Access, Principal

Make = Callable[..., Any]
ANN, BOB = "User:ann", "User:bob"


@pytest.fixture
def create(control: Any, make_topic: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Return who creates a topic; whether it was. The mesh has room for 9 topics beside the one that is there."""
    monkeypatch.setattr(definitions_part, "TOPICS_MAX", 10)

    def made(number: int, by: str, **given: Any) -> bool:
        outcome = control.define(DefineTopic(definition=make_topic(f"t{number}", number, **given), by=by))
        assert isinstance(outcome, dict | PolicyViolation)
        assert isinstance(outcome, dict) or by in str(outcome)
        return isinstance(outcome, dict)

    return made


def test_one_principal_leaves_room_for_the_next(create: Callable[..., bool]) -> None:
    assert [create(number, ANN) for number in range(10, 17)].count(True) == 4
    assert [create(number, BOB) for number in range(20, 27)].count(True) == 2
    assert create(30, "User:eve")
    assert create(31, "") and create(32, "")  # nobody's: an administrator's, or a topic of brokers


def test_streams_are_shared_too(control: Any, create: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions_part, "TOPICS_MAX", 1_000)
    monkeypatch.setattr(definitions_part, "GROUPS_PER_BROKER_MAX", 2 + 24)
    assert [create(number, ANN, homes=Homes.EVERY) for number in range(10, 14)] == [True, True, False, False]
    assert create(20, BOB, homes=Homes.EVERY)  # two partitions in three regions
    assert not create(21, BOB)


def test_a_topic_does_not_grow_beyond_the_share_of_its_owner(
    control: Any, create: Callable[..., bool], make_topic: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions_part, "GROUPS_PER_BROKER_MAX", 2 + 20)

    def grown(number: int, partitions: int) -> Any:
        known = control.definitions.topic_by_name(f"t{number}")
        return control.define(AlterTopic(definition=replace(known, partitions=partitions)))

    assert create(10, ANN) and create(11, "")
    assert isinstance(grown(10, 10), PolicyViolation)
    assert not isinstance(grown(10, 9), Exception)
    assert not isinstance(grown(11, 10), Exception)


def test_a_deleted_topic_makes_room(control: Any, create: Callable[..., bool]) -> None:
    assert [create(number, ANN) for number in range(10, 15)] == [True, True, True, True, False]
    control.define(DropTopic(tombstone=Tombstone(name="t10", topic_id=(10).to_bytes(16, "big"), index=0)))
    assert create(14, ANN)


def test_the_same_wish_again_is_answered_although_the_share_is_full(create: Callable[..., bool]) -> None:
    assert [create(number, ANN) for number in range(10, 15)] == [True, True, True, True, False]
    assert create(13, ANN)


def test_owners_are_in_snapshots_and_outlive_a_recovery(
    control: Any, create: Callable[..., bool], make_control: Make
) -> None:
    assert b"owners" not in control.state.to_snapshot()  # what older versions read as long as nobody has one
    assert [create(number, ANN) for number in range(10, 14)] == [True, True, True, True]
    survivor = VoterRow(replica=1, broker=BrokerId(1001), disk="disk", address="")
    again = make_control()
    again.state.restore(recovered_snapshot(control.state, survivor, control_id="b" * 32))
    assert again.state.to_snapshot().count(ANN.encode()) == 1
    wish = DefineTopic(definition=control.definitions.topic_by_name("t13"), by=ANN)
    assert decode(encode(wish)) == wish
    again.append("definitions", {**definitions_part.command_to_json(wish)})
    raw = again.state.to_snapshot()
    again.state.restore(raw)
    assert again.state.to_snapshot() == raw


@pytest.mark.parametrize("knows", [False, True])
async def test_whose_a_topic_is_is_written_once_every_region_can_read_it(
    control: Any, make_topic: Make, knows: bool
) -> None:
    commands: list[Any] = []

    async def commit(command: Any) -> Done:
        commands.append(command)
        return Done(definition=make_topic("orders"))

    for number in (1, 2, 3):
        level = OWNERS_LEVEL if knows or number < 3 else OWNERS_LEVEL - 1
        said = {"number": number, "brokers": [number * 1000 + 1], "level": level, "seeds": []}
        control.append("regions", {"do": "report", **said})
    orders = DefinitionOrders(
        books=control.definitions,
        topology=control.regions.topology,
        commit=commit,
        ordered=lambda _: None,
        keeps_owners=control.regions.keep_owners,
    )
    body: JsonObject = {
        "spec": TopicSpec(name="orders", partitions=1, replication_factor=1, home="us").to_json(),
        "topic_id": bytes(16).hex(),
        "if_absent": False,
        "by": ANN,
    }
    await orders.create(body)
    assert [command.by for command in commands] == [ANN if knows else ""]


def test_a_principal_creates_so_fast_and_no_faster() -> None:
    pace = CreationPace()
    for _ in range(20):
        pace.take(ANN, 100, 0.0)
    with pytest.raises(Throttled, match="in 1 s"):
        pace.take(ANN, 1, 0.0)
    with pytest.raises(Throttled, match="in 90 s"):
        pace.take(ANN, 100, 10.0)
    pace.take(ANN, 10, 10.0)
    pace.take(BOB, 1_000, 10.0)
    for _ in range(3):
        pace.take("", 1_000, 10.0)  # an administrator


def test_many_principals_are_no_more_than_so_many_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region.control.pace_core.PRINCIPALS_MAX", 2)
    pace = CreationPace()
    pace.take(ANN, 2_000, 0.0)
    pace.take(BOB, 1, 0.0)
    pace.take("User:eve", 1, 0.0)
    with pytest.raises(Throttled):
        pace.take(ANN, 1, 0.5)
    pace.take(BOB, 2_000, 0.5)  # its bucket was the fullest, so it was forgotten


async def test_what_comes_too_fast_is_not_ordered(control: Any) -> None:
    async def never(_: Any) -> Done:
        raise AssertionError("it was ordered")

    pace = CreationPace()
    pace.take(ANN, 2_000, 0.0)
    orders = DefinitionOrders(
        books=control.definitions,
        topology=control.regions.topology,
        commit=never,
        ordered=lambda _: None,
        pace=lambda by, partitions: pace.take(by, partitions, 0.0),
    )
    spec = TopicSpec(name="orders", partitions=1, replication_factor=1, home="us")
    with pytest.raises(Throttled):
        await orders.create({"spec": spec.to_json(), "topic_id": bytes(16).hex(), "if_absent": False, "by": ANN})


def test_who_signs_in_nowhere_has_no_share() -> None:
    assert Access.open().share_of(Principal.of_user("ann")) == ""
