"""The replicated state of mesh control: how it begins, how indexes go on, what stops a replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from georelay.errors import BadRequest, TopicExists, Unavailable
from georelay.ids import RaftIndex
from region.control.state_core import BEGIN, ControlState, encode
from region.controller.commands import CommandError, DefineTopic
from region.controller.state_snapshot import SnapshotError

Make = Callable[..., Any]


def test_nothing_is_ordered_before_the_beginning_is_whole_and_open(
    home: Any, make_control: Make, make_topic: Make
) -> None:
    control = make_control()
    assert isinstance(control.define(DefineTopic(definition=make_topic("early"))), Unavailable)
    control.begin(home.state)
    assert isinstance(control.define(DefineTopic(definition=make_topic("early"))), Unavailable)
    control.open()
    assert not isinstance(control.define(DefineTopic(definition=make_topic("early"))), Exception)


def test_what_the_definitions_home_ordered_is_there_with_its_indexes(control: Any, home: Any) -> None:
    before = home.state.topic_by_name("before")
    assert control.definitions.topic_by_name("before") == before
    assert before.index == 1


def test_indexes_go_on_where_the_definitions_home_stopped(control: Any, home: Any, make_topic: Make) -> None:
    last = home.state.next_definition_index - 1
    control.define(DefineTopic(definition=make_topic("after", 2)))
    assert control.definitions.topic_by_name("after").index > last
    assert control.definitions.topic_by_name("after").index == control.state.index


def test_a_refused_command_moves_the_index_and_changes_nothing(control: Any, make_topic: Make) -> None:
    index, topics = control.state.index, list(control.definitions.topics())
    assert isinstance(control.define(DefineTopic(definition=make_topic("before", 9))), TopicExists)
    assert control.state.index == index + 1
    assert list(control.definitions.topics()) == topics


def test_time_never_goes_back(control: Any) -> None:
    control.append("members", {"do": "retire", "replica": 99}, at_us=500)
    control.append("members", {"do": "retire", "replica": 99}, at_us=400)
    assert control.state.clock_us == 500


def test_pieces_of_an_attempt_that_ended_in_a_crash_do_not_mix_with_the_next_one(home: Any, make_control: Make) -> None:
    control = make_control()
    control.append(BEGIN, {"digest": "0" * 32, "piece": 0, "of": 2, "text": "half"})
    control.begin(home.state)
    assert control.state.has_begun


def test_a_piece_out_of_order_and_a_snapshot_that_is_not_whole_are_refused(make_control: Make) -> None:
    control = make_control()
    assert isinstance(control.append(BEGIN, {"digest": "0" * 32, "piece": 1, "of": 2, "text": "x"}), BadRequest)
    assert isinstance(control.append(BEGIN, {"digest": "0" * 32, "piece": 0, "of": 1, "text": "x"}), BadRequest)
    assert not control.state.has_begun


def test_a_second_beginning_changes_nothing(control: Any, make_region: Make) -> None:
    before = control.state.to_snapshot()
    control.begin(make_region(regions=2).state, control_id="b" * 32)
    assert control.state.to_snapshot() == before


@pytest.mark.parametrize(
    "raw",
    [b"", b"{}", b"\xff", encode("unknown", {}, at_us=1), b'{"v":2,"part":"members","at_us":1,"command":{}}'],
    ids=repr,
)
def test_a_command_of_a_version_to_come_stops_the_replica(control: Any, raw: bytes) -> None:
    with pytest.raises(CommandError):
        control.state.apply(raw, RaftIndex(99))


def test_a_snapshot_brings_another_replica_to_the_same_state(
    control: Any, make_control: Make, make_topic: Make
) -> None:
    control.define(DefineTopic(definition=make_topic("after", 2)))
    other = make_control()
    other.state.restore(control.state.to_snapshot())
    assert other.state.to_snapshot() == control.state.to_snapshot()
    for replica in (control, other):
        replica.define(DefineTopic(definition=make_topic("later", 3)))
    assert other.state.to_snapshot() == control.state.to_snapshot()


def test_two_replicas_of_one_log_have_equal_snapshots(control: Any, make_control: Make, make_topic: Make) -> None:
    control.define(DefineTopic(definition=make_topic("after", 2)))
    control.append("regions", {"do": "add", "number": 4, "name": "sa", "seeds": [], "witness": False})
    other = make_control()
    for raw in control.log:
        other.take(raw)
    assert other.state.to_snapshot() == control.state.to_snapshot()


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"v":2}'], ids=repr)
def test_what_is_not_a_whole_snapshot_is_refused(control: Any, raw: bytes) -> None:
    with pytest.raises(SnapshotError):
        control.state.restore(raw)


def test_a_replica_that_begins_anew_forgets_everything(control: Any, make_control: Make) -> None:
    control.state.reset()
    assert control.state.to_snapshot() == make_control().state.to_snapshot()


def test_a_part_that_a_snapshot_does_not_know_begins_empty(control: Any) -> None:
    class Late:
        name = "late"
        value = 0

        def snapshot(self) -> dict[str, object]:
            return {"value": self.value}

        def restore(self, raw: dict[str, object]) -> None:
            self.value = int(str(raw["value"]))

    late = Late()
    state = ControlState([control.definitions, control.regions, late])  # type: ignore[list-item]
    late.value = 7
    state.restore(control.state.to_snapshot())
    assert late.value == 0
