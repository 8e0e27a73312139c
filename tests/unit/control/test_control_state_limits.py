"""Mesh control's state at its edges: parts that come late, outcomes that are forgotten, beginnings that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from georelay.errors import BadRequest, PolicyViolation
from georelay.fields import FieldError, JsonObject
from georelay.ids import BrokerId, RaftIndex
from region.control.members_core import Members, founded
from region.control.state_core import BEGIN, OUTCOMES_REMEMBERED, ControlState, digest_of, encode, pieces_of
from region.controller.commands import CommandError
from region.controller.mesh_rows import REPLICA_NUMBER_MAX, REPLICAS_MAX
from region.controller.state_snapshot import SnapshotError

Make = Callable[..., Any]


class Counter:
    """A part that counts what it was told."""

    name = "counter"

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def apply(self, command: JsonObject, *, index: int, append_us: int) -> JsonObject:
        del index, append_us
        if "by" not in command:
            raise FieldError("counter lacks the field 'by'")
        self.value += int(str(command["by"]))
        return {"value": self.value}

    def snapshot(self) -> JsonObject:
        return {"value": self.value}

    def restore(self, raw: JsonObject) -> None:
        self.value = int(str(raw["value"]))

    def elected(self) -> None:
        """Nothing to do."""

    def deposed(self) -> None:
        """Nothing to do."""


def test_a_part_that_is_registered_late_follows_commands_and_begins_anew_with_the_state(
    home: Any, make_control: Make
) -> None:
    control = make_control()
    counter = Counter()
    control.state.register(counter)
    assert set(control.state.parts) == {"members", "definitions", "regions", "counter"}
    control.begin(home.state)
    control.open()
    assert control.append("counter", {"by": 2}) == {"value": 2}
    control.state.reset()
    assert counter.value == 0


def test_no_part_is_registered_twice_or_in_a_state_that_has_begun(control: Any, make_control: Make) -> None:
    with pytest.raises(AssertionError):
        control.state.register(Counter())
    fresh = make_control()
    fresh.state.register(Counter())
    with pytest.raises(AssertionError, match="counter"):
        fresh.state.register(Counter())


def test_a_command_that_its_part_cannot_read_is_refused_and_moves_the_index(home: Any, make_control: Make) -> None:
    control = make_control()
    control.state.register(Counter())
    control.begin(home.state)
    control.open()
    index = control.state.index
    outcome = control.append("counter", {})
    assert isinstance(outcome, BadRequest)
    assert str(outcome).startswith("counter: ")
    assert control.state.index == index + 1


def test_nobody_is_told_who_control_is_before_it_has_begun(home: Any, make_control: Make) -> None:
    control = make_control()
    assert control.state.row() is None
    control.begin(home.state)
    row = control.state.row()
    assert row is not None
    assert (row.generation, row.control_id, row.voters) == (1, "a" * 32, (1,))


def test_the_outcome_of_a_command_is_remembered_for_so_many_commands(make_control: Make) -> None:
    state = make_control().state
    raw = encode("regions", {}, at_us=1)
    for index in range(1, OUTCOMES_REMEMBERED + 2):
        state.apply(raw, RaftIndex(index))
    assert state.outcome(RaftIndex(1)) is None
    assert state.outcome(RaftIndex(2)) is not None


@pytest.mark.parametrize(
    "raw", [encode("members", {}, at_us=1)[:-2] + b"[]}", b'{"v":1,"part":"members","at_us":1,"command":[]}']
)
def test_a_command_that_is_no_object_stops_the_replica(control: Any, raw: bytes) -> None:
    with pytest.raises(CommandError):
        control.state.apply(raw, RaftIndex(99))


# --- the beginning --------------------------------------------------------------------------------


def test_control_is_opened_by_its_own_id_only(home: Any, make_control: Make) -> None:
    control = make_control()
    control.begin(home.state)
    assert isinstance(control.append(BEGIN, {"open": "b" * 32}), PolicyViolation)
    assert not control.state.is_open
    assert control.append(BEGIN, {"open": "a" * 32}) == {}
    assert control.state.is_open


@pytest.mark.parametrize("command", [{}, {"open": "not an id"}, {"digest": "0" * 32, "piece": 0, "of": 0, "text": ""}])
def test_a_piece_of_a_beginning_that_cannot_be_read_is_refused(make_control: Make, command: JsonObject) -> None:
    control = make_control()
    assert isinstance(control.append(BEGIN, command), BadRequest)
    assert not control.state.has_begun


@pytest.mark.parametrize("text", ["{}", "no JSON"])
def test_a_beginning_that_is_whole_and_no_snapshot_is_refused(make_control: Make, text: str) -> None:
    control = make_control()
    (piece,) = pieces_of(text.encode())
    assert isinstance(control.append(BEGIN, piece), BadRequest)
    assert not control.state.has_begun


def test_pieces_of_two_snapshots_do_not_make_one(make_control: Make) -> None:
    control = make_control()
    first, second = digest_of(b"one"), digest_of(b"two")
    assert control.append(BEGIN, {"digest": first, "piece": 0, "of": 2, "text": "x"}) == {}
    assert isinstance(control.append(BEGIN, {"digest": second, "piece": 1, "of": 2, "text": "y"}), BadRequest)


# --- snapshots ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (lambda parts: parts | {"later": {}}, "parts that this version does not know"),
        (lambda _: [], "parts that this version does not know"),
        (lambda parts: parts | {"regions": []}, "part regions of the snapshot is not an object"),
    ],
)
def test_a_snapshot_with_parts_of_another_version_is_refused(control: Any, parts: Any, said: str) -> None:
    raw = json.loads(control.state.to_snapshot())
    raw["parts"] = parts(raw["parts"])
    with pytest.raises(SnapshotError, match=said):
        control.state.restore(json.dumps(raw).encode())


def test_a_snapshot_taken_in_the_middle_of_a_beginning_goes_on_with_the_next_piece(
    home: Any, make_control: Make
) -> None:
    whole = make_control()
    whole.begin(home.state)
    text = whole.state.to_snapshot().decode()
    digest, half = digest_of(text.encode()), len(text) // 2
    before, after = make_control(), make_control()
    assert before.append(BEGIN, {"digest": digest, "piece": 0, "of": 2, "text": text[:half]}) == {}
    after.state.restore(before.state.to_snapshot())
    assert after.append(BEGIN, {"digest": digest, "piece": 1, "of": 2, "text": text[half:]}) == {
        "index": whole.state.index
    }
    assert after.state.to_snapshot() == whole.state.to_snapshot()


# --- members --------------------------------------------------------------------------------------


def add(members: Members, broker: int) -> JsonObject:
    return members.apply({"do": "add", "broker": broker, "address": "h:1"}, index=1, append_us=0)


def test_while_no_replica_was_made_the_voters_stay_who_they_are() -> None:
    members = Members()
    add(members, 1001)
    members.apply({"do": "reached", "voters": [1], "learners": []}, index=2, append_us=0)
    assert members.targets() == ((1,), ())


def test_control_has_so_many_replicas_and_refuses_one_more_but_names_those_it_has() -> None:
    members = Members()
    for region in range(1, REPLICAS_MAX + 1):
        add(members, region * 1000 + 1)
    with pytest.raises(PolicyViolation, match=f"{REPLICAS_MAX} replicas, its maximum"):
        add(members, (REPLICAS_MAX + 1) * 1000 + 1)
    assert add(members, 1001) == {"replica": 1}


def test_control_gives_out_no_number_beyond_the_last() -> None:
    members = Members()
    raw = founded(BrokerId(1001), replica=1, disk="d", address="h:1", index=1)
    members.restore(raw | {"next_replica": REPLICA_NUMBER_MAX - 1})
    assert add(members, 2001) == {"replica": REPLICA_NUMBER_MAX - 1}
    with pytest.raises(PolicyViolation, match="its maximum"):
        add(members, 3001)


@pytest.mark.parametrize("change", [{"next_replica": 1}, {"rows": 2}])
def test_a_snapshot_with_a_replica_twice_or_one_that_was_never_given_out_is_refused(change: dict[str, int]) -> None:
    raw = founded(BrokerId(1001), replica=1, disk="d", address="h:1", index=1)
    rows = raw["rows"]
    assert isinstance(rows, list)
    members = Members()
    with pytest.raises(FieldError, match="there twice, or were never given out"):
        members.restore(raw | change | {"rows": rows * change.get("rows", 1)})
    assert members.rows() == ()


def test_a_state_is_made_with_members_of_its_own_where_none_are_given() -> None:
    members = Members()
    assert ControlState([], members=members).members is members
    assert ControlState([]).members is not ControlState([]).members
