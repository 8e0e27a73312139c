"""Mesh control forgets deletions that every region has followed, and regions follow it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from georelay.cli.control import head_lines
from georelay.errors import PolicyViolation, Unavailable
from georelay.fields import JsonObject
from georelay.ids import BrokerId, RaftIndex, RegionNumber
from region.control.forgetting_core import KEPT_S, REMEMBERED_MAX, ForgettingDeletions
from region.control.leader_duties import ControlDuties
from region.controller import topic_rules
from region.controller.command_kinds import FORGET_LEVEL
from region.controller.commands import (
    DefineSecurity,
    DefineTopic,
    DropTopic,
    ForgetDeleted,
    RaiseFeatureLevel,
    decode,
    encode,
)
from region.controller.effects import Done, GroupDropped, Refused
from region.controller.forgotten_pull import ForgottenPull
from region.controller.mesh_rows import RegionRow, RegionState
from region.controller.state_core import ControllerState
from region.controller.topic import Tombstone
from region.security.definition import Grave, Kind
from region.security.user import User

Make = Callable[..., Any]
MANY = (REMEMBERED_MAX + 1, REMEMBERED_MAX + 1)
HEAD = {"generation": 1, "control_id": "a", "mesh_id": "m", "index": 1, "leader": 1001}
ROWS = [
    RegionRow(number=RegionNumber(number), name=name, level=FORGET_LEVEL)
    for number, name in ((1, "us"), (2, "eu"), (3, "ap"))
]


@pytest.fixture
def forgetting() -> ForgettingDeletions:
    made = ForgettingDeletions()
    for row, marks in zip(ROWS, ((30, 9), (20, 8), (25, 7)), strict=True):
        made.heard(row.number, marks)
    return made


def test_what_the_slowest_region_had_ten_minutes_ago_is_forgotten(forgetting: ForgettingDeletions) -> None:
    assert forgetting.due(0, ROWS, MANY) is None
    forgetting.heard(RegionNumber(2), (29, 9))
    assert forgetting.due(KEPT_S - 1, ROWS, MANY) is None
    assert forgetting.due(KEPT_S, ROWS, MANY) == ForgetDeleted(topics_to=20, security_to=7)
    assert forgetting.due(2 * KEPT_S, ROWS, MANY) == ForgetDeleted(topics_to=25, security_to=7)


@pytest.mark.parametrize(
    "held_back",
    [
        [*ROWS, RegionRow(number=RegionNumber(4), name="sa", level=FORGET_LEVEL)],  # it said nothing yet
        [*ROWS[:2], replace(ROWS[2], level=FORGET_LEVEL - 1)],
    ],
)
def test_a_region_that_said_nothing_or_is_older_holds_everything_back(
    forgetting: ForgettingDeletions, held_back: list[RegionRow]
) -> None:
    assert forgetting.due(0, held_back, MANY) is None
    assert forgetting.due(9 * KEPT_S, held_back, MANY) is None
    assert held_back[-1].name in forgetting.held_back_by(held_back, (0, 0))
    assert forgetting.due(9 * KEPT_S, ROWS, MANY) is None  # ten minutes count from here
    assert forgetting.due(10 * KEPT_S, ROWS, MANY) is not None


def test_a_region_that_left_holds_nothing_back(forgetting: ForgettingDeletions) -> None:
    rows = [*ROWS, RegionRow(number=RegionNumber(4), name="sa", state=RegionState.REMOVED)]
    forgetting.due(0, rows, MANY)
    assert forgetting.due(KEPT_S, rows, MANY) is not None
    assert forgetting.held_back_by(rows, (20, 7)) == []
    assert forgetting.held_back_by(rows, (30, 7)) == ["eu", "ap"]


def test_few_deletions_are_remembered_for_ever(forgetting: ForgettingDeletions) -> None:
    few = (REMEMBERED_MAX, REMEMBERED_MAX)
    forgetting.due(0, ROWS, few)
    assert forgetting.due(KEPT_S, ROWS, few) is None
    assert forgetting.due(2 * KEPT_S, ROWS, (REMEMBERED_MAX + 1, 0)) == ForgetDeleted(topics_to=20, security_to=0)


def test_nothing_is_ordered_while_nothing_more_is_to_be_forgotten(forgetting: ForgettingDeletions) -> None:
    assert forgetting.due(0, ROWS, MANY) is None
    assert forgetting.due(KEPT_S, ROWS, MANY, (20, 6)) is None  # index 7 is the newest, and stays
    assert forgetting.due(2 * KEPT_S, ROWS, MANY, (18, 7)) == ForgetDeleted(topics_to=20, security_to=0)


def test_a_new_leader_of_control_knows_nothing(forgetting: ForgettingDeletions) -> None:
    forgetting.due(0, ROWS, MANY)
    forgetting.clear()
    assert forgetting.due(KEPT_S, ROWS, MANY) is None


def test_topics_are_made_again_once_deletions_are_forgotten(
    control: Any, make_topic: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_rules, "TOMBSTONES_MAX", 3)
    for number in range(10, 13):
        control.define(DefineTopic(definition=make_topic(f"t{number}", number)))
        control.define(DropTopic(tombstone=Tombstone(name=f"t{number}", topic_id=number.to_bytes(16, "big"), index=0)))
    wish = DefineTopic(definition=make_topic("more", 20))
    refused = control.define(wish)
    assert isinstance(refused, PolicyViolation) and "georelay control status" in str(refused)
    control.define(ForgetDeleted(topics_to=control.definitions.index, security_to=0))
    assert control.definitions.deleted == (1, 0)  # the newest stays: by it regions know that they have all
    assert not isinstance(control.define(wish), Exception)


def test_users_are_deleted_again_once_deletions_are_forgotten(control: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region.controller.security_rules.SECURITY_GRAVES_MAX", 2)

    def delete(name: str) -> Any:
        control.define(DefineSecurity(definition=User(name=name)))
        return control.define(
            DefineSecurity(definition=Grave(kind=Kind.USER, key=name), replaces=control.definitions.security.index)
        )

    assert not any(isinstance(delete(name), Exception) for name in "ab")
    assert isinstance(delete("c"), PolicyViolation)
    control.define(ForgetDeleted(topics_to=0, security_to=control.definitions.security.index))
    assert control.definitions.deleted == (0, 0)
    assert not isinstance(delete("d"), Exception)


def test_forgetting_is_in_the_snapshot_of_control(control: Any, make_control: Make, home: Any) -> None:
    before = control.state.to_snapshot()
    assert b"forgotten" not in before  # what older versions read as long as nothing was
    control.define(DefineSecurity(definition=User(name="ann")))
    control.define(ForgetDeleted(topics_to=0, security_to=5))
    raw = control.state.to_snapshot()
    again = make_control()
    again.state.restore(raw)
    assert again.state.to_snapshot() == raw
    assert again.definitions.forgotten_to == control.definitions.forgotten_to


def test_a_region_of_level_7_refuses_to_forget(make_region: Make) -> None:
    region = make_region(2)
    region.apply(RaiseFeatureLevel(level=FORGET_LEVEL - 1))
    assert isinstance(region.apply(ForgetDeleted(topics_to=1, security_to=1)), Refused)
    region.apply(RaiseFeatureLevel(level=FORGET_LEVEL))
    assert isinstance(region.apply(ForgetDeleted(topics_to=1, security_to=1)), Done)
    assert ControllerState.from_snapshot(region.state.to_snapshot()).forgotten_to == (1, 1)


def test_a_region_keeps_its_position_when_its_newest_definition_is_a_deletion(make_region: Make) -> None:
    region = make_region(2)
    region.apply(RaiseFeatureLevel(level=FORGET_LEVEL))
    region.apply(DefineSecurity(definition=Grave(kind=Kind.USER, key="ann", index=5)))
    region.apply(DropTopic(tombstone=Tombstone(name="old", topic_id=bytes(16), index=6)))
    region.apply(ForgetDeleted(topics_to=9, security_to=9))
    again = ControllerState.from_snapshot(region.state.to_snapshot())
    assert (again.definitions_index, again.security.index) == (6, 5)


class Led:
    """What ControlDuties needs of a control that leads."""

    is_leader = True
    me = BrokerId(1001)

    def __init__(self, control: Any) -> None:
        self.regions, self.definitions, self.state = control.regions, control.definitions, control.state
        self.control = control

    async def propose(self, part: str, command: JsonObject) -> Any:
        return self.control.append(part, command)

    def status(self) -> JsonObject:
        return {"broker": 1001}


async def test_the_leader_forgets_what_regions_report_and_names_who_does_not(
    control: Any, make_topic: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("region.control.forgetting_core.KEPT_S", 0.0)
    monkeypatch.setattr("region.control.forgetting_core.REMEMBERED_MAX", 0)
    for number in (1, 2):
        control.define(DropTopic(tombstone=Tombstone(name="before", topic_id=(1).to_bytes(16, "big"), index=0)))
        control.define(DefineTopic(definition=make_topic(f"t{number}", number + 10)))
    duties = ControlDuties(Led(control))  # type: ignore[arg-type]

    async def report(number: int) -> None:
        broker = number * 1000 + 1
        applied = {"topics": control.definitions.index, "security": 0}
        candidate = {"broker": 0, "address": "", "gone": []}
        body = {"number": number, "brokers": [broker], "level": FORGET_LEVEL, "seeds": [], "candidate": candidate}
        await duties.methods["region.report"]({**body, "applied": applied}, BrokerId(broker))

    for number in (1, 2):
        await report(number)
    await duties.forget_deleted()
    said = await duties.methods["status"]({}, BrokerId(1001))
    assert said["deletions"] == {"topics": 1, "security": 0, "held_back_by": ["ap"]}
    assert any("1 deleted topics" in line and "ap did not follow" in line for line in head_lines({**HEAD, **said}))
    await report(3)
    await duties.forget_deleted()
    said = await duties.methods["status"]({}, BrokerId(1001))
    assert said["deletions"] == {"topics": 0, "security": 0, "held_back_by": []}
    assert len(head_lines({**HEAD, **said})) == 2


async def test_a_region_below_level_8_takes_nothing_where_deletions_are_forgotten(make_region: Make) -> None:
    async def never(_: Any) -> Any:
        raise AssertionError("nothing is asked or committed")

    answer: JsonObject = {"forgotten": {"topics": 5, "security": 0}}
    with pytest.raises(Unavailable, match="feature level 8"):
        await ForgottenPull().follow(answer, make_region(2).state, never, never)


def test_what_is_gone_everywhere_else_goes_with_its_streams(make_region: Make, make_topic: Make) -> None:
    region = make_region(2)
    region.apply(RaiseFeatureLevel(level=FORGET_LEVEL))
    region.apply(DefineTopic(definition=make_topic("old", 7, index=5)))
    command = ForgetDeleted(topics_to=0, security_to=0, topics=((7).to_bytes(16, "big"),), security=((Kind.USER, "x"),))
    assert decode(encode(command)) == command
    effects = region.state.apply(command, RaftIndex(region.index + 1))
    assert [type(effect) for effect in effects].count(GroupDropped) == 2
    assert region.state.topic_by_name("old") is None
    assert region.state.is_deleted((7).to_bytes(16, "big"))
    assert region.state.definitions_index == 5
